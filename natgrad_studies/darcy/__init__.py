"""The Darcy study: a log-permeability field from pressures, natural gradients beside L-BFGS.

| file | what it holds |
|---|---|
| `settings.py` | the settings and their presets |
| `flow.py` | the equation by finite volumes, its residual and its matrix |
| `prior.py` | smoothness of the field, and coordinates in which it is white |
| `truth.py` | the field to be found, and data from a finer grid |
| `inversion.py` | the inverse problem in either coordinates |
| `methods.py`, `runs.py` | what is compared, and one run of it |
| `posterior.py` | what the data leave open |
| `results.py` | what is computed, and the results file |
| `figures.py`, `maps.py` | pictures |
| `tables.py`, `text.py` | words |
| `study.py` | all of it in order |
"""
