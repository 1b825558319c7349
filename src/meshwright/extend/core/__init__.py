"""``jax.extend.core``: primitives and jaxprs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import ref

import numpy as np

from meshwright.api.tracing import jaxpr_as_fun
from meshwright.core.absent import absent as _absent
from meshwright.core.avals import ShapedArray
from meshwright.core.late import late_attributes as _late_attributes
from meshwright.core.late import submodules as _submodules
from meshwright.errors import ArgumentError, ArgumentTypeError, InconclusiveDimensionOperation, JaxprTypeError
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from meshwright.ir.jaxpr import sub_jaxprs as _sub_jaxprs
from meshwright.ir.state import STATE, set_trace
from meshwright.ir.tracing import EVAL, Trace, typeof
from meshwright.ir.verify import verify as check_jaxpr
from meshwright.ops.primitive import Primitive
from meshwright.runtime.array import Array
from meshwright.runtime.python_types import valid_jaxtype

__all__ = [
    "ClosedJaxpr", "DropVar", "Effect", "Effects", "InconclusiveDimensionOperation", "Jaxpr", "JaxprEqn",
    "JaxprTypeError", "Literal", "Primitive", "TraceTag", "Var", "array_types", "check_jaxpr", "find_top_trace",
    "get_opaque_trace_state", "jaxpr_as_fun", "jaxprs_in_params", "mapped_aval", "no_effects", "set_current_trace",
    "subjaxprs", "take_current_trace", "unmapped_aval", "valid_jaxtype",
]  # fmt: skip

__getattr__, __dir__ = _late_attributes(__name__, {}, _submodules(__name__, "primitives"), _absent("extend.core"))


class DropVar(Var):
    """A result that nothing uses, in JAX. Here such results are variables as others, so nothing is an instance."""

    __slots__ = ()


class Effect:
    """Base of classes of effects, for extensions that declare theirs. Types and jaxprs contain none."""


Effects = frozenset[Effect]
no_effects: Effects = frozenset()

#: the classes of concrete arrays
array_types = {np.ndarray, Array, *(np.dtype(c).type for c in np.typecodes["AllInteger"] + "?efdFD")}


class _TraceState:
    """Which trace is current, for comparison; does not keep the trace."""

    __slots__ = ("_trace",)

    def __init__(self) -> None:
        self._trace = ref(STATE.trace)  # the same reference for the same trace

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TraceState) and self._trace is other._trace

    def __hash__(self) -> int:
        return id(self._trace)


def get_opaque_trace_state(convention: str | None = None) -> Any:
    """An object that is equal to another one if both were made in the same trace.

    Example:
      >>> from meshwright.extend.core import get_opaque_trace_state
      >>> outside = get_opaque_trace_state()
      >>> same = []
      >>> _ = mw.make_jaxpr(lambda x: same.append(get_opaque_trace_state() == outside))(2)
      >>> same, get_opaque_trace_state() == outside
      ([False], True)
    """
    return _TraceState()


class TraceTag:
    """What tells the tracers of one transformation from those of others."""


def find_top_trace(_: Any) -> Trace:
    """The current trace, which interprets ops on any values."""
    return STATE.trace


def set_current_trace(trace: Trace, check_leaks: bool = False) -> AbstractContextManager[Any]:
    """In the ``with`` block, ``trace`` interprets ops."""
    return set_trace(trace)


@contextmanager
def take_current_trace() -> Iterator[Trace]:
    """The current trace; in the ``with`` block, ops are evaluated.

    Example:
      >>> from meshwright.extend.core import set_current_trace, take_current_trace
      >>> @mw.make_jaxpr
      ... def f(x):
      ...     with take_current_trace() as trace:
      ...         n = mnp.sum(mnp.arange(3))
      ...         with set_current_trace(trace):
      ...             return x * int(n)
      >>> [eqn.primitive.name for eqn in f(2.0).eqns]
      ['mul']
    """
    trace = STATE.trace
    with set_trace(EVAL):
        yield trace


def mapped_aval(size: int, axis: int | None, aval: ShapedArray) -> ShapedArray:
    """The type of the elements of a batch along ``axis``, where its size is ``size``."""
    return aval if axis is None else aval.without_dim(axis)


def unmapped_aval(size: int, axis: int | None, aval: ShapedArray, explicit_mesh_axis: Any = None) -> ShapedArray:
    """The type of a batch of ``size`` along ``axis``, whose elements have the type ``aval``.

    Raises:
      ArgumentError: ``explicit_mesh_axis``, of whose mesh types of unsplit elements know nothing.
    """
    if explicit_mesh_axis is not None:
        raise ArgumentError(
            f"unmapped_aval: explicit_mesh_axis={explicit_mesh_axis!r} is not supported; use None, and reshard "
            "the batch"
        )
    return aval if axis is None else aval.with_dim(axis, size)


def jaxprs_in_params(params: Mapping[str, Any]) -> Iterator[Jaxpr]:
    """The jaxprs among the parameters of an equation."""
    for value in params.values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, (ClosedJaxpr, Jaxpr)):
                yield item.jaxpr if isinstance(item, ClosedJaxpr) else item


def subjaxprs(jaxpr: Jaxpr) -> Iterator[Jaxpr]:
    """The jaxprs that the equations of ``jaxpr`` hold."""
    for eqn in jaxpr.eqns:
        yield from _sub_jaxprs(eqn.op)
