"""The derivative of a reduction by an arbitrary function.

It is that of the reduction unrolled into a tree of pairs, with the function's derivative, op by op, at each node. So it
is right at zeros and wherever a closed form would divide, and can be transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.errors import RuleError
from meshwright.ir.derivatives import jvp_of
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.op import Zero
from meshwright.ir.rewrite import Interpreter
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import zeros_like
from meshwright.ops.scalar_body import is_elementwise
from meshwright.ops.shape.broadcast_reduce import match_shape
from meshwright.ops.shape.rearrange import squeeze
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim

#: up to this many rows are reduced sequentially
_FEW = 32

#: an array with its tangent, which is None for integers
Pair = tuple[Any, Any]


def with_tangents(values: Sequence[Any], tangents: Sequence[Any]) -> list[Pair]:
    """Pair values with tangents, with all tangents of inexact values materialized."""
    pairs = []
    for x, t in zip(values, tangents):
        inexact = dtypes.is_inexact(typeof(x).dtype)
        pairs.append((x, (zeros_like(x) if isinstance(t, Zero) else t) if inexact else None))
    return pairs


def without_none(pairs: Sequence[Pair]) -> tuple[list[Any], list[Any]]:
    """Pairs in the form returned by ``jvp`` rules: values, and tangents, which are :class:`Zero` for integers."""
    return [x for x, _ in pairs], [Zero(typeof(x)) if t is None else t for x, t in pairs]


def each(fun: Callable[[Any], Any], pair: Pair) -> Pair:
    """Apply a linear function to a value and its tangent."""
    value, tangent = pair
    return fun(value), None if tangent is None else fun(tangent)


def fold_with_tangents(name: str, body: ClosedJaxpr, inits: Sequence[Pair], stacked: Sequence[Pair]) -> list[Pair]:
    """Fold ``body`` over the leading dimension of arrays, starting from initial values, with tangents.

    A few rows are folded sequentially, as in XLA; of more, neighbours are combined in a tree. The order is kept, since
    bodies need not commute.

    Raises:
      RuleError: the body has ops that are not elementwise; ``name`` is the reduction.
    """
    if not is_elementwise(body):
        raise RuleError(f"{name}: no derivative, since its computation is written with ops that are not elementwise")
    rows, *shape = typeof(stacked[0][0]).shape
    first = [each(lambda v: match_shape(v, typeof(v).update(shape=tuple(shape))), pair) for pair in inits]
    if not rows:
        return first
    while rows > _FEW:
        pairs = rows // 2
        joined = _body_with_tangents(body, _rows(stacked, 0, 2 * pairs, 2), _rows(stacked, 1, 2 * pairs, 2))
        if rows % 2:
            rest = _rows(stacked, rows - 1, rows)
            joined = [(_joined(x, y), _joined(t, u)) for (x, t), (y, u) in zip(joined, rest)]
        stacked, rows = joined, pairs + rows % 2
    for i in range(rows):
        row = [each(lambda v: squeeze(v, [0]), pair) for pair in _rows(stacked, i, i + 1)]
        first = _body_with_tangents(body, first, row)
    return first


def _rows(pairs: Sequence[Pair], start: int, stop: int, stride: int = 1) -> list[Pair]:
    return [each(lambda v: slice_in_dim(v, start, stop, stride), pair) for pair in pairs]


def _joined(x: Any, y: Any) -> Any:
    return None if x is None else concatenate([x, y], 0)


class Forward(Interpreter[Pair]):
    """Interprets a jaxpr on values with their tangents."""

    def constant(self, value: Any, aval: ShapedArray) -> Pair:
        return value, Zero(aval)

    def equation(self, eqn: JaxprEqn, args: list[Pair]) -> Sequence[Pair]:
        primals, tangents = zip(*args)
        if any(not isinstance(t, Zero) for t in tangents):
            return [jvp_of(eqn.op, primals, tangents)]
        y = eqn.op.bind(*primals)
        return [(y, Zero(typeof(y)))]


def _body_with_tangents(body: ClosedJaxpr, a: Sequence[Pair], b: Sequence[Pair]) -> list[Pair]:
    """Apply a body of elementwise ops to arrays of one shape, with the ops' own derivatives."""
    shape = typeof(a[0][0]).shape
    args = [(x, Zero(typeof(x)) if t is None else t) for x, t in (*a, *b)]
    results = Forward().run(body, args)

    def filled(v: Any) -> Any:
        return v if isinstance(v, Zero) else match_shape(v, typeof(v).update(shape=shape))

    return with_tangents([filled(y) for y, _ in results], [filled(t) for _, t in results])
