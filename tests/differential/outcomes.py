"""What a call gives, ours or JAX's, and how two of them differ: values, dtypes, weak types, shapes, refusals."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.core import pytree
from meshwright.errors import MeshwrightError
from meshwright.ir.tracing import typeof


@dataclass(frozen=True, eq=False)
class Weak:
    """A Python number that is to be a weakly typed array."""

    value: Any

    def __repr__(self) -> str:
        return f"weak({self.value!r})"


@dataclass(frozen=True, eq=False)
class Of:
    """What each of the libraries makes itself: ``make(meshwright)``, ``make(jax)``."""

    make: Callable[[Any], Any]
    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Call:
    """Arguments of a function: NumPy arrays become arrays of either library, anything else goes in as it is."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    #: absolute and relative tolerance beyond that of the dtype
    loose: float = 1.0
    #: what the result, a function, is called with in turn
    made: tuple[Any, ...] = ()

    def __str__(self) -> str:
        named = [f"{k}={_shown(v)}" for k, v in self.kwargs.items()]
        return ", ".join([*map(_shown, self.args), *named]) + (f")({_shown(self.made)}" if self.made else "")


def call(*args: Any, made: tuple[Any, ...] = (), **kwargs: Any) -> Call:
    return Call(args, kwargs, made=made)


def _shown(x: Any) -> str:
    if isinstance(x, np.ndarray):
        return f"{x.dtype}{list(x.shape)}" if x.size > 24 else f"{x.dtype}{x.tolist()}"
    if isinstance(x, np.generic):
        return f"{type(x).__name__}({x})"
    return f"({', '.join(map(_shown, x))})" if isinstance(x, (list, tuple)) else repr(x)


def given(x: Any, asarray: Callable[[Any], Any]) -> Any:
    """An argument as a library gets it."""
    if isinstance(x, np.ndarray):
        return asarray(x)
    if isinstance(x, Weak):
        return asarray(x.value)
    if isinstance(x, Of):
        return x.make(mw if asarray is mnp.asarray else jax)
    if isinstance(x, tuple) and any(isinstance(v, (np.ndarray, Weak)) for v in x):
        return tuple(given(v, asarray) for v in x)
    return x


def outcome(f: Callable[..., Any], call: Call, asarray: Callable[[Any], Any]) -> Any:
    """The result of a call, or the exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = f(
                *(given(a, asarray) for a in call.args), **{k: given(v, asarray) for k, v in call.kwargs.items()}
            )
            result = result(*(given(a, asarray) for a in call.made)) if call.made else result
            return jax.block_until_ready(result)
        except Exception as error:
            return error


def difference(ours: Callable[..., Any], theirs: Callable[..., Any], call: Call) -> str:
    """In what our function differs from JAX's for these arguments; empty where it does not."""
    got, want = outcome(ours, call, mnp.asarray), outcome(theirs, call, jnp.asarray)
    if isinstance(got, Exception) and not isinstance(got, MeshwrightError):
        return f"foreign exception {type(got).__name__}: {str(got)[:200]}"
    if isinstance(got, Exception) or isinstance(want, Exception):
        return refusal(got, want)
    return "; ".join(differences(got, want, call.loose))


def refusal(got: Any, want: Any) -> str:
    if isinstance(got, Exception) and isinstance(want, Exception):
        return ""
    if isinstance(got, Exception):
        return f"refused: {str(got)[:160]}"
    return f"accepted: JAX says {type(want).__name__}: {str(want)[:100]}"


def differences(got: Any, want: Any, loose: float = 1.0) -> Iterator[str]:
    gots, wants = pytree.leaves(got), jax.tree.leaves(want)
    if len(gots) != len(wants):
        yield f"{len(gots)} results, expected {len(wants)}"
        return
    for g, w in zip(gots, wants):
        yield from leaf_differences(g, w, loose)


def leaf_differences(got: Any, want: Any, loose: float) -> Iterator[str]:
    if not isinstance(want, (jax.Array, np.ndarray, np.generic, int, float, complex)):
        if isinstance(want, (str, bool)) and got != want:
            yield f"{got!r}, expected {want!r}"
        return
    g, w = np.asarray(got), np.asarray(want)
    if isinstance(want, jax.Array):
        if g.dtype != w.dtype:
            yield f"dtype {g.dtype}, expected {w.dtype}"
        if w.dtype != bool and typeof(got).weak_type != want.weak_type:  # of bools it means nothing
            yield "not weakly typed" if want.weak_type else "weakly typed"
    if g.shape != w.shape:
        yield f"shape {g.shape}, expected {w.shape}"
    elif not same(g, w, loose):
        yield f"values {_first_difference(g, w, loose)}"


#: relative tolerance in units of the dtype's precision
UNITS = 64


def _tolerance(dtype: np.dtype) -> float:
    if dtype.kind in "biu":
        return 0.0
    real = np.zeros((), dtype).real.dtype
    return UNITS * float(ml_dtypes.finfo(real).eps) if real.itemsize > 2 else 4 * float(ml_dtypes.finfo(real).eps)


def _near(g: np.ndarray, w: np.ndarray, rtol: float, signs: bool) -> np.ndarray:
    """Equal up to rounding; equal infinities; NaN beside NaN; with ``signs``, zeros of one sign."""
    with np.errstate(all="ignore"):
        if g.dtype.kind in "biu":
            return g == w
        g, w = g.astype(np.float64), w.astype(np.float64)
        zeros = (g == 0) & (w == 0)
        rounding = np.isfinite(w) & (np.abs(g - w) <= rtol * (np.abs(w) + 1e-2))
        close = (g == w) | (np.isnan(g) & np.isnan(w)) | rounding
        return np.where(zeros, np.signbit(g) == np.signbit(w), close) if signs else close


def elementwise_same(g: np.ndarray, w: np.ndarray, loose: float = 1.0, signs: bool = True) -> np.ndarray:
    rtol = max(_tolerance(np.dtype(d)) for d in (g.dtype, w.dtype)) * loose
    if g.dtype.kind == "c" or w.dtype.kind == "c":
        # Signs of the zeros of complex functions are tested in test_complex_values.
        return _near(g.real, w.real, rtol, False) & _near(g.imag, w.imag, rtol, False)
    return _near(g, w, rtol, signs)


def same(g: np.ndarray, w: np.ndarray, loose: float = 1.0, signs: bool = True) -> bool:
    return bool(elementwise_same(g, w, loose, signs).all())


def _first_difference(g: np.ndarray, w: np.ndarray, loose: float) -> str:
    wrong = ~elementwise_same(g, w, loose)
    places = np.argwhere(wrong)
    first = tuple(places[0])
    return f"at {first}: {g[first]}, expected {w[first]} ({len(places)} of {wrong.size} differ)"
