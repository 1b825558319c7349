"""Every small sharding of every op on infinities, NaN and zeros of both signs: what fills up tiles, and what stands for
elements that a device does not have, is not computed with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy_eval import evaluate
from samples import DISTINCT, Sample
from samples.bodies import AFFINE
from sharding_harness import MESHES, Case, localized_cases, partitioned_cases

from meshwright.core import dtypes
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.tracing import typeof
from meshwright.ops.reduce.associative import LinearRecurrence
from meshwright.runtime.eager import single_op_jaxpr
from meshwright.sharding.rule import REDUCTION, ShardingRule

INFINITIES = (np.inf, 0.0, -0.0, -np.inf)
#: infinities alone, so that NaN is seen where it comes up; and NaN among them
CHOICES = {"infinities": INFINITIES, "not a number": (*INFINITIES, np.nan)}


def _is_asked(sample: Sample) -> bool:
    """Left out: decompositions by LAPACK, which need not end on what is no number."""
    module = type(sample.op).__module__
    decomposes = module.startswith("meshwright.ops.linalg") and not module.endswith((".fft", ".matrices"))
    return not decomposes and any(dtypes.is_inexact(typeof(x).dtype) for x in sample.args)


FLOATS = [s for s in DISTINCT if _is_asked(s)]


def with_special(sample: Sample, values: tuple[float, ...]) -> list[np.ndarray]:
    """The operands, every third element of those of floats being special, except of those that :func:`stay_finite`."""
    rng = np.random.default_rng(len(values))

    def changed(x: np.ndarray) -> np.ndarray:
        dtype = typeof(x).dtype
        if not dtypes.is_inexact(dtype):
            return x
        put = rng.choice(np.array(values), x.shape).astype(dtype)
        return np.where(rng.random(x.shape) < 1 / 3, put, x)

    finite = stay_finite(sample)
    return [x if any(x is y for y in finite) else changed(x) for x in sample.args]


def stay_finite(sample: Sample) -> Sequence[np.ndarray]:
    """The operands without special values.

    The kernel of a dilated convolution: zeros between rows and around them XLA leaves out where it sees that they are,
    and multiplies where they are data. Which of them are data differs between devices. The factors of affine functions:
    where these are 0 or infinite, a (b x + c) is not (a b) x + a c, so that the order decides what is NaN.
    """
    op = sample.op
    if isinstance(op, LinearRecurrence):
        return sample.args[: len(op.entries)]
    if op.holds_jaxprs and op.params.get("computation") is AFFINE:
        return sample.args[:1]
    return sample.args[1:] if any(n > 1 for n in op.params.get("lhs_dilation", ())) else ()


def kinds(x: np.ndarray, signs: bool) -> np.ndarray:
    """Of each element, whether it is NaN, an infinity or a zero, and with ``signs`` of which sign."""
    if x.dtype.kind == "c":
        return np.stack([kinds(x.real, signs), kinds(x.imag, signs)])
    if not dtypes.is_inexact(x.dtype):
        return np.asarray(x)
    x = x.astype(np.float64)
    zero = np.where(np.signbit(x), -1, 1) if signs else 1
    return np.where(np.isnan(x), 3, np.where(np.isinf(x), 2 * np.sign(x), np.where(x == 0, zero, 0)))


def adds(rule: ShardingRule) -> bool:
    """Whether splitting puts terms together in another order, so that signs of zeros are another, too."""
    return rule.reduction not in ("masked", "or") and any(f.kind == REDUCTION for f in rule.factors)


def differing(program: ClosedJaxpr, args: list[np.ndarray], cases: list[Case], signs: bool) -> list[str]:
    with np.errstate(all="ignore"):
        want = [kinds(np.asarray(y), signs) for y in evaluate(program, args)]
        found = []
        for case in cases:
            got = [kinds(np.asarray(y), signs) for y in evaluate(case.program, args)]
            wrong = [n for n, (a, b) in enumerate(zip(got, want, strict=True)) if not np.array_equal(a, b)]
            found += [f"{case.label}: result {n} is\n{got[n].tolist()}, not\n{want[n].tolist()}" for n in wrong]
    return found


@pytest.mark.parametrize("values", ["infinities", pytest.param("not a number", marks=pytest.mark.slow)])
@pytest.mark.parametrize("sample", FLOATS, ids=lambda s: s.id)
def test_special_values(sample: Sample, values: str) -> None:
    if values == "not a number" and sample.op.holds_jaxprs:
        pytest.skip("a function that compares is no order, nor associative, beside NaN: what comes first decides")
    avals = [typeof(x) for x in sample.args]
    rule, program = sample.op.sharding_rule(*avals), single_op_jaxpr(sample.op, avals)
    cases = [c for c in localized_cases(sample.op, avals) if "'sum'" not in c.label]
    cases += partitioned_cases(program, 3, MESHES[1:2])
    found = differing(program, with_special(sample, CHOICES[values]), cases, signs=not adds(rule))
    assert not found, f"{len(found)} of {len(cases)} shardings:\n" + "\n".join(found[:3])
