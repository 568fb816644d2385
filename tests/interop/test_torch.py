"""Functions and modules of PyTorch as models: directions, products, memory, and what is refused.

On a machine with a GPU and a JAX for it (`JAX_PLATFORMS=cuda`) everything runs on the GPU too.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from problems_for_tests import assert_input_error

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from natgrad.interop.torch import to_jax, to_torch  # noqa: E402

torch.set_num_threads(1)  # the tests have a core each
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
RANDOM = np.random.default_rng(0)
A, B = RANDOM.normal(size=(6, 4)), RANDOM.normal(size=(6, 2))
THETA = {"a": jnp.asarray(RANDOM.normal(size=4)), "b": (jnp.asarray(RANDOM.normal(size=2)), "name")}
TARGET = RANDOM.normal(size=6)
METRIC, LOSS = ng.MatrixMetric(np.eye(6)), ng.LeastSquares(jnp.asarray(TARGET))


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def tensor(x, device="cpu"):
    return torch.as_tensor(np.array(x), device=device)


class Counted:
    """ρ = tanh(A a) + B b², with its calls counted."""

    def __init__(self, device="cpu"):
        self.A, self.B, self.calls = tensor(A, device), tensor(B, device), 0

    def __call__(self, theta):
        self.calls += 1
        assert theta["b"][1] == "name"
        return torch.tanh(self.A @ theta["a"]) + self.B @ theta["b"][0] ** 2


def oracle() -> tuple[np.ndarray, np.ndarray]:
    """ρ and Z written out."""
    a, b = np.asarray(THETA["a"]), np.asarray(THETA["b"][0])
    Z = np.hstack([A / np.cosh(A @ a)[:, None] ** 2, 2 * B * b])
    return np.tanh(A @ a) + B @ b**2, Z


# --- directions and products


@pytest.mark.parametrize(
    "solver", [ng.CG(1e-14), pytest.param(ng.SVD(), marks=pytest.mark.slow)], ids=["CG", "SVD"]
)
def test_the_direction_is_the_dense_one(solver, device):
    function = Counted(device)
    problem = ng.Problem(ng.TorchModel(function, device=device), LOSS)
    d = ng.natural_gradient(problem, THETA, metric=METRIC, solver=solver)
    rho, Z = oracle()
    expected = -np.linalg.lstsq(Z, rho - TARGET, rcond=None)[0]
    np.testing.assert_allclose(np.append(d.eta["a"], d.eta["b"][0]), expected, rtol=1e-8)
    assert d.eta["b"][1] is None
    assert function.calls == d.info.counts.forward == 1


def test_products_are_the_derivative_and_its_transpose(device):
    report = ng.checks.check_adjoint(
        ng.TorchModel(Counted(device), device=device), THETA, verbose=False
    )
    assert report.passed, str(report)


def test_a_state_of_several_tensors_one_of_them_constant():
    function = lambda t: {"u": t[:3] ** 2, "v": (t.sum() * torch.ones(1, 2).to(t), torch.ones(2))}
    model, theta = ng.TorchModel(function), jnp.arange(4.0)
    products = model.products(lambda flat: flat, theta)
    push = products.push(jnp.ones(4))
    np.testing.assert_allclose(push["u"], [0.0, 2.0, 4.0])
    np.testing.assert_allclose(push["v"][0], [[4.0, 4.0]])
    np.testing.assert_array_equal(push["v"][1], 0.0)
    xi = {"u": jnp.ones(3), "v": (jnp.ones((1, 2)), jnp.ones(2))}
    np.testing.assert_allclose(products.pull(xi), [2.0, 4.0, 6.0, 2.0])


def test_arrays_are_copied_both_ways():
    array = jnp.arange(5.0) * 2
    to_torch(array).zero_()
    np.testing.assert_array_equal(array, 2.0 * np.arange(5))
    values = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    back = to_jax(values, jax.devices("cpu")[0])
    values += 1.0
    np.testing.assert_array_equal(back, np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(to_jax(values.T, jax.devices("cpu")[0]), values.numpy().T)
    assert to_torch(jnp.zeros((0, 3))).shape == (0, 3)


class InPlace(torch.nn.Module):
    """A layer that writes into its input, its weights, its buffer, and its last output."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(tensor(A))
        self.register_buffer("bias", torch.ones(6, dtype=torch.float64))
        self.last = torch.zeros(6)

    def forward(self, x):
        self.last.zero_()
        result = self.weight @ x.mul_(2.0) + self.bias.add_(1.0)
        self.last = result.data
        self.weight.data.mul_(0.0)
        return result


def test_a_module_may_write_into_its_tensors():
    x = tensor(np.arange(1.0, 5.0))
    model = ng.TorchModel(InPlace(), x)
    theta = {"weight": jnp.asarray(A)}
    products = model.products(lambda flat: {"weight": flat.reshape(6, 4)}, jnp.ravel(A))
    first, second = model(theta), model({"weight": jnp.asarray(2 * A)})
    np.testing.assert_allclose(first, A @ (2.0 * np.arange(1, 5)) + 2.0)
    np.testing.assert_allclose(second, 2 * A @ (2.0 * np.arange(1, 5)) + 2.0)
    np.testing.assert_array_equal(theta["weight"], A)
    np.testing.assert_allclose(products.rho, first)
    np.testing.assert_allclose(products.pull(jnp.ones(6)), np.tile(2.0 * np.arange(1, 5), 6))


# --- operations with derivatives of their own


def cube(kind: str):
    """x³ as an operation of the user's, with some of its derivatives."""

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            if kind == "hidden":
                return torch.as_tensor(3 * x.detach().numpy() ** 2 * g.detach().numpy())
            return 3 * x**2 * g

    if kind in ("once", "nothing"):
        Cube.backward = staticmethod(torch.autograd.function.once_differentiable(Cube.backward))
    if kind != "nothing":
        Cube.jvp = staticmethod(lambda ctx, t: 3 * ctx.saved_tensors[0] ** 2 * t)
    return Cube.apply


@pytest.fixture
def on_cpu():
    """Where a function that uses NumPy, or tensors of its own, has to be."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("kind", ["twice", "once", "hidden"])
def test_products_of_an_operation_with_its_own_derivative(kind: str):
    operation, theta = cube(kind), jnp.array([1.0, 2.0])
    model = ng.TorchModel(lambda t: operation(t) + t)
    products = model.products(lambda flat: flat, theta)
    for _ in range(2):  # the first finds out how
        np.testing.assert_allclose(products.push(jnp.array([1.0, 1.0])), [4.0, 13.0])
    np.testing.assert_allclose(products.pull(jnp.array([1.0, -1.0])), [4.0, -13.0])
    assert model.function.forward_mode == (kind != "twice")


def test_an_operation_without_any_of_them_is_refused():
    operation = cube("nothing")
    products = ng.TorchModel(lambda t: operation(t)).products(lambda flat: flat, jnp.ones(2))
    assert_input_error("function", "second derivative", lambda: products.push(jnp.ones(2)))


# --- modules


class Counting(torch.nn.Module):
    """A layer that writes into a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen += 1
        return x * self.seen


def network(*more, device="cpu", dtype=torch.float64):
    torch.manual_seed(0)
    layers = torch.nn.Linear(1, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1), *more
    return torch.nn.Sequential(*layers, torch.nn.Flatten(0)).to(device, dtype)


def points(device="cpu", dtype=torch.float64):
    return torch.linspace(-1, 1, 6, device=device, dtype=dtype)[:, None]


def test_a_module_is_trained_and_gets_its_parameters_back(device):
    net = network(device=device)
    net[0].weight.requires_grad_(False)
    frozen = net[0].weight.clone()
    model = ng.TorchModel(net, points(device))
    theta = model.parameters
    assert set(theta) == {"0.bias", "2.weight", "2.bias"}
    assert ng.checks.check_adjoint(model, theta, verbose=False).passed
    result = ng.minimize(
        ng.Problem(model, LOSS),
        theta,
        ng.NaturalGradient(METRIC, damping=1e-6),
        stop=ng.Stop(iterations=3),
    )
    np.testing.assert_array_equal(net[0].bias.detach().cpu(), theta["0.bias"])  # until now
    model.assign(result.theta)
    np.testing.assert_array_equal(model.parameters["2.weight"], result.theta["2.weight"])
    state = net(points(device)).detach().cpu().numpy()
    np.testing.assert_allclose(0.5 * np.sum((state - TARGET) ** 2), result.loss, rtol=1e-10)
    assert torch.equal(net[0].weight, frozen)


def test_buffers_stay_as_they_were():
    net = network(Counting(), torch.nn.BatchNorm1d(1)).eval()
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    model = ng.TorchModel(net, points())
    assert ng.checks.check_adjoint(model, model.parameters, verbose=False).passed
    assert all(torch.equal(buffer, before[name]) for name, buffer in net.named_buffers())


def test_a_parameter_that_is_used_twice_is_one():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)).double()
    net[1].weight = net[0].weight
    model = ng.TorchModel(net, torch.ones(1, 2, dtype=torch.float64))
    assert set(model.parameters) == {"0.weight", "0.bias", "1.bias"}
    assert ng.checks.check_adjoint(model, model.parameters, verbose=False).passed


def test_single_precision_stays_single():
    model = ng.TorchModel(network(dtype=torch.float32), points(dtype=torch.float32))
    products = model.products(*reversed(jax.flatten_util.ravel_pytree(model.parameters)))
    flat = jnp.ones(10, jnp.float32)
    assert products.rho.dtype == products.push(flat).dtype == jnp.float32
    assert products.pull(products.rho).dtype == jnp.float32


# --- input that cannot be


def evaluated(function, theta=None, *inputs, **settings):
    model = ng.TorchModel(function, *inputs, **settings)
    return model(jnp.ones(3) if theta is None else theta)


def of_module(net, theta=None):
    model = ng.TorchModel(net, points())
    return model(model.parameters if theta is None else theta)


def run_from(theta, target=np.ones((3, 1))):
    model = ng.TorchModel(NET, torch.ones(3, 1).double())
    problem = ng.Problem(model, ng.LeastSquares(target))
    return ng.minimize(problem, theta or model.parameters, ng.LBFGS(10))


def written(t):
    t += 1
    return t


def noisy(t):
    return t + torch.randn(3)


NET = network()
SINGLE = {
    name: jnp.asarray(p, jnp.float32) for name, p in ng.TorchModel(NET, points()).parameters.items()
}
CASES = {
    "not callable": ("function", "callable", lambda: evaluated(3.0)),
    "detached": ("function", "no derivative.*detach", lambda: evaluated(lambda t: t.detach() ** 2)),
    "without gradients": ("function", "no derivative", lambda: evaluated(torch.no_grad()(lambda t: t**2))),
    "through NumPy": ("function", "breaks the chain", lambda: evaluated(lambda t: torch.as_tensor(np.sin(t.numpy())))),
    "written into": ("function", "in-place", lambda: evaluated(written)),
    "a number": ("function", "float", lambda: evaluated(lambda t: 3.0)),
    "integers": ("function", "torch.int", lambda: evaluated(lambda t: (t > 0).int())),
    "complex": ("function", "complex", lambda: evaluated(lambda t: t * 1j)),
    "random": ("function", "random numbers", lambda: evaluated(noisy)),
    "two precisions": ("theta", "one precision", lambda: evaluated(lambda t: torch.ones(3, 3) @ t)),
    "two devices": ("function", "input 0 on meta.*on cpu|on cpu.*input 0 on meta", lambda: ng.TorchModel(NET, torch.ones(1, device="meta"))),
    "device of a module": ("device", "its own", lambda: ng.TorchModel(NET, points(), device="cpu")),
    "no such device": ("device", "'gpu' cannot be used.*'cpu'", lambda: ng.TorchModel(torch.sin, device="gpu")),
    "device without values": ("device", "no values", lambda: ng.TorchModel(torch.sin, device="meta")),
    "a class": ("function", r"is the class Linear.*Linear\(", lambda: ng.TorchModel(torch.nn.Linear)),
    "NumPy input": ("inputs", "input 0 .* numpy array.*torch.tensor", lambda: ng.TorchModel(NET, np.ones((3, 1)))),
    "no input": ("inputs", "0 of them.*'input'.*points", lambda: ng.TorchModel(NET)),
    "state of a module": ("theta", "tensors of PyTorch.*model.parameters", lambda: run_from(NET.state_dict())),
    "tensor as a target": ("target", "is a Tensor.*jnp.asarray", lambda: run_from(None, torch.ones(3, 1))),
    "traced": ("model", "outside JAX.*jax.jit, grad", lambda: jax.grad(lambda t: evaluated(torch.sin, t).sum())(jnp.ones(3))),
    "nothing to train": ("function", "require a gradient", lambda: ng.TorchModel(network().requires_grad_(False), points())),
    "single theta": ("theta", "float32.*float64", lambda: of_module(NET, SINGLE)),
    "other names": ("theta", r"names \['a'\].*0.bias", lambda: of_module(NET, {"a": jnp.ones(3)})),
    "no dict": ("theta", "not a dict", lambda: of_module(NET, jnp.ones(3))),
    "whole numbers": ("theta", "floating", lambda: evaluated(lambda t: t, jnp.arange(3))),
    "parameters of a function": ("function", "not a module", lambda: ng.TorchModel(torch.sin).parameters),
    "dropout": ("function", "Dropout '3' is in training mode.*eval", lambda: of_module(network(torch.nn.Dropout(0.5)))),
    "batch statistics": ("function", "BatchNorm1d '3'", lambda: of_module(network(torch.nn.BatchNorm1d(1)))),
}  # fmt: skip


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("case", CASES)
def test_the_message_names_the_argument(case: str):
    assert_input_error(*CASES[case])


def test_an_exception_of_the_function_passes_with_a_note():
    def fails(theta):
        raise ArithmeticError("mine")

    with pytest.raises(ArithmeticError) as caught:
        evaluated(fails)
    assert caught.value.__notes__ == ["raised by function of the model"]


def test_without_torch_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert_input_error("function", r"not installed.*natgrad\[torch\]", lambda: ng.TorchModel(abs))
