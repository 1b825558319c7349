"""Singletons that represent a special value."""

from __future__ import annotations

from typing import ClassVar


class Sentinel:
    """Base class of singletons that print and pickle as the variable that holds them."""

    variable: ClassVar[str]

    def __repr__(self) -> str:
        return self.variable

    def __reduce__(self) -> str:
        return self.variable
