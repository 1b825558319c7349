"""Compares a per-device program with the program that it was made from, on the same inputs.

Both are computed in float64, where the order of sums hardly matters: a difference of more than 1e-9 means that the
partitioning is wrong. But a program such as an optimizer may amplify even smaller differences. So a difference is also
allowed if it is no larger than what rounding causes: the difference between the unpartitioned program in its own types
and in float64, times the ratio of the two precisions. If the results in its own types are too inaccurate for that, its
sums are rounded differently in float64 (``rounding``). Results that this changes too much prove nothing.
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

#: the share of the unpartitioned program's error in its own types that may remain in float64: a thousand times the
#: ratio of the precisions of float64 and float32
_AMPLIFIED = 1e3 * 2.0**-29
#: with ops that keep their types, this multiple of that error is allowed, up to this share of the largest element
_NARROW, _MOST_NARROW = 8, 0.05
#: the share of the largest element beyond which an error in the program's own types says nothing about float64
_LOST = 1e-3
#: the allowed multiple of the change by other roundings, and the share of the largest element that it must not exceed
_MOVED, _TOO_FAR = 64, 1e-3

#: the most draws of inputs, and the seconds after which no more are made; positions show one case per run
_MOST_DRAWS, _SECONDS = 8, 0.3

#: sums as plain loops, not as trees, which take longer to compile and, unoptimized, to run; one module for LLVM
_PLAIN = (("xla_disable_hlo_passes", "tree_reduction_rewriter"), ("xla_cpu_parallel_codegen_split_count", 1))
#: XLA's kernels have no float64 convolutions. They become loops, which are 14 times as fast if LLVM optimizes them
_LOOPS = (("xla_backend_optimization_level", 1), ("xla_llvm_disable_expensive_passes", False))
#: the operations of convolutions per equation from which on optimizing takes less time than it saves
_WORTH_IT = 500_000

#: called with the current step in words, the number of parts done, and of all parts
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Request:
    """What to verify, and how: see :meth:`meshwright.api.partitioned.PartitionedProgram.verify`."""

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
    """The partition in float64, and the names of ops that kept their types."""

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
    """Run both programs on ``args``, or on random inputs.

    Raises:
      VerificationError: they differ, or too few results are finite to tell.
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
    """Refuse constants of which only the types are known.

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
    """The results for these inputs do not prove anything."""


class _Run(NamedTuple):
    """The differences of one run, with an optional note about it."""

    outputs: list[OutputDifference]
    note: str = ""


def _once(request: Request, wide: _Wide, whole: Executable, parts: Executable, args: Sequence[Any] | None) -> _Run:
    """Run both programs and compare. If the results prove nothing, other inputs are tried."""
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
    """Compare the results of the partitioned program with the expected ones."""
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
        raise _differs(request, wide, values, outputs, wrong)
    poor = [d for d in outputs if d.finite < request.finite]
    if poor:
        raise VerificationError(_not_finite(request, wide, values, poor, drawn))
    return _Run(outputs, note)


def _wrong(outputs: Sequence[OutputDifference], differences: Sequence[Difference]) -> list[OutputDifference]:
    """The outputs that differ by more than is allowed."""
    return [d for d, f in zip(outputs, differences) if f.excess > 0 and not (d.allowed and d.absolute <= d.allowed)]


def _compiled(jaxpr: ClosedJaxpr, name: str) -> Executable:
    """Compile with a short compile time rather than fast code, as the program runs only a few times."""
    flags = () if platforms.is_plugin() else (*_PLAIN, *(_LOOPS if _is_convolved(jaxpr) else ()))
    return compile_jaxpr(jaxpr, name, [default_sharding()] * len(jaxpr.out_avals), quick=True, options=flags)


def _is_convolved(jaxpr: ClosedJaxpr) -> bool:
    """Whether convolutions are a large part of the program."""
    eqns = list(all_eqns(jaxpr.jaxpr))
    return sum(n for e in eqns if (n := operations(e)) > _WORTH_IT and _has_windows(e)) > _WORTH_IT * len(eqns)


def _has_windows(eqn: JaxprEqn) -> bool:
    """Whether an equation is a product with windows, that is, a convolution."""
    rule = eqn_rule(eqn)
    return rule.is_product and any(f.kind == WINDOW for f in rule.factors)


def _from_narrow(jaxpr: ClosedJaxpr, avals: Sequence[ShapedArray]) -> ClosedJaxpr:
    """The program with arguments of types ``avals``, which it converts, so that both programs read the same arrays."""
    inner = jaxpr.jaxpr
    invars, eqns = list(inner.invars), []
    for i, (var, aval) in enumerate(zip(inner.invars, avals)):
        if var.aval.dtype != aval.dtype:
            invars[i] = Var(aval)
            eqns.append(JaxprEqn(ConvertElementType(var.aval.dtype), [invars[i]], [var]))
    return jaxpr.replace(jaxpr=inner.replace(invars=invars, eqns=[*eqns, *inner.eqns]))


def _runs(request: Request, whole: Executable, args: Sequence[Any] | None) -> Iterator[tuple[list[Array], list[Array]]]:
    """Arguments and the unpartitioned program's results for them. Given arguments are used as they are.

    Otherwise they are drawn: first larger, then smaller ones, without those with too few finite results, unless all
    have.

    Raises:
      CallbackError: the program calls a function that raises for all that is drawn.
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
        except CallbackError as error:  # for example, a check in the user's function
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
    """An argument in the form that the program takes: the words of random keys, arrays of the program's types."""
    if type(x) is Array and is_key(x.dtype):
        return Array(aval, x.buffer, default_sharding())
    return from_numpy(np.asarray(x), aval.dtype, transfer="none")


def _finite(x: Array) -> float:
    value = np.asarray(x)
    if value.dtype.kind not in "fc" or not value.size:
        return 1.0
    return float(np.mean(np.isfinite(value)))


# --- effects of rounding ------------------------------------------------------------------------------------
def _allowed(
    request: Request, wide: _Wide, values: Sequence[Array], expected: Sequence[Array], differences: Sequence[Difference]
) -> list[float | None]:
    """For outputs that differ, the difference that rounding alone may cause; None if unknown."""
    source = request.part.source
    suspects = [f.excess > 0 and dtypes.is_inexact(a.dtype) for f, a in zip(differences, source.out_avals)]
    same_types = [v.aval.dtype for v in source.jaxpr.invars] == [v.aval.dtype for v in wide.part.source.jaxpr.invars]
    if not any(suspects) or (same_types and not wide.narrow and not _has_narrow_floats(source)):
        return [None] * len(differences)
    request.progress("comparing with the rounding of the unpartitioned program", 3, 4)
    with wide_types(False):  # constants have the types they had when the program was traced
        own = _compiled(source, request.name)(values)
    errors = [compare(np.asarray(x).astype(np.asarray(w).dtype), w) for x, w in zip(own, expected)]
    return [_rounding(e, wide) if suspect else None for e, suspect in zip(errors, suspects)]


def _rounding(error: Difference, wide: _Wide) -> float | None:
    if not np.isfinite(error.absolute):
        return None
    amplified = _AMPLIFIED * error.absolute
    return max(amplified, min(_NARROW * error.absolute, _MOST_NARROW * error.largest)) if wide.narrow else amplified


def _is_lost(output: OutputDifference, found: Difference) -> bool:
    """Whether floats differ and their error in the program's own types is too large to say by how much they may."""
    if found.excess <= 0 or output.aval is None or not dtypes.is_inexact(output.aval.dtype):
        return False
    if output.allowed is None:
        return True
    return _AMPLIFIED * _LOST * found.largest <= output.allowed < output.absolute


def _amplified(
    request: Request, wide: _Wide, values: Sequence[Array], expected: Sequence[Array],
    outputs: Sequence[OutputDifference], differences: Sequence[Difference],
) -> list[OutputDifference]:  # fmt: skip
    """The outputs, where those that differ are allowed what other roundings of the unpartitioned program's sums cause.

    Raises:
      _Chaotic: these roundings change the results so much that they prove nothing.
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
    """Whether there are floats narrower than float64."""
    return any(v.aval.dtype != wide_dtype(v.aval.dtype) for e in all_eqns(jaxpr.jaxpr) for v in e.outvars)


# --- results and messages -----------------------------------------------------------------------------------
def _outputs(
    request: Request, differences: Sequence[Difference], allowed: Sequence[float | None]
) -> list[OutputDifference]:
    names = (request.names.of("output", i) for i in range(len(differences)))
    return [
        OutputDifference(name, f.absolute, f.relative, f.finite / f.size if f.size else 1.0, aval, most)
        for name, f, aval, most in zip(names, differences, request.part.source.out_avals, allowed)
    ]


def _said_of(amplified: Sequence[OutputDifference]) -> str:
    """A note about outputs that differ by no more than other roundings change them."""
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
    request: Request, wide: _Wide, values: Sequence[Array], outputs: Sequence[OutputDifference],
    wrong: Sequence[OutputDifference],
) -> VerificationError:  # fmt: skip
    """The error for outputs that differ, with the first difference inside the program."""
    worst = max(wrong, key=lambda d: d.relative)
    more = f", and {len(wrong) - 1} more outputs differ" if len(wrong) > 1 else ""
    most = f"{worst.allowed:.1e} by rounding" if worst.allowed else f"{request.rtol:g} of each element"
    args = [from_numpy(np.asarray(x).astype(wide_dtype(x.dtype)), transfer="none") for x in values]
    first = first_difference(
        wide.part, args, request.rtol, request.atol,
        lambda done, total: request.progress("looking for the first difference", done, total),
    )  # fmt: skip
    where = first or f"every value inside agrees, {_at_the_end(wide.part, outputs.index(worst))}"
    error = VerificationError(
        f"{worst.output} of {request.name!r} ({worst.aval}) differs from the unpartitioned program by "
        f"{worst.absolute:.3g} ({worst.relative:.3g} relative; allowed: {most}){more}; {where}"
    )
    error.first = first
    return error


def _at_the_end(part: Partition, number: int) -> str:
    """How output ``number`` is wrong although every value inside is right: it is another value, or split otherwise."""
    got, want = part.jaxpr.jaxpr.outvars[number], part.source.jaxpr.outvars[number]
    if isinstance(got, Var) and isinstance(want, Var) and got in part.stands_for:
        meant, layout = part.stands_for[got]
        if meant is not want:
            return f"but devices return {_made(part.source, meant)}, and the program {_made(part.source, want)}"
        if layout != (said := part.out_layouts[number]):
            laid, read = (each.format(part.mesh) for each in (layout, said))
            return f"but devices return it laid out as {laid}, and it is read as {read}"
    return "so that the layouts of the outputs must be wrong"


def _made(jaxpr: ClosedJaxpr, var: Var) -> str:
    if var in jaxpr.jaxpr.invars:
        return f"input {jaxpr.jaxpr.invars.index(var)}"
    maker = next((e for e in jaxpr.eqns if var in e.outvars), None)
    return f"the result of {maker.op.name} at {maker.source}" if maker else "a constant"


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
