"""Base classes and helpers shared by ``custom_jvp``, ``custom_vjp`` and ``custom_vmap``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core import pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.expected import as_numbers, from_front
from meshwright.core.signature import positions
from meshwright.errors import ArgumentError, ArgumentTypeError
from meshwright.ir.jaxpr import ClosedJaxpr, Var
from meshwright.ir.op import Zero
from meshwright.ir.tracing import typeof
from meshwright.transforms.levels import ResultTypes
from meshwright.transforms.wrapped import Signed, name_of, require_callable


class CustomFunction(Signed):
    """Base class: wraps the user's function, keeps its metadata, and binds as a method."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        require_callable(fun, type(self).__name__)
        functools.update_wrapper(self, fun)
        self.fun = fun

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(type(self).__name__)


class CustomDerivative(CustomFunction):
    """Base class that adds static (non-differentiable) arguments, which are passed on as Python values."""

    def __init__(
        self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = (), nondiff_argnames: Sequence[str] = ()
    ) -> None:
        super().__init__(fun)
        self.nondiff_argnums = nondiff_numbers(fun, nondiff_argnums, nondiff_argnames, type(self).__name__)
        self.symbolic_zeros = False
        self._types = ResultTypes()

    def __getattr__(self, name: str) -> Any:
        """What sets the rules of a function that has some itself, such as ``def_vmap`` of a ``custom_vmap``."""
        fun = self.__dict__.get("fun")
        if isinstance(fun, CustomFunction) and not name.startswith("_"):
            return getattr(fun, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def static_of(self, args: tuple[Any, ...]) -> dict[int, Any]:
        """The static arguments of a call, by position.

        Raises:
          ArgumentError: the call has no such argument.
        """
        what = f"{type(self).__name__}: nondiff_argnums"
        return {i: args[i] for i in from_front(what, self.nondiff_argnums, len(args), name_of(self.fun))}


def types_of(values: Sequence[Any], what: Callable[[int], str]) -> list[ShapedArray]:
    """The types of what a rule returned; ``what(i)`` names value ``i``.

    Raises:
      ArgumentTypeError: a value is no array.
    """
    avals = []
    for i, x in enumerate(values):
        try:
            avals.append(x.aval if isinstance(x, Zero) else typeof(x))
        except ArgumentTypeError as error:
            raise ArgumentTypeError(f"{what(i)}: {error}") from None
    return avals


def shown(out: Any) -> str:
    """What a rule returned, for messages: the structure of a container, or the type of anything else."""
    is_tree = out is None or isinstance(out, (tuple, list, dict))
    return pytree.show(pytree.structure(out)) if is_tree else f"a value of type {type(out).__name__}"


def with_operands(jaxpr: ClosedJaxpr, at: int, values: Sequence[Any]) -> ClosedJaxpr:
    """``jaxpr`` with unused operands of the types of ``values`` inserted at position ``at``."""
    invars = jaxpr.jaxpr.invars
    extra = [Var(typeof(x)) for x in values]
    return jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(invars=[*invars[:at], *extra, *invars[at:]]))


def nondiff_numbers(
    fun: Callable[..., Any], numbers: Sequence[int], names: Sequence[str], where: str
) -> tuple[int, ...]:
    """The positions of the static arguments: ``numbers``, merged with those of ``names`` and sorted if there are any.

    Raises:
      ArgumentError: ``fun`` has no argument of one of the names. ArgumentTypeError: ``numbers`` are not ints.
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
    """All arguments of a call as positional arguments, with defaults filled in.

    Raises:
      ArgumentTypeError: ``fun`` has keyword-only arguments.
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
    """``fun`` as a function of the flat leaves of its non-static arguments, whose structure is ``in_tree``."""

    def call(*leaves: Any) -> Any:
        given = iter(pytree.unflatten(in_tree, leaves))
        return fun(*(static[i] if i in static else next(given) for i in range(count)))

    return call
