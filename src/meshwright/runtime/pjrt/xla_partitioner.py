"""XLA's own partitioner (GSPMD or Shardy, by the program's annotations) on the same program, for comparison.

The program is only compiled, for one CPU device per partition, in a child process that runs this module: the program
may be imported, and compilers trust their input. The result is two texts: the optimized module, with the collectives
that would run, and the module before layout assignment, which shows the work of a device: partitioned and simplified,
but without fusions and library calls. What XLA does for CPUs alone is left out of both (:data:`_FOR_CPUS`), as it is no
doing of the partitioner.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxlib import xla_client as xc

from meshwright.core.config import config
from meshwright.core.records import dataclass
from meshwright.core.with_parent import end_with_parent
from meshwright.errors import CompileError
from meshwright.runtime.pjrt.compiler import calls_lapack, compile_on, compile_options, is_shardy, load_lapack
from meshwright.runtime.pjrt.replicas import CompiledMemory
from meshwright.stablehlo.hlo_groups import with_listed_groups

#: the number of lines shown of a crashed compiler's output
_LINES = 5
#: the pass before which the partitioned module is dumped
_BEFORE = "layout-assignment"
#: the optimized module, which is dumped before machine code is made: CPUs have none for some operations
_OPTIMIZED = "cpu_after_optimizations"
#: types that CPUs compute and send in more bits
_NARROW = ("bf16", "f8e5m2", "f8e4m3", "f8e4m3fn", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz", "f8e3m4")
#: passes by which CPUs do without these, bring products into an order of dimensions that kernels have, and keep large
#: values across loops to compute them once
_FOR_CPUS = ",".join(
    ["all-reduce-promotion", "dot_decomposer", "while-loop-invariant-code-motion"]
    + [f"float-normalization-{name}" for name in _NARROW]
)


@dataclass(frozen=True)
class XlaPartition:
    """XLA's result for a program: what a device runs as HLO, its memory, and the compile time in seconds.

    ``compiled`` is the optimized module, empty where CPUs have no form of one; ``text`` is the one before fusion and
    layout assignment. ``peak_bytes`` counts arguments, results that are not in memory of donated arguments, and
    temporaries, on CPUs; None if it was not asked for.
    """

    compiled: str
    peak_bytes: int | None
    seconds: float
    text: str


def xla_partition(
    module: str | bytes, num_devices: int, free_results: Sequence[bool], partitioned: bool = False,
    memory: bool = True,
) -> XlaPartition:  # fmt: skip
    """Partition and compile StableHLO (text or bytecode) with XLA.

    ``free_results`` says for each result whether XLA may choose its sharding, as jax lets it if none is given. A module
    that is already ``partitioned``, with a replica per device, is only compiled. With ``memory``, it is compiled a
    second time, as CPUs run it.

    Raises:
      CompileError: XLA rejected the program, took longer than ``config.target_seconds``, or crashed.
    """
    with tempfile.TemporaryDirectory(prefix="meshwright_compare_") as name:
        folder = Path(name)
        request = {
            "devices": num_devices, "free": list(free_results), "partitioned": partitioned, "texts": True,
            "memory": memory,
        }  # fmt: skip
        answer = _asked(folder, module, request, "XLA's partitioner")
        if "refused" in answer:
            raise CompileError(answer["refused"])
        text = _written(folder, f"*.before_{_BEFORE}.txt")
        compiled = _written(folder, f"*.{_OPTIMIZED}.txt") if list(folder.glob(f"*.{_OPTIMIZED}.txt")) else ""
        return XlaPartition(compiled, answer["peak"], answer["seconds"], text)


def survive(module: str | bytes, replicas: int, what: str) -> None:
    """Compile a program for ``replicas`` devices to see whether the compiler survives; it may reject the program.

    Raises:
      CompileError: it crashed, or took longer than ``config.target_seconds``; ``what`` begins the message.
    """
    request = {"devices": replicas, "free": [], "partitioned": True, "texts": False, "memory": True}
    with tempfile.TemporaryDirectory(prefix="meshwright_tried_") as name:
        _asked(Path(name), module, request, what)


def _asked(folder: Path, module: str | bytes, request: dict[str, object], what: str) -> dict[str, Any]:
    """The answer of a child process that compiles the module."""
    is_text = isinstance(module, str)
    (folder / "module").write_bytes(module.encode() if is_text else module)  # type: ignore[union-attr, arg-type]
    (folder / "request.json").write_text(json.dumps({**request, "text": is_text}))
    _run(folder, what)
    answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    return answer


def _written(folder: Path, pattern: str) -> str:
    """The only file in ``folder`` that matches ``pattern``, a dumped module."""
    (file,) = folder.glob(pattern)
    return with_listed_groups(file.read_text())


def _run(folder: Path, what: str) -> None:
    """Compile the request in ``folder`` in a child process, which writes its answer there.

    Raises:
      CompileError: it did not write an answer.
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
        raise CompileError(f"{what} takes longer than {config.target_seconds} s; raise config.target_seconds") from None
    if not (folder / "answer.json").exists():
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"status {done.returncode}"
        lines = [line for line in done.stderr.splitlines() if line.strip()][-_LINES:]
        raise CompileError("\n".join([f"{what} ended its process with {how}" + (", saying:" if lines else ""), *lines]))


def _answer(folder: Path) -> dict[str, object]:
    """Compute the child's answer to the request."""
    request = json.loads((folder / "request.json").read_text())
    data = (folder / "module").read_bytes()
    try:
        return _partition(data.decode() if request["text"] else data, request, folder)
    except CompileError as error:
        return {"refused": str(error)}


def _partition(module: str | bytes, request: dict[str, Any], folder: Path) -> dict[str, object]:
    """As :func:`xla_partition`, in this process: returns peak and seconds, and has XLA write the modules to ``folder``.

    Raises:
      CompileError: XLA rejected it.
    """
    if calls_lapack(module):
        load_lapack()
    count, partitioned = request["devices"], request["partitioned"]
    client = xc.make_cpu_client(num_devices=count)

    def compiled(**overrides: str) -> Any:
        options = compile_options(count, 1) if partitioned else compile_options(1, count)
        options.env_option_overrides = list(overrides.items())
        if not partitioned:
            build = options.executable_build_options
            build.use_spmd_partitioning = True
            build.use_shardy_partitioner = is_shardy(module)
            build.allow_spmd_sharding_propagation_to_output = request["free"]
        return compile_on(client, module, options, "XLA's partitioner refused the program")

    start = time.perf_counter()
    if request["texts"]:
        try:
            compiled(
                xla_dump_to=str(folder), xla_dump_hlo_pass_re=_BEFORE, xla_disable_hlo_passes=_FOR_CPUS,
                xla_backend_optimization_level="0",
            )  # fmt: skip
        except CompileError:
            if not list(folder.glob(f"*.before_{_BEFORE}.txt")):
                raise
    seconds = time.perf_counter() - start
    peak = CompiledMemory.of(compiled()).peak_bytes if request["memory"] else None
    return {"peak": peak, "seconds": seconds}


if __name__ == "__main__":
    end_with_parent()
    where = Path(sys.argv[1])
    (where / "answer.json").write_text(json.dumps(_answer(where)))
