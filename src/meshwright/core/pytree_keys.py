"""Key paths: the keys from a tree to each of its leaves, printed as Python code.

``optree`` has accessors; these are the keys with the names and texts of ``jax.tree_util``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import optree

from meshwright.core.records import dataclass


@dataclass(frozen=True)
class DictKey:
    """The key of a dict entry."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@dataclass(frozen=True)
class SequenceKey:
    """The index of a list or tuple entry."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx}]"


@dataclass(frozen=True)
class GetAttrKey:
    """An attribute of a named tuple, a dataclass, or a class registered with such keys."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@dataclass(frozen=True)
class FlattenedIndexKey:
    """The index of a child of a container registered without keys."""

    key: int

    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


KeyEntry = Any  # one of the above, or any hashable with which a class was registered
KeyPath = tuple[KeyEntry, ...]


class GivenKey(optree.PyTreeEntry):
    """An entry of an ``optree`` accessor that holds one of our keys, or of the user's."""

    def __call__(self, obj: Any) -> Any:
        key = self.entry
        return getattr(obj, key.name) if isinstance(key, GetAttrKey) else obj[key.key]

    def codify(self, /, node: str = "") -> str:
        return f"{node}{self.entry}"


def key_path(accessor: Iterable[Any]) -> KeyPath:
    """The keys of an ``optree`` accessor."""
    return tuple(map(_key, accessor))


def _key(entry: Any) -> KeyEntry:
    if isinstance(entry, GivenKey):
        return entry.entry
    if isinstance(entry, optree.MappingEntry):
        return DictKey(entry.key)
    if isinstance(entry, (optree.NamedTupleEntry, optree.StructSequenceEntry)):
        return GetAttrKey(entry.field)
    if isinstance(entry, optree.GetAttrEntry):
        return GetAttrKey(entry.name)
    if isinstance(entry, optree.SequenceEntry):
        return SequenceKey(entry.index)
    return FlattenedIndexKey(entry.entry)


def keystr(keys: KeyPath, *, simple: bool = False, separator: str = "") -> str:
    """A key path as text, such as ``['layers'][0].weight``.

    Args:
      simple: only names and numbers.
      separator: text between keys.

    Example:
      >>> path, leaf = mw.tree.leaves_with_path({"layers": [1]})[0]
      >>> mw.tree_util.keystr(path), mw.tree_util.keystr(path, simple=True, separator="/")
      ("['layers'][0]", 'layers/0')
    """
    return separator.join(_bare(k) if simple else str(k) for k in keys)


def _bare(key: KeyEntry) -> str:
    for kind, attribute in ((DictKey, "key"), (SequenceKey, "idx"), (GetAttrKey, "name"), (FlattenedIndexKey, "key")):
        if isinstance(key, kind):
            return str(getattr(key, attribute))
    return str(key)
