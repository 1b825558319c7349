"""Programs of many fields, partitioned here and by XLA, judged by XLA's compiler for TPUs.

As ``benchmarks/judged.py``, for the programs of ``benchmarks/field_programs.py``, on meshes that name the slice; needs
``meshwright[tpu]``. Writes the means to ``docs/targets.md``. All programs take half an hour the first time; some cannot
be compiled for TPUs (decompositions that XLA's own partition leaves to LAPACK). ``MESHWRIGHT_ONLY`` restricts it to
programs that contain one of its words, and leaves the page unchanged.
"""

from __future__ import annotations

import os

from benchmarks import field_programs
from benchmarks.common import console
from benchmarks.judged import Figures, compared, kept_figures, read_kept, say_and_keep, write_between
from benchmarks.targets import lowered_subject
from meshwright.errors import CompileError, MissingExtraError, RuleError

MARKS = ("<!-- judged fields -->\n", "<!-- end of judged fields -->\n")
#: slices of TPUs by number of devices
SLICES = {4: "v5e:2x2", 8: "v5e:2x4", 16: "v5e:4x4"}
#: how many times XLA's figures a program's are to be named
NAMED = 1.05


def summary(found: dict[str, tuple[Figures, Figures]], left_out: int) -> str:
    """Geometric means of our figures over XLA's, and the programs above ``NAMED``, in Markdown."""
    means, above = compared(found, NAMED)
    return (
        f"- {len(found)} programs of many fields, geometric means: {means}. Above {NAMED} of XLA's: {above}. "
        f"{left_out} more are not compiled for TPUs in one form or the other.\n"
    )


def main() -> None:
    kept = read_kept()
    words = os.environ.get("MESHWRIGHT_ONLY", "").split()
    found: dict[str, tuple[Figures, Figures]] = {}
    names = [n for n in field_programs.PROGRAMS if not words or any(word in n for word in words)]
    for name in names:
        lowered, mesh = field_programs.PROGRAMS.lowered(name, SLICES)
        key = f"field {name}"
        try:
            found[name] = kept_figures(lowered_subject(lowered), name, SLICES[mesh.size], kept, key)
        except MissingExtraError as error:
            console.print(str(error), markup=False)
            return
        except (CompileError, RuleError) as error:
            console.print(f"{name}: {str(error).splitlines()[0]}", markup=False)
            continue
        say_and_keep(key, *found[name], kept)
    text = summary(found, len(names) - len(found))
    console.print(text, markup=False)
    if not words:
        write_between(MARKS, text)


if __name__ == "__main__":
    main()
