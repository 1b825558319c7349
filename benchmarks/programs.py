"""Real programs, partitioned here and by XLA: what a device sends, holds and computes, and the time of a run.

Times are predicted by the same model for both. XLA simplifies a program before its work is counted, so ours are shown
both as they are and as compiled by XLA ("ours, compiled").

The programs are StableHLO files with GSPMD shardings, in the folder ``MESHWRIGHT_PROGRAMS``, by default
``../shared/models``. XLA partitions and compiles the same file for as many CPU devices. Its collectives are counted in
the optimized program, with the same ring formulas.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.common import in_process, table

FOLDER = Path(os.environ.get("MESHWRIGHT_PROGRAMS", Path(__file__).parents[2] / "shared" / "models"))
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "collective_permute")

Figures = dict[str, Any]


def _plain(figures: Any) -> Figures:
    return {
        "kinds": figures.kinds, "bytes": figures.bytes_sent, "seconds": figures.seconds, "peak": figures.memory_bytes,
        "work": figures.redundancy, "run": figures.run_seconds,
    }  # fmt: skip


def ours(path: str) -> Figures:
    """The figures of our partition, and the seconds of loading and partitioning."""
    import meshwright as mw
    from meshwright.api.compare import our_figures

    start = time.perf_counter()
    figures = _plain(our_figures(mw.load(path)))
    return {**figures, "seconds": time.perf_counter() - start}


def compiled(path: str) -> Figures:
    """The figures of our partition as compiled by XLA, counted as for its own."""
    import meshwright as mw
    from meshwright.api.compare import compiled_figures

    return _plain(compiled_figures(mw.load(path)))


def ours_verified(path: str) -> str:
    """The largest relative difference between results of the partitioned and the unpartitioned program."""
    import meshwright as mw

    worst = max(d.relative for d in mw.load(path).partition().verify())
    return f"{worst:.0e}"


def xla(path: str) -> Figures:
    """The figures of XLA's partition, which is only compiled."""
    from meshwright.api.compare import xla_figures

    return _plain(xla_figures(path))


def _cells(figures: Figures | str) -> list[str]:
    if isinstance(figures, str):
        return [figures, *[""] * (len(KINDS) + 4)]
    kinds = [figures["kinds"].get(k, [0, 0]) for k in KINDS]
    counts = [f"{count} ({sent / 1e6:.2f})" if count else "0" for count, sent in kinds]
    known = [f"{figures['work']:.3f}", f"{1e6 * figures['run']:.0f} µs"] if figures["run"] else ["", ""]
    return [f"{figures['bytes']:,}", *counts, f"{figures['peak'] / 1e6:.1f}", *known, f"{figures['seconds']:.2f} s"]


def _shares(made: Figures | str, theirs: Figures | str) -> str:
    """Bytes, peak, work and time of ours relative to XLA's, both as compiled."""
    if isinstance(made, str) or isinstance(theirs, str):
        return ""
    return " ".join(f"{made[what] / theirs[what]:.3f}" for what in ("bytes", "peak", "work", "run") if theirs[what])


def main() -> None:
    paths = sorted(FOLDER.glob("*.mlir"))
    if not paths:
        print(f"programs: no *.mlir files in {FOLDER}; set MESHWRIGHT_PROGRAMS to a folder that has some")
        return
    rows, times = [], []
    for path in paths:
        mine = in_process("benchmarks.programs", "ours", str(path))
        made = in_process("benchmarks.programs", "compiled", str(path))
        theirs = in_process("benchmarks.programs", "xla", str(path))
        verified = in_process("benchmarks.programs", "ours_verified", str(path))
        known = not isinstance(mine, str) and not isinstance(theirs, str) and theirs["bytes"]
        share = f"{mine['bytes'] / theirs['bytes']:.2f}" if known else ""
        if known and theirs["run"] and not isinstance(made, str):
            times.append(made["run"] / theirs["run"])
        rows.append([path.stem, "ours", *_cells(mine), share, str(verified)])
        rows.append(["", "ours, compiled", *_cells(made), _shares(made, theirs), ""])
        rows.append(["", "XLA", *_cells(theirs), "", ""])
    mean = f"{statistics.geometric_mean(times):.2f}" if times else "not known"
    table(
        "Real programs on their own shardings: bytes sent by one device in one run; collectives by kind (and MB)",
        [
            "program",
            "",
            "bytes sent",
            *(k.replace("_", "-").removeprefix("collective-") for k in KINDS),
            "peak, MB",
            "work/ideal",
            "a run",
            "time",
            "of XLA's",
            "verified",
        ],
        rows,
        f"compiled: bytes, peak, work, time of what XLA's compiler makes of ours, in terms of what it makes of its own "
        f"partition (target: at most 1 each); of the time the geometric mean is {mean} (target: 0.9)",
    )


if __name__ == "__main__":
    main()
