"""``jax.tree_util``: pytrees, their key paths, and registration of container classes."""

from typing import Any

from meshwright.core.absent import absent as _absent
from meshwright.core.pytree import PyTreeDef, all_leaves, treedef_children, treedef_is_leaf, treedef_tuple
from meshwright.core.pytree import all as tree_all
from meshwright.core.pytree import broadcast as tree_broadcast
from meshwright.core.pytree import flatten as tree_flatten
from meshwright.core.pytree import flatten_with_path as tree_flatten_with_path
from meshwright.core.pytree import leaves as tree_leaves
from meshwright.core.pytree import leaves_with_path as tree_leaves_with_path
from meshwright.core.pytree import map as tree_map
from meshwright.core.pytree import map_with_path as tree_map_with_path
from meshwright.core.pytree import reduce as tree_reduce
from meshwright.core.pytree import reduce_associative as tree_reduce_associative
from meshwright.core.pytree import structure as tree_structure
from meshwright.core.pytree import transpose as tree_transpose
from meshwright.core.pytree import unflatten as tree_unflatten
from meshwright.core.pytree_classes import (
    Partial,
    is_tree_node,
    register_dataclass,
    register_pytree_node,
    register_pytree_node_class,
    register_pytree_with_keys,
    register_pytree_with_keys_class,
    register_static,
)
from meshwright.core.pytree_keys import (
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    KeyEntry,
    KeyPath,
    SequenceKey,
    keystr,
)
from meshwright.errors import ArgumentError

#: the name of ``tree_map`` over several pytrees until 2022
tree_multimap = tree_map

__all__ = [
    "DictKey",
    "FlattenedIndexKey",
    "GetAttrKey",
    "KeyEntry",
    "KeyPath",
    "Partial",
    "PyTreeDef",
    "SequenceKey",
    "all_leaves",
    "default_registry",
    "flatten_one_level",
    "flatten_one_level_with_keys",
    "is_tree_node",
    "keystr",
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "register_pytree_with_keys",
    "register_pytree_with_keys_class",
    "register_static",
    "tree_all",
    "tree_broadcast",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_with_path",
    "tree_multimap",
    "tree_reduce",
    "tree_reduce_associative",
    "tree_structure",
    "tree_transpose",
    "tree_unflatten",
    "treedef_children",
    "treedef_is_leaf",
    "treedef_tuple",
]


def flatten_one_level(tree: Any) -> tuple[Any, Any]:
    """The children and the auxiliary data of a pytree's outermost node.

    Raises:
      ArgumentError: the pytree is a leaf.

    Example:
      >>> mw.tree_util.flatten_one_level([1, (2, 3)])[0]
      [1, (2, 3)]
    """
    children, structure = tree_flatten(tree, is_leaf=lambda x: x is not tree)
    if treedef_is_leaf(structure):
        raise ArgumentError(f"flatten_one_level: {type(tree).__name__} is no node of a tree but a leaf")
    return children, structure


def flatten_one_level_with_keys(tree: Any) -> tuple[Any, Any]:
    """:func:`flatten_one_level` with ``(key, child)`` for each child.

    Raises:
      ArgumentError: the pytree is a leaf.

    Example:
      >>> mw.tree_util.flatten_one_level_with_keys({"a": [1]})[0]
      [(DictKey(key='a'), [1])]
    """
    children, structure = flatten_one_level(tree)
    paths, _ = tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    return [(path[0], child) for (path, _), child in zip(paths, children, strict=True)], structure


class _Registry:
    """The registry of container classes, in the form that libraries for JAX use to flatten a single level."""

    flatten = staticmethod(tree_flatten)
    flatten_with_path = staticmethod(tree_flatten_with_path)
    is_node = staticmethod(is_tree_node)
    register_node = staticmethod(register_pytree_node)

    @staticmethod
    def register_dataclass_node(nodetype: type, data_fields: Any, meta_fields: Any) -> None:
        """See :func:`register_dataclass`."""
        register_dataclass(nodetype, data_fields, meta_fields)

    @staticmethod
    def flatten_one_level(tree: Any) -> tuple[Any, Any] | None:
        """:func:`flatten_one_level`, or None for a leaf."""
        return flatten_one_level(tree) if is_tree_node(type(tree)) or tree is None else None

    @staticmethod
    def flatten_one_level_with_keys(tree: Any) -> tuple[Any, Any] | None:
        """:func:`flatten_one_level_with_keys`, or None for a leaf."""
        return flatten_one_level_with_keys(tree) if is_tree_node(type(tree)) or tree is None else None


default_registry = _Registry()

__getattr__ = _absent("tree_util")
