"""Tables that do not keep objects alive, and drop them without running Python code.

The callbacks of dictionaries in :mod:`weakref` are Python functions. If Ctrl-C arrives in one of them, Python cannot
raise ``KeyboardInterrupt`` to anyone: it prints "Exception ignored in", and the program continues. Freeing a traced
program calls thousands of them. The callbacks here are methods of ``dict``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any, Generic, TypeVar
from weakref import finalize, ref

K = TypeVar("K")
V = TypeVar("V")


def when_gone(value: Any, call: Callable[..., Any], *args: Any) -> None:
    """Call a function once ``value`` is freed, or when the program ends. It is Python code: only for few objects."""
    finalize(value, call, *args)


class WeakKeys(Generic[K, V]):
    """Values for objects, each kept as long as its object lives.

    All methods raise TypeError for objects that are not hashable or not weakly referenceable.
    """

    __slots__ = ("_forget", "_values")

    def __init__(self) -> None:
        self._values: dict[ref[K], V] = {}
        self._forget: Callable[[ref[K]], None] = self._values.__delitem__

    def get(self, key: K) -> V | None:
        return self._values.get(ref(key))

    def setdefault(self, key: K, value: V) -> V:
        return self._values.setdefault(ref(key, self._forget), value)

    def __setitem__(self, key: K, value: V) -> None:
        self._values[ref(key, self._forget)] = value

    def __iter__(self) -> Iterator[K]:
        return iter([key for r in list(self._values) if (key := r()) is not None])

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        self._values.clear()


class WeakValues(Generic[K, V]):
    """Objects by key, each available as long as it is referenced elsewhere."""

    __slots__ = ("_refs",)

    def __init__(self) -> None:
        self._refs: dict[K, ref[V]] = {}

    def get(self, key: K) -> V | None:
        reference = self._refs.get(key)
        return None if reference is None else reference()

    def __setitem__(self, key: K, value: V) -> None:
        self._refs[key] = ref(value, partial(self._refs.pop, key))  # pop gets the reference as its default

    def __len__(self) -> int:
        return len(self._refs)


def once_for_each(function: Callable[[Any], V]) -> Callable[[Any], V]:
    """``function`` of one object, with the result cached as long as that lives."""
    known: WeakKeys[Any, V] = WeakKeys()
    unknown: Any = object()

    @wraps(function)
    def remembered(key: Any) -> V:
        result: Any = known._values.get(ref(key), unknown)
        if result is unknown:
            known[key] = result = function(key)
        return result  # type: ignore[no-any-return]

    return remembered
