"""The order of the keys of dicts that are made of their leaves: sorted, as in JAX.

``optree`` makes dicts in the order in which the first one's keys were inserted, although structures that differ in that
alone are equal. So a program found again by an equal structure would order its results as another caller's dict.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from typing import Any

import optree

_DICTS = (optree.PyTreeKind.DICT, optree.PyTreeKind.DEFAULTDICT)
_CONTAINERS = frozenset({dict, list, tuple, type(None), OrderedDict, defaultdict, deque})
#: structures without classes of users, which may hold arrays, in that order
_KNOWN: dict[optree.PyTreeSpec, optree.PyTreeSpec] = {}
_MOST_KNOWN = 512


def filled(treedef: optree.PyTreeSpec, leaves: Sequence[Any]) -> Any:
    """The tree of such leaves, whose dicts have their keys in the order of these.

    Where there are classes of users, dicts are made anew while the tree is: structures with such classes are not kept,
    because what they hold beside their children may be large, or not comparable.
    """
    if treedef.num_nodes < 3:
        return treedef.unflatten(leaves)
    known = _KNOWN.get(treedef)
    if known is not None:
        return known.unflatten(leaves)
    types: set[type] = set()

    def node(made: Any) -> Any:
        cls = type(made)
        types.add(cls)
        return _sorted(made) if cls is dict or cls is defaultdict else made

    tree = treedef.traverse(leaves, node)
    if all(cls in _CONTAINERS or optree.is_namedtuple_class(cls) for cls in types):
        in_order(treedef)
    return tree


def _sorted(made: Any) -> Any:
    keys = list(made)
    try:
        wanted = sorted(keys)
    except TypeError:  # keys of several types
        wanted = optree.tree_structure(made).entries()
    if wanted == keys:
        return made
    again = made.copy()
    again.clear()
    again.update((key, made[key]) for key in wanted)
    return again


def in_order(treedef: optree.PyTreeSpec) -> optree.PyTreeSpec:
    """An equal structure, whose dicts have their keys in the order of its leaves."""
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
