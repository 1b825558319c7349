"""``as_strided``: elements by where they lie in memory.

Arrays have no memory that shows, so the exported graph first brings the operand into the order in which torch has it
(``in_memory_order``, which reads the strides that torch's export found); what is asked for is then a selection of
that order, and of a dimension that it takes whole nothing is selected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from meshwright import numpy as mnp
from meshwright.errors import RuleError
from meshwright.interop.torch.registry import register
from meshwright.interop.torch.sources import described

_ATEN = torch.ops.aten
_READS = (_ATEN.as_strided.default, _ATEN.as_strided_copy.default)
_WRITES = (_ATEN.as_strided_scatter.default,)


# --- the graph ----------------------------------------------------------------------------------------------
def in_memory_order(module: torch.nn.Module) -> None:
    """Let ``as_strided`` read, and write to, its operand as it lies in memory.

    Raises:
      RuleError: an operand that is neither the whole of its memory nor a view of what is.
    """
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            for node in [n for n in part.graph.nodes if n.target in (*_READS, *_WRITES)]:
                _ordered(part.graph, node)
            part.recompile()


def _ordered(graph: fx.Graph, node: fx.Node) -> None:
    given: Any = dict(zip((a.name for a in node.target._schema.arguments), node.args)) | node.kwargs  # type: ignore[union-attr]
    operand = given["self"]
    if given.get("storage_offset") is None:
        given["storage_offset"] = operand.meta["val"].storage_offset()
    source = operand if node.target in _WRITES else _whole(operand)
    value = source.meta["val"]
    if not _is_whole(value) or value.dtype != operand.meta["val"].dtype:
        raise RuleError(
            f"{node.target}, at {described(node)}: it counts in the memory of a tensor that is part of another, or of "
            "unknown sizes: call it of a contiguous tensor, or use view, transpose, unfold or expand"
        )
    order = sorted(range(value.ndim), key=lambda d: (-value.stride(d), d))
    given["self"] = _permuted(graph, node.prev, source, order)
    node.args, node.kwargs = (), given
    if node.target in _WRITES:
        back = _permuted(graph, node, node, [order.index(d) for d in range(value.ndim)])
        back.meta, node.meta = node.meta, {**node.meta, "val": value.permute(order)}
        node.replace_all_uses_with(back, delete_user_cb=lambda user: user is not back)


def _permuted(graph: fx.Graph, after: fx.Node, source: fx.Node, order: list[int]) -> fx.Node:
    with graph.inserting_after(after):
        permuted = graph.call_function(_ATEN.permute.default, (source, order))
    permuted.meta = {**source.meta, "val": source.meta["val"].permute(order)}
    return permuted


def _whole(node: Any) -> Any:
    """What a node's value is a view of: the first that is all of its memory."""
    while not _is_whole(node.meta["val"]) and getattr(node.target, "is_view", False):
        node = node.args[0]
    return node


def _is_whole(value: torch.Tensor) -> bool:
    """Whether each element of a tensor's memory is one of the tensor's, and none is two of them."""
    if not all(type(n) is int for n in (*value.shape, *value.stride())):
        return False
    dense = torch.ops.aten.is_non_overlapping_and_dense.default(value)
    return bool(dense) and value.untyped_storage().nbytes() == value.numel() * value.itemsize


# --- the rules ----------------------------------------------------------------------------------------------
@register("aten.as_strided", "aten.as_strided_copy")
def as_strided(self: Any, size: Sequence[int], stride: Sequence[int], storage_offset: int) -> Any:
    if 0 in size:
        return mnp.zeros(tuple(size), self.dtype)
    lead, trail, places = _selection(self.shape, size, stride, storage_offset)
    taken = mnp.take(_merged(self, lead, trail), places, lead, mode="clip")
    return taken.reshape(tuple(size))


@register("aten.as_strided_scatter")
def as_strided_scatter(self: Any, src: Any, size: Sequence[int], stride: Sequence[int], storage_offset: int) -> Any:
    if 0 in size:
        return self
    lead, trail, places = _selection(self.shape, size, stride, storage_offset)
    rows = (slice(None),) * lead
    return _merged(self, lead, trail).at[*rows, places].set(src.astype(self.dtype)).reshape(self.shape)


def _selection(shape: Sequence[int], size: Sequence[int], stride: Sequence[int], offset: int) -> tuple[int, int, Any]:
    """How many leading and how many trailing dimensions of a dense array are taken whole, and the places of what is
    taken in those between them, counted together; these have the shape of the result's dimensions between them."""
    own = [(n, math.prod(shape[i + 1 :])) for i, n in enumerate(shape)]
    asked = list(zip(size, stride))
    same = [a == b for a, b in zip(own, asked)]
    lead = trail = 0
    while lead < len(same) and same[lead] and _last(asked[lead + 1 :], offset) < own[lead][1]:
        lead += 1
    while trail < min(len(own), len(asked)) - lead and own[-1 - trail] == asked[-1 - trail]:
        trail += 1
    while math.gcd(offset, *(s for _, s in asked[: len(asked) - trail])) % (
        block := math.prod(shape[len(shape) - trail :])
    ):
        trail -= 1
    between = asked[lead : len(asked) - trail]
    steps = [
        mnp.expand_dims(mnp.arange(n) * (s // block), tuple(range(1, len(between) - i)))
        for i, (n, s) in enumerate(between)
    ]
    return lead, trail, sum(steps, offset // block)


def _last(asked: Sequence[tuple[int, int]], offset: int) -> int:
    return offset + sum((n - 1) * s for n, s in asked)


def _merged(x: Any, lead: int, trail: int) -> Any:
    """``x`` with the dimensions between the leading and the trailing ones as one."""
    return x.reshape((*x.shape[:lead], -1, *x.shape[x.ndim - trail :]))
