"""What a per-device program sends: its collectives with their bytes and reasons."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.core.avals import ShapedArray
from meshwright.core.source import SourceLocation
from meshwright.ir.jaxpr import Jaxpr, JaxprEqn
from meshwright.ops.collective import Collective as CollectiveOp
from meshwright.ops.control import RegionOp
from meshwright.sharding import AbstractMesh


@dataclass(frozen=True)
class Collective:
    """One collective of a per-device program.

    ``bytes_sent`` are those of one device in one run, with ``count`` (the trip count of the loops around it) included,
    by the formulas for rings: all-gather ``out·(g-1)/g``, reduce-scatter ``in·(g-1)/g``, all-reduce ``2·n·(g-1)/g``,
    all-to-all ``n·(g-1)/g``, permute ``n``.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    operand: ShapedArray
    result: ShapedArray
    count: int
    bytes_sent: int
    source: SourceLocation
    reason: str

    def __str__(self) -> str:
        axes = ", ".join(self.axes)
        times = f", {self.count} times" if self.count != 1 else ""
        return f"{self.kind} over {axes} ({self.group_size} devices): {self.operand} -> {self.result}{times}"


def wire_bytes(kind: str, group: int, operand: ShapedArray, result: ShapedArray) -> int:
    """Bytes that one device sends."""
    if group <= 1:
        return 0
    match kind:
        case "all_gather":
            return result.nbytes * (group - 1) // group
        case "reduce_scatter" | "all_to_all":
            return operand.nbytes * (group - 1) // group
        case "all_reduce":
            return -(-2 * operand.nbytes * (group - 1) // group)
    return operand.nbytes


def collectives(jaxpr: Jaxpr, mesh: AbstractMesh) -> list[Collective]:
    """The collectives of a per-device program, in program order."""
    return list(_collectives(jaxpr.eqns, 1, ""))


def _collectives(eqns: Iterable[JaxprEqn], count: int, note: str) -> Iterable[Collective]:
    """``count`` is the trip count of the loops around the equations; ``note`` says where it is not known."""
    for eqn in eqns:
        op = eqn.op
        if isinstance(op, RegionOp):
            trips = op.trips(eqn.invars)
            inside = note if trips is not None else f" (counted once: how often the {op.name} runs is not known)"
            for region in op.regions():
                yield from _collectives(region.eqns, count * (1 if trips is None else trips), inside)
        if isinstance(op, CollectiveOp) and op.kind:
            operand, result = eqn.invars[0].aval, eqn.outvars[0].aval
            sent = wire_bytes(op.kind, op.group_size, operand, result)
            reason = (str(eqn.note) if eqn.note is not None else "written in the program") + note
            yield Collective(
                op.kind, op.axes, op.group_size, operand, result, count, sent * count, eqn.source, reason
            )


def human_bytes(n: float) -> str:
    """``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"


def explain(found: list[Collective], mesh: AbstractMesh, peak: int, notes: list[str]) -> str:
    """Every collective, largest first, with its cause and source line; equal ones (of repeated layers) in one entry."""
    total = sum(c.bytes_sent for c in found)
    axes = " × ".join(f"{n}={s}" for n, s in mesh.shape.items())
    lines = [
        f"{len(found)} collective{'s' * (len(found) != 1)} on mesh {axes}; each device sends {human_bytes(total)} "
        f"a run and holds at most {human_bytes(peak)}"
    ]
    groups: dict[tuple[str, str, str], list[Collective]] = {}
    for c in found:
        groups.setdefault((str(c), c.reason, str(c.source)), []).append(c)
    ordered = sorted(groups.items(), key=lambda item: -sum(c.bytes_sent for c in item[1]))
    for number, ((what, reason, where), same) in enumerate(ordered, 1):
        sent = sum(c.bytes_sent for c in same)
        share = f"{100 * sent / total:.0f} %" if total else "0 %"
        times = f"{len(same)} × " if len(same) > 1 else ""
        lines.append(f"{number:4}. {times}{what} sends {human_bytes(sent)} ({share})")
        lines.append(f"      because {reason}")
        lines.append(f"      at {where}")
    for note in notes:
        lines.append(f"  note: {note}")
    return "\n".join(lines)
