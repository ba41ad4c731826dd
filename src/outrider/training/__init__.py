"""`outrider train`: makes an EAGLE-3 head (Li et al. 2025) for a target that an engine here runs.

`texts.py` has the target write texts, `states.py` keeps the hidden states of its passes over them,
`trainer.py` fits `head.py` to these, and `export.py` writes the head's files. `run.py` is all of it in order.
PyTorch and safetensors, of the extra `outrider[train]`, are imported only in `run.py` and what it imports,
and that only by the command.
"""
