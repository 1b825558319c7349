"""Bitcasts between tiled layouts in HLO text, as the moves of elements that they are.

A bitcast reads the same memory as another array. How memory is ordered, layouts say: the dimensions from minor to
major, and tiles of the last of them, themselves tiled perhaps, whose elements lie together.

Source: https://openxla.org/xla/tiled_layout
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

import numpy as np

from meshwright.core.records import dataclass

#: a layout, the tiles, what follows the last of them, the bits of an element, and the memory space
_LAYOUT = re.compile(r"\{([\d,]*)(?::(?:T((?:\([\d,]+\))+))?(?:L\(\d+\))?(?:E\(\d+\))?(?:S\(\d+\))?)?\}")
#: what stands for a bitcast that reads padding or a layout of another kind, so that the elements are not known
UNKNOWN = "BitcastOfPadding"

Dims = tuple[int, ...]


@dataclass(frozen=True)
class _Step:
    """A move of all elements; ``perm`` is that of a transpose."""

    kind: str
    before: Dims
    after: Dims
    perm: Dims = ()

    def back(self) -> _Step:
        """The reverse."""
        kind = {"pad": "slice"}.get(self.kind, self.kind)
        return _Step(kind, self.after, self.before, tuple(int(n) for n in np.argsort(self.perm)) if self.perm else ())

    def text(self, operand: str, zero: str) -> str:
        match self.kind:
            case "transpose":
                return f"transpose({operand}), dimensions={{{','.join(map(str, self.perm))}}}"
            case "pad":
                return f"pad({operand}, {zero}), padding=" + "x".join(
                    f"0_{m - n}" for n, m in zip(self.before, self.after)
                )
            case "slice":
                return f"slice({operand}), slice={{{','.join(f'[0:{n}]' for n in self.after)}}}"
        return f"reshape({operand})"

    def moved(self, x: np.ndarray) -> np.ndarray:
        match self.kind:
            case "transpose":
                return x.transpose(self.perm)
            case "pad":
                return np.pad(x, [(0, m - n) for n, m in zip(self.before, self.after)])
        return x.reshape(self.after)


def _into_memory(dims: Dims, layout: str) -> list[_Step] | None:
    """The moves of an array into the order of its memory; None if the layout is not known."""
    found = _LAYOUT.fullmatch(layout) if layout else None
    if layout and found is None:
        return None
    minor = tuple(int(d) for d in found[1].split(",") if d) if found else tuple(reversed(range(len(dims))))
    steps: list[_Step] = []
    now = dims

    def move(kind: str, after: Dims, perm: Dims = ()) -> None:
        nonlocal now
        if after != now or perm != tuple(sorted(perm)):
            steps.append(_Step(kind, now, after, perm))
        now = after

    def transpose(perm: Sequence[int]) -> None:
        move("transpose", tuple(now[d] for d in perm), tuple(perm))

    transpose(minor[::-1])
    for text in re.findall(r"\(([\d,]+)\)", (found[2] or "") if found else ""):
        tile = tuple(map(int, text.split(",")))
        move("reshape", (1,) * (len(tile) - len(now)) + now)
        lead, last = now[: len(now) - len(tile)], now[len(now) - len(tile) :]
        counts = [-(-n // t) for n, t in zip(last, tile)]
        move("pad", (*lead, *(c * t for c, t in zip(counts, tile))))
        move("reshape", (*lead, *(n for pair in zip(counts, tile) for n in pair)))
        first, length = len(lead), len(tile)
        transpose([*range(first), *(first + 2 * i for i in range(length)), *(first + 2 * i + 1 for i in range(length))])
    return steps


def unknown(name: str, operand: str, type_: str, dims: Dims) -> str:
    """The instruction for a bitcast that is not known; a program with it cannot be run."""
    return f'{name} = {type_}[{_text(dims)}] custom-call({operand}), custom_call_target="{UNKNOWN}"'


def moves(name: str, operand: str, type_: str, given: tuple[Dims, str], made: tuple[Dims, str]) -> list[str]:
    """The instructions that a bitcast stands for, the last of which has the ``name``.

    ``given`` and ``made`` are the dimensions and layouts of operand and result, of one type of elements.
    """
    there, back = _into_memory(*given), _into_memory(*made)
    if there is None or back is None:
        return [unknown(name, operand, type_, made[0])]
    held, read = there[-1].after if there else given[0], back[-1].after if back else made[0]
    if prod(held) != prod(read) or not _is_known(given[0], there, made[0], back):
        return [unknown(name, operand, type_, made[0])]
    steps = [*there, *([_Step("reshape", held, read)] if held != read else []), *(s.back() for s in reversed(back))]
    lines, zero = [], f"{name}.zero"
    if any(step.kind == "pad" for step in steps):
        lines.append(f"{zero} = {type_}[] constant({'false' if type_ == 'pred' else 0})")
    for n, step in enumerate(steps, 1):
        result = name if n == len(steps) else f"{name}.of{n}"
        lines.append(f"{result} = {type_}[{_text(step.after)}] {step.text(operand, zero)}")
        operand = result
    return lines or [f"{name} = {type_}[{_text(made[0])}] copy({operand})"]


def _is_known(given: Dims, there: Sequence[_Step], made: Dims, back: Sequence[_Step]) -> bool:
    """Whether a bitcast reads no padding."""
    if not any(s.kind == "pad" for s in (*there, *back)):
        return True
    held, read = np.ones(given, bool), np.ones(made, bool)
    for step in there:
        held = step.moved(held)
    for step in back:
        read = step.moved(read)
    return bool((held.reshape(-1) | ~read.reshape(-1)).all())


def _text(dims: Dims) -> str:
    return ",".join(map(str, dims))
