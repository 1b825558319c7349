"""Functions with transformations that are applied when they are called: ``jax.extend.linear_util``.

Our own transformations wrap functions. These are for programs that write their own in JAX's notation: a generator that
yields arguments, is sent results, and yields results of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from meshwright.core.naming import name_of
from meshwright.errors import ArgumentError, ArgumentTypeError

#: a function that is called with the function below it, its own static arguments, and the arguments of the call
_Transform = tuple[Callable[..., Any], tuple[Any, ...]]


class StoreException(Exception):
    """A side result was read before the function was called, or stored twice."""


class Store:
    """What a transformation stores beside its results, once for every call."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def store(self, value: Any) -> None:
        if self._values:
            raise StoreException("the function was called twice, and its side result is that of one call")
        self._values.append(value)

    @property
    def val(self) -> Any:
        if not self._values:
            raise StoreException("the function was not called yet, so it has no side result")
        return self._values[0]


class WrappedFun:
    """A function ``f``, keyword arguments ``params`` for it, and transformations, the last one outermost."""

    def __init__(
        self, f: Callable[..., Any], transforms: tuple[_Transform, ...], params: Mapping[str, Any], debug_info: Any
    ) -> None:
        self.f = f
        self.transforms = transforms
        self.params = params
        self.debug_info = debug_info

    @property
    def __name__(self) -> str:
        return name_of(self.f)

    def call_wrapped(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with all of its transformations."""
        fun = functools.partial(self.f, **self.params) if self.params else self.f
        for transform, static in self.transforms:
            fun = functools.partial(transform, fun, *static)
        return fun(*args, **kwargs)

    def wrap(self, transform: Callable[..., Any], *static: Any) -> WrappedFun:
        """The function with one more transformation."""
        return WrappedFun(self.f, (*self.transforms, (transform, static)), self.params, self.debug_info)

    def __repr__(self) -> str:
        return f"<{self.__name__} with {len(self.transforms)} transformations>"


def wrap_init(f: Callable[..., Any], params: Mapping[str, Any] | None = None, *, debug_info: Any = None) -> WrappedFun:
    """A function without transformations yet.

    Raises:
      ArgumentTypeError: ``f`` is not callable.
    """
    if not callable(f):
        raise ArgumentTypeError(f"wrap_init: f must be a function, got {f!r} of type {type(f).__name__}")
    return WrappedFun(f, (), params or {}, debug_info)


def _wrapped(fun: Any, what: str) -> WrappedFun:
    if not isinstance(fun, WrappedFun):
        raise ArgumentTypeError(f"{what}: expected what wrap_init returns, got {fun!r} of type {type(fun).__name__}")
    return fun


def transformation2(transform: Callable[..., Any], *given: Any) -> Any:
    """``fun`` with ``transform(f, *static, *args)`` called in its place; without ``fun``, waits for it."""
    if not given:
        return functools.partial(transformation2, transform)
    fun, *static = given
    return _wrapped(fun, "transformation2").wrap(transform, *static)


def transformation_with_aux2(transform: Callable[..., Any], *given: Any, use_eq_store: bool = False) -> Any:
    """:func:`transformation2` for ``transform(f, store, *static, *args)``; also returns a function that returns what
    was stored."""
    if not given:
        return functools.partial(transformation_with_aux2, transform, use_eq_store=use_eq_store)
    fun, *static = given
    store = Store()
    return _wrapped(fun, "transformation_with_aux2").wrap(transform, store, *static), lambda: store.val


def _run(generator: Callable[..., Any], f: Callable[..., Any], given: tuple[Any, ...], kwargs: Any) -> Any:
    steps = generator(*given, **kwargs)
    args, named = next(steps)
    out = steps.send(f(*args, **named))
    steps.close()
    return out


def transformation(generator: Callable[..., Any], *given: Any) -> Any:
    """``fun`` transformed by a generator, which is called with its static arguments and those of the call.

    It yields positional and keyword arguments for ``fun``, is sent the results, and yields results.

    Example:
      >>> from meshwright.extend import linear_util
      >>> @linear_util.transformation
      ... def scaled(factor, x):
      ...     y = yield (factor * x,), {}
      ...     yield y + 1
      >>> scaled(linear_util.wrap_init(abs), 3).call_wrapped(-2)
      7
    """
    if not given:
        return functools.partial(transformation, generator)
    return transformation2(lambda f, *args, **kwargs: _run(generator, f, args, kwargs), *given)


def transformation_with_aux(generator: Callable[..., Any], *given: Any, use_eq_store: bool = False) -> Any:
    """:func:`transformation` by a generator that yields a pair of results and side result; also returns a function that
    returns the latter."""
    if not given:
        return functools.partial(transformation_with_aux, generator, use_eq_store=use_eq_store)

    def stored(f: Callable[..., Any], store: Store, *args: Any, **kwargs: Any) -> Any:
        out, aux = _run(generator, f, args, kwargs)
        store.store(aux)
        return out

    return transformation_with_aux2(stored, *given)


def merge_linear_aux(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[bool, Any]:
    """The side result of the one of two functions that was called, and whether it is the first.

    Raises:
      StoreException: neither was called. ArgumentError: both were.
    """
    try:
        found = first()
    except StoreException:
        return False, second()
    try:
        second()
    except StoreException:
        return True, found
    raise ArgumentError("merge_linear_aux: both functions were called; call one of them")


def cache(call: Callable[..., Any]) -> Callable[..., Any]:
    """``call`` with its results kept, by the identity of the function that is its first argument, and by the others."""
    return functools.cache(call)
