"""Every small sharding of every op on infinities, NaN and zeros of both signs: what fills up tiles, and what stands for
elements that a device does not have, is not computed with."""

from __future__ import annotations

import numpy as np
import pytest
from numpy_eval import evaluate
from samples import DISTINCT, Sample
from sharding_harness import MESHES, Case, localized_cases, partitioned_cases

from meshwright.core import dtypes
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.tracing import typeof
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
    """The operands, every third element of those of floats being special.

    The kernel of a dilated convolution stays finite: zeros between rows and around them XLA leaves out where it sees
    that they are, and multiplies where they are data. Which of them are data differs between devices.
    """
    rng = np.random.default_rng(len(values))

    def changed(x: np.ndarray) -> np.ndarray:
        dtype = typeof(x).dtype
        if not dtypes.is_inexact(dtype):
            return x
        put = rng.choice(np.array(values), x.shape).astype(dtype)
        return np.where(rng.random(x.shape) < 1 / 3, put, x)

    finite = sample.args[1:] if any(n > 1 for n in sample.op.params.get("lhs_dilation", ())) else ()
    return [x if any(x is y for y in finite) else changed(x) for x in sample.args]


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
