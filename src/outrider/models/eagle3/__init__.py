"""EAGLE-3 heads (Li et al. 2025): small drafters that read their target's hidden states.

Three dialects of files hold them; each reader makes an `Eagle3Head`. `open.py` finds out what a file is.
"""
