"""What the rewriting of rows that a mask picks knows of nodes: sizes that depend on values, arguments, equality."""

from __future__ import annotations

from collections.abc import Sequence
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
