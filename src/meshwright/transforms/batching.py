"""Batching: tracers hide a batch dimension, and each op's ``batch`` rule propagates it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.ir.explicit import decided, is_explicit
from meshwright.ir.jaxpr import sub_jaxprs
from meshwright.ir.op import BatchAxis, Op
from meshwright.ir.state import set_trace
from meshwright.ir.tracing import Trace, Tracer, check_alive, infer_cached, typeof
from meshwright.ops.collective.base import Collective
from meshwright.ops.collective.inside import collectives_of
from meshwright.ops.composite import Composite
from meshwright.ops.control.call import CallOp
from meshwright.ops.random.keys import KeyOp, key_types_of
from meshwright.ops.shape.broadcast_reduce import put_batch_dim
from meshwright.transforms.jaxprs import TRANSFORMS


class BatchTracer(Tracer):
    """An array whose batch dimension is hidden from the traced program: ``aval`` lacks it."""

    __slots__ = ("batch_dim", "val")

    def __init__(self, trace: BatchTrace, val: Any, batch_dim: int) -> None:
        aval = typeof(val)
        self.owner = trace
        self.val = val
        self.batch_dim = batch_dim
        self.aval = aval.without_dim(batch_dim)

    def origin(self) -> str:
        return self.val.origin() if isinstance(self.val, Tracer) else ""


class BatchTrace(Trace):
    """Runs each op's ``batch`` under the parent trace. Values without a batch dimension are not wrapped."""

    __slots__ = ("axis", "parent")

    def __init__(self, parent: Trace, axis: BatchAxis) -> None:
        super().__init__()
        self.parent = parent
        self.axis = axis

    def wrap(self, val: Any, dim: int | None) -> Any:
        """A tracer for ``val`` with its batch dimension at ``dim``, or ``val`` itself if ``dim`` is None."""
        return val if dim is None else BatchTracer(self, val, dim)

    def put(self, x: Any) -> Any:
        """``x`` with a batch dimension; broadcast along a new leading one if it has none."""
        val, dim = self.unwrap(x)
        if dim is not None:
            return x
        with set_trace(self.parent):
            return self.wrap(put_batch_dim(val, None, 0, self.axis.size), 0)

    def unwrap(self, x: Any) -> tuple[Any, int | None]:
        """The underlying array of ``x`` and the position of its batch dimension (None if it has none)."""
        if type(x) is BatchTracer and x.owner is self:
            return x.val, x.batch_dim
        check_alive(x)
        if self.axis.key is not None and not isinstance(x, Tracer) and typeof(x).dtype is self.axis.key:
            return x.words(), typeof(x).ndim  # a constant key array: the words are its trailing dimension
        return x, None

    def process(self, op: Op, args: Sequence[Any]) -> Any:
        key = self.axis.key
        if key is not None and isinstance(op, KeyOp) and op.key is key:
            with set_trace(self.parent):
                return self.wrap(*op.on_words(*self.unwrap(args[0])))
        if isinstance(op, Composite) and isinstance(op, Collective) and self.axis.name in op.axes:
            return op.expand(*args)[0]
        batched = any(type(x) is BatchTracer and x.owner is self for x in args)
        if key is not None:
            batched = batched or any(not isinstance(x, Tracer) and typeof(x).dtype is key for x in args)
        if not batched and not (self.axis.name is not None and names_axis(op, self.axis.name)):
            return self.parent.process(op, args)
        vals, dims = zip(*map(self.unwrap, args)) if args else ((), ())
        avals = tuple(map(typeof, args))
        if is_explicit(avals) and not isinstance(op, CallOp):
            # Report ambiguous explicit shardings at the unbatched op; inside the batching rule they are not errors.
            infer_cached(op, avals)
            with decided():
                return self._batched(op, vals, dims)
        return self._batched(op, vals, dims)

    def _batched(self, op: Op, vals: Sequence[Any], dims: Sequence[int | None]) -> Any:
        outs: Any
        out_dims: Any  # one of each, or lists, as ``multiple_results`` says
        with set_trace(self.parent):
            if isinstance(op, CallOp):
                outs, out_dims = op.batch_call(TRANSFORMS, self.axis, vals, dims)
            elif isinstance(op, Collective) and self.axis.name in op.axes:
                outs, out_dims = op.batch_named(self.axis, vals[0] if vals else None, dims[0] if dims else None)
            else:
                outs, out_dims = op.batch(self.axis, vals, dims)
        if op.multiple_results:
            return [self.wrap(x, d) for x, d in zip(outs, out_dims)]
        return self.wrap(outs, out_dims)


def names_axis(op: Op, name: str) -> bool:
    """Whether ``op`` is a collective over the axis ``name``, or contains one (or a key of that name) in a jaxpr."""
    if not isinstance(op, (CallOp, Collective)):
        return False
    keyed = any(k.name == name for j in sub_jaxprs(op) for k in key_types_of(j))
    return keyed or any(name in each.axes for each in collectives_of(op))
