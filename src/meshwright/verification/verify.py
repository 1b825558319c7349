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
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.dtypes import wide_types
from meshwright.core.expected import as_integer, as_number
from meshwright.core.key_types import is_key
from meshwright.core.words import counted
from meshwright.errors import CallbackError, VerificationError
from meshwright.ir.constants import known_values
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.runtime.array import Array, default_sharding, from_numpy
from meshwright.runtime.executable import Executable
from meshwright.verification.comparison import Chaotic, Comparison, Run
from meshwright.verification.domains import input_domains
from meshwright.verification.draw import MANNERS, draw_inputs
from meshwright.verification.limits import with_limits
from meshwright.verification.programs import WidePrograms
from meshwright.verification.request import Request
from meshwright.verification.result import Verification
from meshwright.verification.types import other_types

#: the most draws of inputs, and the seconds after which no more are made; positions show one case per run
_MOST_DRAWS, _SECONDS = 8, 0.3


def verify(request: Request, args: Sequence[Any] | None) -> Verification:
    """Run both programs on ``args``, or on random inputs.

    Raises:
      VerificationError: they differ, or too few results are finite to tell.
    """
    started = time.perf_counter()
    for tolerance in ("rtol", "atol", "finite"):
        as_number(f"verify: {tolerance}", getattr(request, tolerance))
    as_integer("verify: seed", request.seed)
    if (wrong := other_types(request.part)) is not None:
        raise VerificationError(f"{request.name!r} has other types than the unpartitioned program: {wrong}")
    _refuse_unknown(request.part.source, request.name)
    part, note = with_limits(request.part) if args is None else (request.part, "")
    request = dataclasses.replace(request, part=part)
    with wide_types():
        programs = WidePrograms.of(request)
        request.progress("running both", 3, 4)
        runs, begun = [], time.perf_counter()
        for draw in range(_MOST_DRAWS):
            runs.append(_once(dataclasses.replace(request, seed=request.seed + draw), programs, args))
            if args is not None or time.perf_counter() - begun > _SECONDS:
                break
    return _result(runs, programs, time.perf_counter() - started, note)


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


def _once(request: Request, programs: WidePrograms, args: Sequence[Any] | None) -> Run:
    """Run both programs and compare. If the results prove nothing, other inputs are tried."""
    chaotic: Chaotic | None = None
    for values, expected in _runs(request, programs.whole, args):
        try:
            run = Comparison(request, programs, values, expected, args is None).run()
        except Chaotic as error:
            chaotic = chaotic or error
        else:
            return run if chaotic is None else run._replace(note=f"inputs were drawn smaller: {chaotic}")
    assert chaotic is not None
    raise chaotic


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


def _result(runs: Sequence[Run], programs: WidePrograms, seconds: float, note: str) -> Verification:
    """The largest difference and the smallest finite share of each output, over all runs."""
    outputs = tuple(
        dataclasses.replace(max(of_one, key=lambda d: d.relative), finite=min(d.finite for d in of_one))
        for of_one in zip(*(run.outputs for run in runs))
    )
    notes = tuple(dict.fromkeys(n for n in (note, *(run.note for run in runs)) if n))
    avals = programs.part.source.out_avals
    floats = [(d.finite, a.size) for d, a in zip(outputs, avals) if dtypes.is_inexact(a.dtype)]
    size = sum(n for _, n in floats)
    share = sum(finite * n for finite, n in floats) / size if size else 1.0
    precision = "float64" + (f" (but for {', '.join(sorted(programs.narrow))})" if programs.narrow else "")
    return Verification(outputs, sum(a.size for a in avals) * len(runs), len(runs), share, precision, seconds, notes)
