"""Memory of a per-device program, predicted from its jaxpr, against XLA's figures for the compiled program.

Both are arguments, results and temporaries of one device. XLA compiles the per-device program for 8 CPU devices; the
prediction compiles nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks import gpt2, megatron, mlp
from benchmarks.common import in_process, table
from benchmarks.programs import FOLDER

DEVICES = 8


def _file(name: str) -> Any:
    import meshwright as mw

    return mw.load(str(FOLDER / f"{name}.mlir")).partition()


def programs() -> dict[str, Callable[[], Any]]:
    """What makes each partitioned program, by name."""
    found: dict[str, Callable[[], Any]] = {
        path.stem: lambda name=path.stem: _file(name) for path in sorted(FOLDER.glob("*.mlir"))
    }
    found["Megatron layer"] = megatron.partitioned
    found["GPT-2 step"] = lambda: gpt2.sharded_step().partition()
    for sizes in mlp.SIZES:
        found[f"MLP step {'×'.join(map(str, sizes))}"] = lambda sizes=sizes: mlp.partitioned(sizes)
    return found


def measure(name: str) -> dict[str, float]:
    """Predicted and compiled bytes of one program, and seconds that each took."""
    from meshwright.runtime.pjrt.replicas import compiled_memory

    part = programs()[name]()
    start = time.perf_counter()
    predicted = part.memory.peak_bytes
    predicted_at = time.perf_counter()
    compiled = compiled_memory(part.as_text("stablehlo"), DEVICES).peak_bytes
    return {
        "predicted": predicted,
        "compiled": compiled,
        "predict": predicted_at - start,
        "compile": time.perf_counter() - predicted_at,
    }


def main() -> None:
    rows, errors = [], []
    for name in programs():
        found = in_process("benchmarks.memory", "measure", name)
        if isinstance(found, str):
            rows.append([name, found, "", "", "", ""])
            continue
        ratio = found["predicted"] / found["compiled"]
        errors.append(abs(ratio - 1))
        seconds = (f"{found[key]:.2f} s" for key in ("predict", "compile"))
        rows.append([name, f"{found['predicted']:,}", f"{found['compiled']:,}", f"{ratio:.4f}", *seconds])
    worst = f"median error {statistics.median(errors):.2%}, worst {max(errors):.2%}; " if errors else ""
    table(
        f"Memory of one device in bytes, {DEVICES} devices: predicted, and as XLA compiles it",
        ["program", "predicted", "XLA", "ratio", "to predict", "to compile"],
        rows,
        f"{worst}targets: at most 5 % and 15 %",
    )


if __name__ == "__main__":
    main()
