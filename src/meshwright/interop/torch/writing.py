"""Ops of users that write to what they are given (``custom_op(..., mutates_args=...)``), as ops that return it.

A rule for such an op returns its results, and then what each tensor that it writes to becomes, in the order of the
op's arguments; a list of them for a list, and nothing for one that is None. Where it stands, an op of the same
arguments with these results takes its place, which are then copied to where the op would have written: through views
too, and to buffers.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from torch import fx

from meshwright.errors import RuleError
from meshwright.interop.torch.derivatives import connected
from meshwright.interop.torch.registry import name_of, stands_for
from meshwright.interop.torch.sources import described

NAMESPACE = "meshwright_written"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
aten = torch.ops.aten


_NUMBERS = itertools.count()  # ops may be defined again, by the same names
#: the most elements between the first and the last that two tensors have, up to which it is looked at what they share
_MOST = 2**30


def without_own_writes(module: fx.GraphModule) -> None:
    """Replace the ops of users that write to tensors, each by one without writes, and copies.

    Raises:
      RuleError: an op is given the memory that it writes to a second time.
    """
    for part in (m for m in module.modules() if isinstance(m, fx.GraphModule)):
        for node in list(part.graph.nodes):
            if node.op == "call_function" and _is_own(node.target):
                _replace(part.graph, node)
        part.recompile()


def _is_own(op: Any) -> bool:
    if not isinstance(op, torch._ops.OpOverload) or op.namespace in ("aten", "prims", "meshwright"):
        return False
    is_returned = any(r.alias_info is not None for r in op._schema.returns)
    return bool(_written(op)) and not is_returned


def _written(op: Any) -> list[str]:
    return [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]


@cache
def _returning(op: Any, written: tuple[str, ...]) -> Any:
    """The op that returns what ``op`` returns, and what it writes to these arguments."""
    name = f"{op.namespace}_{op.overloadpacket.__name__}_{op._overloadname}_{next(_NUMBERS)}"
    count = len(op._schema.returns)
    types_of = {a.name: _type(a) for a in op._schema.arguments}
    given = re.sub(r"Tensor\(\w+!\)", "Tensor", str(op._schema).partition("(")[2].rpartition(" -> ")[0][:-1])
    returned = [*map(_type, op._schema.returns), *(types_of[w].removesuffix("?") for w in written)]
    _LIBRARY.define(f"{name}({given}) -> ({', '.join(returned)})")

    @torch.library.register_fake(f"{NAMESPACE}::{name}", lib=_LIBRARY)
    def types(*args: Any, **kwargs: Any) -> Any:
        named = {a.name: value for a, value in zip(op._schema.arguments, args)} | kwargs
        named |= {w: _like(named[w]) for w in written}
        outs = (*_results(op(**named), count), *(named[w] for w in written))
        return outs[0] if len(outs) == 1 else outs

    connected(f"{NAMESPACE}::{name}", _LIBRARY)
    new = getattr(getattr(torch.ops, NAMESPACE), name).default
    stands_for(new, op)
    return new


def _type(of: Any) -> str:
    """The type of an argument or a result as schemas write it."""
    return re.sub(r"Optional\[(.*)\]", r"\1?", re.sub(r"List\[(\w+)\]", r"\1[]", str(of.type)))


def _like(x: Any) -> Any:
    return [torch.empty_like(each) for each in x] if isinstance(x, (list, tuple)) else torch.empty_like(x)


def _results(value: Any, count: int) -> tuple[Any, ...]:
    """What an op of so many results returns."""
    return () if count == 0 else (value,) if count == 1 else tuple(value)


def _replace(graph: fx.Graph, node: fx.Node) -> None:
    op: Any = node.target
    given = {a.name: value for a, value in zip(op._schema.arguments, node.args)} | node.kwargs
    written = tuple(name for name in _written(op) if given.get(name) is not None)
    _refuse_shared(node, given, written)
    count = len(op._schema.returns)
    places: list[Any] = [given[name] for name in written]
    values = [*_results(node.meta.get("val"), count), *(_like(fx.map_arg(p, lambda n: n.meta["val"])) for p in places)]
    if not values:
        return
    with graph.inserting_before(node):
        new = graph.call_function(_returning(op, written), node.args, node.kwargs)
        new.meta = {**node.meta, "val": values[0] if len(values) == 1 else tuple(values)}
        outs = [new] if len(values) == 1 else [_item(graph, new, i) for i in range(len(values))]
        for place, out in zip(places, outs[count:]):
            each = (
                [(p, _item(graph, out, i)) for i, p in enumerate(place)] if isinstance(place, list) else [(place, out)]
            )
            for to, x in each:
                graph.call_function(aten.copy_.default, (to, x)).meta = {**node.meta, "val": to.meta["val"]}
    node.replace_all_uses_with(outs[0] if count == 1 else new)
    graph.erase_node(node)


def _item(graph: fx.Graph, node: fx.Node, i: int) -> fx.Node:
    item = graph.call_function(operator.getitem, (node, i))
    item.meta = {**node.meta, "val": node.meta["val"][i]}
    return item


# --- memory that is given twice -----------------------------------------------------------------------------
def _refuse_shared(node: fx.Node, given: dict[str, Any], written: tuple[str, ...]) -> None:
    tensors = [(name, n) for name, value in given.items() for n in _nodes(value)]
    for (first, x), (second, y) in itertools.combinations(tensors, 2):
        if (first in written or second in written) and (x is y or _share(x.meta.get("val"), y.meta.get("val"))):
            to, where = first if first in written else second, f"as {first} and {second}"
            raise RuleError(
                f"{name_of(node.target)}, at {described(node)}: the op writes to {to}, and is given the same memory "
                f"twice, {where if first != second else 'there'}; its rule, of arrays, does not see that: pass a copy "
                "of one (clone)"
            )


def _nodes(value: Any) -> Iterator[fx.Node]:
    for each in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(each, fx.Node) and isinstance(each.meta.get("val"), torch.Tensor):
            yield each


def _share(x: Any, y: Any) -> bool:
    """Whether two tensors have an element of their memory in common, as far as can be told."""
    if x.untyped_storage()._cdata != y.untyped_storage()._cdata or not (x.numel() and y.numel()):
        return False
    layouts = [(t.storage_offset(), *t.shape, *t.stride()) for t in (x, y)]
    if not all(type(n) is int for layout in layouts for n in layout):
        return True
    low = [t.storage_offset() for t in (x, y)]
    high = [at + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) for at, t in zip(low, (x, y))]
    if high[0] < low[1] or high[1] < low[0] or x.dtype != y.dtype or max(high) - min(low) > _MOST:
        return x.dtype != y.dtype or max(low) <= min(high)
    taken = np.zeros(max(high) - min(low) + 1, bool)
    parts = [as_strided(taken[at - min(low) :], t.shape, t.stride()) for at, t in zip(low, (x, y))]
    parts[0][...] = True
    return bool(parts[1].any())
