"""The order of the keys of dicts that are made of their leaves: sorted, as in JAX.

``optree`` makes dicts in the order in which the first one's keys were inserted, although structures that differ in that
alone are equal. So a program found again by an equal structure would order its results as another caller's dict.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import optree

_DICTS = (optree.PyTreeKind.DICT, optree.PyTreeKind.DEFAULTDICT)
#: structures without classes of users, which may hold arrays, in that order
_KNOWN: dict[optree.PyTreeSpec, optree.PyTreeSpec] = {}
_MOST_KNOWN = 512


def filled(treedef: optree.PyTreeSpec, leaves: Sequence[Any]) -> Any:
    """The tree of such leaves, whose dicts have their keys in the order of these.

    Children of a user's class are made one by one: their structures are known, that of the class is not.
    """
    if treedef.kind != optree.PyTreeKind.CUSTOM or treedef.num_nodes < 3 or len(leaves) != treedef.num_leaves:
        return in_order(treedef).unflatten(leaves)
    rest = iter(leaves)
    children = [filled(child, list(islice(rest, child.num_leaves))) for child in treedef.children()]
    itself: Any = treedef.one_level()
    return itself.unflatten(children)


def in_order(treedef: optree.PyTreeSpec) -> optree.PyTreeSpec:
    """An equal structure, whose dicts have their keys in the order of its leaves."""
    if treedef.num_nodes < 3:
        return treedef
    known = _KNOWN.get(treedef)
    return _ordered(treedef) if known is None else known


def _ordered(treedef: optree.PyTreeSpec) -> optree.PyTreeSpec:
    kinds = set()

    def node(spec: optree.PyTreeSpec) -> optree.PyTreeSpec:
        kinds.add(spec.kind)
        if spec.kind not in _DICTS:
            return spec
        children: dict[Any, Any] = dict.fromkeys(spec.entries(), optree.treespec_leaf())
        if spec.kind == optree.PyTreeKind.DICT:
            return optree.treespec_dict(children, namespace=treedef.namespace)
        factory: Any = spec.unflatten([None] * spec.num_leaves).default_factory
        return optree.treespec_defaultdict(factory, children, namespace=treedef.namespace)

    ordered = optree.treespec_transform(treedef, node, None)
    if optree.PyTreeKind.CUSTOM not in kinds:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[treedef] = ordered
    return ordered
