"""Finds the transformation level at which a function with user-defined rules is differentiated.

During eager ``jvp`` and ``vmap``, the traces are nested and each tracer holds its values. The innermost ``JVPTrace``
for which an operand has a tangent can be found by walking the traces, and the user's rule is called at once, on
concrete values where there are any. It runs under the innermost trace, so that it may close over values of any
enclosing transformation. While a jaxpr is traced, the rule is instead stored in an op, to be called later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, NoReturn

from meshwright.core import pytree
from meshwright.core.identity import kind_of
from meshwright.core.records import dataclass
from meshwright.ir.op import Zero
from meshwright.ir.state import STATE, set_trace
from meshwright.ir.tracing import Trace, Tracer, typeof
from meshwright.ops.elementwise.table import add, materialize
from meshwright.ops.shape.broadcast_reduce import put_batch_dim
from meshwright.transforms.autodiff import closed_call
from meshwright.transforms.batching import BatchTrace, BatchTracer
from meshwright.transforms.jvp import JVPTrace, JVPTracer
from meshwright.transforms.tape import Tape


@dataclass(frozen=True)
class Above:
    """A level inside the differentiating one. For a ``vmap``, ``dims`` are the batch dimensions of the operands."""

    trace: JVPTrace | BatchTrace
    dims: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class Differentiation:
    """The innermost level at which an operand has a tangent. ``primals`` and ``tangents`` are as the rule sees them."""

    trace: JVPTrace
    #: the levels inside this one, innermost first
    above: tuple[Above, ...]
    primals: list[Any]
    tangents: list[Any]
    #: (primal, tangent) pairs as values of this level
    operands: list[tuple[Any, Any]]

    def joined(self, out: Any, tangent: Any) -> Any:
        """A result with the tangent that the rule gave.

        If ``out`` also depends on differentiated values other than the operands, their tangent is added.
        """
        return _joined(self.above, self.trace, out, tangent)

    @property
    def mapped(self) -> list[Above]:
        """The ``vmap`` levels inside this one, innermost first."""
        return [level for level in self.above if isinstance(level.trace, BatchTrace)]

    @property
    def traces(self) -> list[JVPTrace | BatchTrace]:
        """The traces that end with this derivative: its own, and those of the levels inside."""
        return [self.trace, *(level.trace for level in self.above)]

    def lowered(self, x: Any) -> tuple[Any, list[int | None], bool]:
        """``x`` unwrapped to this level: the primal, its batch dimension for each of ``mapped``, and whether ``x`` had
        a tangent."""
        dims, carries = [], False
        for trace in (*self.traces[1:], self.trace):
            if isinstance(trace, BatchTrace):
                x, dim = trace.unwrap(x)
                dims.append(dim)
            else:
                x, tangent = trace.unwrap(x)
                carries |= not isinstance(tangent, Zero)
        return x, dims, carries

    def raised(self, x: Any, tangent: Any, dims: Sequence[int | None]) -> Any:
        """A primal and tangent of this level wrapped for the innermost trace, with batch dimensions ``dims``."""
        x = self.trace.wrap(x, tangent)
        for level, dim in reversed(list(zip(self.mapped, dims))):
            x = level.trace.wrap(x, dim)
        return x


def differentiation(values: Sequence[Any]) -> Differentiation | Trace:
    """The level at which to call a rule for these operands, or the trace that evaluates or records them if none has a
    tangent."""
    given: list[Any] = list(values)
    above: list[Above] = []
    trace = STATE.trace
    while True:
        if type(trace) is JVPTrace:
            pairs = list(map(trace.unwrap, given))
            if any(not isinstance(t, Zero) for _, t in pairs):
                primals = [_wrapped(above, i, p) for i, (p, _) in enumerate(pairs)]
                tangents = [
                    Zero(typeof(p)) if isinstance(t, Zero) else _wrapped(above, i, t)
                    for i, (p, (_, t)) in enumerate(zip(primals, pairs))
                ]
                return Differentiation(trace, tuple(above), primals, tangents, pairs)
            above.append(Above(trace))
        elif type(trace) is BatchTrace:
            batched = list(map(trace.unwrap, given))
            given = [x for x, _ in batched]
            above.append(Above(trace, tuple(d for _, d in batched)))
        elif type(trace) is not Tape or any(map(trace.holds, given)):
            return trace
        trace = trace.parent


def carries_tangent(x: Any) -> bool:
    """Whether ``x`` has a tangent in some enclosing ``jvp``."""
    while isinstance(x, JVPTracer | BatchTracer):
        if isinstance(x, JVPTracer):
            return True
        x = x.val
    return False


def _wrapped(above: Sequence[Above], index: int, x: Any) -> Any:
    for level in reversed(above):
        if isinstance(level.trace, BatchTrace):
            x = level.trace.wrap(x, level.dims[index])
    return x


def _joined(above: Sequence[Above], trace: JVPTrace, out: Any, tangent: Any) -> Any:
    if not above:
        primal, own = trace.unwrap(out)
        given = tangent if isinstance(tangent, Zero) else trace.unwrap(tangent)[0]
        with set_trace(trace.parent):
            return trace.wrap(primal, _sum(own, given))
    inner, rest = above[0].trace, above[1:]
    if isinstance(inner, BatchTrace):
        return _joined_batch(inner, rest, trace, out, tangent)
    out, own = inner.unwrap(out)
    tangent, second = (tangent, tangent) if isinstance(tangent, Zero) else inner.unwrap(tangent)
    result = _joined(rest, trace, out, tangent)
    if isinstance(own, Zero) and isinstance(second, Zero):
        return result
    return inner.wrap(result, _joined(rest, trace, materialize(own), second))


def _joined_batch(inner: BatchTrace, rest: Sequence[Above], trace: JVPTrace, out: Any, tangent: Any) -> Any:
    out, dim = inner.unwrap(out)
    if not isinstance(tangent, Zero):
        tangent, other = inner.unwrap(tangent)
        with set_trace(inner.parent):
            if dim is None and other is not None:
                out, dim = put_batch_dim(out, None, other, inner.axis.size), other
            elif dim is not None:
                tangent = put_batch_dim(tangent, other, dim, inner.axis.size)
    elif dim is not None:
        tangent = Zero(typeof(out))
    return inner.wrap(_joined(rest, trace, out, tangent), dim)


def _sum(x: Any, y: Any) -> Any:
    return y if isinstance(x, Zero) else x if isinstance(y, Zero) else add.bind(x, y)


# --- rules that wait ----------------------------------------------------------------------------------------
def closes_over_tracers(fun: Any, traces: Sequence[Any] | None = None, depth: int = 4) -> bool:
    """Whether ``fun`` holds tracers (of ``traces``, if given) in its closure, defaults or ``partial`` arguments."""
    if isinstance(fun, partial):
        parts: list[Any] = [fun.func, fun.args, fun.keywords]
    else:
        cells = [cell.cell_contents for cell in getattr(fun, "__closure__", None) or () if not _is_empty(cell)]
        parts = [*cells, getattr(fun, "__defaults__", None), getattr(fun, "__kwdefaults__", None)]

    def holds(x: Any) -> bool:
        if isinstance(x, Tracer):
            return traces is None or any(x.owner is trace for trace in traces)
        return depth > 0 and callable(x) and x is not fun and closes_over_tracers(x, traces, depth - 1)

    return any(holds(leaf) for part in parts for leaf in pytree.leaves(part))


def _is_empty(cell: Any) -> bool:
    try:
        return cell.cell_contents is None
    except ValueError:  # the variable is not assigned yet
        return True


_being_traced: ContextVar[frozenset[int]] = ContextVar("being_traced", default=frozenset())


@dataclass(frozen=True)
class Failure:
    """The error of a rule that was traced before it was known whether it is needed."""

    error: Exception

    def again(self, *operands: Any) -> NoReturn:
        """Raise the error, in place of calling the rule."""
        raise self.error


def traced_once(owner: Any, trace: Callable[[], Any]) -> Any:
    """``trace()``, or the :class:`Failure` if it raises an error; None in a recursive call for the same ``owner``, so
    that a rule may call its own function."""
    outer = _being_traced.get()
    if id(owner) in outer:
        return None
    token = _being_traced.set(outer | {id(owner)})
    try:
        return trace()
    except Exception as error:
        return Failure(error)
    finally:
        _being_traced.reset(token)


# --- what rules must return ---------------------------------------------------------------------------------
class ResultTypes:
    """The structure and types of a function's results, found by tracing it once per combination of operand types."""

    def __init__(self) -> None:
        self._types: dict[Any, tuple[Any, Any]] = {}

    def of(self, call: Callable[..., Any], flat: Sequence[Any], *key: Any) -> tuple[Any, Any]:
        """The output structure and avals for these operands and ``key``; None for both if ``call`` cannot be traced."""
        full = tuple(map(typeof, flat)), key, kind_of(key)
        try:
            types = self._types.get(full)
        except TypeError:  # a setting that is not hashable
            return None, None
        if types is None:
            try:
                jaxpr, _, tree = closed_call(call, flat, "types")
                types = tree, tuple(jaxpr.out_avals)
            except Exception:  # the error is raised again, with better context, when the function runs
                types = None, None
            self._types[full] = types
        return types
