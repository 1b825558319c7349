"""XLA's own partitioner (GSPMD or Shardy, by the program's annotations) on the same program, for comparison.

The program is only compiled, for as many CPU devices as it has partitions, in a process of its own (this module, run):
it may come from elsewhere, and compilers trust what they get. Collectives are read off the optimized HLO and counted
with the formulas for rings that our own reports use.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from meshwright.core.config import config
from meshwright.core.records import dataclass
from meshwright.errors import CompileError
from meshwright.runtime.pjrt.client import compile_options, load, xc
from meshwright.runtime.pjrt.replicas import CompiledMemory

_WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2, "s64": 8, "u64": 8, "f64": 8, "c64": 8,
           "c128": 16}  # fmt: skip
_INSTRUCTION = re.compile(
    r"= (?P<type>\(.*?\)|\S+) (?P<kind>all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute)"
    r"(?:-start)?\((?P<rest>.*)"
)
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]")
#: what of a compiler's last words is shown
_LINES = 5
_NAMED = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")


@dataclass(frozen=True)
class XlaPartition:
    """What XLA makes of a program: ``(kind, bytes sent by one device)`` of each collective, memory, seconds.

    ``peak_bytes`` are arguments, results that are not in donated arguments' memory, and temporaries.
    """

    collectives: tuple[tuple[str, int], ...]
    peak_bytes: int
    seconds: float

    @property
    def bytes_sent(self) -> int:
        return sum(sent for _, sent in self.collectives)


def xla_partition(module: str | bytes, num_devices: int, free_results: Sequence[bool]) -> XlaPartition:
    """Partition and compile StableHLO (text or bytecode) with XLA.

    ``free_results`` says for each result whether XLA may choose its layout, as jax does where none is given.

    Raises:
      CompileError: XLA refused the program, took longer than ``config.target_seconds``, or ended its process.
    """
    with tempfile.TemporaryDirectory(prefix="meshwright_compare_") as name:
        folder = Path(name)
        (folder / "module").write_bytes(module.encode() if isinstance(module, str) else module)
        request = {"devices": num_devices, "free": list(free_results), "text": isinstance(module, str)}
        (folder / "request.json").write_text(json.dumps(request))
        _run(folder)
        found = json.loads((folder / "answer.json").read_text())
    if "refused" in found:
        raise CompileError(found["refused"])
    return XlaPartition(tuple((kind, sent) for kind, sent in found["collectives"]), found["peak"], found["seconds"])


def _run(folder: Path) -> None:
    """Compile what is in ``folder`` in a child, which leaves its answer there.

    Raises:
      CompileError: it left none.
    """
    home = str(Path(__file__).parents[3])
    paths = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-P", "-m", __name__, str(folder)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            errors="replace", env={**os.environ, "PYTHONPATH": paths}, timeout=config.target_seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CompileError(
            f"XLA's partitioner takes longer than {config.target_seconds} s; raise config.target_seconds"
        ) from None
    if not (folder / "answer.json").exists():
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"status {done.returncode}"
        said = [line for line in done.stderr.splitlines() if line.strip()][-_LINES:]
        raise CompileError("\n".join([f"XLA's partitioner ended its process with {how}, saying:", *said]))


def _answer(folder: Path) -> dict[str, object]:
    """What the child says."""
    request = json.loads((folder / "request.json").read_text())
    data = (folder / "module").read_bytes()
    try:
        found = _partition(data.decode() if request["text"] else data, request["devices"], request["free"])
    except CompileError as error:
        return {"refused": str(error)}
    return {"collectives": found.collectives, "peak": found.peak_bytes, "seconds": found.seconds}


def _partition(module: str | bytes, num_devices: int, free_results: Sequence[bool]) -> XlaPartition:
    """:func:`xla_partition`, in this process."""
    client = xc.make_cpu_client(num_devices=num_devices)
    options = compile_options(1, num_devices)
    build = options.executable_build_options
    build.use_spmd_partitioning = True
    build.allow_spmd_sharding_propagation_to_output = list(free_results)
    start = time.perf_counter()
    loaded = load(client, module, options, "XLA's partitioner refused the program")
    seconds = time.perf_counter() - start
    found = tuple(hlo_collectives(loaded.get_hlo_text(), num_devices))
    return XlaPartition(found, CompiledMemory.of(loaded).peak_bytes, seconds)


def hlo_collectives(text: str, num_devices: int) -> Iterator[tuple[str, int]]:
    """Kind and bytes sent of each collective of an optimized HLO program."""
    for line in text.splitlines():
        found = _INSTRUCTION.search(line)
        if found is None:
            continue
        size = sum(
            _WIDTHS.get(name, 4) * (math.prod(map(int, dims.split(","))) if dims else 1)
            for name, dims in _ARRAY.findall(found["type"])
        )
        kind = found["kind"].replace("-", "_")
        yield kind, _wire_bytes(kind, _group_size(found["rest"], num_devices), size)


def _group_size(text: str, num_devices: int) -> int:
    named, listed, iota = _NAMED.search(text), _LISTED.search(text), _IOTA.search(text)
    if named:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        parts = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", named[2])
        return math.prod(int(part or sizes[axis]) for axis, part in parts)
    return listed[1].count(",") + 1 if listed else int(iota[2]) if iota else num_devices


def _wire_bytes(kind: str, group: int, result: int) -> int:
    """Bytes sent by one device, from the size of the result."""
    match kind:
        case "all_reduce":
            return -(-2 * result * (group - 1) // group)
        case "reduce_scatter":
            return result * (group - 1)
        case "collective_permute":
            return result
    return result * (group - 1) // group


if __name__ == "__main__":
    where = Path(sys.argv[1])
    (where / "answer.json").write_text(json.dumps(_answer(where)))
