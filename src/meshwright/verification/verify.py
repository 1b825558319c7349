"""A per-device program against the program it was made of, on the same inputs.

Both are computed in float64, where the order of sums hardly shows: what differs by more than 1e-9 was not partitioned
right. An optimizer may amplify even that; so a difference is also allowed that is no larger than rounding makes it: as
far as the unpartitioned program in its own types is from itself in float64, times the ratio of the two precisions.
Where that says nothing, as all is lost in its own types, its sums are rounded otherwise in float64 (``rounding``);
results that this takes far prove nothing.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.dtypes import wide_types
from meshwright.core.expected import as_integer, as_number
from meshwright.core.key_types import is_key
from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import CallbackError, VerificationError
from meshwright.ir.constants import known_values
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, Var, all_eqns
from meshwright.ir.names import NUMBERS, Names
from meshwright.lowering.batched import virtual_program
from meshwright.ops.elementwise.table import ConvertElementType
from meshwright.runtime.array import Array, default_sharding, from_numpy
from meshwright.runtime.executable import Executable, compile_jaxpr
from meshwright.runtime.pjrt import platforms
from meshwright.sharding.rule import WINDOW
from meshwright.spmd.flatten import eqn_rule
from meshwright.spmd.partition.record import Partition
from meshwright.spmd.work import operations
from meshwright.verification.compare import Difference, compare
from meshwright.verification.domains import input_domains
from meshwright.verification.draw import MANNERS, draw_inputs
from meshwright.verification.locate import first_difference, first_not_finite
from meshwright.verification.result import OutputDifference, Verification, percent
from meshwright.verification.rounding import rounded_otherwise
from meshwright.verification.types import other_types
from meshwright.verification.widen import wide_dtype, widened

#: how much of the error of the unpartitioned program in its own types may be left in float64: a thousand times the
#: ratio of the precisions of float64 and float32
_AMPLIFIED = 1e3 * 2.0**-29
#: how many times that error may be there where some ops kept their types, but for this share of the largest element
_NARROW, _MOST_NARROW = 8, 0.05
#: the share of the largest element beyond which the error in a program's own types says nothing of that in float64
_LOST = 1e-3
#: how many times as far as with other roundings results may be, and the share of the largest element that is too far
_MOVED, _TOO_FAR = 64, 1e-3

#: inputs are drawn so often, as long as running takes no longer: positions show one case a run
_MOST_DRAWS, _SECONDS = 8, 0.3

#: Sums in one go instead of in trees, which take longer to compile and, unoptimized, to run; one module for LLVM.
_PLAIN = (("xla_disable_hlo_passes", "tree_reduction_rewriter"), ("xla_cpu_parallel_codegen_split_count", 1))
#: XLA's kernels have no convolutions in float64, which become loops: 14 times as fast when LLVM optimizes them
_LOOPS = (("xla_backend_optimization_level", 1), ("xla_llvm_disable_expensive_passes", False))
#: where there are so many operations of convolutions an equation, that takes less time than it saves
_WORTH_IT = 500_000

#: told what is being done, and how many of how many steps of it are
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Request:
    """What is to be verified and how: see :meth:`meshwright.api.partitioned.PartitionedProgram.verify`."""

    part: Partition
    name: str
    rtol: float
    atol: float
    seed: int
    finite: float
    progress: Progress
    names: Names = NUMBERS


@dataclass(frozen=True)
class _Wide:
    """The partition in float64, and the ops that kept their types."""

    part: Partition
    narrow: frozenset[str]

    @staticmethod
    def of(part: Partition) -> _Wide:
        whole, local = widened(part.source), widened(part.jaxpr)
        meant = {
            local.vars[v]: (whole.vars[g], lo)
            for v, (g, lo) in part.stands_for.items()
            if v in local.vars and g in whole.vars
        }
        wide = dataclasses.replace(part, source=whole.jaxpr, jaxpr=local.jaxpr, stands_for=meant)
        return _Wide(wide, frozenset(whole.narrow | local.narrow))


def verify(request: Request, args: Sequence[Any] | None) -> Verification:
    """Run both programs on ``args``, or on inputs drawn at random.

    Raises:
      VerificationError: they differ, or too little of the results is finite to tell.
    """
    started = time.perf_counter()
    for tolerance in ("rtol", "atol", "finite"):
        as_number(f"verify: {tolerance}", getattr(request, tolerance))
    as_integer("verify: seed", request.seed)
    part, progress = request.part, request.progress
    if (wrong := other_types(part)) is not None:
        raise VerificationError(f"{request.name!r} has other types than the unpartitioned program: {wrong}")
    _refuse_unknown(part.source, request.name)
    progress("in float64", 0, 4)
    with wide_types():
        wide = _Wide.of(part)
        avals = part.source.in_avals
        progress("compiling the unpartitioned program", 1, 4)
        whole = _compiled(_from_narrow(wide.part.source, avals), request.name)
        progress("compiling the partitioned program", 2, 4)
        parts = _compiled(_from_narrow(virtual_program(wide.part, copies=True), avals), request.name)
        progress("running both", 3, 4)
        runs, begun = [], time.perf_counter()
        for draw in range(_MOST_DRAWS):
            runs.append(_once(dataclasses.replace(request, seed=request.seed + draw), wide, whole, parts, args))
            if args is not None or time.perf_counter() - begun > _SECONDS:
                break
    return _result(runs, wide, time.perf_counter() - started)


def _refuse_unknown(jaxpr: ClosedJaxpr, name: str) -> None:
    """Raise for constants of which only the types are known.

    Raises:
      VerificationError: says how many there are, and what to do.
    """
    unknown = [v.aval for v, c in zip(jaxpr.jaxpr.constvars, jaxpr.consts) if known_values(c) is None]
    if unknown:
        raise VerificationError(
            f"{name!r} closes over {counted(len(unknown), 'array')} without values here ({unknown[0]}), which cannot "
            "be run; pass them as arguments, which are drawn (of a model from torch: apply(params, buffers, ...))"
        )


class _Chaotic(VerificationError):
    """What was computed of these inputs says nothing."""


class _Run(NamedTuple):
    """The differences of one run, and what is to be said about it."""

    outputs: list[OutputDifference]
    note: str = ""


def _once(request: Request, wide: _Wide, whole: Executable, parts: Executable, args: Sequence[Any] | None) -> _Run:
    """Run both programs once, and compare: on other inputs where the first ones say nothing."""
    chaotic: _Chaotic | None = None
    for values, expected in _runs(request, whole, args):
        try:
            run = _compared(request, wide, values, expected, parts, args is None)
        except _Chaotic as error:
            chaotic = chaotic or error
        else:
            return run if chaotic is None else run._replace(note=f"inputs were drawn smaller: {chaotic}")
    assert chaotic is not None
    raise chaotic


def _compared(
    request: Request, wide: _Wide, values: Sequence[Array], expected: Sequence[Array], parts: Executable, drawn: bool
) -> _Run:
    """Compare what the partitioned program makes of inputs."""
    differences = [compare(g, w, request.rtol, request.atol) for g, w in zip(parts(values), expected)]
    allowed = _allowed(request, wide, values, expected, differences)
    outputs, note = _outputs(request, differences, allowed), ""
    wrong = _wrong(outputs, differences)
    if any(map(_is_lost, outputs, differences)):
        outputs = _amplified(request, wide, values, expected, outputs, differences)
        before = {d.output for d in wrong}
        wrong = _wrong(outputs, differences)
        note = "" if wrong else _said_of([d for d in outputs if d.output in before])
    if wrong:
        raise _differs(request, wide, values, wrong)
    poor = [d for d in outputs if d.finite < request.finite]
    if poor:
        raise VerificationError(_not_finite(request, wide, values, poor, drawn))
    return _Run(outputs, note)


def _wrong(outputs: Sequence[OutputDifference], differences: Sequence[Difference]) -> list[OutputDifference]:
    """The outputs that differ by more than is allowed."""
    return [d for d, f in zip(outputs, differences) if f.excess > 0 and not (d.allowed and d.absolute <= d.allowed)]


def _compiled(jaxpr: ClosedJaxpr, name: str) -> Executable:
    """It runs a few times: code made fast, not fast code."""
    flags = () if platforms.is_plugin() else (*_PLAIN, *(_LOOPS if _is_convolved(jaxpr) else ()))
    return compile_jaxpr(jaxpr, name, [default_sharding()] * len(jaxpr.out_avals), quick=True, options=flags)


def _is_convolved(jaxpr: ClosedJaxpr) -> bool:
    """Whether convolutions are much of what the program does."""
    eqns = list(all_eqns(jaxpr.jaxpr))
    return sum(n for e in eqns if (n := operations(e)) > _WORTH_IT and _has_windows(e)) > _WORTH_IT * len(eqns)


def _has_windows(eqn: JaxprEqn) -> bool:
    """Whether an equation is a product with windows."""
    rule = eqn_rule(eqn)
    return rule.is_product and any(f.kind == WINDOW for f in rule.factors)


def _from_narrow(jaxpr: ClosedJaxpr, avals: Sequence[ShapedArray]) -> ClosedJaxpr:
    """The program for arguments of types ``avals``, which it converts: both programs then read the same arrays."""
    inner = jaxpr.jaxpr
    invars, eqns = list(inner.invars), []
    for i, (var, aval) in enumerate(zip(inner.invars, avals)):
        if var.aval.dtype != aval.dtype:
            invars[i] = Var(aval)
            eqns.append(JaxprEqn(ConvertElementType(var.aval.dtype), [invars[i]], [var]))
    return jaxpr.replace(jaxpr=inner.replace(invars=invars, eqns=[*eqns, *inner.eqns]))


def _runs(request: Request, whole: Executable, args: Sequence[Any] | None) -> Iterator[tuple[list[Array], list[Array]]]:
    """Arguments and what the unpartitioned program makes of them; drawn, those of which that is finite, smaller ones
    later.

    Raises:
      CallbackError: the program calls a function that raises, whatever is drawn.
    """
    source = request.part.source
    if args is not None:
        values = [_argument(x, a) for x, a in zip(args, source.in_avals)]
        yield values, whole(values)
        return
    domains = input_domains(source)
    tries, good = [], False
    failed: CallbackError | None = None
    for manner in MANNERS:
        drawn = draw_inputs(source.in_avals, domains, request.seed, manner)
        values = [from_numpy(x, a.dtype, copy=False, transfer="none") for x, a in zip(drawn, source.in_avals)]
        try:
            results = whole(values)
        except CallbackError as error:  # a check of the user's, perhaps
            failed = failed or error
            continue
        share = min((_finite(x) for x in results), default=1.0)
        if share >= request.finite:
            good = True
            yield values, results
        else:
            tries.append((share, values, results))
    if failed is not None and not good and not tries:
        raise CallbackError(
            f"{failed}; the inputs of {request.name!r} were drawn at random: verify(*args) takes others, for which it "
            "raises nothing"
        ) from failed.__cause__
    if not good:
        yield max(tries, key=lambda t: t[0])[1:]


def _argument(x: Any, aval: ShapedArray) -> Array:
    """An argument as the program takes it: of random keys, the words."""
    if type(x) is Array and is_key(x.dtype):
        return Array(aval, x.buffer, default_sharding())
    return from_numpy(np.asarray(x), aval.dtype, transfer="none")


def _finite(x: Array) -> float:
    value = np.asarray(x)
    if value.dtype.kind not in "fc" or not value.size:
        return 1.0
    return float(np.mean(np.isfinite(value)))


# --- what rounding makes ------------------------------------------------------------------------------------
def _allowed(
    request: Request, wide: _Wide, values: Sequence[Array], expected: Sequence[Array], differences: Sequence[Difference]
) -> list[float | None]:
    """For outputs that differ, how far rounding alone may take them; None where nothing is known of that."""
    source = request.part.source
    suspects = [f.excess > 0 and dtypes.is_inexact(a.dtype) for f, a in zip(differences, source.out_avals)]
    same_types = [v.aval.dtype for v in source.jaxpr.invars] == [v.aval.dtype for v in wide.part.source.jaxpr.invars]
    if not any(suspects) or (same_types and not wide.narrow and not _has_narrow_floats(source)):
        return [None] * len(differences)
    request.progress("comparing with the rounding of the unpartitioned program", 3, 4)
    with wide_types(False):  # the numbers in it are as wide as they were when it was traced
        own = _compiled(source, request.name)(values)
    errors = [compare(np.asarray(x).astype(np.asarray(w).dtype), w) for x, w in zip(own, expected)]
    return [_rounding(e, wide) if suspect else None for e, suspect in zip(errors, suspects)]


def _rounding(error: Difference, wide: _Wide) -> float | None:
    if not np.isfinite(error.absolute):
        return None
    amplified = _AMPLIFIED * error.absolute
    return max(amplified, min(_NARROW * error.absolute, _MOST_NARROW * error.largest)) if wide.narrow else amplified


def _is_lost(output: OutputDifference, found: Difference) -> bool:
    """Whether floats differ, and nothing is left of them in the program's own types that says by how much they may."""
    if found.excess <= 0 or output.aval is None or not dtypes.is_inexact(output.aval.dtype):
        return False
    if output.allowed is None:
        return True
    return _AMPLIFIED * _LOST * found.largest <= output.allowed < output.absolute


def _amplified(
    request: Request, wide: _Wide, values: Sequence[Array], expected: Sequence[Array],
    outputs: Sequence[OutputDifference], differences: Sequence[Difference],
) -> list[OutputDifference]:  # fmt: skip
    """The outputs, those that differ with what other roundings of the unpartitioned program's sums allow.

    Raises:
      _Chaotic: those take results so far that nothing is told by them.
    """
    request.progress("rounding the sums of the unpartitioned program otherwise", 3, 4)
    other = _from_narrow(rounded_otherwise(wide.part.source), request.part.source.in_avals)
    moved = [compare(g, w) for g, w in zip(_compiled(other, request.name)(values), expected)]
    found, far = [], []
    for output, difference, by in zip(outputs, differences, moved):
        if difference.excess > 0 and not _MOVED * by.absolute <= _TOO_FAR * by.largest:
            far.append((output.output, by))
        elif difference.excess > 0:
            output = dataclasses.replace(output, allowed=max(output.allowed or 0.0, _MOVED * by.absolute))
        found.append(output)
    unsure = {name for name, _ in far}
    if far and all(d.output in unsure for d in _wrong(found, differences)):
        name, by = far[0]
        raise _Chaotic(
            f"other roundings of the sums of {request.name!r}, by a bit of float64 each, change {name} by "
            f"{by.relative:.2g} of its largest element: too much to tell whether the programs agree; pass inputs that "
            "it amplifies less, or have it take fewer steps"
        )
    return found


def _has_narrow_floats(jaxpr: ClosedJaxpr) -> bool:
    """Whether there are floats that float64 is wider than."""
    return any(v.aval.dtype != wide_dtype(v.aval.dtype) for e in all_eqns(jaxpr.jaxpr) for v in e.outvars)


# --- what is said -------------------------------------------------------------------------------------------
def _outputs(
    request: Request, differences: Sequence[Difference], allowed: Sequence[float | None]
) -> list[OutputDifference]:
    names = (request.names.of("output", i) for i in range(len(differences)))
    return [
        OutputDifference(name, f.absolute, f.relative, f.finite / f.size if f.size else 1.0, aval, most)
        for name, f, aval, most in zip(names, differences, request.part.source.out_avals, allowed)
    ]


def _said_of(amplified: Sequence[OutputDifference]) -> str:
    """What is said of outputs that differ by no more than other roundings make of them."""
    each = ", ".join(f"{d.output} by {d.absolute:.1e} (allowed: {d.allowed:.1e})" for d in amplified)
    return f"roundings are amplified: other ones of the program's sums change its results by as much as {each}"


def _result(runs: Sequence[_Run], wide: _Wide, seconds: float) -> Verification:
    """The largest difference and the smallest finite share of each output, over all runs."""
    outputs = tuple(
        dataclasses.replace(max(of_one, key=lambda d: d.relative), finite=min(d.finite for d in of_one))
        for of_one in zip(*(run.outputs for run in runs))
    )
    notes = tuple(dict.fromkeys(run.note for run in runs if run.note))
    avals = wide.part.source.out_avals
    floats = [(d.finite, a.size) for d, a in zip(outputs, avals) if dtypes.is_inexact(a.dtype)]
    size = sum(n for _, n in floats)
    share = sum(finite * n for finite, n in floats) / size if size else 1.0
    precision = "float64" + (f" (but for {', '.join(sorted(wide.narrow))})" if wide.narrow else "")
    return Verification(outputs, sum(a.size for a in avals) * len(runs), len(runs), share, precision, seconds, notes)


def _differs(
    request: Request, wide: _Wide, values: Sequence[Array], wrong: Sequence[OutputDifference]
) -> VerificationError:
    """What is wrong, and where it begins."""
    worst = max(wrong, key=lambda d: d.relative)
    more = f", and {len(wrong) - 1} more outputs differ" if len(wrong) > 1 else ""
    most = f"{worst.allowed:.1e} by rounding" if worst.allowed else f"{request.rtol:g} of each element"
    args = [from_numpy(np.asarray(x).astype(wide_dtype(x.dtype)), transfer="none") for x in values]
    first = first_difference(
        wide.part, args, request.rtol, request.atol,
        lambda done, total: request.progress("looking for the first difference", done, total),
    )  # fmt: skip
    where = first or "every value inside agrees, so that the layouts of the outputs must be wrong"
    error = VerificationError(
        f"{worst.output} of {request.name!r} ({worst.aval}) differs from the unpartitioned program by "
        f"{worst.absolute:.3g} ({worst.relative:.3g} relative; allowed: {most}){more}; {where}"
    )
    error.first = first
    return error


def _not_finite(
    request: Request, wide: _Wide, values: Sequence[Array], poor: Sequence[OutputDifference], drawn: bool
) -> str:
    least = min(poor, key=lambda d: d.finite)
    args = [from_numpy(np.asarray(x).astype(wide_dtype(x.dtype)), transfer="none") for x in values]
    where = first_not_finite(wide.part.source, args)
    begins = f", which begins with {where.op.name} at {where.source}" if where is not None else ""
    how = "verify(*args), with inputs for which the results are numbers" if drawn else "inputs that give numbers"
    return (
        f"only {percent(least.finite)} of {least.output} of {request.name!r} ({least.aval}) is finite{begins}: too "
        f"little to tell whether the programs agree, as NaN equals NaN; pass {how}, or finite={least.finite:.2g} if "
        "this is as it should be"
    )
