"""Compares the results of both programs, and says which differences rounding explains."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.dtypes import wide_types
from meshwright.core.records import dataclass
from meshwright.errors import VerificationError
from meshwright.ir.jaxpr import ClosedJaxpr, all_eqns
from meshwright.runtime.array import Array, from_numpy
from meshwright.verification.difference import Difference, compare
from meshwright.verification.locate import first_difference, first_not_finite, misplaced
from meshwright.verification.programs import WidePrograms, compiled, from_narrow
from meshwright.verification.request import Request
from meshwright.verification.result import OutputDifference, percent
from meshwright.verification.rounding import rounded_otherwise
from meshwright.verification.widen import wide_dtype

#: the share of the unpartitioned program's error in its own types that may remain in float64: a thousand times the
#: ratio of the precisions of float64 and float32
_AMPLIFIED = 1e3 * 2.0**-29
#: with ops that keep their types, this multiple of that error is allowed, up to this share of the largest element
_NARROW, _MOST_NARROW = 8, 0.05
#: the share of the largest element beyond which an error in the program's own types says nothing about float64
_LOST = 1e-3
#: the allowed multiple of the change by other roundings, and the share of the largest element that it must not exceed
_MOVED, _TOO_FAR = 64, 1e-3


class Chaotic(VerificationError):
    """The results for these inputs do not prove anything."""


class Run(NamedTuple):
    """The differences of one run, with an optional note about it."""

    outputs: list[OutputDifference]
    note: str = ""


@dataclass(frozen=True)
class _Output:
    """The difference of an output, and how much of it rounding may cause; None if unknown."""

    name: str
    aval: ShapedArray
    found: Difference
    allowed: float | None = None

    @property
    def is_off(self) -> bool:
        """Whether it differs by more than the tolerances."""
        return self.found.excess > 0

    @property
    def is_wrong(self) -> bool:
        """Whether it differs by more than is allowed."""
        return self.is_off and not (self.allowed and self.found.absolute <= self.allowed)

    @property
    def is_lost(self) -> bool:
        """Whether floats differ and their error in the program's own types is too large to say by how much they may."""
        if not self.is_off or not dtypes.is_inexact(self.aval.dtype):
            return False
        if self.allowed is None:
            return True
        return _AMPLIFIED * _LOST * self.found.largest <= self.allowed < self.found.absolute

    def shown(self) -> OutputDifference:
        found = self.found
        finite = found.finite / found.size if found.size else 1.0
        return OutputDifference(self.name, found.absolute, found.relative, finite, self.aval, self.allowed)


@dataclass(frozen=True)
class Comparison:
    """The results of both programs for the same arguments ``values``; ``expected`` are the unpartitioned one's."""

    request: Request
    programs: WidePrograms
    values: Sequence[Array]
    expected: Sequence[Array]
    #: whether the arguments were drawn
    drawn: bool

    def run(self) -> Run:
        """Compare the results.

        Raises:
          VerificationError: they differ, or too few are finite to tell.
        """
        outputs, note = self._rounded(self._outputs()), ""
        wrong = [o.is_wrong for o in outputs]
        if any(o.is_lost for o in outputs):
            outputs, before = self._amplified(outputs), wrong
            wrong = [o.is_wrong for o in outputs]
            note = "" if any(wrong) else _said_of([o.shown() for o, was in zip(outputs, before) if was])
        shown = [o.shown() for o in outputs]
        if any(wrong):
            raise self._differs(shown, wrong)
        poor = [d for d in shown if d.finite < self.request.finite]
        if poor:
            raise self._not_finite(poor)
        return Run(shown, note)

    def _outputs(self) -> list[_Output]:
        request, got = self.request, self.programs.parts(self.values)
        found = [compare(g, w, request.rtol, request.atol) for g, w in zip(got, self.expected)]
        names = (request.names.of("output", i) for i in range(len(found)))
        return [_Output(*each) for each in zip(names, request.part.source.out_avals, found)]

    # --- effects of rounding --------------------------------------------------------------------------------
    def _rounded(self, outputs: list[_Output]) -> list[_Output]:
        """The outputs, where those that differ are allowed what rounding of the unpartitioned program may cause."""
        source, wide = self.request.part.source, self.programs.part.source
        suspects = [o.is_off and dtypes.is_inexact(o.aval.dtype) for o in outputs]
        same_types = [v.aval.dtype for v in source.jaxpr.invars] == [v.aval.dtype for v in wide.jaxpr.invars]
        if not any(suspects) or (same_types and not self.programs.narrow and not _has_narrow_floats(source)):
            return outputs
        self.request.progress("comparing with the rounding of the unpartitioned program", 3, 4)
        with wide_types(False):  # constants have the types they had when the program was traced
            own = compiled(source, self.request.name)(self.values)
        errors = [compare(np.asarray(x).astype(np.asarray(w).dtype), w) for x, w in zip(own, self.expected)]
        return [
            dataclasses.replace(o, allowed=self._allowed(error)) if suspect else o
            for o, suspect, error in zip(outputs, suspects, errors)
        ]

    def _allowed(self, error: Difference) -> float | None:
        """What is allowed where the results in the program's own types are off by ``error``."""
        if not np.isfinite(error.absolute):
            return None
        amplified = _AMPLIFIED * error.absolute
        if not self.programs.narrow:
            return amplified
        return max(amplified, min(_NARROW * error.absolute, _MOST_NARROW * error.largest))

    def _amplified(self, outputs: list[_Output]) -> list[_Output]:
        """The outputs, where those that differ are allowed what other roundings of the program's sums cause.

        Raises:
          Chaotic: these roundings change the results so much that they prove nothing.
        """
        request = self.request
        request.progress("rounding the sums of the unpartitioned program otherwise", 3, 4)
        other = from_narrow(rounded_otherwise(self.programs.part.source), request.part.source.in_avals)
        moved = [compare(g, w) for g, w in zip(compiled(other, request.name)(self.values), self.expected)]
        found, far = [], []
        for output, by in zip(outputs, moved):
            if output.is_off and not _MOVED * by.absolute <= _TOO_FAR * by.largest:
                far.append((output.name, by))
            elif output.is_off:
                output = dataclasses.replace(output, allowed=max(output.allowed or 0.0, _MOVED * by.absolute))
            found.append(output)
        unsure = {name for name, _ in far}
        if far and all(o.name in unsure for o in found if o.is_wrong):
            name, by = far[0]
            raise Chaotic(
                f"other roundings of the sums of {request.name!r}, by a bit of float64 each, change {name} by "
                f"{by.relative:.2g} of its largest element: too much to tell whether the programs agree; pass inputs "
                "that it amplifies less, or have it take fewer steps"
            )
        return found

    # --- errors ---------------------------------------------------------------------------------------------
    def _wide_values(self) -> list[Array]:
        return [from_numpy(np.asarray(x).astype(wide_dtype(x.dtype)), transfer="none") for x in self.values]

    def _differs(self, outputs: Sequence[OutputDifference], is_wrong: Sequence[bool]) -> VerificationError:
        """The error for outputs that differ, with the first difference inside the program."""
        request, part = self.request, self.programs.part
        number = max(itertools.compress(range(len(outputs)), is_wrong), key=lambda i: outputs[i].relative)
        worst = outputs[number]
        more = f", and {sum(is_wrong) - 1} more outputs differ" if sum(is_wrong) > 1 else ""
        most = f"{worst.allowed:.1e} by rounding" if worst.allowed else f"{request.rtol:g} of each element"
        first = first_difference(
            part, self._wide_values(), request.rtol, request.atol,
            lambda done, total: request.progress("looking for the first difference", done, total),
        )  # fmt: skip
        where = first or f"every value inside agrees, {misplaced(part, number)}"
        error = VerificationError(
            f"{worst.output} of {request.name!r} ({worst.aval}) differs from the unpartitioned program by "
            f"{worst.absolute:.3g} ({worst.relative:.3g} relative; allowed: {most}){more}; {where}"
        )
        error.first = first
        return error

    def _not_finite(self, poor: Sequence[OutputDifference]) -> VerificationError:
        """The error for outputs of which too little is finite."""
        least = min(poor, key=lambda d: d.finite)
        where = first_not_finite(self.programs.part.source, self._wide_values())
        begins = f", which begins with {where.op.name} at {where.source}" if where is not None else ""
        drawn = "verify(*args), with inputs for which the results are numbers"
        how = drawn if self.drawn else "inputs that give numbers"
        return VerificationError(
            f"only {percent(least.finite)} of {least.output} of {self.request.name!r} ({least.aval}) is "
            f"finite{begins}: too little to tell whether the programs agree, as NaN equals NaN; pass {how}, or "
            f"finite={least.finite:.2g} if this is as it should be"
        )


def _has_narrow_floats(jaxpr: ClosedJaxpr) -> bool:
    """Whether there are floats narrower than float64."""
    return any(v.aval.dtype != wide_dtype(v.aval.dtype) for e in all_eqns(jaxpr.jaxpr) for v in e.outvars)


def _said_of(amplified: Sequence[OutputDifference]) -> str:
    """A note about outputs that differ by no more than other roundings change them."""
    each = ", ".join(f"{d.output} by {d.absolute:.1e} (allowed: {d.allowed:.1e})" for d in amplified)
    return f"roundings are amplified: other ones of the program's sums change its results by as much as {each}"
