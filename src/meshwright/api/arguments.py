"""The arguments of jitted functions: which are static or donated, and errors for those that are not arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshwright.api.references import Ref
from meshwright.core.avals import ShapedArray
from meshwright.core.config import config, platform_named
from meshwright.core.expected import as_tuple, from_front
from meshwright.core.signature import parameters_of
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError, MeshwrightError, UnexpectedTracerError
from meshwright.ir.tracing import Tracer, check_alive, typeof
from meshwright.runtime.array import Array

#: the platforms for which programs can be lowered
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


# --- options that name arguments ----------------------------------------------------------------------------
def words_of(value: str | Iterable[str] | None, what: str) -> tuple[str, ...]:
    """One or several argument names as a tuple.

    Raises:
      ArgumentTypeError: an entry is not a string.
    """
    several = isinstance(value, Iterable) and not isinstance(value, str)
    words = () if value is None else tuple(value) if several else (value,)  # type: ignore[arg-type]
    if not all(isinstance(w, str) for w in words):
        raise ArgumentTypeError(f"jit: {what} must be a string or a sequence of strings, got {value!r}")
    return words  # type: ignore[return-value]


def lowering_platforms(given: Sequence[str] | None, what: str) -> tuple[str, ...]:
    """The platforms to lower for, as users name them; without any, the current one.

    Raises:
      ArgumentError: one is not known; says which are.
    """
    named = () if given is None else as_tuple(what, "a sequence of names", given)
    platforms = tuple(dict.fromkeys(map(platform_named, named))) or (config.platform,)
    if unknown := [p for p in platforms if p not in (*_PLATFORMS, config.platform)]:
        raise ArgumentError(f"{what} has {', '.join(map(repr, unknown))}; name some of {', '.join(_PLATFORMS)}")
    return platforms


def both_ways(
    fun: Callable[..., Any], numbers: tuple[int, ...], names: tuple[str, ...], what: str, function: str = "jit"
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Argument numbers and names, each completed from the other by the signature of ``fun``.

    Raises:
      ArgumentError: ``fun`` has no such parameter. ``what`` (``"static"`` or ``"donate"``) and ``function`` are for the
        message.
    """
    parameters = parameters_of(fun)
    if not (numbers or names) or parameters is None:
        return numbers, names
    kinds = {p.kind for p in parameters}
    order = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        for n in numbers:
            if not -len(order) <= n < len(order):
                raise ArgumentError(
                    f"{function}: {what}_argnums={numbers} names argument {n}, but the function takes "
                    f"{counted(len(order), 'positional argument')} ({', '.join(order)}); use numbers below {len(order)}"
                )
        numbers = tuple(n % len(order) for n in numbers)
    known = {p.name for p in parameters}
    unknown = [n for n in names if n not in known]
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise ArgumentError(
            f"{function}: {what}_argnames={names} names {', '.join(map(repr, unknown))}, but the function's parameters "
            f"are {', '.join(p.name for p in parameters) or 'none'}"
        )
    more_names = [order[n] for n in numbers if 0 <= n < len(order)]
    more_numbers = [order.index(n) for n in names if n in order]
    return tuple(dict.fromkeys((*numbers, *more_numbers))), tuple(dict.fromkeys((*names, *more_names)))


def numbers_in_call(what: str, numbers: Sequence[int], count: int, fun: str) -> set[int]:
    """The argument numbers in a call of ``fun`` with ``count`` arguments, negative ones counted from the end.

    Numbers past the last argument (those of defaults) are kept.

    Raises:
      ArgumentError: a negative number before the first argument.
    """
    if not numbers or min(numbers) >= 0:
        return set(numbers)
    return {*from_front(what, [i for i in numbers if i < 0], count, fun), *(i for i in numbers if i >= 0)}


def check_apart(static: Iterable[Any], donated: Iterable[Any], function: str = "jit") -> None:
    """Raise if an argument is both static and donated.

    Raises:
      ArgumentError: naming it.
    """
    both = [*set(static).intersection(donated)]
    if both:
        raise ArgumentError(
            f"{function}: argument {both[0]!r} is both static and donated; only arrays, which are not static, can be "
            "donated: leave it out of one of them"
        )


# --- what went wrong ----------------------------------------------------------------------------------------
def bad_argument(what: str, leaves: Sequence[Any], names: Sequence[str]) -> MeshwrightError:
    """The error for the first of ``leaves`` that is not an array."""
    for x, name in zip(leaves, names):
        try:
            typeof(x)
        except ArgumentTypeError as error:
            if hasattr(x, "dtype") or isinstance(x, int):
                return type(error)(f"{what}: argument {name}: {error}")
            kind = type(x).__name__
            return ArgumentTypeError(
                f"{what}: argument {name} is no array but {_short(x)} of type {kind}; pass arrays or numbers, mark the "
                f"argument static (static_argnums, static_argnames), or, if {kind} holds arrays, make it a container "
                "with register_dataclass or register_pytree_node"
            )
    return ArgumentTypeError(f"{what}: an argument is no array")


def _short(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 60 else text[:57] + "..."


class ReferenceGiven(Exception):
    """An argument is a reference."""


def array_type(x: Any) -> ShapedArray:
    """The type of an argument that is an array.

    Raises:
      ReferenceGiven: it is a reference. ArgumentTypeError: it is neither.
    """
    if type(x) is Ref:  # whose description, in the error otherwise, would read it
        raise ReferenceGiven
    return typeof(x)


def signature(x: Any) -> Any:
    """The properties of an argument that a compiled program depends on."""
    if type(x) is Array:
        return (x.aval, x.sharding)
    if isinstance(x, Tracer):
        check_alive(x)
        raise UnexpectedTracerError(f"a tracer of another trace was passed to a jitted function: {x!r}")
    return array_type(x)
