"""The PINN study: a network that solves Poisson's equation, trained in eight metrics and by rivals.

| file | what it holds |
|---|---|
| `settings.py` | the settings and their presets |
| `network.py` | the network and where it starts |
| `equation.py` | the equation, its solution, and the points on which both are seen |
| `pinn.py` | the training problem, ours or as the authors of the paper have it |
| `metrics.py`, `clipped.py` | the metrics on the network's values, ours and the authors' |
| `doubling.py` | descent whose trial step is twice the last one |
| `newton_cg.py`, `adam.py` | the authors' algorithm, and Adam |
| `batches.py` | mini-batches of points |
| `methods.py`, `runs.py` | what is compared, and one run of it against CPU seconds |
| `results.py`, `claims.py` | what is computed, and what the paper says about it |
| `figures.py` | pictures |
| `tables.py`, `text.py` | words |
| `study.py` | all of it in order |
"""
