"""No derivative is zero because a rule was left out: each op says for each operand what its derivative is."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from samples import SAMPLES, Sample

from meshwright.core import dtypes
from meshwright.errors import DifferentiationError, RuleError
from meshwright.ir.derivatives import jvp_of, require_cotangents
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr
from meshwright.ir.op import REGISTRY, Linear, Op, Zero
from meshwright.ir.tracing import infer_cached, trace_to_jaxpr, typeof
from meshwright.ops.control.call import CallOp
from meshwright.ops.elementwise import table as E
from meshwright.ops.elementwise.base import Elementwise
from meshwright.spmd.masked import masked_groups
from meshwright.transforms.autodiff import jvp, vjp


def moved(sample: Sample, place: int) -> bool:
    """Whether a result has a tangent when the operand at ``place`` alone has one."""
    found: list[Any] = []

    def run(*xs: Any) -> list[Any]:
        tangents = [x if i == place else Zero(typeof(x)) for i, x in enumerate(xs)]
        _, touts = jvp_of(sample.op, xs, tangents)
        found.extend(touts if sample.op.multiple_results else [touts])
        return []

    trace_to_jaxpr(run, [typeof(a) for a in sample.args])
    return not all(isinstance(t, Zero) for t in found)


#: ops whose first operands are given the others' values, as in JAX, or have results of their own
_OF_ONE_OPERAND = re.compile(
    "row_moves|pad|sort|reduce.*|select_and_.*|dynamic_slice|gather|scatter.*|linear_recurrence|tri.*_solve"
)


def test_results_are_weakly_typed_if_all_operands_are() -> None:
    wrong = set()
    for sample in SAMPLES:
        avals = [typeof(a).update(weak_type=False) for a in sample.args]
        if isinstance(sample.op, CallOp) or _OF_ONE_OPERAND.fullmatch(sample.op.name):
            continue
        for i, a in enumerate(avals):
            if a.dtype.kind in "iufc" and any(x.dtype == a.dtype for x in (*avals[:i], *avals[i + 1 :])):
                found = infer_cached(sample.op, tuple(x.update(weak_type=j == i) for j, x in enumerate(avals)))
                outs = found if sample.op.multiple_results else (found,)
                wrong.update({sample.op.name} if any(o.weak_type for o in outs) else ())
    assert not wrong


def test_ops_that_only_move_elements_are_linear_in_these() -> None:
    """Sums, masked or not, pass through them like other linear ops: nobody has to ask for moves apart."""
    wrong = set()
    for sample in SAMPLES:
        avals = tuple(typeof(a) for a in sample.args)
        if sample.op.moves_only:
            groups = sample.op.linear_groups(*avals), masked_groups(sample.op, avals, [None] * len(avals))
            wrong |= {sample.op.name} if groups != (((0,),), ((0,),)) else set()
    assert not wrong


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)
def test_ops_with_jaxprs_among_their_parameters_say_so(sample: Sample) -> None:
    values = [x for v in sample.op.params.values() for x in (v if isinstance(v, tuple) else (v,))]
    assert sample.op.holds_jaxprs or not any(isinstance(x, ClosedJaxpr | Jaxpr) for x in values)


CASES = [s for s in SAMPLES if not isinstance(s.op, CallOp) and any(a.dtype.kind in "fc" for a in s.args)]


@pytest.mark.parametrize("sample", CASES, ids=lambda s: s.id)
def test_every_operand_has_a_rule_or_says_why_not(sample: Sample) -> None:
    op, avals = sample.op, tuple(typeof(a) for a in sample.args)
    outs = infer_cached(op, avals)
    inexact = any(dtypes.is_inexact(a.dtype) for a in (outs if op.multiple_results else (outs,)))
    for place, x in enumerate(sample.args):
        if x.dtype.kind not in "fc":
            continue
        if place in op.unknown_in:
            with pytest.raises(DifferentiationError, match=f"operand {place} .* is not known"):
                moved(sample, place)
            continue
        try:
            assert moved(sample, place) == (inexact and place not in op.constant_operands(*avals))
        except (DifferentiationError, RuleError) as error:  # the op refuses, in words of its own
            assert "leaves" not in str(error) and "gives no tangent" not in str(error)


@pytest.mark.parametrize("name", sorted(n for n, c in REGISTRY.items() if issubclass(c, Elementwise)))
def test_elementwise_ops_have_a_partial_for_each_inexact_operand(name: str) -> None:
    cls = REGISTRY[name]
    if cls.jvp is Elementwise.jvp and set("fc") & set("".join(cls.accepts)):
        assert len(cls.partials) == len(cls.accepts)
        assert all(callable(p) or i in cls.constant_in or i in cls.unknown_in for i, p in enumerate(cls.partials))


#: functions that are constant between jumps: the list is complete, so that no further one comes in unseen
CONSTANT = {
    "stop_gradient", "floor", "ceil", "round_nearest_even", "round_nearest_afz", "is_finite", "eq", "ne", "lt", "le",
    "gt", "ge", "compare_total", "bitcast_convert_type", "bitcast_width", "straight_through", "select_and_gather_add",
    "select_and_scatter_add",
}  # fmt: skip


def test_constant_operands_are_listed() -> None:
    assert {n for n, c in REGISTRY.items() if c.__module__.startswith("meshwright.") and c.constant_in} == CONSTANT
    x = np.ones(3, np.float32)
    assert E.sign.constant_operands(typeof(x)) == {0} and not E.sign.constant_operands(typeof(x + 1j))


class Forgetful(Op):
    """An op whose rules leave its second operand out."""

    name = ""

    def infer(self, x: Any, y: Any) -> Any:
        return x

    def jvp(self, primals: Any, tangents: Any) -> Any:
        return primals[0], tangents[0]

    def transpose(self, ct: Any, x: Any, y: Any) -> Any:
        return [ct, None]


def test_rules_that_leave_an_operand_out_are_found() -> None:
    x = np.ones(3, np.float32)
    op = Forgetful()
    with pytest.raises(RuleError, match="gives no tangent though operand 1 has one"):
        jvp_of(op, (x, x), (Zero(typeof(x)), x))
    linear = Linear(typeof(x))
    require_cotangents(op, (linear, x), op.transpose(x, linear, x))
    with pytest.raises(RuleError, match="gives no cotangent for operand 1"):
        require_cotangents(op, (linear, linear), op.transpose(x, linear, linear))


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: E.nextafter(x, np.float32(2)),
        lambda x: E.zeta(x, np.float32(2)),
        lambda x: E.polygamma(x, np.float32(2)),
    ],
)
def test_derivatives_that_are_not_known_are_refused(fun: Any) -> None:
    x = np.float32(3)
    for derivative in (lambda: jvp(fun, (x,), (x,)), lambda: vjp(fun, x), lambda: jvp(fun, (x,), (x,))):
        with pytest.raises(DifferentiationError, match=r"is not known.*stop_gradient"):
            derivative()
