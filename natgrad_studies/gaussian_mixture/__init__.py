"""The Gaussian mixture study: the paper's section 4.1, its transport metric corrected, and more.

| file | what it holds |
|---|---|
| `settings.py` | the settings and their presets |
| `methods.py` | the methods compared on the paper's problem (`studies/one_mean.py`) |
| `landscape.py` | level sets, critical points, the plateau and the lowest pass |
| `descent.py` | fixed-step runs: paths, direction fields, largest steps, basins |
| `transport.py` | the two discretisations of W₂ at the starting point |
| `fit.py` | a mixture with all parameters free |
| `results.py` | what is computed, and the results file |
| `figures.py`, `fit_figures.py`, `colours.py` | pictures |
| `tables.py`, `text.py` | words |
| `study.py` | all of it in order |
"""
