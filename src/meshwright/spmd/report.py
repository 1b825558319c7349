"""The communication of a per-device program: its collectives with bytes and reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.source import SourceLocation
from meshwright.ir.jaxpr import Jaxpr, JaxprEqn
from meshwright.ops.collective.base import Collective as CollectiveOp
from meshwright.ops.control.callback import Callback
from meshwright.ops.control.regions import RegionOp
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.reason import Reason, reasons_of


@dataclass(frozen=True)
class Collective:
    """One collective of a per-device program.

    ``bytes_sent`` is what one device sends in one run, multiplied by ``count``, the trip count of the surrounding
    loops. The formulas are those of ring algorithms: all-gather ``out·(g-1)/g``, reduce-scatter ``in·(g-1)/g``,
    all-reduce ``2·n·(g-1)/g``, all-to-all ``n·(g-1)/g``, permute ``n``. A ragged all-to-all sends as many rows as its
    tables say; it is counted as if each row of the smaller array went to one of the devices, to all equally often.
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
    #: the reasons as data: several if this collective replaces several, none if the user wrote it
    reasons: tuple[Reason, ...] = ()
    #: the bytes are an upper bound, as the collective is in a branch that may not be taken
    is_bound: bool = False

    def __repr__(self) -> str:
        return f"Collective({self}, {human_bytes(self.bytes_sent)} sent, at {self.source})"

    def __str__(self) -> str:
        axes = ", ".join(self.axes)
        times = f", {self.count} times" if self.count != 1 else ""
        return f"{self.kind} over {axes} ({self.group_size} devices): {self.operand} -> {self.result}{times}"


def wire_bytes(kind: str, group: int, operand: ShapedArray, result: ShapedArray) -> int:
    """The bytes that one device sends for one collective over ``group`` devices."""
    if group <= 1:
        return 0
    match kind:
        case "all_gather":
            return result.nbytes * (group - 1) // group
        case "reduce_scatter" | "all_to_all":
            return operand.nbytes * (group - 1) // group
        case "ragged_all_to_all":
            return min(operand.nbytes, result.nbytes) * (group - 1) // group
        case "all_reduce":
            return -(-2 * operand.nbytes * (group - 1) // group)
    return operand.nbytes


def collectives(jaxpr: Jaxpr, mesh: AbstractMesh | None = None) -> list[Collective]:
    """The collectives of a per-device program, in program order.

    With a ``mesh``, this includes those that Python callbacks become on its devices.
    """
    found: list[Collective] = []
    for eqn, around in _all(jaxpr.eqns, _Around()):
        if isinstance(eqn.op, CollectiveOp) and eqn.op.kind:
            found.append(_reported(eqn, eqn.op, around))
        elif isinstance(eqn.op, Callback) and mesh is not None:
            found += _of_call(eqn, eqn.op, mesh, around)
    return found


def atoms_joined(collective: Collective, mesh: AbstractMesh) -> Iterator[str]:
    """The collective's axes as atoms, without axes that are not the mesh's (from the program's own regions)."""
    for axis in collective.axes:
        if axis in mesh.shape or ":" in axis:
            yield from mesh.atoms_of(axis)


def _of_call(eqn: JaxprEqn, op: Callback, mesh: AbstractMesh, around: _Around) -> Iterator[Collective]:
    """The collectives that send the results of a Python callback from one device to all, as bitwise all-reduces."""
    axes = op.shared_along(mesh.shape)
    group = mesh.sizes(axes)
    reason = f"one device calls the Python function {op.label} for all, and they need what it returns{around.note}"
    for aval in op.results if axes else ():
        sent = around.count * wire_bytes("all_reduce", group, aval, aval)
        yield Collective("all_reduce", axes, group, aval, aval, around.count, sent, eqn.source, reason,
                         is_bound=around.is_bound)  # fmt: skip


def _reported(eqn: JaxprEqn, op: CollectiveOp, around: _Around) -> Collective:
    reason = (str(eqn.note) if eqn.note is not None else "written in the program") + around.note
    return Collective(
        op.kind, op.axes, op.group_size, eqn.invars[0].aval, eqn.outvars[0].aval, around.count,
        _bytes_sent(eqn, op, around), eqn.source, reason, reasons_of(eqn.note), around.is_bound,
    )  # fmt: skip


@dataclass(frozen=True)
class Resharding:
    """A change of a value's layout, and the collectives that perform it."""

    value: ShapedArray
    made_by: str
    before: str
    after: str
    needed_by: str
    steps: tuple[Collective, ...]

    def __repr__(self) -> str:
        return f"Resharding({self})"

    def __str__(self) -> str:
        sent = human_bytes(sum(step.bytes_sent for step in self.steps))
        head = f"{self.value}, {self.made_by}: {self.before} to {self.after} for {self.needed_by}, {sent} sent"
        return "\n".join([head, *(f"  {step}" for step in self.steps)])


def reshardings(collectives: Iterable[Collective]) -> list[Resharding]:
    """The reshards named by the reasons of collectives, in program order; those without a collective are not listed."""
    steps: dict[tuple[str, str, str, str, str, str], tuple[ShapedArray, list[Collective]]] = {}
    for collective in collectives:
        for r in collective.reasons:
            if r.before is not None and r.after is not None and r.mesh is not None and r.value is not None:
                before, after = r.before.format(r.mesh), r.after.format(r.mesh)
                key = str(id(r.value)), r.made_by, before, after, r.op, str(r.number)
                steps.setdefault(key, (r.value.aval, []))[1].append(collective)
    return [
        Resharding(aval, made_by, before, after, op, tuple(dict.fromkeys(done)))
        for (_, made_by, before, after, op, _), (aval, done) in steps.items()
    ]


def sent_for_equations(jaxpr: Jaxpr) -> Counter[int]:
    """The bytes sent because of each equation of the program before partitioning, by the equation's id."""
    sent: Counter[int] = Counter()
    for c in collectives(jaxpr):
        for user in {id(r.user) for r in c.reasons if r.user is not None}:
            sent[user] += c.bytes_sent
    return sent


def totals(jaxpr: Jaxpr) -> tuple[int, int]:
    """The number of collectives, and the bytes that one device sends in one run."""
    sent = [_bytes_sent(*place) for place in _places(jaxpr.eqns, _Around())]
    return len(sent), sum(sent)


def starts(jaxpr: Jaxpr) -> int:
    """The number of collectives started in one run, for latency.

    An all-reduce counts as two, a reduce-scatter and an all-gather, in latency as in bytes.
    """
    return sum(around.count * (2 if op.kind == "all_reduce" else 1) for _, op, around in _places(jaxpr.eqns, _Around()))


@dataclass(frozen=True)
class _Around:
    """The loops and branches around an equation: trip count, note for reports, whether the count is a bound."""

    count: int = 1
    note: str = ""
    is_bound: bool = False


def _bytes_sent(eqn: JaxprEqn, op: CollectiveOp, around: _Around) -> int:
    return around.count * wire_bytes(op.kind, op.group_size, eqn.invars[0].aval, eqn.outvars[0].aval)


def _places(eqns: Iterable[JaxprEqn], around: _Around) -> Iterator[tuple[JaxprEqn, CollectiveOp, _Around]]:
    """The collectives, including those in loops and branches."""
    for eqn, about in _all(eqns, around):
        if isinstance(eqn.op, CollectiveOp) and eqn.op.kind:
            yield eqn, eqn.op, about


def _all(eqns: Iterable[JaxprEqn], around: _Around) -> Iterator[tuple[JaxprEqn, _Around]]:
    """The equations, each preceded by those of its regions."""
    for eqn in eqns:
        op = eqn.op
        if isinstance(op, RegionOp):
            inside = _inside(eqn, op, around)
            for region in op.regions():
                yield from _all(region.eqns, inside)
        yield eqn, around


def _inside(eqn: JaxprEqn, op: RegionOp, around: _Around) -> _Around:
    """The surroundings of the equations in a control-flow op's bodies."""
    trips = op.trips(eqn.invars)
    if trips is None:
        return replace(around, note=f" (counted once: how often the {op.name} runs is not known)")
    if op.chooses:
        return replace(around, note=" (at most: only in one branch of a cond)", is_bound=True)
    return replace(around, count=around.count * trips)


def human_bytes(n: float) -> str:
    """A byte count with a binary unit, such as ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"


def uneven_dims(layout: Layout, aval: ShapedArray, mesh: AbstractMesh) -> list[str]:
    """The dimensions of a value that its layout pads, in words."""
    lines = []
    for dim, (size, atoms) in enumerate(zip(aval.shape, layout.dims)):
        n = mesh.sizes(atoms)
        if atoms and size % n:
            axes = ", ".join(mesh.coalesce(atoms))
            lines.append(
                f"{aval}, dimension {dim} of size {size} is split {n} ways by {axes} and padded to {n * -(-size // n)}"
            )
    return lines
