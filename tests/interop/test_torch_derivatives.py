"""Derivatives that a module's forward takes, by torch.func and torch.autograd.grad: values, and their own gradients."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
nn, F, func = torch.nn, torch.nn.functional, torch.func

import meshwright as mw  # noqa: E402
import meshwright.numpy as mnp  # noqa: E402
from meshwright import errors  # noqa: E402

X = torch.linspace(-1, 2, 24).reshape(4, 6)


class Of(nn.Module):
    """A function, with a parameter."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.w = nn.Parameter(torch.linspace(0.5, 1.5, 6))

    def forward(self, *args):
        return self.function(self.w, *args)


def same(module, *inputs, tolerance=1e-4):
    """Results, and gradients by parameters and the inputs, are torch's; the inputs have none when it is converted."""
    model = mw.from_torch(module, inputs)
    given = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    want = torch.utils._pytree.tree_leaves(module(*given))
    got = mw.tree.leaves(model(model.params, *(x.numpy() for x in inputs)))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w.detach(), rtol=tolerance, atol=tolerance)

    def loss(params, *args):
        return sum(mnp.sum(y * y) for y in mw.tree.leaves(model(params, *args)))

    floats = [i for i, x in enumerate(given) if x.is_floating_point()]
    grads = mw.grad(loss, (0, *(i + 1 for i in floats)))(model.params, *(x.numpy() for x in inputs))
    moving = [*module.parameters(), *(given[i] for i in floats)]
    expected = torch.autograd.grad(sum(y.square().sum() for y in want if y.requires_grad), moving, allow_unused=True)
    for g, w in zip([*(grads[0][n] for n, _ in module.named_parameters()), *grads[1:]], expected, strict=True):
        np.testing.assert_allclose(g, 0 if w is None else w, rtol=tolerance, atol=tolerance * max(1, np.abs(g).max()))


def transformed(w, x):
    each = func.vmap(func.jacrev(lambda r: (r * w).sin().cumsum(0)))(x)
    mapped = func.vmap(func.grad(lambda r: (r * w).exp().sum()), chunk_size=2)(x)
    _, pulled = func.vjp(lambda y: (y * w).tanh(), x.sin())
    twice = func.grad(lambda z: func.grad(lambda y: (y.sin() * w).sum())(z).sum())(x)
    return each, mapped, pulled(x)[0] + pulled(2 * x)[0], twice


def moved(w, x):
    pushed = func.jvp(lambda y: y * w.sin(), (x,), (x.cos(),))
    return (
        pushed,
        func.jacfwd(lambda y: (y * w).sin().sum(0))(x[:2]),
        func.hessian(lambda y: (y * w).sin().prod())(x[0]),
    )


@pytest.mark.parametrize("function", [transformed, moved])
def test_transformations_of_torch_func(function):
    same(Of(function), X)


class Energy(nn.Module):
    """Forces, and a Laplacian, as networks of physics have them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        x = x.requires_grad_()
        energy = self.net(x)
        (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        second = [torch.autograd.grad(force[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(3)]
        return energy, -force, sum(second)


def test_derivatives_by_autograd_have_their_own():
    same(Energy(), X.reshape(8, 3))


def partly(w, x):
    """By two values, one of which comes from the other; and by a view of what is used beside it."""
    y = x.sin() * w
    both = torch.autograd.grad((y * x).exp().sum(), (x, y), create_graph=True)
    view = x.view_as(x)
    return *both, torch.autograd.grad((view * x.sin()).sum(), view, create_graph=True)[0]


def stopped(w, x):
    """What torch gives no further derivative of, or none at all."""
    inner = x.detach().requires_grad_()
    first = torch.autograd.grad((inner * inner * w.detach()).sum(), inner)[0] * x
    with torch.no_grad():
        c = x.cos()
    y = x * 2
    unused = torch.autograd.grad(x.sin().sum(), (x, y), create_graph=True, allow_unused=True)
    assert unused[1] is None
    return first, torch.autograd.grad((x.sin() * c * w).sum(), x, create_graph=True)[0], unused[0]


def functional(w, x):
    f = torch.autograd.functional
    return (
        f.jacobian(lambda y: (y * w).sin().sum(0) * x, x, create_graph=True),
        f.hvp(lambda y: (y * w).sin().prod(), x[0], x[1], create_graph=True)[1],
        f.jvp(lambda y: (y * w).sin().sum(0), x, x, create_graph=True)[1],
    )


@pytest.mark.parametrize("function", [partly, stopped, functional])
def test_derivatives_by_autograd(function):
    same(Of(function), X)


def test_what_is_drawn_is_drawn_once():
    def function(w, x):
        y = F.dropout(x * w, 0.5, True)
        return y, torch.autograd.grad(y.sum(), x, create_graph=True)[0]

    model = mw.from_torch(Of(function), (torch.ones(4, 6),))
    y, g = model(model.params, np.ones((4, 6), np.float32), key=mw.random.key(0))
    np.testing.assert_allclose(y, g, rtol=1e-6)
    assert {bool(v) for v in np.asarray(y).ravel()} == {True, False}


def test_what_cannot_be_followed_is_refused(refuses):
    def backward(w, x):
        x = x.detach().requires_grad_()
        (x * x).sum().backward()
        return x.grad

    def batched(w, x):
        return torch.autograd.functional.jacobian(lambda y: y.sin().sum(0), x, vectorize=True)

    with refuses(errors.RuleError, "backward()", "torch.autograd.grad", "test_torch_derivatives.py"):
        mw.from_torch(Of(backward), (X,))
    with refuses(errors.RuleError, "is_grads_batched", "jacrev", "test_torch_derivatives.py"):
        mw.from_torch(Of(batched), (X,))
    with refuses(errors.ImportProgramError, "linearize", "test_torch_derivatives.py"):
        mw.from_torch(Of(lambda w, x: func.linearize(torch.sin, x)[1](x)), (X,))
