"""Outlines of trees with classes that cannot be made of plain objects, as their constructors look at their children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optree

from meshwright.core.pytree import NAMESPACE
from meshwright.core.pytree_keys import FlattenedIndexKey, GivenKey


class _Unmade:
    """What stands for an instance of such a class: a container with the same children under the same keys."""

    def __init__(self, keys: Sequence[Any], children: Sequence[Any]) -> None:
        self.keys, self.children = keys, children


def _flat(x: Any) -> Any:
    return x.children, x.keys, x.keys


_made: Any = _Unmade
optree.register_pytree_node(_made, _flat, _made, path_entry_type=GivenKey, namespace=NAMESPACE)


def outlined(treedef: optree.PyTreeSpec) -> Any:
    """A tree with an ``object()`` at each leaf, of what can be made of these, and else of stand-ins.

    A prefix that holds an instance of a class is none of a tree with its stand-in, which callers report.
    """
    if treedef.is_leaf():
        return object()
    children = [outlined(c) for c in treedef.children()]
    node: Any = treedef.one_level()
    try:
        return node.unflatten(children)
    except Exception:  # whatever a user's constructor raises
        if treedef.kind != optree.PyTreeKind.CUSTOM:
            raise
        return _Unmade(tuple(map(_key, treedef.entries())), children)


def _key(entry: Any) -> Any:
    """The key of a child: positions are those of classes that are registered without keys."""
    return FlattenedIndexKey(entry) if isinstance(entry, int) else entry
