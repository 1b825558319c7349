"""First and second derivatives of functions of arrays where they are easily wrong; JAX, or differences, as oracle."""

from __future__ import annotations

import importlib
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.ops
import numpy as np
import pytest
from structures import CASES, OTHERWISE, Case

import meshwright as mw
from meshwright.core.config import config
from meshwright.errors import MeshwrightError


@pytest.fixture(scope="module", autouse=True)
def double_precision() -> Iterator[None]:
    with config.override("enable_x64", True), jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def library(root: Any) -> Any:
    """The modules that cases name, of ours or of JAX."""
    parts = {n: importlib.import_module(f"{root.__name__}.{n}") for n in ("numpy", "lax", "nn", "random", "ops")}
    linalg = importlib.import_module(f"{root.__name__}.scipy.linalg")
    return types.SimpleNamespace(**parts, scipy=types.SimpleNamespace(linalg=linalg), jvp=root.jvp, vjp=root.vjp)


OURS, JAX = library(mw), library(jax)


def direction(x: Any, frequency: float) -> np.ndarray:
    return np.cos(np.arange(1.0, np.size(x) + 1) * frequency).reshape(np.shape(x))


def derivatives(m: Any, case: Case, twice: bool) -> Callable[..., dict[str, Any]]:
    """Of a case: its value, and derivatives along one direction forwards and backwards, of both orders."""

    def f(*xs: Any) -> Any:
        return case.f(m, *xs)

    along = tuple(direction(a, 1.3 + i) for i, a in enumerate(case.args))

    def run(*xs: Any) -> dict[str, Any]:
        y = f(*xs)
        ct = direction(y, 0.7).astype(y.dtype)

        def forward(*xs: Any) -> Any:
            return m.jvp(f, xs, along)[1]

        def backward(*xs: Any) -> Any:
            return m.vjp(f, *xs)[1](ct)

        out = {"value": y, "jvp": forward(*xs), "vjp": backward(*xs)}
        if twice:
            out["jvp of jvp"] = m.jvp(forward, xs, along)[1]
            out["jvp of vjp"] = m.jvp(backward, xs, along)[1]
            out["vjp of jvp"] = m.vjp(forward, *xs)[1](ct)
        return out

    return run


def differs(part: str, got: Any, want: Any, value: np.ndarray) -> bool:
    got, want = np.asarray(got), np.asarray(want)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    with np.errstate(all="ignore"):
        ok = np.isclose(got, want, rtol=1e-6, atol=1e-9, equal_nan=True) | (np.isnan(want) & ~np.isnan(got))
        if got.shape == value.shape and part in ("jvp", "jvp of jvp"):
            ok |= np.isnan(value) & np.isnan(got)  # of a NaN
    return not ok.all()


#: what every run asks; the others are slow
ALWAYS = (
    "nanstd nans", "nanvar nans", "x[i] outside", "x[i] negative", "x[i] duplicate", "lax.index_take", "at.apply",
    "x**int array", "reduce_window halves (2,)", "reduce affine (3, 4)", "lax.cumlogsumexp lows", "pinv tall",
    "norm None zero", "det singular", "random.truncated",
)  # fmt: skip
QUICK = {c.name for i, c in enumerate(CASES) if i % 12 == 0 or c.name.startswith(ALWAYS)}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c.name in QUICK else pytest.mark.slow, id=c.name) for c in CASES]
)
def test_against_jax(case: Case) -> None:
    otherwise = OTHERWISE.get(case.name)
    twice = case.twice
    try:
        want = jax.jit(derivatives(JAX, case, twice))(*case.args)
    except Exception as error:
        assert otherwise == "differences" or isinstance(error, NotImplementedError), error
        if otherwise != "differences":
            with pytest.raises(MeshwrightError):
                mw.jit(derivatives(OURS, case, twice))(*case.args)
            return
    got = mw.jit(derivatives(OURS, case, twice))(*case.args)
    if otherwise == "differences":
        check_by_differences(case, got)
        return
    for part, x in got.items():
        if otherwise is not None and part != "value":
            continue
        pairs = zip(mw.tree.leaves(x), jax.tree.leaves(want[part]), strict=True)
        assert not any(differs(part, a, b, np.asarray(got["value"])) for a, b in pairs), (
            f"{part}: {x}, JAX {want[part]}"
        )


def check_by_differences(case: Case, got: dict[str, Any]) -> None:
    """Where JAX has no derivative, or not the right one: against central differences, forwards against backwards."""
    step, run = 1e-6, mw.jit(lambda *xs: case.f(OURS, *xs))
    along = [direction(a, 1.3 + i) for i, a in enumerate(case.args)]
    plus, minus = (np.asarray(run(*(a + s * step * v for a, v in zip(case.args, along)))) for s in (1, -1))
    np.testing.assert_allclose(got["jvp"], (plus - minus) / (2 * step), rtol=1e-5, atol=1e-6)
    left = np.sum(np.asarray(got["jvp"]) * direction(got["value"], 0.7))
    right = sum(np.sum(np.asarray(ct) * v) for ct, v in zip(got["vjp"], along))
    np.testing.assert_allclose(left, right, rtol=1e-9)


@pytest.mark.parametrize("name", ["cummax", "cummin", "max", "min", "sort", "median"])
def test_shares_of_ties_are_one_together(name: str) -> None:
    x = np.array([2.0, 2.0, -np.inf, -np.inf, 2.0, np.inf, np.inf])
    f = getattr(mw.lax if name.startswith("cum") else mw.numpy, name)
    for row in (x, x[:2], x[2:4], -x[::-1]):
        np.testing.assert_array_equal(mw.jvp(f, (row,), (np.ones(row.shape),))[1], np.ones(np.shape(f(row))))


def test_pseudoinverse_of_a_tall_matrix_needs_no_square_one() -> None:
    m, n = 60_000, 3
    tall = mw.ShapeDtypeStruct((m, n), np.float32)
    for shape in ((m, n), (n, m)):
        tall = mw.ShapeDtypeStruct(shape, np.float32)
        jaxpr = mw.make_jaxpr(mw.grad(lambda a: mw.numpy.linalg.pinv(a).sum()))(tall)
        assert largest(jaxpr.jaxpr) <= 4 * m * n


def largest(jaxpr: Any) -> int:
    """The size of the largest value of a jaxpr."""
    sizes = [
        v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars if v.aval.shape.count(jaxpr.invars[0].aval.size) == 0
    ]
    inner = [largest(sub.jaxpr) for eqn in jaxpr.eqns for sub in vars(eqn.op).values() if hasattr(sub, "jaxpr")]
    return max([*sizes, *inner], default=0)


@pytest.mark.parametrize("name", "sin cos tan sinh cosh tanh arcsin arctan arcsinh sqrt log exp".split())
def test_real_axis_of_complex_functions(name: str) -> None:
    """Parts that the standard makes zero have derivatives: of sin, by the imaginary part, at real numbers."""
    x, t = np.array([0.5, 0.25, 0.5j, 0.0]) + 0j, np.array([1j, 1.0, 1.0, 1j])
    x, t = (v[:3] if name in ("sqrt", "log") else v for v in (x, t))

    def twice(m: Any) -> Any:
        f = getattr(m.numpy, name)
        return m.jvp(lambda v: m.jvp(f, (v,), (t,))[1], (x,), (t,))

    np.testing.assert_allclose(twice(mw), twice(jax), rtol=1e-9, atol=1e-12)
