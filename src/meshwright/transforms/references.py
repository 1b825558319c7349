"""What transformations need of mutable references, which are values of a higher layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core.records import dataclass
from meshwright.core.slots import Slot


@dataclass(frozen=True)
class References:
    """How transformations treat references among the arguments of functions."""

    #: whether a value is a reference
    recognizes: Callable[[Any], bool]
    #: a tree without its references, and what puts them back; None instead if there are none
    apart: Callable[[Any], tuple[Any, Callable[[Any], Any]] | None]
    #: calls a function of flat arguments that is traced where it is called
    traced_once: Callable[..., Any]
    #: a call of a mapped function
    mapped: Callable[..., Callable[[], Any] | None]
    #: ``jvp``, and ``linearize``, of a function
    jvp: Callable[..., Any]
    linearize: Callable[..., Any]

    def among(self, leaves: Sequence[Any]) -> bool:
        return any(map(self.recognizes, leaves))


REFERENCES: Slot[References] = Slot("references", "meshwright.api.carried_references")
