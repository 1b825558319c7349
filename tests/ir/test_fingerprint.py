"""Programs of which the same bytes stand are the same: over the samples of all ops, and where values look alike."""

from __future__ import annotations

import numpy as np
import pytest
from samples import SAMPLES

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.core.avals import ShapedArray
from meshwright.ir.fingerprint import fingerprint
from meshwright.ir.tracing import typeof
from meshwright.lowering.lower import lower
from meshwright.runtime.eager import single_op_jaxpr

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_programs_of_one_fingerprint_have_one_text():
    """And all ops that have samples are ones whose parameters can be told."""
    texts: dict[bytes, str] = {}
    for sample in SAMPLES:
        jaxpr = single_op_jaxpr(sample.op, [typeof(x) for x in sample.args])
        mark = fingerprint(jaxpr)
        assert mark is not None, sample.id
        try:
            text = lower(jaxpr, "f").as_text()
        except mw.errors.MeshwrightError as error:  # of an axis that is not there
            text = str(error)
        assert texts.setdefault(mark, text) == text, sample.id


def mark(fun, *args):
    return fingerprint(mw.make_jaxpr(fun)(*args))


def by_rule(factor):
    fun = mw.custom_vjp(lambda x: x * 2)
    fun.defvjp(lambda x: (x * 2, None), lambda _, g: (g * factor,))
    return fun


def test_where_a_function_stands_does_not_matter():
    assert mark(lambda x: mnp.sin(x) @ x.T, X) == mark(lambda x: mnp.sin(x) @ x.T, X) is not None


def test_rules_for_derivatives_are_not_what_is_computed():
    assert mark(by_rule(3), X) == mark(by_rule(4), X) == mark(lambda x: x * 2, X) is not None


@pytest.mark.parametrize(
    "one, other",
    [
        (mw.grad(lambda x: by_rule(3)(x).sum()), mw.grad(lambda x: by_rule(4)(x).sum())),
        (lambda x: x * 0.0, lambda x: x * -0.0),
        (lambda x: x + x[0], lambda x: x[0] + x),
        (lambda x: (x, x + 1), lambda x: (x + 1, x)),
        (lambda x: mnp.zeros(3, bool), lambda x: mnp.zeros(3, np.int8)),
        (lambda x: mw.lax.sort(x, dimension=0), lambda x: mw.lax.sort(x, dimension=1)),
        (lambda x: x + np.array([1, 2, 3], np.float32), lambda x: x + np.array([1, 2, 4], np.float32)),
        (
            lambda x: mw.lax.fori_loop(0, 3, lambda i, c: c + i, x),
            lambda x: mw.lax.fori_loop(0, 3, lambda i, c: c * i, x),
        ),
    ],
)
def test_other_programs_have_others(one, other):
    assert mark(one, X) != mark(other, X)


@pytest.mark.parametrize("one, other", [(1, True), (1, 1.0), (0.0, -0.0), ((1,), [1]), ("1", 1)])
def test_values_that_are_equal_are_told_apart(one, other):
    assert fingerprint(one) != fingerprint(other)


def test_types_tell_all_that_they_are():
    one = ShapedArray((2,), np.dtype(np.float32))
    others = [one.update(weak_type=True), one.update(vma=frozenset("a")), one.update(memory="pinned_host")]
    assert len({fingerprint(a) for a in (one, *others)}) == 4


def test_what_users_wrote_is_not_told():
    shape = mw.ShapeDtypeStruct((), np.float32)
    assert mark(lambda x: mw.pure_callback(lambda v: np.float32(v.sum()), shape, x), X) is None
    large = np.zeros(1 << 17, np.float32)
    assert mark(lambda x: x.sum() + mnp.asarray(large), X) is None
    assert fingerprint(lambda: 1) is None
