"""The results of a verification, for display."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import overload

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass

#: the most rows of a table
_ROWS = 20


@dataclass(frozen=True)
class OutputDifference:
    """The difference between one output of the partitioned program and of the unpartitioned one.

    ``relative`` is the largest absolute difference over the largest magnitude of the output. ``finite`` is the share of
    elements that are finite on both sides. ``allowed`` is the largest absolute difference that rounding in the
    unpartitioned program accounts for; None if only the tolerances apply.
    """

    output: str
    absolute: float
    relative: float
    finite: float = 1.0
    aval: ShapedArray | None = None
    allowed: float | None = None


@dataclass(frozen=True, repr=False)
class Verification(Sequence[OutputDifference]):
    """The differences for each output, and how they were found.

    ``elements`` were compared in ``runs`` runs on different inputs; the share ``finite`` of the floats was finite on
    both sides. ``precision`` is "float64", with the names of ops that were computed in other types. ``notes`` say where
    results were compared less strictly or on other inputs, because the program amplifies rounding, and that loops which
    may not end were ended.
    """

    outputs: tuple[OutputDifference, ...]
    elements: int
    runs: int
    finite: float
    precision: str
    seconds: float
    notes: tuple[str, ...] = ()

    @overload
    def __getitem__(self, index: int) -> OutputDifference: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[OutputDifference, ...]: ...
    def __getitem__(self, index: int | slice) -> OutputDifference | tuple[OutputDifference, ...]:
        return self.outputs[index]

    def __len__(self) -> int:
        return len(self.outputs)

    def __iter__(self) -> Iterator[OutputDifference]:
        return iter(self.outputs)

    @property
    def worst(self) -> OutputDifference | None:
        """The output with the largest relative difference."""
        return max(self.outputs, key=lambda d: d.relative, default=None)

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        worst = self.worst
        if worst is None:
            return "verified: there are no outputs"
        how = f"largest difference {worst.relative:.1e} relative, in {worst.output}" if worst.absolute else "exactly"
        outputs = "the output equals that" if len(self) == 1 else f"{len(self)} outputs equal those"
        runs = f"{self.runs} runs, " if self.runs > 1 else ""
        return (
            f"verified: {outputs} of the unpartitioned program ({how}); {runs}{self.elements:,} elements compared in "
            f"{self.precision}, {percent(self.finite)} of them finite"
        )

    def _rows(self) -> list[tuple[str, str, str, str]]:
        shown = sorted(self.outputs, key=lambda d: -d.relative)[:_ROWS]
        return [(f"{d.output} {d.aval or ''}".rstrip(), f"{d.absolute:.1e}", f"{d.relative:.1e}", percent(d.finite))
                for d in shown]  # fmt: skip

    def __repr__(self) -> str:
        rows = [("", "absolute", "relative", "finite"), *self._rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(x.rjust(w) for x, w in zip(row[1:], widths[1:]))]) for row in rows
        ]
        more = len(self.outputs) - _ROWS
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([self.headline, *map(str.rstrip, lines), *([f"and {more} more"] if more > 0 else []), *notes])

    def _repr_html_(self) -> str:
        cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in self._rows()]
        head = "<tr><th></th><th>absolute</th><th>relative</th><th>finite</th></tr>"
        said = "".join(f"<p>{html.escape(text)}</p>" for text in (self.headline, *self.notes))
        return f"{said}<table>{head}{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def percent(share: float) -> str:
    """A share in per cent, rounded down so that only 1 becomes 100 %."""
    return "100 %" if share == 1 else f"{int(share * 1000) / 10:.1f} %"
