"""Every small sharding of every op computes what the unpartitioned op computes."""

from __future__ import annotations

import pytest
from samples import DISTINCT, SAMPLES, Sample
from sharding_harness import MESHES, failures, localized_cases, partitioned_cases, report

from meshwright.core.config import config
from meshwright.ir.tracing import typeof
from meshwright.runtime.eager import single_op_jaxpr


@pytest.mark.parametrize("sample", DISTINCT, ids=lambda s: s.id)
def test_localize(sample: Sample) -> None:
    """Every choice of axes for factors, with garbage in the padding and with partial operands."""
    avals = [typeof(x) for x in sample.args]
    cases = localized_cases(sample.op, avals)
    report(failures(single_op_jaxpr(sample.op, avals), sample.args, cases))


@pytest.mark.parametrize("sample", DISTINCT, ids=lambda s: s.id)
def test_localize_where_python_numbers_are_wide(sample: Sample) -> None:
    """The programs are those of narrow types: none of a rule's own numbers has the type that Python's get."""
    avals = [typeof(x) for x in sample.args]
    narrow = [str(case.program) for case in localized_cases(sample.op, avals)]
    with config.override("enable_x64", True):
        assert [str(case.program) for case in localized_cases(sample.op, avals)] == narrow


@pytest.mark.parametrize("sample", DISTINCT, ids=lambda s: s.id)
def test_partition(sample: Sample) -> None:
    """Some of all shardings of operands and results; more of them in the slow sweep."""
    program = single_op_jaxpr(sample.op, [typeof(x) for x in sample.args])
    report(failures(program, sample.args, partitioned_cases(program, 2, MESHES[:2])))


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)
def test_compiled_sweep(sample: Sample) -> None:
    """All of the first and 200 of the second a mesh, compiled."""
    avals = [typeof(x) for x in sample.args]
    program = single_op_jaxpr(sample.op, avals)
    cases = [*localized_cases(sample.op, avals, MESHES), *partitioned_cases(program, 200, MESHES)]
    report(failures(program, sample.args, cases, compiled=True))
