"""The only form of late binding: a slot for an object that a higher layer of the package supplies to a lower one."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Slot(Generic[T]):
    """Holds, as ``value``, an object supplied by the module ``by`` when it is imported.

    Example: ``EVALUATE: Slot[Callable[[Op, Sequence[Any]], Any]] = Slot("evaluation", "meshwright.runtime.eager")``,
    and there ``EVALUATE.fill(evaluate)``.
    """

    __slots__ = ("by", "filled", "value", "what")
    value: T

    def __init__(self, what: str, by: str) -> None:
        self.what = what
        self.by = by
        self.filled = False

    def fill(self, value: T) -> T:
        """Set the value, and return it.

        Raises:
          RuntimeError: another value has been set already.
        """
        if self.filled and self.value is not value:
            raise RuntimeError(f"{self.what} is supplied twice, by {self.value!r} and {value!r}")
        self.value, self.filled = value, True
        return value

    def __getattr__(self, name: str) -> Any:  # called for a value that has not been set
        if name == "value":
            raise RuntimeError(f"{self.what} is supplied by {self.by}: import meshwright, not a part of it")
        raise AttributeError(name)
