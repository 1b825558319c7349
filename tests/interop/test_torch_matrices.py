"""Factorizations of matrices where torch writes them out: within casts, ``torch.func`` and ``autograd.Function``."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
func, linalg = torch.func, torch.linalg

from test_torch_rows import Of  # noqa: E402

import meshwright as mw  # noqa: E402
from meshwright import errors  # noqa: E402


class Solved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        x = linalg.solve(a, b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, given):
        a, x = ctx.saved_tensors
        b = linalg.solve(a.mT, given)
        return -b @ x.mT, b


def definite(x):
    return x @ x.mT + torch.eye(3)


def cast(function, enabled):
    def run(a, b):
        with torch.autocast("cpu", enabled=enabled):
            return function(a, b)

    return run


FUNCTIONS = {
    "solve, cast": cast(linalg.solve, True),
    "solve, not cast": cast(linalg.solve, False),
    "cholesky, not cast": cast(lambda a, b: linalg.cholesky(definite(a)), False),
    "inv, not cast": cast(lambda a, b: linalg.inv(a), False),
    "jacobian": lambda a, b: func.jacrev(lambda x: linalg.solve(x, b))(a),
    "gradient": lambda a, b: func.grad(lambda x: linalg.inv(x).sum())(a),
    "batch": lambda a, b: func.vmap(lambda x: linalg.cholesky(definite(a * x.sum())))(b),
    "batch of gradients": lambda a, b: func.vmap(func.grad(lambda x: linalg.solve(a, x).square().sum()))(b),
    "tangent of inv": lambda a, b: func.jvp(linalg.inv, (a,), (b,))[1],
    "tangent of cholesky": lambda a, b: func.jvp(lambda x: linalg.cholesky(definite(x)), (a,), (b,))[1],
    "function": Solved.apply,
    "factors": lambda a, b: func.grad(lambda x: linalg.lu_solve(*linalg.lu_factor(x), b).sum())(a),
}


def given():
    torch.manual_seed(0)
    return (torch.randn(3, 3) * 0.3 + 2 * torch.eye(3)).requires_grad_(), torch.randn(3, 3).requires_grad_()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_torchs(name):
    module, (a, b) = Of(FUNCTIONS[name]), given()
    model = mw.from_torch(module, (a.detach(), b.detach()))
    want = module(a, b)
    want.square().sum().backward()
    numbers = a.detach().numpy(), b.detach().numpy()
    np.testing.assert_allclose(model({}, *numbers), want.detach(), atol=1e-5)
    got = mw.jit(mw.grad(lambda a, b: (model({}, a, b) ** 2).sum(), argnums=(0, 1)))(*numbers)
    for g, x in zip(got, (a, b)):
        np.testing.assert_allclose(g, 0 if x.grad is None else x.grad, atol=3e-5 * max(1, float(abs(g).max())))


@pytest.mark.parametrize(
    "function",
    (
        lambda a, b: func.jvp(lambda x: linalg.solve(x, b), (a,), (b,))[1],
        lambda a, b: func.hessian(lambda x: linalg.solve(x, b).sum())(a),
        lambda a, b: func.hessian(lambda x: linalg.slogdet(x)[1])(a),
    ),
)
def test_derivatives_by_what_torch_keeps_factors_of_are_right(function):
    """Torch's own are not: it takes the factors in the tangent of ``solve`` for constants."""
    a, b = (x.detach().double() for x in given())
    weights = torch.arange(function(a, b).numel()).reshape(function(a, b).shape).cos().numpy()
    with mw.enable_x64(True):
        model = mw.from_torch(Of(function), (a, b))
        loss = mw.jit(lambda x: (model({}, x, b.numpy()) * weights).sum())
        got = mw.grad(loss)(a.numpy())
        for i, j in np.ndindex(3, 3):
            step = np.zeros((3, 3))
            step[i, j] = 1e-6
            want = (loss(a.numpy() + step) - loss(a.numpy() - step)) / 2e-6
            np.testing.assert_allclose(got[i, j], want, rtol=1e-5, atol=1e-7)


def test_factors_whose_order_depends_on_memory_are_refused():
    a, b = (x.detach() for x in given())
    model = mw.from_torch(Of(lambda a, b: func.jvp(linalg.det, (a,), (b,))[1]), (a, b))
    with pytest.raises(errors.RuleError, match=r"matrices.py.*result 1 of aten._linalg_det.*meshwright.grad"):
        model({}, a.numpy(), b.numpy())
