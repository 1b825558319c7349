"""Our partition against XLA's own, judged by the compilers of the hardware.

Each program is compiled for a TPU slice and for a node of GPUs: as the per-device program that we partition, and as the
whole program, which the compiler's own partitioner (Shardy or GSPMD) splits. The same figures are taken from both
compiled modules: estimated cycles of kernels (XLA estimates none for GPUs), operations of products, peak memory, bytes
sent, and bytes of collectives that do not overlap with anything.

Needs ``meshwright[tpu,cuda]``, each for its own target, but no hardware. The table is written to ``docs/targets.md``.
Figures are kept in ``docs/judged.json``, ours with a digest of the module, XLA's with one of the program: what has been
compiled once is not compiled again (remove an entry to measure it anew). ``MESHWRIGHT_ONLY`` restricts compilation to
programs or targets that contain one of its words, and leaves the page unchanged.
"""

from __future__ import annotations

import json
import os
import statistics
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import meshwright as mw
from benchmarks import mlp, optima
from benchmarks.common import console, ratio
from benchmarks.targets import DOCS, MODELS, Subject, emitted, lowered_subject, model
from meshwright.errors import CompileError, MissingExtraError
from meshwright.runtime.pjrt.plugins import compiler
from meshwright.spmd.report import human_bytes
from meshwright.stablehlo.hlo import module_bytecode
from meshwright.targets.child import Job, compile_in_child
from meshwright.targets.compiling import described
from meshwright.targets.flops import product_operations
from meshwright.targets.hlo import parse_hlo
from meshwright.targets.matching import sent_bytes
from meshwright.targets.report import TargetMemory
from meshwright.targets.schedule import Scheduled, schedule_of

KEPT, MARKS = DOCS / "judged.json", ("<!-- judged -->\n", "<!-- end of judged -->\n")
TARGETS = ("v5e:2x4", "h100:8")
#: the functions that build the programs, by name
MADE = {
    **{name: lambda name=name: model(name) for name in MODELS},
    "MLP step": lambda: lowered_subject(mlp.lowered(mlp.SIZES[-1])),
    "fused gate-up": lambda: lowered_subject(optima.fused(4096, 1024, 4096)),
}
#: figures that are judged, and figures that are only reported
JUDGED, TOLD = ("cycles", "flops", "peak"), ("sent", "exposed")

Figures = dict[str, Any]


@cache
def subject(name: str) -> Subject:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mw.errors.MeshwrightWarning)
        return MADE[name]()


def measured(name: str, where: str, ours: bool) -> Figures:
    """Figures of one device, for our partition or XLA's.

    Raises:
      MissingExtraError: the target's compiler is not installed. CompileError: it rejects the program.
    """
    found, target = subject(name), mw.target(where)
    platform = target.platform
    topology, options = described(target)
    ids = target.order_of(found.part.mesh)
    module = module_bytecode(emitted(found.part, platform)) if ours else found.whole()
    partitions = 1 if ours else len(ids)
    job = Job(name, module, platform, topology, options, ids, (), partitions, not ours and found.is_free)
    answer = compile_in_child(job, compiler(platform, target.name))
    if answer.refused:
        raise CompileError(answer.refused)
    program = parse_hlo(answer.text)
    schedule = schedule_of(program, len(ids))
    sent = [(c.count * _sent(c), c.asynchronous) for c in schedule.collectives]
    assert answer.memory is not None
    return {
        "cycles": schedule.cycles, "flops": product_operations(program),
        "peak": TargetMemory.of(dict(answer.memory)).peak_bytes, "sent": sum(n for n, _ in sent),
        "exposed": sum(n for n, beside in sent if not beside),
    }  # fmt: skip


def _sent(c: Scheduled) -> int:
    return sent_bytes(c.kind, max(map(len, c.groups)), sum(t.nbytes for t in c.operands))


def cases() -> Iterator[tuple[str, str]]:
    only = os.environ.get("MESHWRIGHT_ONLY", "").split()
    for where in TARGETS:
        for name in MADE:
            if not only or any(word in f"{name} {where}" for word in only):
                yield name, where


def render(rows: list[tuple[str, str, Figures, Figures]]) -> str:
    """The table in Markdown, with a summary."""
    head = ["program", "target"]
    for what in (*JUDGED, *TOLD):
        head += [what, "of XLA's"]
    lines = [head, ["---"] * len(head)]
    for name, where, ours, xla in rows:
        cells = [name, where]
        for what in (*JUDGED, *TOLD):
            cells += [_shown(what, ours[what]), ratio(ours[what], xla[what])]
        lines.append(cells)
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return "\n".join([text, "", *(line for where in TARGETS for line in _summary(where, rows)), ""])


def _shown(what: str, figure: int | None) -> str:
    if figure is None:
        return ""
    return f"{figure:,}" if what == "cycles" else f"{figure:.4g}" if what == "flops" else human_bytes(figure)


def _summary(where: str, rows: list[tuple[str, str, Figures, Figures]]) -> Iterator[str]:
    mine = [(name, ours, xla) for name, at, ours, xla in rows if at == where]
    means, worse = [], []
    for what in (*JUDGED, *TOLD):
        shares = {name: ours[what] / xla[what] for name, ours, xla in mine if xla[what] and ours[what] is not None}
        if shares and all(shares.values()):
            means.append(f"{what} {statistics.geometric_mean(shares.values()):.2f}")
        if what in JUDGED:
            worse += [f"{what} of {name} {share:.2f}" for name, share in shares.items() if share > 1.005]
    if mine:
        yield f"- {where}, geometric means: {', '.join(means)}; above XLA's: {', '.join(worse) or 'nothing'}."


def main() -> None:
    kept: dict[str, dict[str, Any]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    rows: list[tuple[str, str, Figures, Figures]] = []
    missing: dict[str, Exception] = {}
    for name, where in cases():
        key = f"{name} {where}"
        if where in missing:
            continue
        found = kept.setdefault(key, {})
        try:
            if found.get("module") != (module := subject(name).digest(where)):
                found.update(module=module, ours=measured(name, where, ours=True))
            if found.get("program") != (program := subject(name).program):
                found.update(program=program, xla=measured(name, where, ours=False))
        except MissingExtraError as error:
            missing[where] = error
            console.print(f"{where}: {error}", markup=False)
            continue
        ours, xla = found["ours"], found["xla"]
        rows.append((name, where, ours, xla))
        console.print(f"{key}: " + ", ".join(f"{w} {ratio(ours[w], xla[w])}" for w in (*JUDGED, *TOLD)))
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    print(render(rows))
    if not missing and not os.environ.get("MESHWRIGHT_ONLY"):
        page = DOCS / "targets.md"
        before, _, rest = page.read_text().partition(MARKS[0])
        page.write_text(before + MARKS[0] + render(rows) + MARKS[1] + rest.partition(MARKS[1])[2])


if __name__ == "__main__":
    main()
