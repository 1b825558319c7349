"""``jax.interpreters.batching``: the rules of primitives for ``vmap`` (:class:`meshwright.extend.core.Primitive`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from meshwright.core.absent import absent as _absent
from meshwright.errors import RuleError
from meshwright.ir.tracing import typeof
from meshwright.numpy import moveaxis
from meshwright.ops.primitive import AXIS_BATCHERS as fancy_primitive_batchers
from meshwright.ops.primitive import BATCHERS as primitive_batchers
from meshwright.ops.primitive import Primitive
from meshwright.ops.shape.broadcast_reduce import put_batch_dim
from meshwright.ops.shape.rearrange import reshape
from meshwright.transforms.vmappable import register_vmappable, unregister_vmappable

__all__ = [
    "axis_primitive_batchers", "bdim_at_front", "broadcast", "defbroadcasting", "defvectorized",
    "fancy_primitive_batchers", "moveaxis", "not_mapped", "primitive_batchers", "register_vmappable",
    "unregister_vmappable",
]  # fmt: skip

__getattr__ = _absent("interpreters.batching")

#: the batch dimension of unbatched values
not_mapped = None


class _SizeAndName:
    """Where rules are registered that take the axis as its size, its name and None."""

    def __setitem__(self, prim: Primitive, rule: Callable[..., Any]) -> None:
        def of_axis(axis: Any, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> Any:
            return rule(axis.size, axis.name, None, args, dims, **params)

        fancy_primitive_batchers[prim] = of_axis


#: an earlier form of ``fancy_primitive_batchers``: ``rule(axis_size, axis_name, None, args, dims, **params)``
axis_primitive_batchers = _SizeAndName()


def bdim_at_front(x: Any, bdim: int | None, size: int) -> Any:
    """``x`` with its batch dimension in front; broadcast along a new one of that size if it has none."""
    return put_batch_dim(x, bdim, 0, size)


def broadcast(x: Any, sz: int, axis: int, mesh_axis: None = None) -> Any:
    """``x`` broadcast along a new dimension ``axis`` of size ``sz``."""
    return put_batch_dim(x, None, axis, sz)


def defvectorized(prim: Primitive) -> None:
    """Register that the primitive is elementwise, so that its operands may have additional dimensions."""
    primitive_batchers[prim] = partial(_elementwise, prim)


#: for operands of equal rank, or scalars, which the primitive itself broadcasts
defbroadcasting = defvectorized


def _elementwise(prim: Primitive, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
    ranks = [typeof(x).ndim - (d is not None) for x, d in zip(args, dims)]
    rank = max(ranks)
    if set(ranks) - {0, rank}:
        raise RuleError(
            f"{prim}: operands of ranks {', '.join(map(str, ranks))} have no common place for a batch dimension; "
            "register a rule that knows how it broadcasts: batching.primitive_batchers[p] = rule(args, dims, **params)"
        )
    size, dim = next((typeof(x).shape[d], d) for x, d in zip(args, dims) if d is not None)
    if any(d not in (None, dim) or r < rank for d, r in zip(dims, ranks) if d is not None):
        dim = 0

    def placed(x: Any, d: int | None, r: int) -> Any:
        if d is None and r < rank:
            return x
        x = put_batch_dim(x, d, dim if r == rank else 0, size)
        return x if r == rank else reshape(x, (size, *[1] * rank))

    outs = prim.bind(*map(placed, args, dims, ranks), **params)
    return outs, [dim] * len(outs) if prim.multiple_results else dim
