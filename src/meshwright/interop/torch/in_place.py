"""Writes to memory that no other value has, as ops with new results: torch need not trace the program again."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
#: ops that torch writes in terms of others, never as what they are given
_COMPUTED = {
    aten.linear, aten.matmul, aten.conv1d, aten.conv2d, aten.conv3d, aten.conv_transpose1d, aten.conv_transpose2d,
    aten.conv_transpose3d, aten.batch_norm, aten.layer_norm, aten.group_norm, aten.instance_norm, aten.rms_norm,
    aten.max_pool1d, aten.max_pool2d, aten.max_pool3d, aten.adaptive_avg_pool2d, aten.scaled_dot_product_attention,
}  # fmt: skip
#: whose results may be what they are given, of which their schemas say nothing
_SAME = ("lift", "_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk")


@cache
def _is_fresh(op: Any) -> bool:
    """Whether the results of an op have memory of their own, whatever it is given."""
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten" or op.overloadpacket.__name__ in _SAME:
        return False
    schema = op._schema
    if schema.is_mutable or any(r.alias_info is not None for r in schema.returns):
        return False
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    return not composite or op.overloadpacket in _COMPUTED


@cache
def _without_write(op: Any) -> Any:
    """The op of the same arguments that writes to none of them; None if there is none."""
    name, overload = op.overloadpacket.__name__, op._overloadname
    packet = getattr(aten, name[:-1], None) if op.namespace == "aten" and name.endswith("_") else None
    found = getattr(packet, overload, None) if packet is not None and overload in packet.overloads() else None
    if found is None or found._schema.is_mutable or len(found._schema.returns) != 1:
        return None
    given, others = op._schema.arguments, found._schema.arguments
    return found if [(a.name, str(a.type)) for a in given] == [(a.name, str(a.type)) for a in others] else None


def _type(value: Any) -> tuple[Any, ...]:
    return tuple(value.shape), value.dtype


def _has_its_type(op: Any, node: fx.Node, written: fx.Node) -> bool:
    """Whether what ``op`` makes of the arguments of ``node`` is of the type of what is written to."""
    try:
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
        return _type(op(*args, **kwargs)) == _type(written.meta["val"])
    except Exception:  # whatever torch says to it: it stays a write
        return False


def without_unseen_writes(graph: fx.Graph) -> None:
    """Replace ops that write to a new value of an op, of which there are no views, by those that return another one."""
    places = {node: i for i, node in enumerate(graph.nodes)}
    for node in places:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        op = _without_write(node.target) if node.target._schema.is_mutable else None
        written = node.args[0] if node.args else None
        if op is None or not isinstance(written, fx.Node) or not _is_fresh(written.target):
            continue
        before = [u for u in written.users if places[u] < places[node]]
        if all(_is_fresh(u.target) for u in before) and _has_its_type(op, node, written):
            node.target = op
            written.replace_all_uses_with(node, delete_user_cb=lambda u, at=places[node]: places[u] > at)
