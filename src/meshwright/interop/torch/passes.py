"""Rewrites of exported graphs: what mends them, keeps the meaning of dimensions, and drops unread packed data.

Torch's attention merges batch and sequence before each product and splits them after it. A product works on any
number of leading dimensions, so the merging moves behind it, where it meets its opposite and both go: a split batch
stays split.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
#: ops that are views too, of shapes written otherwise
_RESHAPES = (
    torch.ops.aten.reshape.default,
    torch.ops.aten.flatten.using_ints,
    torch.ops.aten.unflatten.int,
)


def find_users(module: fx.GraphModule) -> None:
    """Note the users of each node: torch forgets those of a region's only result where it inlines the region."""
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            for given in node.all_input_nodes:
                given.users.setdefault(node)


def _shape(node: Any) -> tuple[int, ...] | None:
    """The shape of a node's value, if it is known."""
    value = node.meta.get("val")
    shape = tuple(value.shape) if isinstance(value, torch.Tensor) else None
    return shape if shape is not None and all(type(s) is int for s in shape) else None


def _is_view(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.target in _VIEWS and _shape(node) is not None


def sink_views(module: fx.GraphModule) -> None:
    """Move views of leading dimensions behind ``linear``, and compose views of views."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.target in _RESHAPES and (shape := _shape(node)) is not None:
            node.target, node.args, node.kwargs = torch.ops.aten.view.default, (node.args[0], list(shape)), {}
        if node.target == torch.ops.aten.linear.default and _is_view(node.args[0]):
            _behind(graph, node)
        elif _is_view(node):
            _composed(node)
    graph.eliminate_dead_code()
    module.recompile()


def _behind(graph: fx.Graph, node: fx.Node) -> None:
    """``linear(view(x))`` as ``view(linear(x))``."""
    view: Any = node.args[0]
    source = view.args[0]
    inner, outer, result = _shape(source), _shape(view), _shape(node)
    if inner is None or outer is None or result is None:
        return
    lead = next((k for k in range(1, len(inner)) if math.prod(inner[k:]) == outer[-1]), 0)
    if not lead:
        return
    if lead < len(inner) - 1:
        source = _view_before(graph, node, source, (*inner[:lead], outer[-1]))
    value = node.meta["val"]
    node.args = (source, *node.args[1:])
    node.meta["val"] = value.new_empty((*inner[:lead], result[-1]))
    with graph.inserting_after(node):
        again = graph.call_function(torch.ops.aten.view.default, (node, list(result)))
    again.meta = {**node.meta, "val": value}
    node.replace_all_uses_with(again, delete_user_cb=lambda user: user is not again)


def _view_before(graph: fx.Graph, node: fx.Node, source: fx.Node, shape: tuple[int, ...]) -> fx.Node:
    """``source`` in another shape, just before ``node``."""
    with graph.inserting_before(node):
        view = graph.call_function(torch.ops.aten.view.default, (source, list(shape)))
    view.meta = {**node.meta, "val": source.meta["val"].new_empty(shape)}
    return view


def _composed(node: fx.Node) -> None:
    """A view of a view as one, or as what both were made of."""
    source: Any = node.args[0]
    while _is_view(source):
        source = source.args[0]
    node.args = (source, *node.args[1:])
    if _shape(source) == _shape(node) and source.meta["val"].dtype == node.meta["val"].dtype:
        node.replace_all_uses_with(source)


# --- positions that only a run knows ------------------------------------------------------------------------
def starts_at_positions(module: fx.GraphModule) -> None:
    """Write slices of known lengths, behind positions that only a run knows, by their lengths; what torch has noted to
    check of such positions is left out."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.target == torch.ops.aten._assert_scalar.default:
            graph.erase_node(node)
        elif node.target == torch.ops.aten.slice.Tensor:
            dim, start, end, step = (_argument(node, name) for name in ("dim", "start", "end", "step"))
            is_at_position = step == 1 and (isinstance(start, fx.Node) or isinstance(end, fx.Node))
            length = _length(node) if is_at_position else None
            if length is not None:
                node.args, node.kwargs = (node.args[0], dim, start or 0, length), {}
                node.target = torch.ops.aten.narrow.default
    graph.eliminate_dead_code()


def _argument(node: fx.Node, name: str) -> Any:
    """An argument of a slice, or what it is by default."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    at, default = next((i, a.default_value) for i, a in enumerate(schema) if a.name == name)
    return node.kwargs.get(name, node.args[at] if at < len(node.args) else default)


def _length(node: fx.Node) -> int | None:
    """That of a slice, if it is known."""
    size = node.meta["val"].shape[_argument(node, "dim")]
    return None if free_unbacked_symbols(size) else int(size)


# --- packed sequences ---------------------------------------------------------------------------------------
_ASSERTIONS = (torch.ops.aten._assert_scalar.default, torch.ops.aten.sym_constrain_range_for_size.default)


def drop_packed(module: fx.GraphModule) -> None:
    """Forget packed data of which nothing is used but their sizes, by torch's checks that these are in bounds."""
    graph = module.graph
    for node in [n for n in graph.nodes if str(n.target) == "meshwright.packed.default"]:
        users = _all_users(node)
        if all(_is_of_sizes(u) for u in users):
            for user in (*reversed(users), node):
                graph.erase_node(user)


def _all_users(node: fx.Node) -> list[fx.Node]:
    """Those of the node and of its users, in the order of the graph."""
    found: set[fx.Node] = set()
    todo = [node]
    while todo:
        todo += (new := set(todo.pop().users) - found)
        found |= new
    return [n for n in node.graph.nodes if n in found]


def _is_of_sizes(node: fx.Node) -> bool:
    """Whether a node picks a result, asks for its size, computes with sizes, or checks them."""
    is_of_python = getattr(node.target, "__module__", None) == "_operator"
    return is_of_python or node.target == torch.ops.aten.sym_size.int or node.target in _ASSERTIONS
