"""Functions and modules of PyTorch as models."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from ..errors import InputError
from ..models.base import Evaluation
from ..models.host import HostModel, HostProducts, check_concrete, check_function
from ..operators import structure_of
from .optional import imported
from .torch_arrays import to_jax, to_torch
from .torch_functions import Function, Network
from .torch_graph import Graph

PyTree = Any


class TorchModel(HostModel):
    """A function of PyTorch tensors, or a `torch.nn.Module` at its inputs, as a model.

    | given | θ | ρ(θ) |
    |---|---|---|
    | `TorchModel(module, *inputs)` | a dict of the parameters by name, `model.parameters` | `module(*inputs)` |
    | `TorchModel(function, *inputs)` | an array, or a dict or tuple of them | `function(θ, *inputs)` |

    Arrays are shared with PyTorch, not copied, where both are on the same device; a function that
    works on another one than θ is told so, `device="cuda"`. Parameters of a module that require no
    gradient stay as they are. The function must give the same state whenever it is called, in a
    tensor of its own: dropout and batch normalisation in training mode are refused.

    ```python
    model = ng.TorchModel(net, points)
    result = ng.minimize(ng.Problem(model, loss), model.parameters, metric=ng.L2(grid))
    model.assign(result.theta)                       # into the module
    ```

    Cost: one evaluation for each θ that is tried, whose graph serves all products there; a product
    is one or two passes back through it. A run holds two graphs, of θ and of a trial step.
    """  # noqa: E501

    function: Function = eqx.field(static=True)

    def __init__(self, function: Any, *inputs: Any, device: Any = None):
        torch = imported("function", "torch")
        check_function("function", function)
        if isinstance(function, type) and issubclass(function, torch.nn.Module):
            what = f"is the class {function.__name__}"
            raise InputError("function", what, f"a module, {function.__name__}(...)")
        if isinstance(function, torch.nn.Module):
            if device is not None:
                raise InputError("device", "a module has its own", "module.to(device)")
            self.function = Network(function, inputs)
        else:
            self.function = Function(function, inputs, device)

    @property
    def parameters(self) -> dict[str, Array]:
        """θ of the module as it is now, to start from."""
        device = next(iter(jnp.zeros(()).devices()))
        found = self._network.parameters.items()
        return {name: to_jax(tensor.detach().clone(), device) for name, tensor in found}

    def assign(self, theta: dict[str, Array]) -> None:
        """Write θ into the module."""
        network, torch = self._network, imported("function", "torch")
        network.check(theta)
        with torch.no_grad():
            for name, parameter in network.parameters.items():
                parameter.copy_(to_torch(theta[name], network.device))

    def evaluate(self, theta: PyTree) -> Evaluation:
        check_concrete(theta)
        self.function.check(theta)
        leaves, treedef = jax.tree.flatten(theta)
        leaves = [jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in leaves]
        free = [eqx.is_inexact_array(leaf) for leaf in leaves]
        if not any(free):
            raise InputError("theta", "holds no floating-point array", "jnp.asarray(theta, float)")
        tensors = [self._tensor(x) if eqx.is_array(x) else x for x in leaves]
        graph = Graph(self.function, jax.tree.unflatten(treedef, tensors), free)
        device = next(iter(leaves[free.index(True)].devices()))
        state = [to_jax(x, device) for x in graph.state]
        return Evaluation(jax.tree.unflatten(graph.state_treedef, state), graph)

    def products(
        self, unravel: Callable[[Array], PyTree], flat: Array, known: Evaluation | None = None
    ) -> HostProducts:
        found = self.evaluate(unravel(flat)) if known is None else known
        graph, structure = found.kept, structure_of(found.rho)
        device = next(iter(flat.devices()))

        def push(eta: Array) -> PyTree:
            parts = jax.tree.leaves(eqx.filter(unravel(eta), eqx.is_inexact_array))
            image = graph.push([self._tensor(part) for part in parts])
            return jax.tree.unflatten(graph.state_treedef, [to_jax(x, device) for x in image])

        def pull(xi: PyTree) -> Array:
            like = lambda x, leaf: self._tensor(jnp.asarray(x, leaf.dtype))
            image = graph.pull(jax.tree.leaves(jax.tree.map(like, xi, structure)))
            return ravel_pytree([to_jax(x, device) for x in image])[0].astype(flat.dtype)

        return HostProducts(found.rho, int(known is None), push, pull)

    @property
    def _network(self) -> Network:
        if isinstance(self.function, Network):
            return self.function
        raise InputError("function", "is no module, which has parameters", "a theta of your own")

    def _tensor(self, array: Array) -> Any:
        return to_torch(array, self.function.device)
