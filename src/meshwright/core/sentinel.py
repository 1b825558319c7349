"""Values that stand for nothing but themselves."""

from __future__ import annotations

from typing import ClassVar


class Sentinel:
    """Base of classes with one value, which prints as the variable that holds it, and pickles as that variable."""

    variable: ClassVar[str]

    def __repr__(self) -> str:
        return self.variable

    def __reduce__(self) -> str:
        return self.variable
