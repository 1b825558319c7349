"""The rewriting kit: uses, producers, substitution, replacement and interpretation."""

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.ir.constants import known_values
from meshwright.ir.jaxpr import Literal, all_eqns
from meshwright.ir.rewrite import (
    Interpreter,
    in_jaxprs,
    in_regions,
    producers_of,
    rebuilt,
    renamed,
    replaced,
    use_counts,
    uses_of,
    written_out,
)  # fmt: skip
from meshwright.ir.tracing import eval_jaxpr
from meshwright.ir.verify import verify
from meshwright.ops.elementwise.table import cos


def traced(f, *args):
    return mw.make_jaxpr(f)(*args)


def test_who_makes_and_uses_a_value():
    jaxpr = traced(lambda x, y: (mnp.sin(x) * mnp.sin(x), x, 1.0), 2.0, 3.0).jaxpr
    sines = [e for e in jaxpr.eqns if e.op.name == "sin"]
    (mul,) = (e for e in jaxpr.eqns if e.op.name == "mul")
    x, y = jaxpr.invars
    uses = uses_of(jaxpr)
    assert uses[x] == [*sines, None] and y not in uses
    assert uses[mul.outvars[0]] == [None]
    assert use_counts(jaxpr.eqns)[x] == 2 and use_counts(jaxpr.eqns, jaxpr.outvars)[x] == 3
    assert producers_of(jaxpr) == {e.outvars[0]: e for e in jaxpr.eqns}


def test_substitution_follows_chains_and_reaches_the_results():
    closed = traced(lambda x: mnp.sin(mnp.cos(mnp.exp(x))), 2.0)
    exp, co, sin = closed.eqns
    x = closed.jaxpr.invars[0]
    names = {co.outvars[0]: exp.outvars[0], exp.outvars[0]: x}
    assert renamed(sin, names).invars == [x] and renamed(exp, names) is exp
    after = rebuilt(closed.jaxpr, [], {sin.outvars[0]: co.outvars[0], **names})
    assert after.outvars == [x]


def test_equations_are_replaced_dropped_and_kept():
    closed = traced(lambda x: mnp.sin(mnp.exp(x)) + mnp.exp(x), 2.0)

    def rule(eqn):
        match eqn.op.name:
            case "sin":
                return eqn.replace(op=cos)
            case "exp":
                return None  # its operand
        return [eqn]

    after = replaced(closed, rule)
    verify(after)
    np.testing.assert_allclose(eval_jaxpr(after, after.consts, np.float32(2))[0], np.cos(2) + 2, rtol=1e-6)
    assert replaced(closed, lambda eqn: eqn) is closed


def test_rewrites_go_into_bodies_and_calls():
    def f(x):
        return mw.lax.fori_loop(0, 3, lambda i, c: mw.jit(mnp.sin)(c), x) + mw.jit(lambda x: mnp.sin(x))(x)

    closed = traced(f, 0.5)

    def swapped(jaxpr, inside):
        return replaced(
            jaxpr, lambda e: e.replace(op=cos) if e.op.name == "sin" else inside(e, lambda j: swapped(j, inside))
        )

    def names(jaxpr):
        return [e.op.name for e in all_eqns(jaxpr.jaxpr) if e.op.name in ("sin", "cos")]

    assert names(closed) == ["sin", "sin"]
    assert names(swapped(closed, in_jaxprs)) == ["cos", "cos"]
    assert names(swapped(closed, in_regions)) == ["sin", "sin"]  # called functions are none
    for eqn in closed.eqns:
        assert in_jaxprs(eqn, lambda j: j) is eqn and in_regions(eqn, lambda j: j) is eqn


class Depth(Interpreter[int]):
    """The longest chain of equations behind each value."""

    def constant(self, value, aval):
        return 0

    def equation(self, eqn, args):
        return [1 + max(args, default=0)] * len(eqn.outvars)


def test_an_interpreter_decides_what_values_stand_for():
    w = np.ones((2, 2), np.float32)
    closed = traced(lambda x, y: (mnp.sin(mnp.cos(x)) + y * 2.0, w @ x, y), w, w)
    assert any(isinstance(a, Literal) for e in closed.eqns for a in e.invars)
    sums, products, passed = Depth().run(closed, [0, 5])
    assert passed == 5 and products == 1 and sums > 5
    x, y = 0.5 * w, np.arange(4, dtype=np.float32).reshape(2, 2)
    for got, want in zip(Interpreter().run(closed, [x, y]), eval_jaxpr(closed, closed.consts, x, y)):
        np.testing.assert_array_equal(got, want)


def test_results_that_are_operands_or_repeat_are_written_out():
    jaxpr = mw.make_jaxpr(lambda x: mw.jit(lambda x: (x, x + 1))(x))(np.float32(2))
    out = replaced(jaxpr, lambda eqn: written_out(eqn, lambda x: [x, x]) if len(eqn.outvars) == 2 else eqn)
    verify(out)
    assert [float(v) for v in eval_jaxpr(out, out.consts, np.float32(3))] == [3, 3]


def test_values_of_types_are_not_known():
    assert known_values(mw.ShapeDtypeStruct((2,), np.float32)) is None
    assert known_values(np.arange(2)).tolist() == [0, 1]
