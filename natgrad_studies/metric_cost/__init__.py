"""The metric cost study: table 2 and figure 1 of the paper (section 3.4), for all our metrics.

| file | what it holds |
|---|---|
| `settings.py` | the settings and their presets |
| `methods.py` | the metrics, how they are computed, and what the paper says of their cost |
| `clock.py` | CPU seconds of a call, and of its first one |
| `measure.py` | the operations of one metric on one grid, timed |
| `sparse_qr.py` | the paper's way to W₂: SuiteSparseQR of Bᵀ, on the host |
| `growth.py` | exponents of growth |
| `results.py` | what is computed, and the results file |
| `figures.py`, `labels.py` | pictures |
| `tables.py`, `text.py` | words |
| `study.py` | all of it in order |
"""
