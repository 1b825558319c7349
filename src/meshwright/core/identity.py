"""When two functions are one to a cache: the same function, or made of it by the same transformations and options.

``jit(vmap(f))`` written inside of a loop makes new wrappers each time round, and means the same program. What a
transformation returns remembers what it is made of; caches belong to the function at the root and go with it.
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
    #: ``functools.wraps`` copies attributes: this is said of no other function
    owner: weakref.ref[Any]
    fun: Callable[..., Any]
    step: Hashable


def made_of(derived: Any, fun: Callable[..., Any], *step: Any) -> Any:
    """``derived``, which is to caches whatever else ``step`` (a name and options, trees of them) makes of ``fun``."""
    key = as_key(step)
    if key is not None:
        derived._origin = _Origin(weakref.ref(derived), fun, key)
    return derived


def as_key(options: Any) -> Hashable | None:
    """A tree as a hashable value in which ``0``, ``0.0`` and ``False`` differ; None if a leaf cannot be hashed."""
    leaves, treedef = pytree.flatten(options, is_leaf=lambda x: x is None)
    key = (treedef, *((type(x), x) for x in leaves))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def identity(fun: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Hashable, ...]]:
    """The function at the root of ``fun``, and the steps that made ``fun`` of it, last first."""
    steps = []
    while (origin := getattr(fun, "_origin", None)) is not None and origin.owner() is fun:
        steps.append(origin.step)
        fun = origin.fun
    return fun, tuple(steps)


class CachesOfFunctions(Generic[_Caches]):
    """One ``make()`` for each function and options; it lives as long as the function at the root.

    Only plain functions share: what a bound method or a callable object computes may change with the object.
    """

    def __init__(self, make: Callable[[], _Caches]) -> None:
        self._make = make
        self._of: WeakKeys[FunctionType, dict[Any, _Caches]] = WeakKeys()

    def of(self, fun: Callable[..., Any], *options: Any) -> _Caches:
        """The caches of ``fun`` and ``options``; new ones where these are not known to be the same as any before."""
        root, steps = identity(fun)
        key = as_key(options)
        if type(root) is not FunctionType or key is None:
            return self._make()
        caches = self._of.setdefault(root, {})
        return caches.setdefault((steps, key), self._make())
