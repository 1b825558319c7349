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
#: by key, the figures of our module and of XLA's program, with the digests that they belong to
Kept = dict[str, dict[str, Any]]


@cache
def subject(name: str) -> Subject:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mw.errors.MeshwrightWarning)
        return MADE[name]()


def kept_figures(found: Subject, name: str, where: str, kept: Kept, key: str) -> tuple[Figures, Figures]:
    """Ours and XLA's, from the entry of a key, which gets those that are not of these modules.

    Raises:
      MissingExtraError: the target's compiler is not installed. CompileError: it rejects the program.
      RuleError: an op has no form for the target.
    """
    entry = kept.get(key, {})
    if entry.get("module") != (module := found.digest(where)):
        entry.update(module=module, ours=measured(found, name, where, ours=True))
        kept[key] = entry
    if entry.get("program") != found.program:
        entry.update(program=found.program, xla=measured(found, name, where, ours=False))
    return entry["ours"], entry["xla"]


def measured(found: Subject, name: str, where: str, ours: bool) -> Figures:
    """Figures of one device, for our partition or XLA's.

    Raises:
      MissingExtraError: the target's compiler is not installed. CompileError: it rejects the program.
    """
    target = mw.target(where)
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
    mine = {name: (ours, xla) for name, at, ours, xla in rows if at == where}
    if mine:
        means, above = compared(mine, 1.005)
        yield f"- {where}, geometric means: {means}; above XLA's: {above}."


def compared(found: dict[str, tuple[Figures, Figures]], limit: float) -> tuple[str, str]:
    """In words: geometric means of our figures over XLA's, where both are known and not zero, and the programs of which
    one is above ``limit`` times XLA's."""
    means, above = [], []
    for what in (*JUDGED, *TOLD):
        shares = {name: ours[what] / xla[what] for name, (ours, xla) in found.items() if xla[what] and ours[what]}
        if shares:
            means.append(f"{what} {statistics.geometric_mean(shares.values()):.2f}")
        if what in JUDGED:
            above += [f"{what} of {name} {share:.2f}" for name, share in shares.items() if share > limit]
    return ", ".join(means), ", ".join(above) or "nothing"


def read_kept() -> Kept:
    """The figures that are kept."""
    found: Kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return found


def say_and_keep(key: str, ours: Figures, xla: Figures, kept: Kept) -> None:
    """Print a program's figures as fractions of XLA's, and write all that are kept."""
    console.print(f"{key}: " + ", ".join(f"{w} {ratio(ours[w], xla[w])}" for w in (*JUDGED, *TOLD)))
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")


def write_between(marks: tuple[str, str], text: str) -> None:
    """Put a text between two marks of the page of targets."""
    page = DOCS / "targets.md"
    before, _, rest = page.read_text().partition(marks[0])
    page.write_text(before + marks[0] + text + marks[1] + rest.partition(marks[1])[2])


def main() -> None:
    kept = read_kept()
    rows: list[tuple[str, str, Figures, Figures]] = []
    missing: dict[str, Exception] = {}
    for name, where in cases():
        key = f"{name} {where}"
        if where in missing:
            continue
        try:
            ours, xla = kept_figures(subject(name), name, where, kept, key)
        except MissingExtraError as error:
            missing[where] = error
            console.print(f"{where}: {error}", markup=False)
            continue
        rows.append((name, where, ours, xla))
        say_and_keep(key, ours, xla, kept)
    print(render(rows))
    if not missing and not os.environ.get("MESHWRIGHT_ONLY"):
        write_between(MARKS, render(rows))


if __name__ == "__main__":
    main()
