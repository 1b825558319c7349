"""Memory of per-device programs: predicted from the jaxpr, against XLA's figures for the compiled program.

Both count the arguments, results and temporaries of one device. XLA compiles the per-device program for 8 CPU devices;
the prediction does not compile anything.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import gpt2, megatron, mlp
from benchmarks.common import in_process, table
from benchmarks.programs import FOLDER

DEVICES = 8
#: seeds of the random programs, of which each gives 50, and factors for their sizes
SEEDS, SCALES = range(5), (1, 32)
_WORST = 0.15
#: the least bytes of a peak; smaller ones are dominated by scalars and alignment
_LARGE = 64 * 1024


def _file(name: str) -> Any:
    import meshwright as mw

    return mw.load(str(FOLDER / f"{name}.mlir")).partition()


def _moving() -> dict[str, Callable[[], Any]]:
    """Halos, parts of split dimensions, sums over pairs: programs with many values that do not get a buffer."""
    import numpy as np

    import meshwright as mw
    import meshwright.numpy as mnp
    from benchmarks.optima import _mesh, _partition
    from meshwright import PartitionSpec as P
    from meshwright import lax, nn

    def laplace(u: Any) -> Any:
        return u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]

    def torus(u: Any) -> Any:
        return sum(mnp.roll(u, by, dim) for by in (1, -1) for dim in (0, 1)) - 4 * u

    def forces(x: Any, m: Any) -> Any:
        apart = x[None] - x[:, None]
        return (apart * (m[None] * ((apart * apart).sum(-1) + 1e-3) ** -1.5)[..., None]).sum(1)

    def gated(y: Any) -> Any:
        gate, up = mnp.split(y, 2, -1)
        return nn.silu(gate) * up

    def made(f: Any, mesh: Any, spec: Any, *shapes: tuple[int, ...]) -> Callable[[], Any]:
        args = [mw.ShapeDtypeStruct(s, np.float32) for s in shapes]
        return lambda: _partition(f, mesh, args, (spec,) * len(args), spec)

    line, plane, columns = _mesh(d=8), _mesh(a=4, b=2), P(None, "d")
    return {
        "stencil, padded": made(lambda u: mnp.pad(laplace(u), 1), plane, P("a", "b"), (512, 512)),
        "stencil on a torus, loop": made(
            lambda u: lax.fori_loop(0, 10, lambda i, u: u + 0.1 * torus(u), u), plane, P("a", "b"), (512, 512)
        ),
        "forces between all pairs": made(forces, line, P("d"), (1024, 3), (1024,)),
        "gate and up of one array": made(gated, line, columns, (2048, 1024)),
        "two arrays joined": made(lambda a, b: mnp.concatenate([a, b], -1), line, columns, (512, 512), (512, 512)),
        "convolution, two split dimensions": made(
            lambda x: nn.relu(nn.conv(x, np.ones((3, 3, 8, 16), np.float32))),
            plane,
            P(None, "a", "b"),
            (4, 256, 256, 8),
        ),
        "sums along a split dimension": made(lambda x: mnp.cumsum(x, 0), line, P("d"), (4096, 64)),
    }


def programs() -> dict[str, Callable[[], Any]]:
    """The functions that build each partitioned program, by name."""
    found: dict[str, Callable[[], Any]] = {
        path.stem: lambda name=path.stem: _file(name) for path in sorted(FOLDER.glob("*.mlir"))
    }
    found["Megatron layer"] = megatron.partitioned
    found["GPT-2 step"] = lambda: gpt2.sharded_step().partition()
    for sizes in mlp.SIZES:
        found[f"MLP step {'×'.join(map(str, sizes))}"] = lambda sizes=sizes: mlp.partitioned(sizes)
    return {**found, **_moving()}


def measure(name: str) -> dict[str, float]:
    """Predicted and compiled bytes of one program, with the seconds that each took."""
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


def measure_random(seed: int, scale: int) -> list[tuple[float, int]]:
    """Relative errors of the predicted peaks of the partition fuzz's programs, with the peaks in bytes."""
    import sys

    sys.path.append(str(Path(__file__).parents[1] / "tests" / "executable"))
    from random_memory import measured

    return [(abs(predicted / compiled - 1), compiled) for _, predicted, compiled in measured([seed], scale)]


def _random() -> None:
    rows = []
    for scale in SCALES:
        found = [in_process("benchmarks.memory", "measure_random", seed, scale) for seed in SEEDS]
        drawn = [one for each in found if not isinstance(each, str) for one in each]
        rows.append(_errors(f"sizes × {scale}", [error for error, _ in drawn]))
        if large := [error for error, peak in drawn if peak >= _LARGE]:
            rows.append(_errors(f"of them, from {_LARGE // 1024} KiB on", large))
    table(
        "Memory of random programs: errors of the predicted peak",
        ["programs", "number", "median", "of 90 % at most", "of 95 %", "worst", f"above {_WORST:.0%}"],
        rows,
        "those of the partition fuzz, as drawn (of some hundred bytes) and larger; targets: median 5 %, worst 15 %",
    )


def _errors(name: str, errors: list[float]) -> list[str]:
    """One row of the table."""
    errors = sorted(errors)
    shown = (statistics.median(errors), *(errors[int(share * len(errors))] for share in (0.9, 0.95)), errors[-1])
    above = sum(error > _WORST for error in errors)
    return [name, str(len(errors)), *(f"{error:.2%}" for error in shown), str(above)]


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
    _random()


if __name__ == "__main__":
    main()
