"""Programs of many fields, partitioned here and by XLA, judged by XLA's compiler for TPUs.

As ``benchmarks/judged.py``, for the programs of ``benchmarks/field_programs.py``; needs ``meshwright[tpu]``. Writes the
means to ``docs/targets.md``. All programs take half an hour the first time; some cannot be compiled for TPUs
(decompositions that XLA's own partition leaves to LAPACK). ``MESHWRIGHT_ONLY`` restricts it to programs that contain
one of its words, and leaves the page unchanged.
"""

from __future__ import annotations

import json
import os
import statistics
from typing import Any

from benchmarks import field_programs, judged
from benchmarks.common import console, ratio
from benchmarks.judged import JUDGED, KEPT, MADE, TOLD, Figures
from benchmarks.targets import DOCS, lowered_subject
from meshwright.errors import CompileError, MissingExtraError, RuleError

MARKS = ("<!-- judged fields -->\n", "<!-- end of judged fields -->\n")
#: slices of TPUs by number of devices
SLICES = {4: "v5e:2x2", 8: "v5e:2x4", 16: "v5e:4x4"}
#: how many times XLA's figures a program's are to be named
NAMED = 1.05


def figures(name: str, found: dict[str, Any]) -> None:
    """Measure a program where its modules are others than those that ``found`` has figures of.

    Raises:
      MissingExtraError: libtpu is not installed. CompileError, RuleError: a partition cannot be compiled.
    """
    lowered, mesh = field_programs.lowered(name)
    where = SLICES[mesh.size]
    MADE[name] = lambda: lowered_subject(lowered)
    try:
        subject = judged.subject(name)
        if found.get("module") != (module := subject.digest(where)):
            found.update(module=module, ours=judged.measured(name, where, ours=True))
        if found.get("program") != subject.program:
            found.update(program=subject.program, xla=judged.measured(name, where, ours=False))
    finally:
        del MADE[name]


def summary(found: dict[str, tuple[Figures, Figures]], left_out: int) -> str:
    """Geometric means of our figures over XLA's, and the programs above ``NAMED``, in Markdown."""
    means, above = [], []
    for what in (*JUDGED, *TOLD):
        shares = {n: ours[what] / xla[what] for n, (ours, xla) in found.items() if xla[what] and ours[what]}
        means.append(f"{what} {statistics.geometric_mean(shares.values()):.2f}")
        if what in JUDGED:
            above += [f"{what} of {name} {share:.2f}" for name, share in shares.items() if share > NAMED]
    return (
        f"- {len(found)} programs of many fields, geometric means: {', '.join(means)}. Above {NAMED} of XLA's: "
        f"{', '.join(above) or 'nothing'}. {left_out} more are not compiled for TPUs in one form or the other.\n"
    )


def main() -> None:
    kept: dict[str, dict[str, Any]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    words = os.environ.get("MESHWRIGHT_ONLY", "").split()
    found: dict[str, tuple[Figures, Figures]] = {}
    names = [n for n in field_programs.PROGRAMS if not words or any(word in n for word in words)]
    for name in names:
        entry = kept.setdefault(f"field {name}", {})
        try:
            figures(name, entry)
        except MissingExtraError as error:
            console.print(str(error), markup=False)
            return
        except (CompileError, RuleError) as error:
            console.print(f"{name}: {str(error).splitlines()[0]}", markup=False)
            continue
        found[name] = ours, xla = entry["ours"], entry["xla"]
        console.print(f"{name}: " + ", ".join(f"{w} {ratio(ours[w], xla[w])}" for w in (*JUDGED, *TOLD)))
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    text = summary(found, len(names) - len(found))
    console.print(text, markup=False)
    if not words:
        page = DOCS / "targets.md"
        before, _, rest = page.read_text().partition(MARKS[0])
        page.write_text(before + MARKS[0] + text + MARKS[1] + rest.partition(MARKS[1])[2])


if __name__ == "__main__":
    main()
