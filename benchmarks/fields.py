"""Programs of many fields, partitioned here and by XLA: what a device sends, computes and holds, and the time of a run.

The figures are ours divided by XLA's, of both programs as XLA compiles them for CPUs, in the same model (see
``benchmarks/programs.py``). ``MESHWRIGHT_ONLY`` restricts it to programs that contain one of its words;
``MESHWRIGHT_UNEVEN=1`` takes meshes of 6 and 3 devices a side instead of 8 and 4, on which tiles are uneven.
``MESHWRIGHT_ANNOTATIONS`` (``largest``, ``first``, ``last``, ``random``) annotates all arguments by that rule instead
of as the programs are written, which nobody would do, but which no program was tuned for.
"""

from __future__ import annotations

import os
import statistics
import warnings
from collections.abc import Sequence
from typing import Any

from benchmarks import (
    examined_programs,
    field_programs,
    fourth_examined_programs,
    later_programs,
    more_programs,
    second_examined_programs,
    third_examined_programs,
)
from benchmarks.common import in_process, table

LOTS = (
    (field_programs.PROGRAMS, "Programs of many fields"),
    (later_programs.PROGRAMS, "Programs written after the partitioner"),
    (more_programs.PROGRAMS, "Programs written after these"),
    (examined_programs.PROGRAMS, "Programs of an examiner"),
    (second_examined_programs.PROGRAMS, "Programs of a second examiner"),
    (third_examined_programs.PROGRAMS, "Programs of a third examiner"),
    (fourth_examined_programs.PROGRAMS, "Programs of a fourth examiner"),
)
FIGURES = ("bytes_sent", "redundancy", "memory_bytes", "run_seconds")


def figures(name: str) -> list[list[float]]:
    """Ours and XLA's, in the order of :data:`FIGURES`."""
    import meshwright as mw
    from meshwright.api.compare import compiled_figures, xla_figures

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program, mesh = next(lot for lot, _ in LOTS if name in lot).lowered(name)
        text = program.as_text("stablehlo")
        loaded = mw.load(text)
        both = compiled_figures(loaded, mesh=mesh), xla_figures(text.encode(), loaded, mesh)
    return [[getattr(f, figure) for figure in FIGURES] for f in both]


def _ratio(ours: float, theirs: float) -> float | None:
    return ours / theirs if ours and theirs else None


def main() -> None:
    words = os.environ.get("MESHWRIGHT_ONLY", "").split()
    for programs, title in LOTS:
        names = [name for name in programs if not words or any(word in name for word in words)]
        if names:
            _compare(names, f"{title}: ours, divided by XLA's")


def _compare(names: Sequence[str], title: str) -> None:
    rows, ratios = [], []
    for name in names:
        found = in_process("benchmarks.fields", "figures", name)
        if isinstance(found, str):
            rows.append([name, found])
            continue
        ratios.append([_ratio(a, b) for a, b in zip(*found)])
        rows.append([name, *("none" if r is None else f"{r:.2f}" for r in ratios[-1])])
    rows.append(["geometric mean", *(_mean(column) for column in zip(*ratios))])
    table(title, ["program", "bytes sent", "work", "peak", "time"], rows, "none: nothing is sent by one of them")


def _mean(column: Any) -> str:
    known = [r for r in column if r is not None]
    return f"{statistics.geometric_mean(known):.3f}" if known else ""


if __name__ == "__main__":
    main()
