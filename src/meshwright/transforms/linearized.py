"""The linear part of a function at a point, as a pytree.

The functions that ``vjp`` and ``linearize`` return are pytrees whose leaves are the residuals, so they can be passed in
and out of jitted functions, loops and branches. The split is lazy: when the pytree is first flattened, the tape is
separated into a *program*, the static structure (compared by identity), and its known values, the leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from meshwright.core import dtypes, pytree, source
from meshwright.core.avals import ShapedArray, Typed
from meshwright.core.pytree_classes import register_pytree_node
from meshwright.core.records import dataclass
from meshwright.core.signature import described, without_closure
from meshwright.errors import DifferentiationError, TangentMismatchError
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import Op, Zero
from meshwright.ir.state import STATE, set_trace
from meshwright.ir.tracing import JaxprTrace, check_alive, eval_jaxpr, typeof
from meshwright.ops.elementwise.table import ConvertElementType, convert, materialize
from meshwright.transforms.jvp import JVPTrace, fitting
from meshwright.transforms.rules import collect_cts
from meshwright.transforms.tape import Record, Tape, TapeTracer, backward, replay


def jvp_flat(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, list[Any], Any]:
    """Run ``fun`` on flat primals and tangents; returns (flat outputs, flat output tangents, output treedef)."""
    trace = JVPTrace(STATE.trace)
    with trace:
        with set_trace(trace):
            out = fun(*(trace.wrap(p, t) for p, t in zip(primals, tangents)))
        leaves, treedef = pytree.flatten(out)
        pairs = [trace.unwrap(x) for x in leaves]
    return [p for p, _ in pairs], [t for _, t in pairs], treedef


def tangent_of(aval: ShapedArray, tangent: Any) -> Any:
    """A tangent or cotangent in the form that users see.

    Symbolic zeros become arrays; for integers and bools the result is a ``float0`` array. It has the dtype and weak
    type of the value it belongs to, whose type is ``aval``.
    """
    if not dtypes.is_inexact(aval.dtype):
        return np.zeros(aval.shape, dtypes.float0)
    shown = materialize(tangent)
    if not isinstance(shown, Typed):  # NumPy's zero of rank 0: users get arrays
        return ConvertElementType(aval.dtype, aval.weak_type).bind(shown)
    return convert(shown, aval.dtype, aval.weak_type)


def checked_leaves(
    where: str,
    what: str,
    fun: Any,
    side: str,
    given: Any,
    treedef: Any,
    avals: Sequence[ShapedArray],
    ring: bool = False,
) -> list[Any]:
    """The leaves of ``given`` (tangents or cotangents), checked against the types ``avals``.

    Leaves for integers must be ``float0``, unless ``ring`` is set: then they have the dtype of their value. For
    messages, ``where`` names the called function, ``what`` the given tree (``"tangents"``), and ``side`` the values of
    ``fun`` that it belongs to (``"primals"``).

    Raises:
      TangentMismatchError: the structure, a shape or a dtype differs; names the place.
    """
    flat, structure = pytree.flatten(given)
    if structure != treedef:
        raise TangentMismatchError(
            f"{where} of {described(fun)}: the structure of the {what} is {pytree.show(structure)}, that of the {side} "
            f"{pytree.show(treedef)} ({pytree.difference(treedef, structure, exact=True)})"
        )
    for i, (want, x) in enumerate(zip(avals, flat)):
        got = typeof(x)
        inexact = ring or dtypes.is_inexact(want.dtype)
        dtype = want.dtype if inexact else dtypes.float0
        # Cotangents may be Python floats. Those of integers may have any dtype, as in JAX: they are not used.
        fits = dtypes.is_complex if dtypes.is_complex(want.dtype) else dtypes.is_float
        number = got.weak_type and fits(got.dtype)
        lenient = what == "cotangent" and (number or not inexact)
        if got.shape == want.shape and (got.dtype == dtype or lenient):
            continue
        path = pytree.paths(given)[i]
        must = "they must be equal"
        if not inexact and got.dtype != dtype:
            must = (
                f"what is no floating-point number has no derivative but zeros of an empty dtype: pass "
                f"numpy.zeros({want.shape}, float0)"
            )
        raise TangentMismatchError(
            f"{where} of {described(fun)}: {what}{path} has type {got}, {side}{path} has type {want}; {must}"
        )
    return flat


# --- a function, linearized ---------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class _Signature:
    """Types and structures of the linear part's arguments and results; ``inputs`` are None for integers and bools."""

    fun: Any
    tape: Tape
    inputs: tuple[TapeTracer | None, ...]
    in_avals: tuple[ShapedArray, ...]
    out_avals: tuple[ShapedArray, ...]
    in_tree: Any
    out_tree: Any


@dataclass(frozen=True)
class _Slot:
    """Placeholder in a program for the known value number ``index``."""

    index: int


@dataclass(frozen=True, eq=False)
class Program:
    """The records of a tape with slots in place of its known values."""

    signature: _Signature
    records: tuple[tuple[Op, tuple[Any, ...], list[TapeTracer], source.SourceLocation], ...]
    tangents: tuple[Any, ...]

    def filled(self, values: Sequence[Any]) -> Linearized:
        """The linear function with its slots filled with ``values``."""

        def value(x: Any) -> Any:
            return values[x.index] if type(x) is _Slot else x

        records = [Record(op, [value(x) for x in args], outs, at) for op, args, outs, at in self.records]
        return Linearized(self.signature, records, [value(t) for t in self.tangents], (list(values), self))


class Linearized:
    """The linear part of a function at a point: the records of a tape, including its known values."""

    __slots__ = ("parts", "records", "signature", "tangents")

    def __init__(
        self,
        signature: _Signature,
        records: list[Record],
        tangents: list[Any],
        parts: tuple[list[Any], Program] | None = None,
    ) -> None:
        self.signature = signature
        self.records = records
        self.tangents = tangents
        #: known values and program, if this was flattened before or was unflattened from them
        self.parts = parts

    def push(self, tangents: Sequence[Any]) -> list[Any]:
        """The result tangents for input tangents (JVP)."""
        return [tangent_of(a, t) for a, t in zip(self.signature.out_avals, self.replayed(tangents))]

    def replayed(self, tangents: Sequence[Any]) -> list[Any]:
        """Like :meth:`push`, but leaves symbolic zeros as they are."""
        env = {
            id(arg): fitting(t, arg.aval, "linearize: a tangent", "the argument")
            for arg, t in zip(self.signature.inputs, tangents)
            if arg is not None
        }
        replay(self.records, env)
        return [env.get(id(t), t) if isinstance(t, TapeTracer) else t for t in self.tangents]

    def pull(self, cts: Sequence[Any], wanted: Sequence[bool] | None = None) -> list[Any]:
        """The input cotangents for result cotangents (VJP); zeros for inputs that receive none, or that are not
        ``wanted``."""
        tape, inputs = self.signature.tape, self.signature.inputs
        inexact = [
            convert(ct, a.dtype) if dtypes.is_inexact(a.dtype) else Zero(a)
            for ct, a in zip(cts, self.signature.out_avals)
        ]
        tape_cts = collect_cts(tape, self.tangents, inexact)
        records = self.records if wanted is None or all(wanted) else self._reaching(wanted)
        results = iter(backward(tape, records, tape_cts, [arg for arg in inputs if arg is not None]))
        arrived = [None if arg is None else next(results) for arg in inputs]
        return [tangent_of(a, ct) for a, ct in zip(self.signature.in_avals, arrived)]

    def _reaching(self, wanted: Sequence[bool]) -> list[Record]:
        """The records whose results depend on a wanted input."""
        reached = {id(x) for x, wants in zip(self.signature.inputs, wanted) if wants and x is not None}
        records = []
        for record in self.records:
            if any(id(x) in reached for x in record.args):
                reached.update(map(id, record.outs))
                records.append(record)
        return records

    def split(self) -> tuple[list[Any], Program]:
        """The distinct known values, and the program with slots in their place."""
        if self.parts is not None:
            return self.parts
        places: dict[int, _Slot] = {}
        values: list[Any] = []
        tape = self.signature.tape

        def slot(x: Any) -> Any:
            if isinstance(x, Zero) or tape.holds(x):
                return x
            if id(x) not in places:
                places[id(x)] = _Slot(len(values))
                values.append(x)
            return places[id(x)]

        records = tuple((r.op, tuple(map(slot, r.args)), r.outs, r.location) for r in self.records)
        self.parts = values, Program(self.signature, records, tuple(map(slot, self.tangents)))
        return self.parts

    # --- pickles --------------------------------------------------------------------------------------------
    def __reduce__(self) -> Any:
        values, program = self.split()
        s = self.signature
        linear = [not isinstance(t, Zero) for t in self.tangents]
        trace = JaxprTrace()
        args = [trace.new_arg(typeof(v)) for v in values]
        inputs = [None if arg is None else trace.new_arg(arg.aval) for arg in s.inputs]
        with trace:
            with set_trace(trace):
                outs = [t for t in program.filled(args).replayed(inputs) if not isinstance(t, Zero)]
            jaxpr = trace.finish(outs, "linear")
        return _taped_again, (described(s.fun), jaxpr, values, linear, s.in_avals, s.out_avals, s.in_tree, s.out_tree)

    def __deepcopy__(self, memo: Any) -> Linearized:
        return self


def _taped_again(
    name: str, jaxpr: ClosedJaxpr, values: list[Any], linear: list[bool], in_avals: tuple[ShapedArray, ...],
    out_avals: tuple[ShapedArray, ...], in_tree: Any, out_tree: Any,
) -> Linearized:  # fmt: skip
    """Unpickle a linear function. It is pickled as a jaxpr of its known values and the tangents of inexact inputs."""
    tape = Tape(STATE.trace)
    inputs = tuple(tape.new_arg(a.strong()) if dtypes.is_inexact(a.dtype) else None for a in in_avals)
    with set_trace(tape):
        outs = iter(eval_jaxpr(jaxpr, (), *values, *(arg for arg in inputs if arg is not None)))
    tangents = [next(outs) if there else Zero(a) for there, a in zip(linear, out_avals)]
    signature = _Signature(SimpleNamespace(__name__=name), tape, inputs, in_avals, out_avals, in_tree, out_tree)
    records, tape.records = tape.records, []
    return Linearized(signature, records, tangents)


register_pytree_node(Linearized, Linearized.split, lambda program, values: program.filled(values))


def linearized(fun: Callable[..., Any], call: Callable[..., Any], primals: tuple[Any, ...]) -> tuple[Any, Linearized]:
    """``call(*primals)`` and its linear part at ``primals``; ``fun`` is the user's function, for messages."""
    flat, in_tree = pytree.flatten(primals)
    tape = Tape(STATE.trace)
    avals = tuple(typeof(x) for x in flat)
    inputs = tuple(tape.new_arg(a.strong()) if dtypes.is_inexact(a.dtype) else None for a in avals)
    tangents = [Zero(a) if arg is None else arg for arg, a in zip(inputs, avals)]
    with set_trace(tape):
        outs, touts, out_tree = jvp_flat(lambda *leaves: call(*pytree.unflatten(in_tree, leaves)), flat, tangents)
    for x in outs:
        check_alive(x)
    out_avals = tuple(typeof(x) for x in outs)
    signature = _Signature(without_closure(fun), tape, inputs, avals, out_avals, in_tree, out_tree)
    # Caches may keep the signature alive; its tape must not keep the residuals alive.
    records, tape.records = tape.records, []
    return pytree.unflatten(out_tree, outs), Linearized(signature, records, touts)


def pushed(linear: Linearized, *tangents: Any) -> Any:
    """Implements the function that ``linearize`` returns: checks the tangents and pushes them forward.

    Raises:
      TangentMismatchError: the tangents differ from the primals in structure or types.
    """
    s = linear.signature
    flat = checked_leaves("linearize", "tangents", s.fun, "primals", tangents, s.in_tree, s.in_avals)
    return pytree.unflatten(s.out_tree, linear.push(flat))


def pulled(linear: Linearized, *cts: Any, wanted: Sequence[bool] | None = None) -> tuple[Any, ...]:
    """Implements the function that ``vjp`` returns: checks the cotangent and pulls it back, to ``wanted`` inputs.

    Raises:
      DifferentiationError: not exactly one cotangent. TangentMismatchError: it differs from the output in structure or
        types.
    """
    s = linear.signature
    if len(cts) != 1:
        raise DifferentiationError(
            f"vjp of {described(s.fun)}: it takes one cotangent, of the output's structure, {pytree.show(s.out_tree)}, "
            f"and was called with {len(cts)}; give those of several results in one"
        )
    (ct,) = cts
    flat = checked_leaves("vjp", "cotangent", s.fun, "output", ct, s.out_tree, s.out_avals)
    return pytree.unflatten(s.in_tree, linear.pull(flat, wanted))
