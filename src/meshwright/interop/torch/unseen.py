"""Writes that autograd does not see: within ``torch.no_grad``, and by ``x.data = y``.

What is read after the region has the new values, and the gradient of the old ones. Torch's export would have neither:
a region is a graph of its own, and what is detached for it, and written to, stays detached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from meshwright.interop.torch.derivatives import connected
from meshwright.interop.torch.registry import register
from meshwright.transforms.custom_jvp import custom_jvp

_LIBRARY = torch.library.Library("meshwright", "FRAGMENT")
_LIBRARY.define("unseen(Tensor old, Tensor new) -> Tensor")


@torch.library.register_fake("meshwright::unseen", lib=_LIBRARY)
def _type(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(new)


connected("meshwright::unseen", _LIBRARY)


@register("meshwright.unseen")
def unseen(old: Any, new: Any) -> Any:
    """The values of ``new`` with the derivative of ``old``."""
    return _unseen(old, new)


@custom_jvp
def _unseen(old: Any, new: Any) -> Any:
    return new


@_unseen.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return primals[1], tangents[0]


# --- what is the same memory ----------------------------------------------------------------------------------
def _aliased(node: Any) -> Any:
    """What a node's result is the memory of: a view's argument, or what is written to; None if it has its own."""
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    if schema is None or len(schema.returns) != 1 or schema.returns[0].alias_info is None:
        return None
    return node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None


def _root(node: fx.Node) -> fx.Node:
    while (inner := _aliased(node)) is not None:
        node = inner
    return node


def _written(node: fx.Node) -> Iterator[fx.Node]:
    """The arguments that a node writes to."""
    schema = getattr(node.target, "_schema", None)
    for argument, value in zip(schema.arguments if schema is not None else (), node.args):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from (v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, fx.Node))


def _moving(graph: fx.Graph, inside: set[fx.Node]) -> set[fx.Node]:
    """The nodes that there may be gradients by."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        value = node.meta.get("val")
        is_inexact = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
        depends = node not in inside and not found.isdisjoint(node.all_input_nodes)
        if is_inexact and (node.op == "placeholder" or depends) and node.target is not torch.ops.aten.detach.default:
            found.add(node)
    return found


# --- the rewrite ----------------------------------------------------------------------------------------------
def write_unseen(graph: fx.Graph) -> None:
    """Let regions without gradients write to copies, of which the rest reads the values; arguments get these at the
    end."""
    regions = list(_regions(graph))
    inside = {n for region, _ in regions for n in region}
    homes = _assigned(graph)  # the arguments that new values are of
    for region, end in regions:
        roots = [r for r in dict.fromkeys(_root(w) for n in region for w in _written(n)) if r not in region]
        if not roots:
            continue
        moving, after = _moving(graph, inside), _after(graph, end)
        for root in (r for r in roots if r in moving):
            if any(_root(i) is root for n in after for i in n.all_input_nodes):
                new = _rewrite(graph, region, end, root)
                home = homes.pop(root, root)
                homes |= {new: home} if home.op == "placeholder" else {}
    for new, home in homes.items():
        with graph.inserting_before(_after(graph, new)[-1]):
            graph.call_function(torch._C._set_grad_enabled, (False,))
            _call(graph, new, torch.ops.aten.copy_.default, home, new)
            graph.call_function(torch._C._set_grad_enabled, (True,))


def _assigned(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """What the graph assigns last to the data of arguments, and these."""
    last: dict[fx.Node, fx.Node] = {}
    homes: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.target is torch.ops.meshwright.unseen.default:
            old: Any = node.args[0]
            home = homes[node] = homes.get(old, old)
            last[home] = node
    return {node: home for home, node in last.items() if home.op == "placeholder"}


def _regions(graph: fx.Graph) -> Iterator[tuple[list[fx.Node], fx.Node]]:
    """What runs without gradients: ops and the node that ends the region; writes to what was detached, each alone."""
    region: list[fx.Node] = []
    enabled = True
    for node in graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            enabled = bool(node.args[0])
            if enabled and region:
                yield region, node
                region = []
        elif not enabled and node.target is torch.ops.meshwright.unseen.default:
            if region:
                yield region, region[-1]
                region = []
        elif not enabled and node.op == "call_function":
            region.append(node)
        elif any(_is_detached(w) for w in _written(node)):
            yield [node], node


def _is_detached(node: fx.Node) -> bool:
    while (inner := _aliased(node)) is not None:
        if node.target is torch.ops.aten.detach.default:
            return True
        node = inner
    return False


def _after(graph: fx.Graph, last: fx.Node) -> list[fx.Node]:
    nodes = list(graph.nodes)
    return nodes[nodes.index(last) + 1 :]


def _rewrite(graph: fx.Graph, region: Sequence[fx.Node], end: fx.Node, root: fx.Node) -> fx.Node:
    """What is read after the region in place of ``root``."""
    after = _after(graph, end)
    with graph.inserting_before(region[0]):
        start = _call(graph, region[0], torch.ops.aten.clone.default, root)
    with graph.inserting_after(end):
        new = _call(graph, region[0], torch.ops.meshwright.unseen.default, root, start)
    _reread(graph, after, root, new)
    _reread(graph, region, root, start)
    return new


def _call(graph: fx.Graph, at: fx.Node, target: Any, *args: fx.Node) -> fx.Node:
    """A new node, of the type of its first argument and the line of another."""
    node = graph.call_function(target, args)
    node.meta = {**at.meta, "val": args[0].meta["val"]}
    return node


def _reread(graph: fx.Graph, users: Sequence[fx.Node], root: fx.Node, new: fx.Node) -> None:
    """Let nodes read ``new`` where they read ``root`` or a view of it that is older than they all are."""
    views, own = {root: new}, set(users)
    for user in users:
        for given in user.all_input_nodes:
            if given not in own and _root(given) is root:
                user.replace_input_with(given, _view(graph, given, views))


def _view(graph: fx.Graph, node: fx.Node, views: dict[fx.Node, fx.Node]) -> fx.Node:
    """What ``node``, a view of a root, is of the root's new values."""
    if node not in views:
        inner = _view(graph, _aliased(node), views)
        if next(_written(node), None) is not None:
            views[node] = inner
        else:
            with graph.inserting_after(inner):
                views[node] = graph.node_copy(node, lambda n: inner if n is _aliased(node) else n)
    return views[node]
