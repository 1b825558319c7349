"""Functions of leaves, transformations in JAX's notation, and partial evaluation, beside JAX's own."""

import jax
import jax.api_util
import jax.extend.linear_util
import jax.interpreters.partial_eval
import numpy as np
import pytest

import meshwright as mw
import meshwright.api_util
import meshwright.extend.linear_util
import meshwright.interpreters.partial_eval
from meshwright import errors

BOTH = [mw, jax]


def init(m, f, count=2):
    debug = m.api_util.debug_info("a test", f, (0,) * count, {})
    return m.extend.linear_util.wrap_init(f, debug_info=debug)


@pytest.mark.parametrize("m", BOTH)
def test_functions_of_leaves(m):
    args = (({"a": 0, "b": 0}, 0), {"s": 0})
    f, tree = m.api_util.flatten_fun(
        init(m, lambda x, y, s: [x["a"] + s, (y, x["b"])]), m.tree_util.tree_structure(args)
    )
    assert f.call_wrapped(1, 2, 3, 4) == [5, 3, 2] and tree() == m.tree_util.tree_structure([0, (0, 0)])
    g, tree = m.api_util.flatten_fun_nokwargs(init(m, lambda x: {"y": x[0]}), m.tree_util.tree_structure(([0, 0],)))
    with pytest.raises(m.extend.linear_util.StoreException):
        tree()
    assert g.call_wrapped(1, 2) == [1] and tree() == m.tree_util.tree_structure({"y": 0})
    h, dynamic = m.api_util.argnums_partial(init(m, lambda a, b, c: (a, b, c)), (0, -1), (1, "s", 3))
    assert h.call_wrapped(*(10 * getattr(x, "val", x) for x in dynamic)) == (10, "s", 30)
    tree = m.tree_util.tree_structure(((0, (0, 0)), {"k": 0}))
    assert m.api_util.flatten_axes("axes", tree, (1, None), kws=True) == [1, 1, 1, None]


@pytest.mark.parametrize("m", BOTH)
def test_transformations_in_the_notation_of_generators(m):
    lu = m.extend.linear_util

    @lu.transformation
    def scaled(factor, x):
        y = yield (factor * x,), {}
        yield y + 1

    @lu.transformation_with_aux
    def counted(*xs):
        y = yield xs, {}
        yield y, len(xs)

    @lu.transformation2
    def twice(f, x):
        return f(f(x))

    @lu.transformation_with_aux2
    def noted(f, store, note, x):
        store.store(note)
        return f(x)

    f = twice(scaled(init(m, lambda x: x * x), 3))
    f, count = counted(f)
    f, note = noted(f, "note")
    assert f.call_wrapped(2) == (3 * 37) ** 2 + 1 and count() == 1 and note() == "note"
    other = noted(init(m, abs), "other")[1]
    assert lu.merge_linear_aux(note, other) == (True, "note") and lu.merge_linear_aux(other, note) == (False, "note")


@pytest.mark.parametrize("m", BOTH)
def test_what_is_known_is_computed_and_the_rest_recorded(m):
    pe = m.interpreters.partial_eval

    def f(x, y):
        return [2 * x, (x if x > 1 else -x) * m.numpy.sin(y), y]

    x, y = m.numpy.float32(3), np.arange(4, dtype=np.float32)
    given = [pe.PartialVal.known(x), pe.PartialVal.unknown(m.typeof(y))]
    jaxpr, outs, consts = pe.trace_to_jaxpr_nounits(init(m, f), given)
    assert [p.is_known() for p in outs] == [True, False, False] and outs[0].get_known() == 6
    got = (
        m.core.eval_jaxpr(jaxpr, consts, y) if m is jax else m.jit(m.extend.core.jaxpr_as_fun(closed(jaxpr, consts)))(y)
    )
    np.testing.assert_allclose(got[0], 3 * np.sin(y), rtol=1e-6)
    np.testing.assert_array_equal(got[1], y)
    jaxpr, outs, consts = pe.trace_to_jaxpr_nounits(init(m, f), given, instantiate=True)
    assert not any(p.is_known() for p in outs) and len(jaxpr.outvars) == 3


def closed(jaxpr, consts=()):
    return mw.extend.core.ClosedJaxpr(jaxpr, consts)


@pytest.mark.parametrize("m", BOTH)
def test_dead_code_goes(m):
    pe = m.interpreters.partial_eval
    avals = [m.typeof(np.ones(3, np.float32))] * 3
    jaxpr, types, consts = pe.trace_to_jaxpr_dynamic(init(m, lambda x, y, z: [x + y, m.numpy.sin(z)], 3), avals)
    assert len(types) == 2 and not consts
    left, used = pe.dce_jaxpr(jaxpr, [False, True])
    assert used == [False, False, True] and len(left.eqns) == 1
    left, used = pe.dce_jaxpr(jaxpr, [True, False], instantiate=[False, False, True])
    assert used == [True, True, True] and len(left.eqns) == 1


def test_gradients_through_partial_evaluation():
    """Known values may be tracers of a transformation around it."""

    def f(x):
        pe = mw.interpreters.partial_eval
        given = [pe.PartialVal.known(x), pe.PartialVal.unknown(mw.typeof(np.float32(1)))]
        jaxpr, _, consts = pe.trace_to_jaxpr_nounits(init(mw, lambda x, y: [mw.numpy.sin(x) * y]), given)
        return mw.extend.core.jaxpr_as_fun(closed(jaxpr, consts))(np.float32(2))[0]

    np.testing.assert_allclose(mw.grad(f)(0.5), 2 * np.cos(0.5), rtol=1e-6)


def test_what_does_not_fit_is_refused():
    with pytest.raises(errors.ArgumentError, match="lengths 2, 1"):
        mw.api_util.safe_map(max, [1, 2], [3])
    with pytest.raises(errors.ArgumentTypeError, match="wrap_init"):
        mw.api_util.flatten_fun(abs, mw.tree.structure(((0,), {})))
    with pytest.raises(errors.ArgumentError, match="static argument 1 of type list"):
        mw.api_util.argnums_partial(init(mw, max), 0, (1, [2]))


@pytest.mark.parametrize("call", [((1, (2, 3)), {"k": 1, "j": [1, 2]}), ((1, None, [2]), {}), ((), {"k": {}})])
@pytest.mark.parametrize("argnums", [(), (0,), (1,), (0, 2), (4,)])
@pytest.mark.parametrize("argnames", [(), ("k",), ("z", "j")])
def test_donated_leaves(call, argnums, argnames):
    for tree, kws in ((call, True), (call[0], False)):
        want = jax.api_util.donation_vector(argnums, argnames, jax.tree.structure(tree), kws)
        assert mw.api_util.donation_vector(argnums, argnames, mw.tree.structure(tree), kws) == want
