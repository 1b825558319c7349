"""Identifies functions for caches: the same function, or the same function under the same transformations and options.

``jit(vmap(f))`` in a loop creates new wrappers in each iteration for the same program. The result of a transformation
remembers what it was made from; caches belong to the function at the root, and live as long as it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Generic, TypeVar

from meshwright.core import pytree
from meshwright.core.weak import WeakKeys

_Caches = TypeVar("_Caches")


@dataclass(frozen=True, slots=True)
class _Origin:
    #: the function it describes, since ``functools.wraps`` copies attributes to others
    owner: weakref.ref[Any]
    fun: Callable[..., Any]
    step: Hashable


def made_of(derived: Any, fun: Callable[..., Any], *step: Any) -> Any:
    """Mark ``derived`` as equivalent, for caches, to other results of ``step`` (a name and options, trees) applied to
    ``fun``."""
    key = as_key(step)
    if key is not None:
        derived._origin = _Origin(weakref.ref(derived), fun, key)
    return derived


def as_key(options: Any) -> Hashable | None:
    """A tree as a hashable value that distinguishes ``0``, ``0.0`` and ``False``; None if a leaf is not hashable."""
    leaves, treedef = pytree.flatten(options, is_leaf=lambda x: x is None)
    key = (treedef, *((kind_of(x), x) for x in leaves))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def kind_of(value: Any) -> Hashable:
    """What tells a static value apart from equal ones: ``True``, 1 and 1.0, 0.0 and -0.0, also in tuples."""
    kind: Any = type(value)
    if isinstance(value, tuple):
        return (kind, *map(kind_of, value))
    return (kind, str(value)) if kind is float and not value else kind


def identity(fun: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Hashable, ...]]:
    """The function at the root of ``fun``, and the steps that made ``fun`` from it, last first."""
    steps = []
    while (origin := getattr(fun, "_origin", None)) is not None and origin.owner() is fun:
        steps.append(origin.step)
        fun = origin.fun
    return fun, tuple(steps)


class CachesOfFunctions(Generic[_Caches]):
    """One ``make()`` per function and options; it lives as long as the function at the root.

    Only plain functions share caches: the result of a bound method or callable object may change with the object.
    """

    def __init__(self, make: Callable[[], _Caches]) -> None:
        self._make = make
        self._of: WeakKeys[FunctionType, dict[Any, _Caches]] = WeakKeys()

    def of(self, fun: Callable[..., Any], *options: Any) -> _Caches:
        """The caches of ``fun`` and ``options``; new ones if these are not known to be equivalent to earlier ones."""
        root, steps = identity(fun)
        key = as_key(options)
        if type(root) is not FunctionType or key is None:
            return self._make()
        caches = self._of.setdefault(root, {})
        return caches.setdefault((steps, key), self._make())
