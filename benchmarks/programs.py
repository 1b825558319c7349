"""Real programs, partitioned here and by XLA: bytes that one device sends in one run, and collectives by kind.

The programs are StableHLO files with GSPMD shardings, in the folder that ``MESHWRIGHT_PROGRAMS`` names, else
in ``../shared/models``. XLA partitions and compiles the same file for as many CPU devices; its collectives are counted
in the optimized program with the same formulas for rings.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from benchmarks.common import in_process, table

FOLDER = Path(os.environ.get("MESHWRIGHT_PROGRAMS", Path(__file__).parents[2] / "shared" / "models"))
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "collective_permute")

Figures = dict[str, Any]


def _plain(figures: Any) -> Figures:
    return {"kinds": figures.kinds, "bytes": figures.bytes_sent, "seconds": figures.seconds}


def ours(path: str) -> Figures:
    """What our partitioner makes of a program, reading it included."""
    import meshwright as mw
    from meshwright.api.compare import our_figures

    start = time.perf_counter()
    figures = _plain(our_figures(mw.load(path)))
    return {**figures, "seconds": time.perf_counter() - start}


def ours_verified(path: str) -> str:
    """The largest relative difference between the partitioned program's results and the unpartitioned one's."""
    import meshwright as mw

    worst = max(d.relative for d in mw.load(path).partition().verify())
    return f"{worst:.0e}"


def xla(path: str) -> Figures:
    """What XLA's partitioner makes of a program (compile only)."""
    from meshwright.api.compare import xla_figures

    return _plain(xla_figures(path))


def _cells(figures: Figures | str) -> list[str]:
    if isinstance(figures, str):
        return [figures, *[""] * len(KINDS), ""]
    kinds = [figures["kinds"].get(k, [0, 0]) for k in KINDS]
    counts = [f"{count} ({sent / 1e6:.2f})" if count else "0" for count, sent in kinds]
    return [f"{figures['bytes']:,}", *counts, f"{figures['seconds']:.2f} s"]


def main() -> None:
    paths = sorted(FOLDER.glob("*.mlir"))
    if not paths:
        print(f"programs: no *.mlir files in {FOLDER}; set MESHWRIGHT_PROGRAMS to a folder that has some")
        return
    rows = []
    for path in paths:
        mine = in_process("benchmarks.programs", "ours", str(path))
        theirs = in_process("benchmarks.programs", "xla", str(path))
        verified = in_process("benchmarks.programs", "ours_verified", str(path))
        known = not isinstance(mine, str) and not isinstance(theirs, str) and theirs["bytes"]
        share = f"{mine['bytes'] / theirs['bytes']:.2f}" if known else ""
        rows.append([path.stem, "ours", *_cells(mine), share, str(verified)])
        rows.append(["", "XLA", *_cells(theirs), "", ""])
    table(
        "Real programs on their own shardings: bytes sent by one device in one run; collectives by kind (and MB)",
        [
            "program",
            "",
            "bytes sent",
            *(k.replace("_", "-").removeprefix("collective-") for k in KINDS),
            "time",
            "of XLA's",
            "verified",
        ],
        rows,
    )


if __name__ == "__main__":
    main()
