"""An operation read as another one: with other operands, or with attributes from elsewhere in the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.ir.tracing import typeof


class Respelled:
    """A :class:`~meshwright.ir.reading.Reader` like ``reader``, for the reading rule of another operation."""

    def __init__(
        self,
        reader: Any,
        operands: Sequence[Any] | None = None,
        attributes: Mapping[str, Any] | None = None,
        out_avals: Sequence[ShapedArray] | None = None,
    ) -> None:
        self._reader = reader
        self._attributes = dict(attributes or {})
        self.operands = list(reader.operands if operands is None else operands)
        self.out_avals = list(reader.out_avals if out_avals is None else out_avals)

    @property
    def in_avals(self) -> list[ShapedArray]:
        return [typeof(x) for x in self.operands]

    def attr(self, name: str, default: Any = ...) -> Any:
        return self._attributes[name] if name in self._attributes else self._reader.attr(name, default)

    def attrs(self) -> dict[str, Any]:
        return {**self._reader.attrs(), **self._attributes}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)
