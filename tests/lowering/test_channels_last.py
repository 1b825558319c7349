"""Convolutions with features last: the same values, and transpositions only where an op minds the order."""

from itertools import permutations, product

import numpy as np
import pytest

import meshwright as mw
from meshwright import lax
from meshwright import numpy as mnp
from meshwright.ir.tracing import eval_jaxpr
from meshwright.lowering.channels_last import channels_last
from meshwright.lowering.orders import in_order, inverse, reshaped, with_order
from meshwright.ops.shape.rearrange import Rev
from meshwright.ops.shape.slice_pad import Concatenate, Pad, Slice
from meshwright.ops.window.reductions import ReduceWindowMax, ReduceWindowSum

RNG = np.random.default_rng(0)


def _random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


X, W, V = _random(2, 3, 9, 10), _random(4, 3, 3, 3), _random(4, 4, 3, 3)


def _convolved(x, w, strides=(1, 1), groups=1):
    return lax.conv_general_dilated(x, w, strides, [(1, 1), (1, 1)], feature_group_count=groups)


def _pooled(y):
    return lax.reduce_window(y, -np.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), [(0, 0), (0, 0), (1, 1), (1, 1)])


#: what may stand between two convolutions, and how many transpositions it takes
BETWEEN = {
    "elementwise": (lambda y: mnp.where(y > 0, mnp.sin(y) * 2, y), 0),
    "per feature": (lambda y: y * mnp.arange(4.0)[:, None, None] + 1, 1),
    "per picture": (lambda y: y - mnp.mean(y, (1, 2, 3), keepdims=True), 1),
    "normalized": (lambda y: (y - mnp.mean(y, (0, 2, 3), keepdims=True)) * mnp.max(y, (0, 2, 3))[:, None, None], 2),
    "pool": (_pooled, 0),
    "slice, pad, rev": (lambda y: mnp.pad(y[:, ::2, 1:], ((0, 0), (1, 1), (0, 0), (1, 2)))[:, :, ::-1], 0),
    "concatenate": (lambda y: mnp.concatenate([y[:, :1], y[:, 2:], y[:, :1]], 1), 0),
    "joined rows": (lambda y: mnp.tanh(y.reshape(2, 4, -1)).reshape(y.shape), 0),
    "transposed": (lambda y: mnp.cos(y.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2), 0),
    "features cut": (lambda y: mnp.exp(y.reshape(2, 2, 2, *y.shape[2:])).reshape(y.shape), 0),
    "features mixed with rows": (lambda y: y.reshape(2, -1)[:, ::-1].reshape(y.shape), 2),
    "cumulative": (lambda y: lax.cumsum(y, 2), 2),
}  # fmt: skip


def _moves(eqn):
    return eqn.op.name == "transpose" and list(eqn.op.permutation) != sorted(eqn.op.permutation)


@pytest.fixture(scope="module")
def compared():
    """All of the programs and their gradients, each as it is and with features last, in one compiled program."""
    jaxprs = {}
    for name, (between, _) in BETWEEN.items():
        net = lambda x, w, v, between=between: _convolved(between(_convolved(x, w)), v, (2, 1))  # noqa: E731
        loss = lambda x, w, v, net=net: mnp.sum(mnp.sin(net(x, w, v)))  # noqa: E731
        jaxprs[name] = mw.make_jaxpr(net)(X, W, V), mw.make_jaxpr(mw.grad(loss, argnums=(0, 1, 2)))(X, W, V)

    def run(*args):
        both = lambda j: [eval_jaxpr(k, k.consts, *args) for k in (j, channels_last(j)[0])]  # noqa: E731
        return {name: [both(j) for j in pair] for name, pair in jaxprs.items()}

    return jaxprs, mw.jit(run)(X, W, V)


@pytest.mark.parametrize("name", BETWEEN)
def test_values_and_gradients_are_the_same(compared, name):
    for plain, last in compared[1][name]:
        for a, b in zip(plain, last):
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5 * np.abs(a).max())


@pytest.mark.parametrize("name", BETWEEN)
def test_transpositions_stand_at_the_ends_alone(compared, name):
    after, _ = channels_last(compared[0][name][0])
    assert sum(map(_moves, after.eqns)) <= 2 + BETWEEN[name][1]  # of the picture and the result


def test_features_that_are_last_already_stay():
    numbers = ("NHWC", "HWIO", "NHWC")
    net = lambda x, w: mnp.tanh(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers))  # noqa: E731
    jaxpr = mw.make_jaxpr(net)(_random(2, 5, 6, 3), _random(3, 3, 3, 4))
    assert [str(e.op) for e in channels_last(jaxpr)[0].eqns] == [str(e.op) for e in jaxpr.eqns]


def test_free_results_are_left_as_they_are_stored():
    jaxpr = mw.make_jaxpr(lambda x, w: (_convolved(x, w), mnp.exp(_convolved(x, w)), x))(X, W)
    after, orders = channels_last(jaxpr, [1, 2])
    plain, last = (eval_jaxpr(j, j.consts, X, W) for j in (jaxpr, after))
    assert orders == {1: (0, 2, 3, 1), 2: (0, 2, 3, 1)}
    for i, (a, b) in enumerate(zip(plain, last)):
        b = np.transpose(b, inverse(orders[i])) if i in orders else b
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)


def test_a_parameter_is_also_returned():
    x, y = mw.jit(lambda x, w: (x, _convolved(x, w)))(X, W)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_allclose(y, _convolved(X, W), rtol=1e-5, atol=1e-5)


def test_bodies_of_loops_and_groups_of_features():
    def steps(x, v):
        return lax.scan(lambda c, _: (mnp.tanh(_convolved(c, v, groups=2)), None), x, length=2)[0]

    x, v = _random(2, 4, 5, 6), _random(4, 2, 3, 3)
    jaxpr = mw.make_jaxpr(steps)(x, v)
    after, _ = channels_last(jaxpr)
    assert after is not jaxpr
    np.testing.assert_allclose(*(eval_jaxpr(j, j.consts, x, v)[0] for j in (jaxpr, after)), atol=1e-5)


def test_ops_in_every_order():
    x = _random(3, 4, 5)
    ones, pads = (1, 1, 1), ((0, 0), (1, 0), (0, 1))
    ops = {
        "slice": (Slice((1, 0, 2), (3, 3, 5), (1, 2, 1)), [x]),
        "pad": (Pad(((1, 0, 2), (0, -1, 0), (3, 1, 1))), [x, np.float32(7)]),
        "rev": (Rev((0, 2)), [x]),
        "concatenate": (Concatenate(1), [x, -x, x]),
        "max": (lax.max, [x, -x]),
        "sums": (ReduceWindowSum((1, 1, 2), (2, 1, 1), ((0, 0),) * 3, ones, ones), [x]),
        "maxima": (ReduceWindowMax((1, 2, 2), (1, 1, 2), pads, ones, ones), [x]),
    }

    def run():
        results = {}
        for (name, (op, operands)), order in product(ops.items(), permutations(range(3))):
            other = with_order(op, order)
            if other is None:  # the first of equal ones is another then
                assert name == "maxima" and order.index(1) > order.index(2)
                continue
            stored = [mnp.transpose(a, order) if a.ndim else a for a in operands]
            results[name, order] = mnp.transpose(other.bind(*stored), inverse(order)), op.bind(*operands)
        return results

    found = mw.jit(run)()
    assert len(found) == 6 * 6 + 3
    for got, expected in found.values():
        np.testing.assert_array_equal(got, expected)


def test_reshapes_of_what_is_stored():
    x = np.arange(2 * 3 * 4 * 6).reshape(2, 3, 4, 6)
    cases = [(2, 3, 24), (2, 3, 4, 2, 3), (2, 1, 3, 4, 6, 1), (6, 4, 6), (2, 12, 6), (144,), (2, 3, 2, 2, 6)]
    for shape in cases:
        for order in permutations(range(4)):
            after = reshaped(order, x.shape, shape)
            if after is not None:
                stored = x.transpose(order).reshape(in_order(shape, after))
                np.testing.assert_array_equal(stored.transpose(inverse(after)), x.reshape(shape))
    assert reshaped((0, 2, 3, 1), x.shape, (2, 3, 24)) == (0, 2, 1)
    assert reshaped((0, 2, 3, 1), x.shape, (2, 12, 6)) is None
