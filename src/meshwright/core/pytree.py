"""Pytrees, by ``optree``: nested containers of arrays in and out of every public function.

``None`` is an empty container and dict keys are sorted, as in JAX.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import optree

from meshwright.errors import ArgumentError

NAMESPACE = "meshwright"
PyTreeDef = optree.PyTreeSpec


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], PyTreeDef]:
    """Leaves of ``tree`` and the structure to put them back with.

    Args:
      is_leaf: of what it is true stays whole.

    Example:
      >>> mw.tree.flatten({"b": [2, 3], "a": 1})
      ([1, 2, 3], PyTreeSpec({'a': *, 'b': [*, *]}))
    """
    return optree.tree_flatten(tree, is_leaf=is_leaf, namespace=NAMESPACE)


def unflatten(treedef: PyTreeDef, leaves: Iterable[Any]) -> Any:
    """The tree with structure ``treedef`` and these leaves.

    Raises:
      ValueError: (of ``optree``) more or fewer leaves than the structure has.

    Example:
      >>> mw.tree.unflatten(mw.tree.structure({"a": 1, "b": [2, 3]}), [10, 20, 30])
      {'a': 10, 'b': [20, 30]}
    """
    return optree.tree_unflatten(treedef, leaves)


def leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """What ``tree`` holds, from left to right: dicts in the order of their keys, nothing for None.

    Args:
      is_leaf: of what it is true stays whole.

    Example:
      >>> mw.tree.leaves({"b": (2, 3), "a": 1, "c": None})
      [1, 2, 3]
      >>> mw.tree.leaves({"b": (2, 3), "a": 1}, is_leaf=lambda x: isinstance(x, tuple))
      [1, (2, 3)]
    """
    return optree.tree_leaves(tree, is_leaf=is_leaf, namespace=NAMESPACE)


def structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> PyTreeDef:
    """The containers of ``tree`` without its leaves; equal for trees that differ in leaves only.

    Args:
      is_leaf: of what it is true counts as one leaf.

    Example:
      >>> mw.tree.structure({"b": [2, 3], "a": 1})
      PyTreeSpec({'a': *, 'b': [*, *]})
      >>> mw.tree.structure((1, [2])) == mw.tree.structure((mnp.ones(3), [None]))
      False
    """
    return optree.tree_structure(tree, is_leaf=is_leaf, namespace=NAMESPACE)


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """``f`` on corresponding leaves: a tree like ``tree``, whose structure is a prefix of those of ``rest``.

    Raises:
      ValueError: (of ``optree``) it is not.

    Example:
      >>> mw.tree.map(lambda x, y: x + y, {"a": 1, "b": [2]}, {"a": 10, "b": [20]})
      {'a': 11, 'b': [22]}
    """
    return optree.tree_map(f, tree, *rest, is_leaf=is_leaf, namespace=NAMESPACE)


def paths(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[str]:
    """One accessor string a leaf, such as ``['layers'][0].weight``.

    Example:
      >>> mw.tree.paths({"layers": [1, 2], "bias": 3})
      ["['bias']", "['layers'][0]", "['layers'][1]"]
    """
    accessors = optree.tree_accessors(tree, is_leaf=is_leaf, namespace=NAMESPACE)
    return [a.codify("") for a in accessors]


def broadcast_prefix(prefix: Any, tree: Any, what: str, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """Leaves of ``prefix``, each repeated for the part of ``tree`` under it.

    Raises:
      ArgumentError: ``prefix`` is not a tree prefix of ``tree``; ``what`` names the argument.

    Example:
      >>> mw.tree.broadcast_prefix((0, 1), (5, {"a": 6, "b": 7}), "axes")
      [0, 1, 1]
    """
    try:
        return optree.broadcast_prefix(prefix, tree, is_leaf=is_leaf, namespace=NAMESPACE)
    except ValueError:
        raise ArgumentError(
            f"{what} must be a tree prefix of the value it describes: it has structure "
            f"{show(structure(prefix, is_leaf))}, the value has structure {show(structure(tree))}; give one entry for "
            "each part of the value, or one for all of it"
        ) from None


def show(treedef: PyTreeDef) -> str:
    """A structure as its container with ``*`` for leaves.

    Example:
      >>> mw.tree.show(mw.tree.structure({"b": [2, 3], "a": 1}))
      "{'a': *, 'b': [*, *]}"
    """
    text = str(treedef).removeprefix("PyTreeSpec(").removesuffix(")")
    return text.replace(f", namespace='{NAMESPACE}'", "")


def register_pytree_node(
    cls: type, flatten_func: Callable[[Any], tuple[Sequence[Any], Any]], unflatten_func: Callable[[Any, Any], Any]
) -> None:
    """Make instances of ``cls`` containers: ``flatten_func(x) -> (children, aux)`` and back.

    ``unflatten_func(aux, children)`` makes the instance again. ``aux`` is static: a program is compiled for each of its
    values, which are compared by ``==``.

    Raises:
      ValueError: (of ``optree``) ``cls`` is a container already.
      TypeError: (of ``optree``) ``cls`` is no class.

    Example:
      >>> class Interval:
      ...     def __init__(self, low, high):
      ...         self.low, self.high = low, high
      >>> mw.register_pytree_node(Interval, lambda i: ((i.low, i.high), None), lambda _, ends: Interval(*ends))
      >>> moved = mw.jit(lambda i: mw.tree.map(lambda x: x + 10, i))(Interval(1, 2))
      >>> int(moved.low), int(moved.high)
      (11, 12)
    """
    optree.register_pytree_node(
        cls, lambda x: tuple(flatten_func(x)), lambda aux, children: unflatten_func(aux, children), namespace=NAMESPACE
    )


def register_pytree_node_class(cls: type) -> type:
    """Decorator: a class with ``tree_flatten`` and ``tree_unflatten`` methods, as in JAX.

    Raises:
      ValueError: (of ``optree``) ``cls`` is a container already.

    Example:
      >>> @mw.register_pytree_node_class
      ... class Scaled:
      ...     def __init__(self, values, unit):
      ...         self.values, self.unit = values, unit
      ...     def tree_flatten(self):
      ...         return (self.values,), self.unit
      ...     @classmethod
      ...     def tree_unflatten(cls, unit, children):
      ...         return cls(*children, unit)
      >>> doubled = mw.tree.map(lambda x: 2 * x, Scaled(3, "metre"))
      >>> doubled.values, doubled.unit
      (6, 'metre')
    """
    register_pytree_node(cls, lambda x: x.tree_flatten(), cls.tree_unflatten)  # type: ignore[attr-defined]
    return cls


def register_dataclass(
    cls: type, data_fields: Sequence[str] | None = None, meta_fields: Sequence[str] | None = None
) -> type:
    """Make a dataclass a container. ``meta_fields`` are static structure, the others hold arrays.

    Without arguments, fields declared with ``field(metadata={"static": True})`` are the static ones.

    Raises:
      ArgumentError: ``cls`` is no dataclass, or the two do not name each of its init fields once.

    Example:
      >>> from dataclasses import field, make_dataclass
      >>> static = field(metadata={"static": True})
      >>> Layer = mw.register_dataclass(make_dataclass("Layer", ["weight", "bias", ("name", str, static)]))
      >>> mw.tree.map(lambda x: 2 * x, Layer(3, 4, "first"))
      Layer(weight=6, bias=8, name='first')
    """
    if not dataclasses.is_dataclass(cls):
        raise ArgumentError(f"register_dataclass: expected a dataclass, got {cls!r}; decorate it with @dataclass")
    every = [f for f in dataclasses.fields(cls) if f.init]
    if meta_fields is None:
        meta_fields = (
            [f.name for f in every if f.metadata.get("static", False)]
            if data_fields is None
            else [f.name for f in every if f.name not in data_fields]
        )
    if data_fields is None:
        data_fields = [f.name for f in every if f.name not in meta_fields]
    missing = {f.name for f in every} ^ {*data_fields, *meta_fields}
    if missing:
        raise ArgumentError(
            f"register_dataclass: data_fields and meta_fields of {cls.__name__} must name each init field once; "
            f"wrong: {', '.join(sorted(missing))}"
        )
    data, meta = tuple(data_fields), tuple(meta_fields)

    def flatten_(x: Any) -> tuple[tuple[Any, ...], Any]:
        return tuple(getattr(x, n) for n in data), tuple(getattr(x, n) for n in meta)

    def unflatten_(aux: Any, children: Any) -> Any:
        # Not through __init__: leaves may be placeholders that a __post_init__ would refuse.
        new = object.__new__(cls)
        for name, value in zip(data, children):
            object.__setattr__(new, name, value)
        for name, value in zip(meta, aux):
            object.__setattr__(new, name, value)
        return new

    def with_paths(x: Any) -> Any:
        children, aux = flatten_(x)
        return children, aux, data

    optree.register_pytree_node(cls, with_paths, unflatten_, namespace=NAMESPACE)  # type: ignore[arg-type]
    return cls
