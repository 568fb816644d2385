"""Full waveform inversion over all devices of all processes: one script for a laptop and a cluster.

    python examples/many_processes.py                           # one process, all its devices

    python examples/many_processes.py --join 127.0.0.1:9911 --processes 2 --process 0 &
    python examples/many_processes.py --join 127.0.0.1:9911 --processes 2 --process 1

    srun --ntasks-per-node=4 --gpus-per-task=1 python examples/many_processes.py --join

Every process runs all of it, with the same arguments; JAX finds the others by itself on a cluster
with SLURM or Open MPI. The shots are dealt out to the devices, and each keeps the source fields of
its own. The first process writes `many_processes.png` and the checkpoint, from which the same
command goes on, with any number of processes.
"""

import argparse
from pathlib import Path

import jax
import numpy as np

import natgrad as ng
from natgrad import waves
from natgrad.plot import PALETTE, figure_style, save

PATIENCE = 20  # seconds until a process that has gone silent ends the others


def invert(shape: tuple[int, int], steps: int, shots: int, iterations: int, folder: Path):
    """The true, the starting and the found velocity, and the run."""
    true = waves.faulted_layers(shape, 40.0)
    start = np.maximum(waves.smoothed(true, 6.0), 1500.0)
    line = {"dt": 0.004, "steps": steps, "shots": shots, "frequency": 3.5}
    survey = waves.Survey.line(shape, 40.0, **line)
    data = waves.Acoustic(survey, true)(waves.squared_slowness(true))
    model = waves.Acoustic(survey, start)
    mesh = jax.make_mesh((jax.device_count(),), ("shots",))
    result = ng.minimize(
        ng.Problem(model, ng.LeastSquares(np.asarray(data), survey.gather_grid)),
        waves.squared_slowness(start),
        ng.NaturalGradient(ng.L2(survey.gather_grid), solver=ng.CG(0.0, max_iterations=4)),
        stop=ng.Stop(iterations=iterations),
        bounds=model.bounds(1400.0, 6000.0),
        checkpoint=folder / "many_processes.npz",
        mesh=mesh,
    )
    return true, start, waves.velocity_of(np.asarray(result.theta)), result


def draw(true: np.ndarray, start: np.ndarray, found: np.ndarray, result: ng.Result, path: Path):
    """The three models, and the loss."""
    import matplotlib.pyplot as plt

    with figure_style():
        figure, axes = plt.subplots(1, 4, figsize=(12.4, 2.4), layout="constrained")
        named = {"true": true, "start": start, "found": found}
        for plot, (name, velocity) in zip(axes, named.items(), strict=False):
            shown = plot.imshow(velocity.T / 1000, vmin=true.min() / 1000, vmax=true.max() / 1000)
            plot.set(title=name, xticks=[], yticks=[])
        figure.colorbar(shown, ax=list(axes[:3]), label="km/s", shrink=0.8)
        losses = result.history["loss"]
        axes[3].semilogy(losses / losses[0], color=PALETTE["blue"])
        axes[3].set(title="loss", xlabel="iteration")
        return save(figure, path)


def main(
    shape: tuple[int, int] = (120, 60),
    steps: int = 500,
    shots: int = 8,
    iterations: int = 10,
    output: str | Path = ".",
) -> ng.Result:
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    *models, result = invert(shape, steps, shots, iterations, folder)
    if jax.process_index() == 0:
        place = f"{jax.device_count()} devices of {jax.process_count()} processes"
        fall = result.loss / result.history["loss"][0]
        print(f"{place}: {result.status} after {result.iterations}, the loss fell to {fall:.3e}")
        draw(*models, result, folder / "many_processes.png")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--join", nargs="?", const="", help="HOST:PORT of the first process")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--process", type=int)
    parser.add_argument("--output", default=".")
    args = parser.parse_args()
    if args.join is not None:
        where = (args.join or None, args.processes, args.process)
        jax.distributed.initialize(*where, heartbeat_timeout_seconds=PATIENCE)
    main(output=args.output)
