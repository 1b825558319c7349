"""Each thing that the verifier checks, in a jaxpr that breaks it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.core.avals import ShapedArray
from meshwright.errors import VerifierError
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from meshwright.ir.passes import DEAD_CODE, INLINE, Pass, run_passes
from meshwright.ir.verify import verify
from meshwright.ops.control.call import Jit
from meshwright.ops.elementwise.table import add, neg, sin
from meshwright.ops.shape.rearrange import Transpose
from meshwright.ops.sort.top_k import TopK

MATRIX = ShapedArray((2, 3), np.dtype(np.float32))
OTHER = ShapedArray((3, 2), np.dtype(np.float32))


def unknown_operand() -> Jaxpr:
    a, b = Var(MATRIX), Var(MATRIX)
    return Jaxpr([], [a], [b], [JaxprEqn(neg, [Var(MATRIX)], [b])])


def used_before_it_is_made() -> Jaxpr:
    a, b, c = (Var(MATRIX) for _ in range(3))
    return Jaxpr([], [a], [c], [JaxprEqn(neg, [b], [c]), JaxprEqn(sin, [a], [b])])


def undefined_result() -> Jaxpr:
    return Jaxpr([], [Var(MATRIX)], [Var(MATRIX)], [])


def assigned_twice() -> Jaxpr:
    a, b = Var(MATRIX), Var(MATRIX)
    return Jaxpr([], [a], [b], [JaxprEqn(neg, [a], [b]), JaxprEqn(sin, [a], [b])])


def parameter_twice() -> Jaxpr:
    a = Var(MATRIX)
    return Jaxpr([], [a, a], [a], [])


def wrong_shape() -> Jaxpr:
    a, b = Var(MATRIX), Var(MATRIX)
    return Jaxpr([], [a], [b], [JaxprEqn(Transpose((1, 0)), [a], [b])])


def wrong_dtype() -> Jaxpr:
    a, b = Var(MATRIX), Var(MATRIX.update(dtype=np.dtype(np.int32)))
    return Jaxpr([], [a], [b], [JaxprEqn(neg, [a], [b])])


def operands_that_do_not_fit() -> Jaxpr:
    a, b, c = Var(MATRIX), Var(OTHER), Var(MATRIX)
    return Jaxpr([], [a, b], [c], [JaxprEqn(add, [a, b], [c])])


def another_number_of_operands() -> Jaxpr:
    a, b = Var(MATRIX), Var(OTHER)
    return Jaxpr([], [a], [b], [JaxprEqn(Transpose((1, 0)), [a, a], [b])])


def another_number_of_results() -> Jaxpr:
    a, b = Var(MATRIX), Var(MATRIX.update(shape=(2, 1)))
    return Jaxpr([], [a], [b], [JaxprEqn(TopK(1), [a], [b])])


def literal_array() -> Jaxpr:
    a, b = Var(MATRIX), Var(MATRIX)
    return Jaxpr([], [a], [b], [JaxprEqn(add, [a, Literal(np.ones((2, 3), np.float32), MATRIX)], [b])])


def constants_missing() -> ClosedJaxpr:
    a = Var(MATRIX)
    return ClosedJaxpr(Jaxpr([a], [], [a], []), [])


def wrong_inside() -> Jaxpr:
    a, b = Var(MATRIX), Var(MATRIX)
    inner = wrong_dtype()
    inner.outvars = inner.invars
    return Jaxpr([], [a], [b], [JaxprEqn(Jit("inner", ClosedJaxpr(inner)), [a], [b])])


BROKEN = {
    unknown_operand: "equation 0 (neg",
    used_before_it_is_made: "not defined before it is used",
    undefined_result: "result",
    assigned_twice: "assigned twice",
    parameter_twice: "parameter twice",
    wrong_shape: "f32[2,3], the op gives f32[3,2]",
    wrong_dtype: "i32[2,3], the op gives f32[2,3]",
    operands_that_do_not_fit: "operand shapes",
    another_number_of_operands: "equation 0 (transpose",
    another_number_of_results: "1 result, the op has 2",
    literal_array: "only scalars are literals",
    constants_missing: "0 constants for 1",
    wrong_inside: "in inner",
}


@pytest.mark.parametrize("make", BROKEN, ids=lambda f: f.__name__)
def test_rejects(make: Callable[[], Jaxpr | ClosedJaxpr]) -> None:
    with pytest.raises(VerifierError) as caught:
        verify(make(), "broken")
    assert "broken" in str(caught.value)
    if make is not wrong_inside:
        assert BROKEN[make] in str(caught.value)
    else:
        assert "the op gives" in str(caught.value)


def test_a_pass_is_named_when_it_breaks_the_jaxpr() -> None:
    jaxpr = mw.make_jaxpr(lambda x: mnp.sin(x) + 1)(1.0)
    verify(run_passes(jaxpr, (INLINE, DEAD_CODE), check=True))
    spoil = Pass("spoil", lambda closed: closed.replace(jaxpr=closed.jaxpr.replace(eqns=closed.eqns[1:])))
    with pytest.raises(VerifierError, match="after pass 'spoil'"):
        run_passes(jaxpr, (INLINE, spoil), check=True)


def test_equations_that_were_seen_are_checked_where_they_stand(monkeypatch):
    """Their types are known, what is defined before them is not."""
    jaxpr, inferred, seen = mw.make_jaxpr(lambda x: mnp.sin(x) - 1)(MATRIX).jaxpr, [], set()
    kind = type(sin)
    infer = kind.infer
    monkeypatch.setattr(kind, "infer", lambda op, *avals: inferred.append(op) or infer(op, *avals))
    verify(jaxpr, seen=seen)
    assert inferred
    inferred.clear()
    verify(jaxpr.replace(eqns=[*jaxpr.eqns]), seen=seen)
    assert not inferred
    with pytest.raises(VerifierError, match="not defined before it is used"):
        verify(jaxpr.replace(eqns=jaxpr.eqns[::-1]), seen=seen)
