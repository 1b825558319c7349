"""Parameters that are numbers may be traced: the scale of an initializer, a tolerance, the ``epsilon`` of a norm."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw

X = np.array([[1.0, -2.0, 3.0], [4.0, 5.5, -6.0]], np.float32)
SPECIAL = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
HEADS = np.arange(24, dtype=np.float32).reshape(1, 3, 2, 4) / 10
FUNCTIONS = {
    "standardize": lambda p, e: p.nn.standardize(X, epsilon=e),
    "attention": lambda p, e: p.nn.dot_product_attention(HEADS, HEADS, HEADS, scale=e),
    "isclose": lambda p, e: p.numpy.isclose(X, X + 0.1, e),
    "isclose, absolutely": lambda p, e: p.numpy.isclose(X, X + 0.1, 0, e),
    "allclose": lambda p, e: p.numpy.allclose(X, X + 0.1, e),
    "nan_to_num": lambda p, e: p.numpy.nan_to_num(SPECIAL, nan=e, posinf=2 * e, neginf=-e),
    "var": lambda p, e: p.numpy.var(X, 1, ddof=e),
    "std of some": lambda p, e: p.numpy.std(X, 0, ddof=e, where=X > -3),
    "lstsq": lambda p, e: p.numpy.linalg.lstsq(X.T, X[0], rcond=e)[0],
    "lstsq, by default": lambda p, e: p.numpy.linalg.lstsq(X.T, X[0], rcond=-e)[0],
    "leaky_relu": lambda p, e: p.nn.leaky_relu(X, e),
    "squareplus": lambda p, e: p.nn.squareplus(X, e),
    **{
        name: lambda p, e, name=name: getattr(p.nn.initializers, name)(e)(p.random.key(3), (4, 2))
        for name in ("normal", "uniform", "truncated_normal", "orthogonal", "constant")
    },
    **{
        f"variance_scaling, {kind}": lambda p, e, kind=kind: p.nn.initializers.variance_scaling(e, "fan_in", kind)(
            p.random.key(3), (4, 2)
        )
        for kind in ("normal", "uniform", "truncated_normal")
    },
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_may_be_traced(name: str) -> None:
    def found(p: Any) -> list[Any]:
        def f(e: Any) -> Any:
            return FUNCTIONS[name](p, e)

        def total(e: Any) -> Any:
            return p.numpy.sum(p.numpy.asarray(f(e), float))

        return [f(0.7), p.jit(f)(0.7), p.vmap(f)(np.array([0.7, 0.02], np.float32)), p.jit(p.grad(total))(0.7)]

    for got, want in zip(found(mw), found(jax)):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
        assert got.dtype == want.dtype


@pytest.mark.parametrize(
    "arguments",
    [
        (X, ["a", "b"], X, ["c", "b"], ["a", "c"]),
        (X, ["z", "b"], X, ["c", "b"]),
        (X, [..., "b"], X, [..., "b"]),
        (X, [60, 5], X, [1, 5]),
        (X, [(2,), (1,)], X, [(0,), (1,)], [(0,), (2,)]),
        (X, ["rows", "columns"], ["columns"]),
    ],
)
def test_dimensions_of_einsum_have_labels_of_any_type(arguments: Any) -> None:
    np.testing.assert_allclose(mw.numpy.einsum(*arguments), jax.numpy.einsum(*arguments), rtol=1e-6)


@pytest.mark.parametrize("arguments", [(X, ["a", 1], ["a"]), (X, ["a", "b"], ["c"])])
def test_labels_have_an_order_and_are_those_of_operands(arguments: Any) -> None:
    with pytest.raises(mw.errors.MeshwrightError, match="einsum"):
        mw.numpy.einsum(*arguments)
