"""What the rewriting of rows that a mask picks knows of nodes, and what it plans to do to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx


def symbols(value: Any) -> set[Any]:
    """The sizes of a tensor, or of several, that depend on values."""
    if isinstance(value, (tuple, list)):
        return set().union(*map(symbols, value))
    sizes = value.shape if isinstance(value, torch.Tensor) else [value]
    return {s for n in sizes if isinstance(n, torch.SymInt) for s in n.node.expr.free_symbols if _is_unbacked(s, n)}


def _is_unbacked(symbol: Any, size: torch.SymInt) -> bool:
    return bool(size.node.shape_env.is_unbacked_symint(symbol))


def same(a: Any, b: Any) -> bool:
    """Whether two nodes compute the same."""
    if a is b or not isinstance(a, fx.Node) or not isinstance(b, fx.Node):
        return a is b or (not isinstance(a, fx.Node) and not isinstance(b, fx.Node) and _equal(a, b))
    if a.op != "call_function" or a.target is not b.target or torch.Tag.nondeterministic_seeded in tags(a):
        return False
    return (
        set(a.kwargs) == set(b.kwargs)
        and _equal(a.args, b.args)
        and all(same(a.kwargs[k], b.kwargs[k]) for k in a.kwargs)
    )


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def tags(node: fx.Node) -> Sequence[torch.Tag]:
    return getattr(node.target, "tags", ())


def named(node: fx.Node) -> dict[str, Any]:
    """A call's arguments by their names, defaults too."""
    given = dict(node.kwargs)
    for k, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if k < len(node.args):
            given[argument.name] = node.args[k]
        elif argument.name not in given:
            given[argument.name] = argument.default_value if argument.has_default_value() else None
    return given


class Left(Exception):
    """A node that is not about rows by themselves."""


def become(node: fx.Node, target: Any, args: tuple[Any, ...]) -> None:
    """Let a node call something else."""
    node.target, node.args, node.kwargs = target, args, {}


def set_argument(node: fx.Node, name: str, value: Any) -> None:
    """Change one of a call's arguments."""
    place = [a.name for a in node.target._schema.arguments].index(name)  # type: ignore[union-attr]
    if place < len(node.args):
        node.update_arg(place, value)
    else:
        node.update_kwarg(name, value)


# --- what is planned --------------------------------------------------------------------------------------------
class Plan:
    """What becomes of the nodes of a graph.

    Attributes:
      masks: the mask of each size that depends on values.
      parts: for masks of joined rows, the masks and the numbers of rows that were joined.
      both: for masks of rows that are picked of picked ones, the two masks.
      made: nodes that compute masks, and what else the edits need.
      edits: what changes nodes, in their order.
      picked: the nodes whose rows masks pick, once it is known that all of the program can be rewritten.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.masks: dict[Any, fx.Node] = {}
        self.parts: dict[fx.Node, list[Any]] = {}
        self.both: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}
        self.made: list[fx.Node] = []
        self.edits: list[Callable[[], None]] = []
        self.picked: set[fx.Node] = set()

    def make(self, before: fx.Node, target: Any, args: tuple[Any, ...], value: torch.Tensor, **named: Any) -> fx.Node:
        """A further node, for the edits."""
        with self.graph.inserting_before(before):
            made = self.graph.call_function(target, args, named)
        made.meta = {k: v for k, v in before.meta.items() if k != "val"} | {"val": value}
        self.made.append(made)
        return made

    def mask_of(self, size: Any) -> fx.Node:
        """The mask whose picked rows a size counts."""
        if not isinstance(size, torch.SymInt) or size.node.expr not in self.masks:
            raise Left
        return self.masks[size.node.expr]

    def know(self, size: Any, mask: fx.Node) -> None:
        """A size counts the rows that a mask picks."""
        if self.masks.setdefault(size.node.expr, mask) is not mask:
            raise Left

    def rows(self, value: Any) -> tuple[fx.Node, int]:
        """The mask of a tensor's rows, and the dimension that they are along."""
        along = [d for d, n in enumerate(value.shape) if symbols(n)]
        if len(along) != 1:
            raise Left
        return self.mask_of(value.shape[along[0]]), along[0]

    def is_picked(self, x: Any) -> bool:
        return isinstance(x, fx.Node) and isinstance(x.meta.get("val"), torch.Tensor) and bool(symbols(x.meta["val"]))

    def guard(self, node: fx.Node, mask: fx.Node) -> None:
        """Let operands that have no picked rows move only with rows that there are."""
        for x in node.all_input_nodes:
            value = x.meta.get("val")
            if isinstance(value, torch.Tensor) and value.is_floating_point() and x not in self.picked:
                with self.graph.inserting_before(node):
                    moved = self.graph.call_function(torch.ops.meshwright.moved_by_picked.default, (x, mask))
                moved.meta = dict(x.meta)
                node.replace_input_with(x, moved)
