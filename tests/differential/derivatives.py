"""Derivatives of calls, ours and JAX's: of the first order forwards and backwards, of the second forwards."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from outcomes import Call, Of, Weak

import meshwright as mw
from meshwright.core import pytree
from meshwright.errors import MeshwrightError

DOUBLE = np.dtype(np.float64)


@dataclass(frozen=True)
class Found:
    """Float results of a call in one vector, with their derivatives along one direction."""

    value: np.ndarray
    tangent: np.ndarray
    second: np.ndarray
    #: of all arguments in one vector
    cotangent: np.ndarray


#: which elements of a derivative of order 1 or 2 of a call may be otherwise
Excused = Callable[[Call, int], np.ndarray]


def moving(call: Call) -> list[int]:
    """The arguments that derivatives are by."""
    return [i for i, a in enumerate(call.args) if isinstance(a, np.ndarray) and a.dtype == DOUBLE and a.size]


def direction(shape: tuple[int, ...], frequency: float) -> np.ndarray:
    return np.cos(np.arange(1.0, np.prod(shape, dtype=int) + 1) * frequency).reshape(shape)


def derivatives(m: Any, f: Callable[..., Any], call: Call) -> Found | Exception:
    """What library ``m`` has of its function ``f``, or the exception."""
    places, leaves = moving(call), (jax.tree.leaves if m is jax else pytree.leaves)
    along = tuple(direction(call.args[i].shape, 1.3 + i) for i in places)

    def given(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(given, x))
        return x.make(m) if isinstance(x, Of) else m.numpy.asarray(x.value) if isinstance(x, Weak) else x

    def run(*xs: Any) -> Any:
        args = [xs[places.index(i)] if i in places else given(a) for i, a in enumerate(call.args)]
        outs = leaves(f(*args, **{k: given(v) for k, v in call.kwargs.items()}))
        parts = [p for o in outs for p in _real_parts(m, o)]
        return m.numpy.concatenate([m.numpy.ravel(p) for p in parts]) if parts else m.numpy.zeros(0)

    def everything(*xs: Any) -> list[Any]:
        def forward(*ys: Any) -> Any:
            return m.jvp(run, ys, along)[1]

        value, back = m.vjp(run, *xs)
        tangent, second = m.jvp(forward, xs, along)
        cotangents = back(direction(value.shape, 0.7))
        return [value, tangent, second, m.numpy.concatenate([m.numpy.ravel(c) for c in cotangents])]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = map(np.asarray, m.jit(everything)(*(call.args[i] for i in places)))
            return Found(*(x if x.dtype == DOUBLE else np.zeros(x.shape) for x in found))
        except Exception as error:
            return error


def _real_parts(m: Any, x: Any) -> list[Any]:
    dtype = getattr(x, "dtype", None)
    if dtype == np.complex128:
        return [m.numpy.real(x), m.numpy.imag(x)]
    return [x] if dtype == DOUBLE else []


def differences(
    f: Callable[..., Any], g: Callable[..., Any], call: Call, loose: float, excused: Excused, density: bool = False
) -> Iterator[str]:
    """In what derivatives of our ``f`` are not those of JAX's ``g``.

    Nothing is said where values are NaN or differ, or JAX has NaN; outside of the support of a
    ``density``, where its logarithm is infinite, derivatives may be 0.
    """
    want = derivatives(jax, g, call)
    if isinstance(want, Exception):
        return
    got = derivatives(mw, f, call)
    if isinstance(got, MeshwrightError):
        yield f"refused: {got}"
        return
    if isinstance(got, Exception):
        yield f"foreign exception {type(got).__name__}: {got}"
        return
    if got.value.shape != want.value.shape:
        return
    alike = _near(got.value, want.value, loose)
    outside = density & np.isinf(got.value)
    for order, part in ((1, "tangent"), (2, "second")):
        a, b = getattr(got, part), getattr(want, part)
        fine = _near(a, b, loose) | ~alike | np.isnan(got.value) | (outside & (a == 0))
        yield from _listed(part, a, b, fine | np.resize(excused(call, order), a.shape))
    if alike.all() and not (np.isnan(got.value) | outside).any() and not excused(call, 1).any():
        a, b = got.cotangent, want.cotangent
        yield from _listed("cotangent", a, b, _near(a, b, loose))


def _near(a: np.ndarray, b: np.ndarray, loose: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.isclose(a, b, rtol=1e-8 * loose, atol=1e-9 * loose, equal_nan=True) | (np.isnan(b) & ~np.isnan(a))


def _listed(part: str, a: np.ndarray, b: np.ndarray, fine: np.ndarray) -> Iterator[str]:
    wrong = np.flatnonzero(~fine)
    if wrong.size:
        i = wrong[0]
        yield f"{part} at {i}: {a[i]}, expected {b[i]} ({wrong.size} of {a.size} differ)"
