"""Derivatives of library functions at double precision: against ``jax``, and twice for the elementwise ones.

The ops themselves are checked against finite differences in ``test_op_derivatives.py``; here are the functions that are
built of them. Each is a function of arrays that ``jax.numpy``, ``jax.nn`` or ``jax.lax`` has under the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.core.config import config

RNG = np.random.default_rng(17)
A = RNG.uniform(0.2, 0.9, (3, 4))
B = RNG.uniform(1.1, 2.4, (3, 4))


@pytest.fixture(scope="module", autouse=True)
def double_precision() -> Iterator[None]:
    with config.override("enable_x64", True), jax.enable_x64(True):
        yield


UNARY = (
    "abs absolute acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh cbrt ceil cos cosh "
    "deg2rad degrees exp exp2 expm1 fabs floor i0 log log10 log1p log2 negative positive rad2deg radians "
    "reciprocal rint round sign sin sinc sinh sqrt square tan tanh trunc"
).split()
BINARY = (
    "add arctan2 atan2 copysign divide float_power fmax fmin fmod heaviside hypot logaddexp logaddexp2 maximum minimum "
    "mod multiply pow power remainder subtract true_divide"
).split()
ACTIVATIONS = (
    "celu elu gelu hard_sigmoid hard_silu hard_tanh leaky_relu log1mexp log_sigmoid mish relu relu6 selu sigmoid silu "
    "soft_sign softplus sparse_plus sparse_sigmoid squareplus tanh"
).split()

ELEMENTWISE: list[tuple[str, str, tuple[np.ndarray, ...]]] = [
    *(("numpy", n, (B if n in ("acosh", "arccosh") else A,)) for n in UNARY),
    *(("numpy", n, (B, A)) for n in BINARY),
    *(("nn", n, (A if n == "log1mexp" else (A - 0.5) * 3,)) for n in ACTIVATIONS),
]

#: a function of a library and arrays
Case = tuple[str, Callable[..., Any], tuple[np.ndarray, ...]]
STRUCTURAL: list[Case] = [
    *(
        (f"{name} {options}", lambda n, x, name=name, options=options: getattr(n, name)(x, **options), (B,))
        for name in ("sum", "mean", "prod", "max", "min", "var", "std", "nansum", "nanmean", "median", "ptp", "cumsum",
                     "cumprod", "average")
        for options in ({}, {"axis": 1})
    ),
    ("quantile", lambda n, x: n.quantile(x, n.asarray([0.2, 0.7]), axis=0), (A,)),
    ("percentile", lambda n, x: n.percentile(x, 30.0), (A,)),
    ("sort", lambda n, x: n.sort(x, axis=0) * n.arange(12.0).reshape(3, 4), (A,)),
    ("where", lambda n, x, y: n.where(x > 0.5, x * y, n.sin(y)), (A, B)),
    ("clip", lambda n, x: n.clip(x, 0.3, 0.7), (A,)),
    ("dot", lambda n, x, y: n.dot(x, y.T), (A, B)),
    ("matmul batched", lambda n, x, y: n.matmul(n.stack([x, y]), y.T), (A, B)),
    ("einsum", lambda n, x, y: n.einsum("ij,kj,ij->ki", x, y, x), (A, B)),
    ("tensordot", lambda n, x, y: n.tensordot(x, y, axes=((0, 1), (0, 1))), (A, B)),
    ("inner", lambda n, x, y: n.inner(x, y), (A, B)),
    ("outer", lambda n, x, y: n.outer(x, y[0]), (A, B)),
    ("kron", lambda n, x, y: n.kron(x, y[:2]), (A, B)),
    ("cross", lambda n, x, y: n.cross(x[:, :3], y[:, 1:]), (A, B)),
    ("trace", lambda n, x: n.trace(x @ x.T), (A,)),
    ("diag", lambda n, x: n.diag(x[0]) @ x.T, (A,)),
    ("tril", lambda n, x: n.tril(x, 1), (A,)),
    ("interp", lambda n, x, y: n.interp(n.linspace(0.3, 3.0, 7), n.arange(4.0), y[0] * x[0]), (A, B)),
    ("convolve", lambda n, x, y: n.convolve(x[0], y[1], mode="full"), (A, B)),
    ("polyval", lambda n, x, y: n.polyval(x[0], y), (A, B)),
    ("diff", lambda n, x: n.diff(x, 2, axis=1), (A,)),
    ("roll and flip", lambda n, x: n.roll(n.flip(x, 1), 2, 0) * n.arange(4.0), (A,)),
    ("pad", lambda n, x: n.pad(x, ((1, 2), (0, 1)), mode="reflect"), (A,)),
    ("concatenate", lambda n, x, y: n.concatenate([x, y, x], 1) ** 2, (A, B)),
    ("repeat and tile", lambda n, x: n.tile(n.repeat(x, 2, axis=0), (1, 2)) ** 2, (A,)),
    ("take", lambda n, x: n.take(x, n.asarray([2, 0, 2]), axis=0) ** 2, (A,)),
    ("take_along_axis", lambda n, x: n.take_along_axis(x, n.argsort(x, axis=1), axis=1) * n.arange(4.0), (A,)),
    ("indexing", lambda n, x: x[1:, ::-2] * x[n.asarray([0, 2]), 1][:, None], (A,)),
    ("at set", lambda n, x, y: x.at[1:, 0].set(y[0, :2]) ** 2, (A, B)),
    ("at add", lambda n, x, y: x.at[n.asarray([0, 0, 2])].add(y) ** 2, (A, B)),
    ("at multiply", lambda n, x, y: x.at[n.asarray([0, 2])].multiply(y[:2], unique_indices=True), (A, B)),
    ("at max", lambda n, x, y: x.at[n.asarray([0, 2])].max(y[:2] - 1), (A, B)),
    ("vander", lambda n, x: n.vander(x[0], 3), (A,)),
    ("nan_to_num", lambda n, x: n.nan_to_num(x) ** 2, (A,)),
    ("complex", lambda n, x, y: abs(n.exp(x + 1j * y)) + n.real((x - 1j * y) ** 3), (A, B)),
]  # fmt: skip

NN: list[Case] = [
    *(
        (f"{name} {options}", lambda n, x, name=name, options=options: getattr(n, name)(x, **options), (A,))
        for name in ("softmax", "log_softmax", "logsumexp", "logmeanexp", "standardize")
        for options in ({"axis": 0}, {"axis": 1, "where": A > 0.3})
    ),
    ("glu", lambda n, x: n.glu(x), (A,)),
    ("gelu exact", lambda n, x: n.gelu(x, approximate=False), (A,)),
    ("attention", lambda n, q, k: n.dot_product_attention(
        q.reshape(1, 3, 2, 2), k.reshape(1, 3, 2, 2), (q * k).reshape(1, 3, 2, 2), is_causal=True), (A, B)),
]  # fmt: skip


def weighted(f: Callable[..., Any]) -> Callable[..., Any]:
    """A scalar of the result, with a different weight for each element."""

    def scalar(*xs: Any) -> Any:
        y = f(*xs)
        return (y * np.cos(np.arange(1.0, y.size + 1)).reshape(y.shape)).sum()

    return scalar


def check(
    ours: Callable[..., Any], theirs: Callable[..., Any], args: tuple[np.ndarray, ...], twice: bool, rtol: float = 1e-9
) -> None:
    places = tuple(range(len(args)))

    def derivatives(m: Any, f: Callable[..., Any]) -> Callable[..., Any]:
        g = m.grad(weighted(f), places)
        if not twice:
            return g
        # A product of the Hessian with one direction: forward over reverse.
        return lambda *xs: (g(*xs), m.jvp(g, xs, tuple(x * 0 + 0.3 for x in xs))[1])

    got = mw.jit(derivatives(mw, ours))(*args)
    want = jax.jit(derivatives(jax, theirs))(*args)
    for a, b in zip(mw.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=rtol / 10)


@pytest.mark.parametrize("library, name, args", ELEMENTWISE, ids=[f"{l}.{n}" for l, n, _ in ELEMENTWISE])
def test_elementwise_functions_twice(library: str, name: str, args: tuple[np.ndarray, ...]) -> None:
    check(getattr(getattr(mw, library), name), getattr(jnp if library == "numpy" else jax.nn, name), args, True)


@pytest.mark.parametrize("fun, args", [c[1:] for c in STRUCTURAL], ids=[c[0] for c in STRUCTURAL])
def test_array_functions(fun: Callable[..., Any], args: tuple[np.ndarray, ...]) -> None:
    check(lambda *xs: fun(mnp, *xs), lambda *xs: fun(jnp, *xs), args, False)


@pytest.mark.parametrize("fun, args", [c[1:] for c in NN], ids=[c[0] for c in NN])
def test_network_functions(fun: Callable[..., Any], args: tuple[np.ndarray, ...], request: Any) -> None:
    rtol = 1e-5 if "attention" in request.node.name else 1e-9  # JAX computes logits in float32
    check(lambda *xs: fun(mw.nn, *xs), lambda *xs: fun(jax.nn, *xs), args, False, rtol)
