"""Linearization and transposition: reverse mode as "linearize, then transpose" (Radul et al., POPL 2023,
"You Only Linearize Once").

A :class:`Tape` evaluates ops on known values and records ops that depend on unknown ones. As the parent of a
``JVPTrace`` whose tangents are the unknowns, it records the linear part of the function; traversing the records in
reverse with each op's ``transpose`` gives the cotangents. Applied to a jaxpr, the same split is partial evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.core import source
from meshwright.core.avals import ShapedArray
from meshwright.errors import UnexpectedTracerError
from meshwright.ir.derivatives import require_cotangents
from meshwright.ir.explicit import decided
from meshwright.ir.op import Linear, Op, Zero
from meshwright.ir.state import STATE, set_trace
from meshwright.ir.tracing import Trace, Tracer, check_alive, infer_cached, typeof
from meshwright.ops.control.call import CallOp
from meshwright.ops.elementwise.table import add
from meshwright.ops.sharding.constraint import with_type
from meshwright.transforms.jaxprs import TRANSFORMS
from meshwright.transforms.jvp import fitting


class TapeTracer(Tracer):
    """An unknown value: an unknown input (such as a tangent), or a value that depends on one."""

    __slots__ = ("location",)

    def __init__(self, trace: Tape, aval: ShapedArray, location: source.SourceLocation = source.UNKNOWN) -> None:
        self.owner = trace
        self.aval = aval
        self.location = location

    def origin(self) -> str:
        return str(self.location)


@dataclass(slots=True)
class Record:
    """One recorded op. Its operands are tape tracers or known values."""

    op: Op
    args: Sequence[Any]
    outs: list[TapeTracer]
    location: source.SourceLocation


class Tape(Trace):
    """Evaluates ops on known values with the parent trace and records all others."""

    __slots__ = ("parent", "records")

    def __init__(self, parent: Trace) -> None:
        super().__init__()
        self.parent = parent
        self.records: list[Record] = []

    def new_arg(self, aval: ShapedArray) -> TapeTracer:
        """A new unknown input of type ``aval``."""
        return TapeTracer(self, aval)

    def holds(self, x: Any) -> bool:
        """Whether ``x`` is an unknown value of this tape."""
        return type(x) is TapeTracer and x.owner is self

    def process(self, op: Op, args: Sequence[Any]) -> Any:
        known = [not self.holds(x) for x in args]
        if all(known):
            return self.parent.process(op, args)
        if isinstance(op, CallOp):
            return op.partial_eval_call(TRANSFORMS, known, args, self)
        return self.record(op, args)

    def record(self, op: Op, args: Sequence[Any]) -> Any:
        """Append an op to the tape and return tracers of its results."""
        if STATE.checked:
            with set_trace(self):
                op, args = op.aligned(args)  # partial evaluation of a call may record an op without aligning it
        location = source.current()
        out = infer_cached(op, tuple(typeof(x) for x in args))
        outs = [TapeTracer(self, a, location) for a in (out if op.multiple_results else (out,))]
        self.records.append(Record(op, args, outs, location))
        return outs if op.multiple_results else outs[0]


def replay(records: Sequence[Record], env: dict[int, Any]) -> None:
    """Run the recorded ops under the current trace; ``env`` maps ids of tape tracers to values and is updated."""
    with decided():
        _replay(records, env)


def _replay(records: Sequence[Record], env: dict[int, Any]) -> None:
    for record in records:
        args = [env.get(id(x), x) if type(x) is TapeTracer else x for x in record.args]
        with source.at(record.location):
            outs = record.op.bind(*args)
        env.update(zip(map(id, record.outs), outs if record.op.multiple_results else [outs]))


def backward(tape: Tape, records: Sequence[Record], cts: dict[int, Any], inputs: Sequence[TapeTracer]) -> list[Any]:
    """Cotangents of ``inputs``; :class:`Zero` for an input that receives none.

    ``cts`` holds the known cotangents of tape values, by the id of the value.
    """
    with decided():
        _backward(tape, records, cts)
        return [Zero(x.aval) if (ct := cts.get(id(x))) is None else with_type(ct, x.aval.cotangent()) for x in inputs]


def _backward(tape: Tape, records: Sequence[Record], cts: dict[int, Any]) -> None:
    for record in reversed(records):
        arrived = [cts.pop(id(out), None) for out in record.outs]
        if all(ct is None or isinstance(ct, Zero) for ct in arrived):
            continue
        full = [Zero(out.aval) if ct is None else ct for ct, out in zip(arrived, record.outs)]
        args = [Linear(x.aval) if tape.holds(x) else x for x in record.args]
        op = record.op
        with source.at(record.location.transposed()):
            if isinstance(op, CallOp):
                results = op.transpose_call(TRANSFORMS, full, *args)
            else:
                results = op.transpose(full if op.multiple_results else full[0], *args)
            require_cotangents(op, args, results)
            for x, ct in zip(record.args, results):
                if ct is not None and not isinstance(ct, Zero) and tape.holds(x):
                    ct = fitting(ct, x.aval, f"{op.name}: the cotangent of an operand", "the operand")
                    cts[id(x)] = add.bind(cts[id(x)], ct) if id(x) in cts else ct


def require_alive(values: Sequence[Any]) -> None:
    """Raise if a traced function returned a tracer of a finished trace, or a marker that only rules may use.

    Raises:
      UnexpectedTracerError: for a tracer, names where the value was computed.
    """
    for x in values:
        check_alive(x)
        if isinstance(x, Linear | Zero):
            raise UnexpectedTracerError(f"{x!r} left its rule: a bug in a derivative rule")
