"""Wrappers returned by function transformations. They record how they were made, for caching and pickling."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from types import FunctionType, MethodType
from typing import Any

from meshwright.core.identity import made_of
from meshwright.core.naming import name_of
from meshwright.core.tracebacks import without_own_frames
from meshwright.errors import ArgumentTypeError


def is_pair(out: Any) -> bool:
    """Whether ``out`` is a tuple or list of length two."""
    return isinstance(out, (tuple, list)) and len(out) == 2


def require_callable(fun: Any, where: str) -> None:
    """Raise unless ``fun`` can be called."""
    if not callable(fun):
        raise ArgumentTypeError(f"{where}: expected a function, got {fun!r} of type {type(fun).__name__}")


def found_by_name(function: Any) -> str | None:
    """The qualified name of ``function`` if its module holds this very object under it (so pickle can use it)."""
    name = getattr(function, "__qualname__", "")
    named: Any = sys.modules.get(getattr(function, "__module__", None) or "")
    for part in name.split("."):
        named = getattr(named, part, None)
    return name if named is function else None


def takes_names_of(wrapper: Any, fun: Any) -> None:
    """Give ``wrapper`` the name, docstring and attributes of ``fun``, apart from those that its class has.

    What an object keeps for itself, under a private name, says nothing of ``wrapper``.
    """
    functools.update_wrapper(wrapper, fun, updated=())
    plain = isinstance(fun, FunctionType)
    for name, value in getattr(fun, "__dict__", {}).items():
        if (plain or not name.startswith("_")) and not hasattr(type(wrapper), name) and name != "__wrapped__":
            setattr(wrapper, name, value)


class _SignatureOfWrapped:
    """The signature of the function that a wrapper wraps.

    Wrappers are also functions of classes (``__get__``), which Python takes for built-in ones where it is asked not to
    follow wrappers (``inspect.signature(f, follow_wrapped=False)``).
    """

    def __get__(self, wrapper: Any, owner: Any = None) -> inspect.Signature:
        if wrapper is None:
            raise AttributeError("__signature__")
        return inspect.signature(wrapper.__wrapped__)


class Signed:
    """A base class of wrappers, which have the signature of ``__wrapped__``."""

    __signature__ = _SignatureOfWrapped()


class Transformed(Signed):
    """The function returned by the transformation ``name`` applied to ``fun``.

    ``options`` are the positional arguments after ``fun`` and ``keywords`` the keyword arguments. Caches treat wrappers
    made from equal parts as the same function. Meshwright's frames are removed from tracebacks of errors it raises.
    """

    def __init__(
        self, call: Callable[..., Any], fun: Any, name: str, options: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        functools.update_wrapper(self, fun)
        self._call, self._recipe = call, (name, fun, options, keywords)
        made_of(self, fun, name, options, keywords)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._call(*args, **kwargs)
        except Exception as error:
            without_own_frames(error)
            raise

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        name, fun, *_ = self._recipe
        return f"<{name} of {name_of(fun)}>"

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Always raises: only jitted functions can be traced and lowered.

        Raises:
          ArgumentTypeError: names the transformation, and ``jit`` as the remedy.
        """
        name, fun, *_ = self._recipe
        text = f"{name}({name_of(fun)})"
        raise ArgumentTypeError(
            f"{text} was not jitted, and only jitted functions can be traced and lowered; write jit({text}).lower(...)"
        )

    trace = lower

    def __reduce__(self) -> Any:
        return found_by_name(self) or (_rebuild, self._recipe)

    def __copy__(self) -> Transformed:
        return self

    def __deepcopy__(self, memo: Any) -> Transformed:
        return self


def _rebuild(name: str, fun: Any, options: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return getattr(import_module("meshwright"), name)(fun, *options, **keywords)


def transformed(call: Callable[..., Any], fun: Callable[..., Any], name: str, *options: Any, **keywords: Any) -> Any:
    """``call`` wrapped as the result of applying the transformation ``name`` to ``fun``; see :class:`Transformed`."""
    return Transformed(call, fun, name, options, keywords)
