"""Outlines of trees with classes that cannot be made of plain objects, as their constructors look at their children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optree

from meshwright.core.pytree import NAMESPACE
from meshwright.core.pytree_keys import GivenKey, key_path


class _Unmade:
    """What stands for an instance of such a class: its structure without what is below it, and its children."""

    def __init__(self, node: optree.PyTreeSpec, children: Sequence[Any]) -> None:
        self.node, self.children = node, children


def _flat(x: Any) -> Any:
    return x.children, x.node, [key for accessor in x.node.accessors() for key in key_path(accessor)]


_made: Any = _Unmade
optree.register_pytree_node(_made, _flat, _made, path_entry_type=GivenKey, namespace=NAMESPACE)


def outlined(treedef: optree.PyTreeSpec) -> Any:
    """A tree with an ``object()`` at each leaf, of what can be made of these, and else of stand-ins."""
    if treedef.is_leaf():
        return object()
    children = [outlined(c) for c in treedef.children()]
    node: Any = treedef.one_level()
    try:
        return node.unflatten(children)
    except Exception:  # whatever a user's constructor raises
        return _Unmade(node, children)


def parts(prefix: optree.PyTreeSpec, tree: Any) -> list[Any]:
    """The parts of a tree at the leaves of a prefix, to which a stand-in is an instance of its class.

    Raises:
      ValueError: ``prefix`` is none of ``tree``.
    """
    try:
        return prefix.flatten_up_to(tree)
    except ValueError:
        node: Any = prefix.one_level()
        if not isinstance(tree, _Unmade):
            children = node.flatten_up_to(tree)
        elif tree.node == node:
            children = tree.children
        else:
            raise
    return [part for below, child in zip(prefix.children(), children) for part in parts(below, child)]
