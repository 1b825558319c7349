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
