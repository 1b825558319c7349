"""The trees of exported programs as JSON, and the classes of users that they may have."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import optree

from meshwright.core import pytree
from meshwright.errors import ArgumentError, ArgumentTypeError

T = TypeVar("T", bound=type)


class _Written(NamedTuple):
    """How objects of a class are written: their static data as bytes, and what makes one of data and children."""

    cls: type
    name: str
    to_bytes: Callable[[Any], bytes]
    from_bytes: Callable[[bytes], Any]
    made: Callable[[Any, Sequence[Any]], Any]


_by_class: dict[type, _Written] = {}
_by_name: dict[str, _Written] = {}


def register_pytree_node_serialization(
    nodetype: T,
    *,
    serialized_name: str,
    serialize_auxdata: Callable[[Any], bytes | bytearray],
    deserialize_auxdata: Callable[[bytes], Any],
    from_children: Callable[[Any, Sequence[Any]], Any] | None = None,
) -> T:
    """Allow a registered class in the trees of exported programs that are serialized; returns the class.

    Args:
      serialized_name: what stands for the class in files; the process that reads them registers a class under it.
      serialize_auxdata, deserialize_auxdata: its static data as bytes, and back.
      from_children: makes an object of static data and children; default: as the class was registered.

    Raises:
      ArgumentTypeError: it is no registered class. ArgumentError: the class or the name is registered already.
    """
    made = from_children
    if made is None:
        entry: Any = optree.register_pytree_node.get(nodetype, namespace=pytree.NAMESPACE)  # type: ignore[attr-defined]
        if entry is None:
            raise ArgumentTypeError(
                f"register_pytree_node_serialization: {nodetype!r} is no container; register_pytree_node it before"
            )
        made = entry.unflatten_func
    return _register(nodetype, _Written(nodetype, serialized_name, lambda d: bytes(serialize_auxdata(d)),
                                        deserialize_auxdata, made))  # fmt: skip


def register_namedtuple_serialization(nodetype: T, *, serialized_name: str) -> T:
    """:func:`register_pytree_node_serialization` for a named tuple.

    Raises:
      ArgumentTypeError: it is none. ArgumentError: the class or the name is registered already.
    """
    if not (isinstance(nodetype, type) and issubclass(nodetype, tuple) and hasattr(nodetype, "_fields")):
        raise ArgumentTypeError(f"register_namedtuple_serialization: expected a named tuple, got {nodetype!r}")

    def made(_: Any, children: Sequence[Any]) -> Any:
        return nodetype(*children)

    return _register(nodetype, _Written(nodetype, serialized_name, lambda _: b"", lambda _: None, made))


def _register(cls: T, written: _Written) -> T:
    if cls in _by_class or written.name in _by_name:
        raise ArgumentError(f"{cls.__name__}, or the name {written.name!r}, is registered for serialization already")
    _by_class[cls] = _by_name[written.name] = written
    return cls


def described(treedef: Any, name: str) -> Any:
    """A tree as JSON, with 0 for its leaves.

    Raises:
      ArgumentError: it has containers that cannot be written; ``name`` is that of the program.
    """
    return _written(pytree.unflatten(treedef, [0] * treedef.num_leaves), name)


def _written(tree: Any, name: str) -> Any:
    if tree is None or type(tree) is int:
        return tree
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [_written(t, name) for t in tree]}
    if type(tree) is dict and all(type(k) in (str, int) for k in tree):
        return {"dict": [[k, _written(t, name)] for k, t in tree.items()]}
    if (known := _by_class.get(type(tree))) is not None:
        children, data, *_ = optree.tree_flatten_one_level(tree, namespace=pytree.NAMESPACE)
        text = base64.b64encode(known.to_bytes(data)).decode()
        return {"class": [known.name, text, [_written(t, name) for t in children]]}
    raise ArgumentError(
        f"serialize: {name!r} takes or returns a {type(tree).__name__}, which other processes may not have; pass "
        "tuples, lists and dicts (with numbers or strings as keys), or call register_pytree_node_serialization"
    )


def tree_of(written: Any) -> Any:
    """The tree that :func:`described` wrote.

    Raises:
      ArgumentError: it has a class that is not registered in this process. ValueError and others: it is damaged.
    """
    if not isinstance(written, dict):
        return written
    ((kind, parts),) = written.items()
    if kind == "dict":
        return {k: tree_of(t) for k, t in parts}
    if kind == "class":
        name, data, children = parts
        if name not in _by_name:
            raise ArgumentError(
                f"deserialize: the program takes or returns a {name!r}; call register_pytree_node_serialization, or "
                "register_namedtuple_serialization, for the class before"
            )
        known = _by_name[name]
        return known.made(known.from_bytes(base64.b64decode(data)), [tree_of(t) for t in children])
    return [tree_of(t) for t in parts] if kind == "list" else tuple(tree_of(t) for t in parts)
