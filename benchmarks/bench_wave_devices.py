"""Shots dealt out to the cores of a CPU: wall seconds of the propagations on 1, 2, … devices.

    python benchmarks/bench_wave_devices.py [--devices 2] [--shots 20] [--steps 1000]

306 × 120 cells of 25 m and 10 around them, 306 receivers, float32, order 4, by XLA. One process for
each number of devices, as they are set before JAX is first used; the shortest of three runs.
"""

import argparse
import json

from tables import best, in_process, show_table


def measure(count: int, shots: int, steps: int) -> dict[str, float]:
    """Seconds of each propagation in this process."""
    import jax

    jax.config.update("jax_num_cpu_devices", count)
    import equinox as eqx
    import jax.numpy as jnp

    from natgrad import waves

    velocity = waves.faulted_layers((306, 120), 25.0)
    survey = waves.Survey.line(
        velocity.shape, 25.0, dt=0.002, steps=steps, shots=shots, frequency=6.0
    )
    devices = jax.devices() if count > 1 else None
    model = waves.Acoustic(survey, velocity, devices=devices, engine="xla")  # the other takes all
    theta = jnp.asarray(waves.squared_slowness(velocity), jnp.float32)
    unravel = lambda flat: flat.reshape(theta.shape)
    products = eqx.filter_jit(lambda model, flat: model.products(unravel, flat))
    forward = eqx.filter_jit(lambda model, theta: model(theta))
    push = eqx.filter_jit(lambda products, eta: products.push(eta))
    pull = eqx.filter_jit(lambda products, xi: products.pull(xi))
    kept = products(model, theta.ravel())
    tasks = {
        "forward": lambda: forward(model, theta),
        "keeping": lambda: products(model, theta.ravel()),
        "Born": lambda: push(kept, theta.ravel()),
        "adjoint": lambda: pull(kept, kept.rho),
    }
    return {name: best(task, 0.0, least=3) for name, task in tasks.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--shots", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--child", type=int)
    args = parser.parse_args()
    if args.child is not None:
        print(json.dumps(measure(args.child, args.shots, args.steps)))
        return
    counts = [2**i for i in range(args.devices.bit_length()) if 2**i <= args.devices]
    size = ("--shots", args.shots, "--steps", args.steps)
    found = {count: in_process("--child", count, *size) for count in counts}
    rows = []
    for task, one in found[1].items():
        spans = [found[count][task] for count in counts]
        rows.append([task, *spans, *(one / span for span in spans[1:])])
    columns = ["propagation", *(f"{count} devices, s" for count in counts)]
    columns += [f"{count} devices, times" for count in counts[1:]]
    title = f"{args.shots} shots, {args.steps} steps: wall seconds, times as fast as one device"
    show_table("propagations", columns, rows, title)


if __name__ == "__main__":
    main()
