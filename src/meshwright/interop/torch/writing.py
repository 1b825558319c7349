"""Ops of users that write to what they are given (``custom_op(..., mutates_args=...)``), as ops that return it.

A rule for such an op returns its results, and then what each tensor that it writes to becomes, in the order of the
op's arguments. Where it stands, an op of the same arguments with these results takes its place, which are then copied
to where the op would have written: through views too, and to buffers.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import fx

from meshwright.interop.torch.derivatives import connected
from meshwright.interop.torch.registry import stands_for

NAMESPACE = "meshwright_written"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
aten = torch.ops.aten


def without_own_writes(module: fx.GraphModule) -> None:
    """Replace the ops of users that write to tensors, each by one without writes, and copies."""
    for part in (m for m in module.modules() if isinstance(m, fx.GraphModule)):
        for node in list(part.graph.nodes):
            if node.op == "call_function" and _is_own(node.target):
                _replace(part.graph, node)
        part.recompile()


def _is_own(op: Any) -> bool:
    if not isinstance(op, torch._ops.OpOverload) or op.namespace in ("aten", "prims", "meshwright"):
        return False
    written = _written(op)
    is_returned = any(r.alias_info is not None for r in op._schema.returns)
    return bool(written) and not is_returned and all(str(a.type) == "Tensor" for a in written)


def _written(op: Any) -> list[Any]:
    return [a for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]


@cache
def _returning(op: Any) -> Any:
    """The op that returns what ``op`` returns, and what it writes."""
    name = f"{op.namespace}_{op.overloadpacket.__name__}_{op._overloadname}"
    count, written = len(op._schema.returns), _written(op)
    given = re.sub(r"Tensor\(\w+!\)", "Tensor", str(op._schema).partition("(")[2].rpartition(" -> ")[0][:-1])
    returned = [*(str(r.type) for r in op._schema.returns), *["Tensor"] * len(written)]
    _LIBRARY.define(f"{name}({given}) -> ({', '.join(returned)})")

    @torch.library.register_fake(f"{NAMESPACE}::{name}", lib=_LIBRARY)
    def types(*args: Any, **kwargs: Any) -> Any:
        named = {a.name: value for a, value in zip(op._schema.arguments, args)} | kwargs
        named |= {a.name: torch.empty_like(named[a.name]) for a in written}
        results = op(**named)
        own = () if count == 0 else (results,) if count == 1 else tuple(results)
        outs = (*own, *(named[a.name] for a in written))
        return outs[0] if len(outs) == 1 else outs

    connected(f"{NAMESPACE}::{name}", _LIBRARY)
    new = getattr(getattr(torch.ops, NAMESPACE), name).default
    stands_for(new, op)
    return new


def _replace(graph: fx.Graph, node: fx.Node) -> None:
    op: Any = node.target
    given = {a.name: value for a, value in zip(op._schema.arguments, node.args)} | node.kwargs
    places: Sequence[Any] = [given[a.name] for a in _written(op)]
    count = len(op._schema.returns)
    own = node.meta.get("val")
    values = [
        *(() if count == 0 else (own,) if count == 1 else own),
        *(torch.empty_like(p.meta["val"]) for p in places),
    ]
    with graph.inserting_before(node):
        new = graph.call_function(_returning(op), node.args, node.kwargs)
        new.meta = {**node.meta, "val": values[0] if len(values) == 1 else tuple(values)}
        outs = [new] if len(values) == 1 else [_item(graph, new, i) for i in range(len(values))]
        for place, out in zip(places, outs[count:]):
            graph.call_function(aten.copy_.default, (place, out)).meta = {**node.meta, "val": place.meta["val"]}
    node.replace_all_uses_with(outs[0] if count == 1 else new)
    graph.erase_node(node)


def _item(graph: fx.Graph, node: fx.Node, i: int) -> fx.Node:
    item = graph.call_function(operator.getitem, (node, i))
    item.meta = {**node.meta, "val": node.meta["val"][i]}
    return item
