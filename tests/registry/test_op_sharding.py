"""Every small sharding of every op computes what the unpartitioned op computes."""

from __future__ import annotations

import pytest
from meshwright.ir.tracing import typeof
from meshwright.runtime.eager import single_op_jaxpr

from samples import SAMPLES, Sample
from sharding_harness import failures, localized_cases, partitioned_cases, report


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)
def test_localize(sample: Sample) -> None:
    """Every choice of axes for factors, with garbage in the padding and with partial operands."""
    avals = [typeof(x) for x in sample.args]
    cases = localized_cases(sample.op, avals)
    report(failures(single_op_jaxpr(sample.op, avals), sample.args, cases))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)
def test_partition(sample: Sample) -> None:
    """Some of all shardings of operands and results; all of them in the slow sweep."""
    program = single_op_jaxpr(sample.op, [typeof(x) for x in sample.args])
    report(failures(program, sample.args, partitioned_cases(program, limit=6)))


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)
def test_partition_sweep(sample: Sample) -> None:
    """Up to 500 shardings of operands and results a mesh."""
    program = single_op_jaxpr(sample.op, [typeof(x) for x in sample.args])
    report(failures(program, sample.args, partitioned_cases(program, limit=500)))
