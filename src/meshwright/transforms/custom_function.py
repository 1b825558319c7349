"""What functions with a rule of the user's have in common: ``custom_jvp``, ``custom_vjp``, ``custom_vmap``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core import pytree
from meshwright.core.expected import as_numbers, from_front
from meshwright.core.signature import positions
from meshwright.errors import ArgumentError, ArgumentTypeError
from meshwright.ir.jaxpr import ClosedJaxpr, Var
from meshwright.ir.tracing import typeof
from meshwright.transforms.levels import ResultTypes
from meshwright.transforms.wrapped import name_of, require_callable


class CustomFunction:
    """Base: a function that looks like the user's, also as a method."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        require_callable(fun, type(self).__name__)
        functools.update_wrapper(self, fun)
        self.fun = fun

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(type(self).__name__)


class CustomDerivative(CustomFunction):
    """Base: with arguments that are Python values and have no derivative."""

    def __init__(
        self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = (), nondiff_argnames: Sequence[str] = ()
    ) -> None:
        super().__init__(fun)
        self.nondiff_argnums = nondiff_numbers(fun, nondiff_argnums, nondiff_argnames, type(self).__name__)
        self.symbolic_zeros = False
        self._types = ResultTypes()

    def static_of(self, args: tuple[Any, ...]) -> dict[int, Any]:
        """The arguments that are Python values, by number.

        Raises:
          ArgumentError: the call has no such argument.
        """
        what = f"{type(self).__name__}: nondiff_argnums"
        return {i: args[i] for i in from_front(what, self.nondiff_argnums, len(args), name_of(self.fun))}


def with_operands(jaxpr: ClosedJaxpr, at: int, values: Sequence[Any]) -> ClosedJaxpr:
    """``jaxpr`` with operands more, of which it makes no use."""
    invars = jaxpr.jaxpr.invars
    extra = [Var(typeof(x)) for x in values]
    return jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(invars=[*invars[:at], *extra, *invars[at:]]))


def nondiff_numbers(
    fun: Callable[..., Any], numbers: Sequence[int], names: Sequence[str], where: str
) -> tuple[int, ...]:
    """The arguments that are Python values, by number, in order.

    Raises:
      ArgumentError: ``fun`` has no argument of a name. ArgumentTypeError: ``numbers`` are no ints.
    """
    numbers = as_numbers(f"{where} {name_of(fun)}: nondiff_argnums", numbers)
    names = (names,) if isinstance(names, str) else tuple(names)
    if not names:
        return numbers
    for name in names:
        if not positions(fun, [name]):
            raise ArgumentError(f"{where} {name_of(fun)}: nondiff_argnames={names} names {name!r}, which it has not")
    return tuple(sorted({*numbers, *positions(fun, names)}))


def positional(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], where: str = "custom_vjp"
) -> tuple[Any, ...]:
    """All arguments by position, defaults filled in.

    Raises:
      ArgumentTypeError: keyword-only arguments.
    """
    try:
        bound = inspect.signature(fun).bind(*args, **kwargs)
    except (ValueError, TypeError):
        if not kwargs:
            return args
        raise
    bound.apply_defaults()
    if bound.kwargs:
        raise ArgumentTypeError(
            f"{where} {name_of(fun)}: arguments {sorted(bound.kwargs)} are keyword-only; rules take arguments by "
            "position"
        )
    return bound.args


def with_static(fun: Callable[..., Any], static: dict[int, Any], count: int, in_tree: Any) -> Callable[..., Any]:
    """``fun`` as a function of the leaves of its other arguments, which have structure ``in_tree``."""

    def call(*leaves: Any) -> Any:
        given = iter(pytree.unflatten(in_tree, leaves))
        return fun(*(static[i] if i in static else next(given) for i in range(count)))

    return call
