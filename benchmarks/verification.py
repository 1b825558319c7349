"""The time of ``verify()`` for the programs of ``benchmarks.programs`` and a training step of 1,500 equations.

With ``MESHWRIGHT_OTHER``, the ``src`` folder of another checkout, it alternates with this one.
"""

from __future__ import annotations

import os
import resource
import time
from typing import Any

from benchmarks.common import alternate, in_process, ratio, table
from benchmarks.programs import FOLDER

OTHER = os.environ.get("MESHWRIGHT_OTHER", "")
#: the number of alternating rounds
ROUNDS = int(os.environ.get("MESHWRIGHT_ROUNDS", "1"))
STEP = "a training step"
#: sizes of the GPT in ``benchmarks.gpt2`` for this many equations, so small that compilation dominates
SIZES = {"LAYERS": 5, "WIDTH": 64, "HEADS": 4, "SEQUENCE": 32, "VOCABULARY": 500}


def _processor_seconds() -> float:
    of = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in of)


def verified(name: str) -> dict[str, float]:
    """Elapsed and CPU seconds of ``verify()``, the largest relative difference, and the number of equations."""
    import meshwright as mw

    part = _step() if name == STEP else mw.load(FOLDER / f"{name}.mlir").partition()
    wall, cpu = time.perf_counter(), _processor_seconds()
    found = part.verify()
    wall, cpu = time.perf_counter() - wall, _processor_seconds() - cpu
    worst = max(d.relative for d in found)
    return {"wall": wall, "cpu": cpu, "worst": worst, "equations": len(part.part.source.eqns)}


def _step() -> Any:
    from benchmarks import gpt2

    vars(gpt2).update(SIZES)
    return gpt2.sharded_step().partition()


def main() -> None:
    names = [*sorted(p.stem for p in FOLDER.glob("*.mlir")), STEP]
    rows = []
    for name in names:
        contenders = {"this": lambda name=name: in_process("benchmarks.verification", "verified", name)}
        if OTHER:
            env = {"PYTHONPATH": OTHER}
            contenders["other"] = lambda name=name, env=env: in_process(
                "benchmarks.verification", "verified", name, env=env
            )
        found = alternate(contenders, ROUNDS)
        for which, figures in found.items():
            if isinstance(figures, str):
                rows.append([name, which, figures, "", "", "", ""])
                continue
            other = found.get("other")
            share = ratio(figures["cpu"], other["cpu"]) if isinstance(other, dict) else ""
            cells = [f"{figures[k]:.1f} s" for k in ("wall", "cpu")]
            rows.append([name, which, f"{figures['equations']:.0f}", *cells, share, f"{figures['worst']:.0e}"])
    table(
        "What verify() takes",
        ["program", "checkout", "equations", "clock", "processors", "of the other's", "largest difference"],
        rows,
    )


if __name__ == "__main__":
    main()
