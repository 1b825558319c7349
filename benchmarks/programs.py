"""Real programs, partitioned here and by XLA: bytes that one device sends in one run, and collectives by kind.

The programs are StableHLO files with GSPMD shardings, in the folder that ``MESHWRIGHT_PROGRAMS`` names, else
in ``../shared/models``. XLA partitions and compiles the same file for as many CPU devices; its collectives are counted
in the optimized program with the same formulas for rings.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.common import in_process, table

FOLDER = Path(os.environ.get("MESHWRIGHT_PROGRAMS", Path(__file__).parents[2] / "shared" / "models"))
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "collective_permute")

_WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2, "s32": 4, "u32": 4, "f32": 4,
           "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16}  # fmt: skip
_INSTRUCTION = re.compile(
    r"= (?P<type>\(.*?\)|\S+) (?P<kind>all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute)"
    r"(?:-start)?\((?P<rest>.*)"
)
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]")

_NAMED = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")

Figures = dict[str, Any]


def ours(path: str) -> Figures:
    """What our partitioner makes of a program."""
    import meshwright as mw

    start = time.perf_counter()
    part = mw.load(path).partition()
    found = part.collectives
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "peak": part.peak_bytes, **_by_kind((c.kind, c.bytes_sent) for c in found)}


def ours_verified(path: str) -> str:
    """The largest relative difference between the partitioned program's results and the unpartitioned one's."""
    import meshwright as mw

    worst = max(d.relative for d in mw.load(path).partition().verify())
    return f"{worst:.0e}"


def xla(path: str) -> Figures:
    """What XLA's partitioner makes of a program (compile only)."""
    from jaxlib import _jax
    from jaxlib import xla_client as xc

    import meshwright as mw
    import numpy as np

    text = Path(path).read_text()
    count = int(re.search(r"mhlo.num_partitions = (\d+)", text)[1])  # type: ignore[index]
    client = xc.make_cpu_client(num_devices=count)
    options = xc.CompileOptions()
    options.num_replicas, options.num_partitions = 1, count
    options.executable_build_options.use_spmd_partitioning = True
    # As jax does: where the program says nothing, results lie as the partitioner likes.
    given = mw.load(path).parsed.result_shardings
    options.executable_build_options.allow_spmd_sharding_propagation_to_output = [s is None for s in given]
    options.device_assignment = xc.DeviceAssignment.create(np.arange(count).reshape(1, count))
    start = time.perf_counter()
    loaded = client.compile_and_load(text, _jax.DeviceList(tuple(client.local_devices())), options)
    seconds = time.perf_counter() - start
    peak = loaded.get_compiled_memory_stats()
    return {
        "seconds": seconds,
        "peak": peak.argument_size_in_bytes + peak.temp_size_in_bytes,
        **_by_kind(hlo_collectives(loaded.get_hlo_text(), count)),
    }


def hlo_collectives(text: str, devices: int) -> Iterable[tuple[str, int]]:
    """Kind and bytes sent of each collective of an optimized HLO program."""
    for line in text.splitlines():
        found = _INSTRUCTION.search(line)
        if found is None:
            continue
        kind = found["kind"].replace("-", "_")
        group = _group_size(found["rest"], devices)
        size = sum(_WIDTHS.get(t, 4) * math.prod(map(int, dims.split(","))) if dims else _WIDTHS.get(t, 4)
                   for t, dims in _ARRAY.findall(found["type"]))  # fmt: skip
        yield kind, _wire_bytes(kind, group, size)


def _group_size(text: str, devices: int) -> int:
    named, listed, iota = _NAMED.search(text), _LISTED.search(text), _IOTA.search(text)
    if named:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        parts = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", named[2])
        return math.prod(int(part or sizes[axis]) for axis, part in parts)
    return listed[1].count(",") + 1 if listed else int(iota[2]) if iota else devices


def _wire_bytes(kind: str, group: int, result: int) -> int:
    match kind:
        case "all_reduce":
            return -(-2 * result * (group - 1) // group)
        case "reduce_scatter":
            return result * (group - 1)
        case "collective_permute":
            return result
    return result * (group - 1) // group


def _by_kind(found: Iterable[tuple[str, int]]) -> Figures:
    kinds: dict[str, list[int]] = {}
    for kind, sent in found:
        count = kinds.setdefault(kind, [0, 0])
        count[0] += 1
        count[1] += sent
    return {"kinds": kinds, "bytes": sum(sent for _, sent in kinds.values())}


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
