"""Who else is asked where the two libraries differ: JAX in other ways, and NumPy.

Where one of them says what we do of what differs, JAX contradicts itself, or NumPy: that is counted, and no finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as onp
from fuzz_programs import Case, namespace

#: of a case, a library and its names: the function that is compared, and its arguments
Question = Callable[[Case, Any, Mapping[str, Any]], tuple[Callable[..., Any], Sequence[Any]]]


# --- libraries ----------------------------------------------------------------------------------------------
class Rows:
    """JAX, or what has its names, with ``vmap`` as what it stands for: a call for every row."""

    def __init__(self, library: Any, np_: Any) -> None:
        self._library, self._np = library, np_

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def vmap(self, f: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
        """``f`` of one row after the other."""

        def rows(*args: Any) -> Any:
            axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
            length = next(onp.shape(x)[d] for x, d in zip(args, axes) if d is not None)
            made = [f(*(x if d is None else self._np.take(x, i, d) for x, d in zip(args, axes))) for i in range(length)]
            return jax.tree.map(lambda *xs: self._np.stack(xs, out_axes), *made)

        return rows


class OtherMode(Rows):
    """JAX with gradients by forward mode, and tangents by reverse mode."""

    def vmap(self, *args: Any, **options: Any) -> Any:
        return jax.vmap(*args, **options)

    def grad(self, f: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
        return jax.jacfwd(f, argnums)

    def jvp(self, f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """The value of ``f`` and its tangent, which its Jacobian makes."""
        value = f(*primals)
        slopes = jax.jacrev(f, tuple(range(len(primals))))(*primals)

        def tangent(y: Any, *of: Any) -> Any:
            moved = sum(jnp.tensordot(s, t, jnp.ndim(t)) for s, t in zip(of, tangents))
            return jnp.real(moved) if not jnp.iscomplexobj(y) else moved

        return value, jax.tree.map(tangent, value, *_of_results(slopes, value))


def _of_results(slopes: Any, value: Any) -> list[Any]:
    """Slopes by arguments, each like ``value``, of those that are by results."""
    outer = jax.tree.structure(value)
    leaves = outer.flatten_up_to(slopes)
    return [outer.unflatten(of) for of in zip(*leaves)]


class Plain(Rows):
    """NumPy, which has values, and those row by row."""

    def jvp(self, f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        return (f(*primals),)


def _names(library: Any) -> dict[str, Any]:
    return namespace(library, jnp, jax.lax, jax.nn)


_BY_ROWS, _OTHER_MODE, NUMPY = Rows(jax, jnp), OtherMode(jax, jnp), {"np": onp}
#: JAX by what is done in another way
_JAX = {
    "": (jax, _names(jax)), ", row by row": (_BY_ROWS, _names(_BY_ROWS)),
    ", in the other mode": (_OTHER_MODE, _names(_OTHER_MODE)),
}  # fmt: skip


# --- what they say ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Witness:
    """Somebody who says what is asked: his ``name``, and ``said``; whether his types count."""

    name: str
    said: Callable[[], list[Any]]
    typed: bool = True


def _evaluated(case: Case, question: Question, library: Any, names: Any, jit: bool = False) -> Callable[[], list[Any]]:
    def said() -> list[Any]:
        with jax.enable_x64(case.x64):
            f, args = question(case, library, names)
            args = [x if names is NUMPY or not isinstance(x, onp.ndarray) else jnp.asarray(x) for x in args]
            return jax.tree.leaves((jax.jit(f) if jit else f)(*args))

    return said


def witnesses(case: Case, question: Question) -> Iterator[Witness]:
    """All who can be asked about a case, those who cost least first.

    JAX is asked of the same numbers in float64, and of integers as floats, too: what wraps, overflows or is rounded
    in between does not there.
    """
    yield Witness("NumPy", _evaluated(case, question, Plain(None, onp), NUMPY), typed=False)
    for as_, asked in (("", case), (" in float64", case.widened()), (" of floats", case.of_floats())):
        for way, (library, names) in _JAX.items():
            for jit in (False, True):
                name = f"JAX{as_}{way}{', compiled' if jit else ''}"
                yield Witness(name, _evaluated(asked, question, library, names, jit), typed=asked is case)


def agreeing(
    asked: Iterator[Witness], index: int, ours: Any, wrong: Any, close: Callable[[Any, Any], Any],
) -> tuple[list[str], Any]:  # fmt: skip
    """Who says ``ours`` of elements of result ``index`` that are ``wrong``, and of which of them nobody does.

    ``close`` says where an array is like another one.
    """
    said, left = [], onp.array(wrong)
    for one in asked:
        if not left.any():
            break
        try:
            result = onp.asarray(one.said()[index])
        except Exception:  # refused
            continue
        if result.shape != ours.shape:
            continue
        told = left & close(result if ours.dtype.kind in "biu" else result.astype(ours.dtype), ours)
        if told.any():
            said.append(one.name)
            left &= ~told
    return said, left[wrong]


def sensitivity(case: Case, question: Question, index: int) -> Any:
    """By how much JAX's elements of result ``index`` may change where numbers that go in are rounded otherwise.

    It is 0 where they jump rather than change: at ties, steps and infinities.
    """
    fine, coarse = (_moved(case, question, index, steps) for steps in (2, 128))
    return onp.where(coarse >= 2 * fine, 8 * fine, 0)


def _moved(case: Case, question: Question, index: int, steps: int) -> Any:
    """The largest change for inputs moved by so many roundings; 0 where it is not finite."""
    rng = onp.random.default_rng(0)
    said = [_evaluated(c, question, *_JAX[""]) for c in (case, *(case.rounded(rng, steps) for _ in range(6)))]
    first, *others = (onp.asarray(one()[index]).astype(onp.complex128) for one in said)
    return onp.nan_to_num(onp.max([abs(other - first) for other in others], axis=0), posinf=0)


def typed_alike(asked: Iterator[Witness], index: int, type_of: Callable[[Any], Any], ours: Any) -> list[str]:
    """Who gives result ``index`` the type ``ours``: the first."""
    for one in asked:
        if one.typed:
            try:
                if type_of(one.said()[index]) == ours:
                    return [one.name]
            except Exception:  # refused
                continue
    return []


#: of NumPy: what it cannot do, rather than what it has no name for
_REFUSALS = (ValueError, OverflowError, onp.exceptions.AxisError)


def refusing(case: Case, question: Question) -> list[str]:
    """NumPy, where it refuses what is asked."""
    try:
        _evaluated(case, question, Plain(None, onp), NUMPY)()
    except _REFUSALS as error:
        return [f"NumPy ({type(error).__name__})"]
    except TypeError as error:
        unable = "not supported for the input types", "unsupported in linalg"
        return ["NumPy (TypeError)"] if any(words in str(error) for words in unable) else []
    except Exception:  # it has no such name
        return []
    return []
