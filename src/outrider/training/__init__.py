"""`outrider train`: makes an EAGLE-3 head (Li et al. 2025) for a target that an engine here runs, or distils
a draft model for it (DistillSpec, Zhou et al. 2024).

`texts.py` has the target write texts, and `records.py` keeps what it computes over them: hidden states for a
head (`states.py`), probabilities for a draft model (`probabilities.py`). `trainer.py` fits a lesson to these:
`head_lesson.py` or `draft_lesson.py`. `export.py` and `draft_files.py` write the files. `base_run.py` is
all of it in order, `head_run.py` and `draft_run.py` what each has of its own.
PyTorch and safetensors, of the extra `outrider[train]`, are imported only in `run.py` and what it imports,
and that only by the command.
"""
