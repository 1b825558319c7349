"""Classes of values that ``vmap`` maps by functions of theirs (``interpreters.batching.register_vmappable``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.core import pytree
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentTypeError


@dataclass(frozen=True)
class Handlers:
    """How a value of a class becomes one element of it, and results become a value."""

    spec_type: type
    to_element: Callable[..., Any]
    from_element: Callable[..., Any]


#: by class
HANDLERS: dict[type, Handlers] = {}


def register_vmappable(
    data_type: type,
    spec_type: type,
    axis_size_type: type,
    to_elt: Callable[..., Any],
    from_elt: Callable[..., Any],
    make_iota: Callable[..., Any] | None,
) -> None:
    """Register how ``vmap`` maps values of a class, which need not be pytrees.

    Args:
      spec_type: the class of their entries in ``in_axes`` and ``out_axes``.
      axis_size_type: the class of sizes of axes; only int.
      to_elt: ``to_elt(element, index, value, spec)`` gives one element of the value; ``element(part, axis)`` gives that
        of an array in it. ``index`` is not available.
      from_elt: ``from_elt(whole, size, result, spec)`` gives a value from the element that the function returned;
        ``whole(size, part, axis)`` gives the batch of an array in it.
      make_iota: makes the positions along axes of such a size; None.

    Raises:
      ArgumentTypeError: sizes are not ints, or ``make_iota`` is given.
    """
    if axis_size_type is not int or make_iota is not None:
        raise ArgumentTypeError(
            f"register_vmappable: sizes of axes are ints here, got axis_size_type={axis_size_type!r} and "
            f"make_iota={make_iota!r}; use int and None"
        )
    HANDLERS[data_type] = Handlers(spec_type, to_elt, from_elt)


def unregister_vmappable(data_type: type) -> None:
    """Undo :func:`register_vmappable`."""
    HANDLERS.pop(data_type, None)


class Held:
    """A value of a registered class, in place of it in the trees that ``vmap`` flattens."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def handlers(self) -> Handlers:
        return HANDLERS[type(self.value)]

    def require_spec(self, spec: Any) -> None:
        """Raise unless ``spec`` is one for this class, or None.

        Raises:
          ArgumentTypeError: it is not.
        """
        wanted = self.handlers.spec_type
        if spec is not None and not isinstance(spec, wanted):
            raise ArgumentTypeError(
                f"vmap: a {type(self.value).__name__} is mapped by a spec of type {wanted.__name__}, got {spec!r}; "
                "give one in in_axes or out_axes, or None to pass it unmapped"
            )


def _is_registered(x: Any) -> bool:
    return type(x) in HANDLERS


def held(tree: Any) -> Any:
    """``tree`` with its values of registered classes, which may also be containers, as leaves."""
    if not HANDLERS:
        return tree
    return pytree.map(lambda x: Held(x) if _is_registered(x) else x, tree, is_leaf=_is_registered)


def is_spec(axis: Any) -> bool:
    """Whether ``axis`` may be the spec of a value of a registered class."""
    return any(isinstance(axis, h.spec_type) for h in HANDLERS.values())
