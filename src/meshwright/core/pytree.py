"""Pytrees, implemented by ``optree``: nested containers of arrays, accepted and returned by all public functions.

``None`` is an empty container and dict keys are sorted, as in JAX. Classes are registered as containers in
:mod:`meshwright.core.pytree_classes`.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import optree

from meshwright.core.late import LateModule
from meshwright.core.pytree_keys import KeyPath, key_path
from meshwright.core.pytree_order import filled
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError, NestingError

pytree_outline: Any = LateModule("meshwright.core.pytree_outline")

NAMESPACE = "meshwright"
PyTreeDef = optree.PyTreeSpec
_MISSING = object()


def _explained(error: RecursionError) -> RecursionError:
    """The error for one of ``optree``, which only says that a tree is too deep."""
    if "during" not in str(error):
        return error
    return NestingError(
        f"a pytree can be {optree.MAX_RECURSION_DEPTH:,} containers deep, and this one is deeper or holds itself; make "
        "one array of what repeats (meshwright.numpy.stack), or a list without lists"
    )


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], PyTreeDef]:
    """Flatten ``tree`` into its leaves and its structure.

    Args:
      is_leaf: predicate for nodes to treat as leaves.

    Raises:
      NestingError: more than 1,000 nested containers, or one that contains itself.

    Example:
      >>> mw.tree.flatten({"b": [2, 3], "a": 1})
      ([1, 2, 3], PyTreeSpec({'a': *, 'b': [*, *]}))
    """
    try:
        return optree.tree_flatten(tree, is_leaf=is_leaf, namespace=NAMESPACE)
    except RecursionError as error:
        raise _explained(error) from None


def unflatten(treedef: PyTreeDef, leaves: Iterable[Any]) -> Any:
    """The tree with structure ``treedef`` and the given leaves.

    Raises:
      ArgumentError: the number of leaves is wrong. ArgumentTypeError: ``treedef`` is not a structure.

    Example:
      >>> mw.tree.unflatten(mw.tree.structure({"a": 1, "b": [2, 3]}), [10, 20, 30])
      {'a': 10, 'b': [20, 30]}

    Dicts have their keys in the order of their leaves, whatever order those of the structure were inserted in.
    """
    if not isinstance(leaves, (list, tuple)):
        leaves = list(leaves)
    try:
        return filled(treedef, leaves)
    except (AttributeError, TypeError, ValueError):  # may also come from a container's own unflatten function
        if not isinstance(treedef, PyTreeDef):
            raise ArgumentTypeError(
                f"tree.unflatten: treedef must be a structure, as tree.structure gives it, got {treedef!r} of type "
                f"{type(treedef).__name__}"
            ) from None
        if len(leaves) != treedef.num_leaves:
            raise ArgumentError(
                f"tree.unflatten: the structure {show(treedef)} has {counted(treedef.num_leaves, 'leaf', 'leaves')}, "
                f"{len(leaves)} were given; give one value a leaf"
            ) from None
        raise


def outline(treedef: PyTreeDef) -> Any:
    """A tree with structure ``treedef`` and an ``object()`` at each leaf, for code that asks where leaves are.

    JAX fills trees the same way, and says so: classes that check their leaves let what is exactly an ``object`` pass.
    It rarely does, so that there are classes that do not; ``outlined`` has stand-ins for these.

    Example:
      >>> mw.core.pytree.paths(mw.core.pytree.outline(mw.tree.structure({"a": 1, "b": [2, 3]})))
      ["['a']", "['b'][0]", "['b'][1]"]
    """
    try:
        return unflatten(treedef, [object()] * treedef.num_leaves)
    except Exception:  # whatever a user's constructor raises
        return pytree_outline.outlined(treedef)


def leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves of ``tree`` from left to right; dicts are ordered by key, and None has no leaves.

    Args:
      is_leaf: predicate for nodes to treat as leaves.

    Example:
      >>> mw.tree.leaves({"b": (2, 3), "a": 1, "c": None})
      [1, 2, 3]
      >>> mw.tree.leaves({"b": (2, 3), "a": 1}, is_leaf=lambda x: isinstance(x, tuple))
      [1, (2, 3)]
    """
    try:
        return optree.tree_leaves(tree, is_leaf=is_leaf, namespace=NAMESPACE)
    except RecursionError as error:
        raise _explained(error) from None


def structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> PyTreeDef:
    """The structure of ``tree``, without its leaves; equal for trees that differ only in leaves.

    Args:
      is_leaf: predicate for nodes to treat as leaves.

    Example:
      >>> mw.tree.structure({"b": [2, 3], "a": 1})
      PyTreeSpec({'a': *, 'b': [*, *]})
      >>> mw.tree.structure((1, [2])) == mw.tree.structure((mnp.ones(3), [None]))
      False
    """
    try:
        return optree.tree_structure(tree, is_leaf=is_leaf, namespace=NAMESPACE)
    except RecursionError as error:
        raise _explained(error) from None


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Apply ``f`` to corresponding leaves. The structure of ``tree`` must be a prefix of those of ``rest``.

    Raises:
      ArgumentError: it is not; says where they differ. ArgumentTypeError: ``f`` is not callable.

    Example:
      >>> mw.tree.map(lambda x, y: x + y, {"a": 1, "b": [2]}, {"a": 10, "b": [20]})
      {'a': 11, 'b': [22]}
    """
    flat, treedef = flatten(tree, is_leaf)
    if not callable(f):
        raise ArgumentTypeError(f"tree.map: f must be a function, got {f!r} of type {type(f).__name__}")
    columns = [_up_to(treedef, r, "tree.map", f"rest[{i}]") for i, r in enumerate(rest)]
    return filled(treedef, [f(*xs) for xs in zip(flat, *columns)])


def all(tree: Any, *, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    """Whether all leaves are true.

    Example:
      >>> mw.tree.all({"a": True, "b": [True, False]}), mw.tree.all(())
      (False, True)
    """
    return builtins.all(leaves(tree, is_leaf))


def reduce(
    function: Callable[[Any, Any], Any],
    tree: Any,
    initializer: Any = _MISSING,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Combine the leaves from left to right: ``function(function(initializer, leaf0), leaf1)`` and so on.

    Raises:
      ArgumentTypeError: there are neither leaves nor an ``initializer``.

    Example:
      >>> mw.tree.reduce(lambda total, x: total + x, {"a": 1, "b": [2, 3]}, 10)
      16
    """
    flat = leaves(tree, is_leaf)
    if initializer is not _MISSING:
        return functools.reduce(function, flat, initializer)
    if not flat:
        raise ArgumentTypeError("tree.reduce: a tree without leaves needs an initializer")
    return functools.reduce(function, flat)


def reduce_associative(
    operation: Callable[[Any, Any], Any],
    tree: Any,
    *,
    identity: Any = _MISSING,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Combine the leaves in pairs, the results in pairs, and so on: :func:`reduce` with logarithmic depth.

    ``operation`` must be associative; ``identity`` is the result for a tree without leaves.

    Raises:
      ArgumentTypeError: there are neither leaves nor an ``identity``.

    Example:
      >>> mw.tree.reduce_associative(lambda x, y: f"({x} {y})", ["a", ("b", "c"), "d", "e"])
      '(((a b) (c d)) e)'
    """
    flat = leaves(tree, is_leaf)
    if not flat and identity is _MISSING:
        raise ArgumentTypeError("tree.reduce_associative: a tree without leaves needs an identity")
    while len(flat) > 1:
        pairs = [operation(x, y) for x, y in zip(flat[::2], flat[1::2])]
        flat = pairs + flat[len(flat) & ~1 :]
    return flat[0] if flat else identity


def broadcast(prefix_tree: Any, full_tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """A tree like ``full_tree``, in which each leaf of the prefix ``prefix_tree`` is repeated for the subtree under it.

    Raises:
      ArgumentError: ``prefix_tree`` is not a prefix of ``full_tree``; says where.

    Example:
      >>> mw.tree.broadcast((0, 1), (5, {"a": 6, "b": 7}))
      (0, {'a': 1, 'b': 1})
    """
    flat, treedef = flatten(prefix_tree, is_leaf)
    parts = _up_to(treedef, full_tree, "tree.broadcast", "full_tree")
    repeated = [map(lambda _, x=x: x, part, is_leaf=is_leaf) for x, part in zip(flat, parts)]
    return unflatten(treedef, repeated)


def transpose(outer_treedef: PyTreeDef, inner_treedef: PyTreeDef | None, pytree_to_transpose: Any) -> Any:
    """Transpose a tree of trees: ``outer`` of ``inner`` becomes ``inner`` of ``outer``.

    ``inner_treedef=None`` takes the inner structure from the first part of the tree.

    Raises:
      ArgumentError: the tree is not ``outer`` of ``inner``.

    Example:
      >>> pair, point = mw.tree.structure((0, 0)), mw.tree.structure({"x": 0, "y": 0})
      >>> mw.tree.transpose(pair, point, ({"x": 1, "y": 2}, {"x": 3, "y": 4}))
      {'x': (1, 3), 'y': (2, 4)}
    """
    parts = _up_to(outer_treedef, pytree_to_transpose, "tree.transpose", "pytree_to_transpose")
    inner = structure(parts[0]) if inner_treedef is None and parts else inner_treedef
    if inner is None or not outer_treedef.num_leaves or not inner.num_leaves:
        raise ArgumentError("tree.transpose: a structure without leaves cannot be turned inside out")
    columns = []
    for path, part in zip(outer_treedef.accessors(), parts):
        got = structure(part)
        if got != inner:
            raise ArgumentError(
                f"tree.transpose: pytree_to_transpose{path.codify('')} has structure {show(got)}, the inner structure "
                f"is {show(inner)}; all parts must have it"
            )
        columns.append(leaves(part))
    return unflatten(inner, [unflatten(outer_treedef, row) for row in zip(*columns)])


# --- paths --------------------------------------------------------------------------------------------------
def paths(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[str]:
    """One accessor string per leaf, such as ``['layers'][0].weight``.

    Example:
      >>> mw.tree.paths({"layers": [1, 2], "bias": 3})
      ["['bias']", "['layers'][0]", "['layers'][1]"]
    """
    try:
        accessors = optree.tree_accessors(tree, is_leaf=is_leaf, namespace=NAMESPACE)
    except RecursionError as error:
        raise _explained(error) from None
    return [a.codify("") for a in accessors]


def flatten_with_path(
    tree: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
    """Pairs of key path and leaf, and the structure; paths are tuples of the keys of ``tree_util``.

    Args:
      is_leaf: predicate for nodes to treat as leaves; with ``is_leaf_takes_path`` it is called with path and value.

    Example:
      >>> pairs, treedef = mw.tree.flatten_with_path({"b": [2], "a": 1})
      >>> pairs[1]
      ((DictKey(key='b'), SequenceKey(idx=0)), 2)
    """
    if is_leaf is not None and is_leaf_takes_path:
        pairs, treedef = flatten_with_path(_marked(tree, (), is_leaf))
        return [(path, x.value if isinstance(x, _Chosen) else x) for path, x in pairs], treedef
    try:
        accessors, flat, treedef = optree.tree_flatten_with_accessor(tree, is_leaf=is_leaf, namespace=NAMESPACE)
    except RecursionError as error:
        raise _explained(error) from None
    return [(key_path(a), x) for a, x in zip(accessors, flat)], treedef


@dataclasses.dataclass(frozen=True)
class _Chosen:
    value: Any


def _marked(tree: Any, path: KeyPath, is_leaf: Callable[..., bool]) -> Any:
    """``tree`` with the nodes for which ``is_leaf(path, node)`` is true wrapped as leaves."""
    if is_leaf(path, tree):
        return _Chosen(tree)
    pairs, level = flatten_with_path(tree, lambda x: x is not tree)
    if level.is_leaf():
        return tree
    return unflatten(level, [_marked(x, (*path, *key), is_leaf) for key, x in pairs])


def leaves_with_path(
    tree: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> list[tuple[KeyPath, Any]]:
    """Pairs of key path and leaf: the first result of :func:`flatten_with_path`.

    Example:
      >>> [(mw.tree_util.keystr(path), x) for path, x in mw.tree.leaves_with_path({"b": [2], "a": 1})]
      [("['a']", 1), ("['b'][0]", 2)]
    """
    return flatten_with_path(tree, is_leaf, is_leaf_takes_path)[0]


def map_with_path(
    f: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: Callable[..., bool] | None = None,
    is_leaf_takes_path: bool = False,
) -> Any:
    """:func:`map` with a function that takes the key path first: ``f(path, x, *xs)``.

    Raises:
      ArgumentError: the structure of ``tree`` is not a prefix of one of ``rest``; says where they differ.

    Example:
      >>> mw.tree.map_with_path(lambda path, x: mw.tree_util.keystr(path) + f" = {x}", {"a": [1, 2]})
      {'a': ["['a'][0] = 1", "['a'][1] = 2"]}
    """
    pairs, treedef = flatten_with_path(tree, is_leaf, is_leaf_takes_path)
    columns = [_up_to(treedef, r, "tree.map_with_path", f"rest[{i}]") for i, r in enumerate(rest)]
    return unflatten(treedef, [f(*pair, *xs) for pair, *xs in zip(pairs, *columns)])


# --- prefixes -----------------------------------------------------------------------------------------------
def broadcast_prefix(prefix: Any, tree: Any, what: str, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves of ``prefix``, each repeated for the leaves of the subtree of ``tree`` under it.

    Args:
      is_leaf: predicate for nodes of ``prefix`` to treat as leaves.

    Raises:
      ArgumentError: ``prefix`` is not a tree prefix of ``tree``; ``what`` names the argument.

    Example:
      >>> mw.tree.broadcast_prefix((0, 1), (5, {"a": 6, "b": 7}), "axes")
      [0, 1, 1]
    """
    entries, want = flatten(prefix, is_leaf)
    try:
        parts = pytree_outline.parts(want, tree)
    except ValueError:
        got = structure(tree)
        raise ArgumentError(
            f"{what} must be a tree prefix of the value it describes: it has structure {show(want)}, the value has "
            f"structure {show(got)}{_where(want, got)}; give one entry for each part of the value, or one for all of it"
        ) from None
    return [entry for entry, part in zip(entries, parts) for _ in leaves(part)]


def _up_to(treedef: PyTreeDef, tree: Any, function: str, argument: str) -> list[Any]:
    """The subtrees of ``tree`` at the leaves of ``treedef``.

    Raises:
      ArgumentError: ``treedef`` is not a prefix of ``tree``.
    """
    try:
        return treedef.flatten_up_to(tree)
    except ValueError:
        got = structure(tree)
        raise ArgumentError(
            f"{function}: {argument} must have the structure {show(treedef)} of the first tree, or a deeper one, but "
            f"has {show(got)}{_where(treedef, got)}"
        ) from None


def _where(want: PyTreeDef, got: PyTreeDef) -> str:
    where = difference(want, got)
    return f" ({where})" if where else ""


def difference(want: PyTreeDef, got: PyTreeDef, path: str = "", exact: bool = False) -> str:
    """Where ``want`` first differs from a prefix of ``got``, and how; empty if it is a prefix.

    With ``exact``, where the two first differ.

    Example:
      >>> mw.tree.difference(mw.tree.structure({"a": [0, 0]}), mw.tree.structure({"a": [0]}))
      "at ['a']: a list of 2 against a list of 1"
    """
    if want.is_leaf() and (got.is_leaf() or not exact):
        return ""
    different_kinds = want.type is not got.type or want.entries() != got.entries()
    if want.is_leaf() or different_kinds or want.one_level() != got.one_level():
        return f"at {path or 'the top'}: {_kind(want)} against {_kind(got)}"
    accessors = want.one_level().accessors()  # type: ignore[union-attr]
    for accessor, a, b in zip(accessors, want.children(), got.children()):
        inner = difference(a, b, path + accessor.codify(""), exact)
        if inner:
            return inner
    return ""


def _kind(treedef: PyTreeDef) -> str:
    kind = treedef.type
    if kind is None:
        return "a leaf"
    if kind is type(None):
        return "None"
    if issubclass(kind, dict):
        return f"a {kind.__name__} with keys {', '.join(builtins.map(repr, treedef.entries())) or '()'}"
    if kind in (list, tuple):
        return f"a {kind.__name__} of {treedef.num_children}"
    return f"{show(treedef.one_level())}"  # type: ignore[arg-type]


def show(treedef: PyTreeDef) -> str:
    """A structure as text, with ``*`` for leaves.

    Example:
      >>> mw.tree.show(mw.tree.structure({"b": [2, 3], "a": 1}))
      "{'a': *, 'b': [*, *]}"
    """
    text = str(treedef).removeprefix("PyTreeSpec(").removesuffix(")")
    return text.replace(f", namespace='{NAMESPACE}'", "")


def static(**kwargs: Any) -> Any:
    """A dataclass field that is structure, not a leaf; takes the arguments of ``dataclasses.field``.

    Example:
      >>> from dataclasses import dataclass
      >>> @mw.tree_util.register_dataclass
      ... @dataclass
      ... class Scale:
      ...     factor: float
      ...     unit: str = mw.tree.static(default="metre")
      >>> mw.tree.leaves(Scale(2.0))
      [2.0]
    """
    return dataclasses.field(metadata={**(kwargs.pop("metadata", None) or {}), "static": True}, **kwargs)


# --- structures ---------------------------------------------------------------------------------------------
def all_leaves(iterable: Iterable[Any], is_leaf: Callable[[Any], bool] | None = None) -> bool:
    """Whether all elements are leaves.

    Example:
      >>> mw.tree_util.all_leaves([1, "a"]), mw.tree_util.all_leaves([1, (2,)])
      (True, False)
    """
    return builtins.all(structure(x, is_leaf).is_leaf() for x in iterable)


def treedef_is_leaf(treedef: PyTreeDef) -> bool:
    """Whether a structure is that of a single leaf.

    Example:
      >>> mw.tree_util.treedef_is_leaf(mw.tree.structure(1)), mw.tree_util.treedef_is_leaf(mw.tree.structure([1]))
      (True, False)
    """
    return treedef.is_leaf()


def treedef_children(treedef: PyTreeDef) -> list[PyTreeDef]:
    """The structures of a container's children.

    Example:
      >>> [mw.tree.show(t) for t in mw.tree_util.treedef_children(mw.tree.structure({"a": 1, "b": [2]}))]
      ['*', '[*]']
    """
    return treedef.children()


def treedef_tuple(treedefs: Iterable[PyTreeDef]) -> PyTreeDef:
    """The structure of a tuple whose entries have these structures.

    Example:
      >>> mw.tree.show(mw.tree_util.treedef_tuple([mw.tree.structure(1), mw.tree.structure([2, 3])]))
      '(*, [*, *])'
    """
    return optree.treespec_tuple(treedefs, namespace=NAMESPACE)
