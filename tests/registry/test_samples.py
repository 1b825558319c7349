"""Every registered op has samples, and what an op infers is what runs."""

from __future__ import annotations

import numpy as np
import pytest
from numpy_eval import NUMPY, evaluate, evaluate_fun, results_of
from samples import SAMPLES, WITHOUT_SAMPLE, Sample
from sharding_harness import compiled_results, difference

import meshwright.ops
from meshwright.ir.op import REGISTRY
from meshwright.ir.tracing import eval_jaxpr, typeof
from meshwright.ir.verify import verify
from meshwright.runtime.eager import single_op_jaxpr

meshwright.ops.register_all()


@pytest.mark.parametrize("name", sorted(n for n, c in REGISTRY.items() if c.__module__.startswith("meshwright.")))
def test_every_op_has_a_sample(name: str) -> None:
    sampled = any(s.op.name == name for s in SAMPLES)
    assert sampled != (name in WITHOUT_SAMPLE), f"{name}: write samples, or say in WITHOUT_SAMPLE why there are none"


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)
def test_infer(sample: Sample) -> None:
    """Eager evaluation gives arrays of the inferred types, and what the jaxpr of the op evaluates to."""
    jaxpr = single_op_jaxpr(sample.op, [typeof(x) for x in sample.args])
    verify(jaxpr)
    eager = eval_jaxpr(jaxpr, jaxpr.consts, *sample.args)
    traced = evaluate_fun(lambda *xs: results_of(sample.op, *xs), sample.args)
    for got, other, aval in zip(eager, traced, jaxpr.out_avals, strict=True):
        got = np.asarray(got)
        assert (got.shape, got.dtype) == (aval.shape, aval.dtype)
        assert not difference(other, got, 1e-5)


@pytest.mark.parametrize("name", sorted(NUMPY))
def test_numpy_is_what_xla_computes(name: str) -> None:
    """The NumPy functions that stand for ops in these checks."""
    found = [s for s in SAMPLES if s.op.name == name]
    for sample in found:
        jaxpr = single_op_jaxpr(sample.op, [typeof(x) for x in sample.args])
        (want,) = compiled_results([jaxpr], jaxpr.in_avals, sample.args)
        for got, expected in zip(evaluate(jaxpr, sample.args), want, strict=True):
            assert not difference(got, expected, 1e-2 if sample.args and sample.args[0].dtype.itemsize == 2 else 1e-6)
    assert found or name in WITHOUT_SAMPLE
