"""The one way to bind late: a slot for what a higher part of the package supplies to a lower one."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Slot(Generic[T]):
    """Holds, as ``value``, what the module ``by`` supplies when it is imported.

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
        """Supply the value; returns it.

        Raises:
          RuntimeError: another one is there already.
        """
        if self.filled and self.value is not value:
            raise RuntimeError(f"{self.what} is supplied twice, by {self.value!r} and {value!r}")
        self.value, self.filled = value, True
        return value

    def __getattr__(self, name: str) -> Any:  # asked for what is not there
        if name == "value":
            raise RuntimeError(f"{self.what} is supplied by {self.by}: import meshwright, not a part of it")
        raise AttributeError(name)
