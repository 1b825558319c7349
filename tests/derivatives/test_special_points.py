"""First and second derivatives of every elementwise function at zeros, infinities, NaN, ties and ends of domains."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from elementwise import EXCEPTIONS, found, functions, modules, points

import meshwright as mw
from meshwright.core.config import config
from meshwright.errors import MeshwrightError


@pytest.fixture(scope="module", autouse=True)
def double_precision() -> Iterator[None]:
    with config.override("enable_x64", True), jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def derivatives(m: Any, f: Callable[..., Any], arity: int, twice: bool) -> Callable[..., list[Any]]:
    """``f``, its partial derivatives forwards and backwards, and the partial derivatives of those."""

    def along(g: Callable[..., Any], i: int, xs: Sequence[Any]) -> list[Any]:
        def one(v: Any) -> Any:
            return g(*(v if j == i else x for j, x in enumerate(xs)))

        ones = np.ones(xs[i].shape)
        return [m.jvp(one, (xs[i],), (ones,))[1], m.vjp(one, xs[i])[1](ones)[0]]

    def run(*xs: Any) -> list[Any]:
        out = [f(*xs)]
        for i in range(arity):
            out += along(f, i, xs)
            for j in range(arity) if twice else ():
                out += along(lambda *ys, i=i: along(f, i, ys)[0], j, xs)
        return out

    return run


def parts(arity: int, twice: bool) -> list[str]:
    """What ``derivatives`` returns, in words."""
    found = ["value"]
    for i in range(arity):
        found += [f"d{i}", f"rev d{i}"]
        for j in range(arity) if twice else ():
            found += [f"d{i}{j}", f"rev d{i}{j}"]
    return found


def compare(
    name: str, arity: int, got: Sequence[Any], want: Sequence[Any], args: Sequence[np.ndarray], words: Any
) -> list[str]:
    """What differs from JAX.

    Of a NaN the derivative may be NaN; where JAX has NaN and the function a value, a value is better.
    """
    value, exception, wrong = np.asarray(got[0]), EXCEPTIONS.get(name), []
    for word, a, b in zip(words, got, want, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        with np.errstate(all="ignore"):
            ok = np.isclose(a, b, rtol=1e-6, atol=1e-9, equal_nan=True)
            ok |= np.isnan(a) & np.isnan(value) if word != "value" else False
            ok |= np.isnan(b) & ~np.isnan(a) & (~np.isnan(value) | (word == "value"))
            if exception is not None and (not exception.parts or word.startswith(exception.parts)):
                ok |= np.broadcast_to(exception.where(*args), a.shape)
        wrong += [f"{word} at {tuple(float(x[i]) for x in args)}: {a[i]}, JAX {b[i]}" for i in np.flatnonzero(~ok)]
    return wrong


def check(library: str, name: str, arity: int, twice: bool = True, jit: bool = True) -> None:
    ours, theirs = (getattr(m, name) for m in modules(library))
    args = points(name, arity)
    try:
        want = jax.jit(derivatives(jax, theirs, arity, twice))(*args)
    except Exception:  # JAX knows no derivative, or none of the second order: then ours is known or refused
        try:
            mw.jit(derivatives(mw, ours, arity, twice))(*args)
        except MeshwrightError:
            return
        pytest.skip("JAX has no derivative to compare with")
    run = derivatives(mw, ours, arity, twice)
    got = (mw.jit(run) if jit else run)(*(args if jit else [mw.numpy.asarray(x) for x in args]))
    wrong = compare(name, arity, got, want, args, parts(arity, twice))
    assert not wrong, "\n".join(wrong[:12])


#: the same op under its name in another library; slow tests have them
AGAIN = {("lax", n) for l, n, _ in functions() if l == "numpy"} | {("lax", "neg"), ("lax", "rem"), ("nn", "tanh")}
#: of SciPy's functions, those with cases; what sums series takes long to compile
SERIES = set(
    """beta betaln betainc dawsn erfcx exp1 expi expn factorial gamma gammainc gammaincc gammaln gammasgn digamma ndtri
    erfinv owens_t poch spence boxcox boxcox1p igamma igamma_grad_a igammac polygamma zeta""".split()
)
CASES = [f for f in functions() if f[:2] not in AGAIN and f[1] not in SERIES]


@pytest.mark.parametrize("library, name, arity", CASES, ids=[f"{l}.{n}" for l, n, _ in CASES])
def test_derivatives_at_special_points(library: str, name: str, arity: int) -> None:
    check(library, name, arity, twice=arity < 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SERIES))
def test_derivatives_of_series_at_special_points(name: str) -> None:
    for library, other, arity in functions():
        if other == name:
            check(library, name, arity, twice=arity < 3)


@pytest.mark.slow
@pytest.mark.parametrize("library, name, arity", functions(), ids=[f"{l}.{n}" for l, n, _ in functions()])
def test_derivatives_op_by_op(library: str, name: str, arity: int) -> None:
    check(library, name, arity, twice=arity < 3, jit=False)


@pytest.mark.slow
def test_table() -> None:
    others = {(l, n) for l, n, _ in found()} - {(l, n) for l, n, _ in functions()}
    assert not others, f"add to TABLE in elementwise.py, or to OTHER: {others}"
