"""One process of several: `python one_of_many.py NUMBER COUNT PORT TASK FOLDER`.

`run` prints the results of all problems as JSON, `rival` that of L-BFGS; `die` is a run with a
checkpoint that the last process does not survive; `differ` gives every process another start.
"""

import json
import os
import signal
import sys
from pathlib import Path

import jax

from quick_compilation import compile_quickly

number, count, port = map(int, sys.argv[1:4])
task, folder = sys.argv[4], Path(sys.argv[5])
compile_quickly()
jax.config.update("jax_enable_x64", True)
address = f"127.0.0.1:{port}"
jax.distributed.initialize(address, count, number, heartbeat_timeout_seconds=10)

import natgrad as ng  # noqa: E402, after the processes have met
from distributed_problems import PROBLEMS, numbers  # noqa: E402

mesh = jax.make_mesh((jax.device_count(),), ("devices",))


def killed(progress):
    if number == count - 1 and progress.iteration == 3:
        os.kill(os.getpid(), signal.SIGKILL)


if task == "run":
    found = {}
    for name, make in PROBLEMS.items():
        problem, theta, method = make()
        result = ng.minimize(problem, theta, **method, max_iterations=2, mesh=mesh)
        found[name] = {"loss": result.loss, "theta": numbers(result.theta)}
    print(json.dumps(found))
elif task == "rival":
    problem, theta, _ = PROBLEMS["transport"]()
    rival = ng.lbfgs(problem, theta, max_iterations=2, max_seconds=600, mesh=mesh)
    print(json.dumps(numbers(rival.theta)))
elif task == "die":
    problem, theta, method = PROBLEMS["transport"]()
    run = {"mesh": mesh, "checkpoint": ng.Checkpoint(folder / f"run{number}.npz", seconds=0.0)}
    try:
        ng.minimize(problem, theta, **method, **run, tolerance=0.0, callbacks=[killed])
    except ng.PeerError as error:
        print(json.dumps([str(error), error.__notes__, numbers(error.natgrad_result.theta)]))
        sys.stdout.flush()
        os._exit(3)  # no farewell to a process that is gone
elif task == "differ":
    problem, theta, method = PROBLEMS["transport"]()
    try:
        ng.minimize(problem, theta + 0.01 * number, **method, mesh=mesh)
    except ng.InputError as error:
        print(json.dumps(str(error)))
