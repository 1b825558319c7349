"""References to arrays that change: what they hold after each use, beside JAX's, and what is refused."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from threading import Event, Thread

import jax
import jax.numpy as jnp
import jax.ref
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeletedArrayError,
    DTypeError,
    MeshwrightError,
    ShapeError,
    TangentMismatchError,
    UnexpectedTracerError,
)

ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


def indices(m, n, l):
    r = m.new_ref(ROWS)
    r[0] = n.full(4, 5.0)
    r[1, 2:] += 1
    r[...] = r[...] * 2
    before = m.ref.swap(r, 2, n.arange(4.0))
    m.ref.addupdate(r, np.array([0, 0]), n.ones((2, 4)))
    m.ref.set(r, (1, 1), 7.0)
    return m.ref.get(r), r[1], before, r.shape, r.size, len(r), m.freeze(r)


def loops(m, n, l):
    r, s = m.new_ref(n.zeros(3)), m.new_ref(n.array(0))

    def outer(c, i):
        def inner(c, x):
            r[i] += x * c
            return c + r[0], r[...]

        return l.scan(inner, c, n.arange(2.0))

    def body(i, c):
        s[...] += i
        return c * 2

    out = l.scan(outer, 1.0, n.arange(3)), l.fori_loop(0, 3, body, 1.0)
    l.map(lambda i: r.__setitem__(0, i * 2.0), n.arange(3))
    l.fori_loop(0, s[...], lambda i, c: m.ref.addupdate(r, 1, i * 1.0), None)
    l.while_loop(lambda c: c < 2, lambda c: (m.ref.addupdate(r, 2, -1.0), c + 1)[1], 0)
    return out, r[...], s[...]


def branches(m, n, l, p):
    r, s = m.new_ref(n.zeros(2)), m.new_ref(n.array(1))
    l.cond(p, lambda x: r.__setitem__(0, x), lambda x: r.__setitem__(1, x * 2), 3.0)
    out = l.switch(s[...], [lambda: s[...] * 2, lambda: (s.__setitem__(..., 5), 1)[1]])
    return r[...], s[...], out


def gradients(m, n, l):
    def summed(x):
        r = m.new_ref(x)

        def body(c, i):
            r[i] = r[i] * c
            return c + r[i].sum(), None

        c, _ = l.scan(body, 1.0, n.arange(3))
        return (r[...] ** 2).sum() * c

    return m.grad(summed)(ROWS / 10), m.jit(m.vmap(m.grad(summed)))(np.stack([ROWS / 10, ROWS / 9]))


def arguments(m, n, l):
    r = m.new_ref(n.zeros(3))

    @m.jit
    def counted(r, x):
        r[1] += x
        r[0] = r[1] * 2
        return x + 1

    outs = [counted(r, 2.0), counted(r, 3.0)]
    partial(m.jit, static_argnums=1)(lambda t, k: t["r"].__setitem__(k, 9.0))({"r": r}, 2)

    @m.jit
    def inside(x):
        made = m.new_ref(x)
        counted(made, x[0])
        return m.freeze(made)

    return outs, r[...], inside(n.arange(1.0, 4.0))


def closures(m, n, l):
    r, s = m.new_ref(n.zeros(3)), m.new_ref(n.array(1.0))

    @m.jit
    def counted(i):
        r[i] += s[...]
        return r[0]

    @partial(m.jit, static_argnums=0)
    def outer(twice, xs):
        if twice:
            s[...] *= 2
        return l.scan(lambda c, x: (c + counted(0), r[...] * x), 0.0, xs)

    return counted(1), counted(0), outer(True, n.arange(2.0)), outer(False, n.arange(2.0)), r[...], s[...]


def mapped(m, n, l):
    r, s, t = m.new_ref(n.array(ROWS.T)), m.new_ref(n.arange(3.0)), m.new_ref(n.zeros(3))

    def f(refs, x):
        r, s = refs["r"], refs["s"]
        r[1] += x * s[0] * t[2]
        s[...] = l.fori_loop(0, 2, lambda i, c: c + r[i], s[...])
        return r[...].sum(), r.shape[0] * x

    outs = m.vmap(f, in_axes=({"r": 0, "s": None}, 0), out_axes=(0, None))
    with pytest.raises(Exception, match="vmap"):
        outs({"r": r, "s": s}, n.arange(4.0))

    def g(r, x):
        r[1] += x * s[0] * t[2]
        l.scan(lambda c, i: (r.__setitem__(0, r[0] + i * s[1]), None), None, n.arange(3.0))
        return r[...].sum() + s[...].sum()

    first = m.vmap(g)(r, n.arange(4.0))

    def h(x):
        t[0] = l.stop_gradient(x) * 2
        return x**2 * s[1] + t[0]

    assert str(m.typeof(t)) == "Ref{float32[3]}"
    return first, r[...], m.grad(h)(3.0), m.jit(m.value_and_grad(h))(2.0), t[...]


def checkpointed(m, n, l):
    r = m.new_ref(n.zeros(3))

    def counted(r, x):
        r[0] = x + r[1]
        return r[0] * x

    def closing(x):
        r[1] += r[0]
        return m.checkpoint(lambda x: n.sin(x * r[1]))(x)

    assert m.eval_shape(counted, r, 1.0).shape == m.eval_shape(m.jit(closing), 1.0).shape == ()
    outs = [m.checkpoint(counted)(r, 2.0), m.checkpoint(closing)(3.0), r[...], m.jit(m.checkpoint(closing))(3.0)]
    read = m.checkpoint(lambda r, x: n.sin(x * r[1]))
    return outs, r[...], m.grad(read, argnums=1)(r, 1.0), m.vmap(partial(read, r))(n.arange(3.0)), r[...]


@pytest.mark.parametrize(
    "use",
    [
        checkpointed,
        closures,
        mapped,
        indices,
        loops,
        partial(branches, p=np.bool_(True)),
        partial(branches, p=np.bool_(False)),
        gradients,
        arguments,
    ],
    ids=["checkpointed", "closures", "mapped", "indices", "loops", "true", "false", "gradients", "arguments"],
)
@pytest.mark.parametrize("whole", [False, True], ids=["", "jit"])
def test_references_hold_what_jax_has_in_them(use, whole):
    modules = (mw, mnp, mw.lax), (jax, jnp, jax.lax)
    got, want = ((m.jit(partial(use, m, n, l)) if whole else partial(use, m, n, l))() for m, n, l in modules)
    for a, b in zip(mw.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert not hasattr(b, "dtype") or a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_references_are_mapped_along_any_axis():
    def f(r, x):
        r[1] += x
        return r[...].sum()

    rows, columns = mw.new_ref(mnp.array(ROWS)), mw.new_ref(mnp.array(ROWS.T))
    outs = mw.vmap(f, in_axes=(1, 0))(rows, mnp.arange(4.0)), mw.vmap(f)(columns, mnp.arange(4.0))
    np.testing.assert_array_equal(*outs)
    np.testing.assert_array_equal(rows[...], columns[...].T)
    np.testing.assert_array_equal(rows[1], ROWS[1] + np.arange(4))


@pytest.mark.parametrize("whole", [False, True], ids=["", "jit"])
def test_references_that_are_only_read_may_be_of_an_outer_trace(whole):
    """Loops, branches and jitted functions write back those that they wrote, and no others."""
    s = mw.new_ref(mnp.arange(3.0))

    def f(x):
        x, _ = lax.scan(lambda c, i: (c + i * s[1], None), x, mnp.arange(3.0))
        x = lax.while_loop(lambda x: x < s[2] * 4, lambda x: x + s[1], x)
        x = lax.cond(x > 9, lambda: x * s[1], lambda: x - s[2])
        return mw.jit(lambda x: x + s[2])(x)

    g = mw.jit(f) if whole else f
    for _ in range(2):
        np.testing.assert_array_equal(mw.vmap(g)(mnp.array([0.0, 7.0])), [8.0, 12.0])
        np.testing.assert_array_equal(mw.vmap(mw.jacfwd(g))(mnp.array([0.0, 7.0])), [1.0, 1.0])
    np.testing.assert_array_equal(s[...], [0, 1, 2])

    def writes(x):
        def body(i, x):
            s[0] = x
            return x

        return lax.fori_loop(0, 2, body, x)

    with pytest.raises(ArgumentError, match="under vmap"):
        mw.vmap(writes)(mnp.arange(3.0))
    np.testing.assert_array_equal(s[...], [0, 1, 2])


def test_what_a_condition_reads_is_what_the_body_wrote():
    def counted(x):
        r = mw.new_ref(mnp.array(5))
        return lax.while_loop(lambda c: r[...] < 9, lambda c: (r.addupdate(1), c * 2)[1], x), r[...]

    assert [int(v) for v in mw.jit(counted)(1)] == [16, 9]


def test_references_to_sharded_arrays():
    mesh = mw.make_mesh((2, 2), ("a", "b"), devices=mw.devices()[:4])
    split = NamedSharding(mesh, P("a", "b"))
    r = mw.new_ref(mw.device_put(mnp.zeros((4, 4)), split))
    add = mw.jit(lambda r, x: r.addupdate(x), in_shardings=(split, None), out_shardings=None)
    for _ in range(2):
        add(r, np.ones((4, 4), np.float32))
    assert r[...].sharding == split and float(r[...].sum()) == 32

    def loss(w, xs):
        total = mw.new_ref(mnp.zeros((4, 4)))
        lax.scan(lambda c, x: (total.addupdate(c @ x), (c * 2, None))[1], w, xs)
        return (total[...] ** 2).sum()

    xs = np.arange(48, dtype=np.float32).reshape(3, 4, 4) / 9
    part = mw.jit(mw.grad(loss), in_shardings=(split, NamedSharding(mesh, P(None, "b")))).lower(xs[0], xs).partition()
    part.verify(xs[0], xs)


def test_refusals(refuses):
    r, x = mw.new_ref(mnp.zeros(3)), mnp.ones(3)
    gone = mw.new_ref(x)
    assert mw.freeze(gone).tolist() == [1, 1, 1]
    for error, words, call in (
        (DeletedArrayError, ("was frozen", "new_ref"), lambda: gone[0]),
        (DTypeError, ("i32[3]", "f32[3]", ".astype"), lambda: r.__setitem__(..., np.arange(3))),
        (ArgumentError, ("given twice",), lambda: mw.jit(lambda a, b: None)(r, r)),
        (
            ArgumentError,
            ("cond_fun writes",),
            lambda: lax.while_loop(lambda c: r.addupdate(1.0) or c, lambda c: c, True),
        ),
        (ArgumentTypeError, ("returned output",), lambda: mw.jit(mw.new_ref)(1.0)),
        (ArgumentTypeError, ("Ref",), lambda: mnp.sin(r)),
        (ArgumentTypeError, ("ref[...]",), lambda: np.asarray(r)),
        (ArgumentTypeError, ("ref.get", "new_ref"), lambda: mw.ref.get(x, 0)),
        (ArgumentError, ("memory_space",), lambda: mw.new_ref(x, memory_space="host")),
    ):
        with refuses(error, *words):
            call()
    inner = mw.grad(lambda c: c * r[0])
    assert lax.scan(lambda c, i: (c, inner(c)), mnp.ones(()), x)[1].tolist() == [0, 0, 0]
    with refuses(UnexpectedTracerError, "reference to f32[3]", "make it inside"):
        mw.make_jaxpr(lambda x: r[...].sum() * x)(mnp.ones(()))
    with refuses(ArgumentTypeError, "make_jaxpr", "r[...]"):
        mw.make_jaxpr(lambda r: r[...] * 2)(r)
    for transformed, each in ((mw.grad, x[0]), (mw.vmap, x)):
        with refuses(ArgumentError, "reference to f32[3]", "one value"):
            transformed(lambda x: (r.__setitem__(0, x), x)[1])(each)
    with refuses(ArgumentError, "one value"):
        mw.vmap(lambda x: r.__setitem__(0, 1.0))(x)
    with refuses(ArgumentError, "given twice"):
        mw.vmap(lambda a, b: None)(r, r)
    assert r[...].tolist() == [0, 0, 0] and repr(r) == "Ref([0., 0., 0.], dtype=float32)"


# --- derivatives ----------------------------------------------------------------------------------------------
@mw.custom_vjp
def stash(kept, x):
    """``x``; what arrives for it in a backward pass is written to the reference."""
    return x


def _stash_back(kept, ct):
    kept[...] = ct
    return None, ct


stash.defvjp(lambda kept, x: (x, kept), _stash_back)


def test_backward_rules_write_references_that_are_arguments():
    def f(x, kept):
        return stash(kept, mnp.sin(x)) ** 2

    for differentiated in (mw.grad(f), mw.jit(mw.grad(f))):
        kept = mw.new_ref(0.0)
        np.testing.assert_allclose(differentiated(1.0, kept), np.sin(2.0), rtol=1e-6)
        np.testing.assert_allclose(kept[...], 2 * np.sin(1.0), rtol=1e-6)
    each = mw.new_ref(mnp.zeros(3))
    mw.vmap(mw.grad(f))(mnp.arange(3.0), each)
    np.testing.assert_allclose(each[...], 2 * np.sin(np.arange(3)), rtol=1e-6)


def test_cotangents_are_added_to_references():
    @mw.jit
    def step(weights, rows, total):
        def one(loss, x):
            out, f_vjp = mw.vjp(lambda w, x: mnp.sum(w["w"] * x**2), weights, x)
            arrived = f_vjp.with_refs({"w": total}, False)(1.0)
            return loss + out, arrived[1]

        return lax.scan(one, 0.0, rows)

    rows, total = mnp.arange(6.0).reshape(3, 2), mw.new_ref(mnp.ones(2))
    loss, of_rows = step({"w": mnp.ones(2)}, rows, total)
    assert loss == (rows**2).sum()
    np.testing.assert_array_equal(of_rows, 2 * rows)
    np.testing.assert_array_equal(total[...], 1 + (rows**2).sum(0))
    f_vjp = mw.vjp(mnp.sin, 1.0)[1]
    with pytest.raises(TangentMismatchError, match="with_refs"):
        f_vjp.with_refs(total, total)
    with pytest.raises(ShapeError, match=r"\(2,\)"):
        f_vjp.with_refs(total)


def test_cotangents_that_are_not_wanted_are_not_computed():
    weights, x, total = mnp.arange(6.0).reshape(2, 3), mnp.arange(3.0) + 1, mw.new_ref(mnp.zeros(3))
    f_vjp = mw.vjp(lambda w, x, i: mnp.sin(w @ x)[i], weights, x, 1)[1]
    ct, want = 2.0, mw.grad(lambda w, x: 2 * mnp.sin(w @ x)[1], (0, 1))(weights, x)
    no, value = mw.ad.DontWant(), mw.ad.GradValue()
    of_weights, of_x, of_i = f_vjp.with_refs(value, no, no)(ct)
    np.testing.assert_allclose(of_weights, want[0], rtol=1e-6)
    assert of_x == of_i == mw.ad.DidntWant() != mw.ad.GradRef()
    of_weights, of_x, _ = mw.jit(lambda: f_vjp.with_refs(no, total, value)(ct))()
    np.testing.assert_allclose(total[...], want[1], rtol=1e-6)
    assert (repr(of_weights), repr(of_x)) == ("DidntWant()", "GradRef()")

    def products(*refs):
        return str(mw.make_jaxpr(lambda: f_vjp.with_refs(*refs)(ct))()).count("dot_general")

    assert [products(value, value, no), products(value, no, no), products(no, no, no)] == [2, 1, 0]


def test_the_address_of_what_a_reference_holds():
    ref = mw.new_ref(mnp.arange(3.0))
    assert ref.unsafe_buffer_pointer() == ref[...].unsafe_buffer_pointer()


def test_arguments_are_left_out_of_what_vjp_returns_and_put_back():
    weights, x = mnp.eye(2), mnp.arange(2.0)
    out, f_vjp = mw.jit(lambda *args: mw.vjp(mnp.matmul, *args))(weights, x)
    assert [a.shape for a in f_vjp.args_res] == [(2, 2), (2,)]
    f_vjp.args_res[0] = None
    assert len(mw.tree.leaves(f_vjp)) == 1
    with pytest.raises(ArgumentTypeError, match=r"args_res\[0\]"):
        f_vjp(out)
    f_vjp.args_res[0] = 2 * weights
    np.testing.assert_array_equal(mw.jit(lambda pull, ct: pull(ct))(f_vjp, mnp.ones(2))[1], [2, 2])


def test_tangents_of_references_are_references():
    def scaled(ref, x):
        ref[...] = ref[...] * x
        return ref[...] + x

    ref, along = mw.new_ref(2.0), mw.new_ref(1.0)
    assert mw.jvp(scaled, (ref, 3.0), (along, 1.0)) == (9.0, 6.0)
    assert (ref[...], along[...]) == (6.0, 5.0)
    out, f_jvp = mw.linearize(scaled, ref, 2.0)
    assert (out, ref[...]) == (14.0, 12.0)
    assert (f_jvp(along, 1.0), along[...]) == (17.0, 16.0)
    with pytest.raises(TangentMismatchError, match="references too"):
        mw.jvp(scaled, (ref, 3.0), (1.0, 1.0))


# --- other functions that are given references -----------------------------------------------------------------
def test_branches_loops_and_regions_are_given_references():
    def write(ref):
        ref[...] = 5.0

    ref = mw.new_ref(1.0)
    mw.jit(lambda which, ref: lax.cond(which, write, lambda ref: None, ref))(True, ref)
    assert ref[...] == 5.0

    def doubled(total, row):
        row[...] *= 2
        return total + row[...].sum(), None

    rows = mw.new_ref(mnp.arange(6.0).reshape(3, 2))
    assert lax.scan(doubled, 0.0, rows)[0] == 30.0
    np.testing.assert_array_equal(rows[...], 2.0 * np.arange(6).reshape(3, 2))

    def first(ref, x):
        ref[0] = x[1]
        return x

    mesh, parts = mw.make_mesh((3,), ("x",)), mw.new_ref(mnp.zeros(6))
    mw.shard_map(first, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(parts, mnp.arange(6.0))
    np.testing.assert_array_equal(parts[...], [1, 0, 3, 0, 5, 0])


def test_a_reference_is_not_given_to_a_function_that_closes_over_it():
    ref = mw.new_ref(1.0)

    @mw.jit
    def both(given):
        given[...] = 2.0
        return ref[...]

    with pytest.raises(ArgumentError, match="also closes over it"):
        both(ref)
    assert both(mw.new_ref(0.0)) == 1.0


def test_references_to_numbers_are_weakly_typed():
    ref = mw.new_ref(1.0)
    assert (ref[...] * mnp.float16(2)).dtype == "float16"
    ref[...] = mnp.float32(3)
    assert ref[...].weak_type


def test_threads_may_give_one_reference_to_a_function():
    """Which writes come last is not known, but none is refused, also while one of them traces."""
    ref, tracing, go_on = mw.new_ref(mnp.zeros(3)), Event(), Event()

    @mw.jit
    def doubled(ref, x):
        tracing.set()
        assert go_on.wait(60)
        ref[...] = x * 2

    first = Thread(target=doubled, args=(ref, mnp.ones(3)))
    first.start()
    assert tracing.wait(60)
    mw.jit(lambda ref: ref.__setitem__(..., ref[...] + 1))(ref)
    assert ref[...].tolist() == [1, 1, 1]
    go_on.set()
    first.join()
    assert ref[...].tolist() == [2, 2, 2]


# --- in place -------------------------------------------------------------------------------------------------------
LARGE = (200, 128)


def _write(ref, i, x):
    ref[i] = x


def _closing(ref):
    return mw.jit(lambda i, x: _write(ref, i, x))


def _given(ref):
    return partial(mw.jit(_write), ref)


@pytest.mark.parametrize("made", [_closing, _given])
def test_jitted_functions_update_large_references_in_place(made):
    ref = mw.new_ref(mnp.zeros(LARGE))
    write = made(ref)
    write(0, 1.0)
    memory = ref.unsafe_buffer_pointer()
    for i in range(1, 4):
        row = ref[i - 1]  # a read of a part
        write(i, i + 1.0)
        assert ref.unsafe_buffer_pointer() == memory and row[0] == i
    assert ref[:5, 0].tolist() == [1, 2, 3, 4, 0]


def _read_by_a_function(ref):
    return mw.jit(lambda: ref[...])()


def _read_where_it_is_written(ref):
    def bump():
        ref[...] += 1
        return ref[...]

    return mw.jit(bump)()


def _given_to_another(ref):
    array = mnp.full(LARGE, 3.0)
    mw.jit(lambda x: ref.__setitem__(..., x))(array)
    return array


def _of_two(ref):
    other = mw.new_ref(mnp.zeros(LARGE))

    def same():
        ref[...] = ref[...] + 1
        other[...] = ref[...]

    mw.jit(same)()
    _closing(ref)(0, 5.0)
    return other[...]


@pytest.mark.parametrize("made", [_closing, _given])
@pytest.mark.parametrize("kept", [
    lambda ref: ref[...], lambda ref: np.asarray(ref[...]), lambda ref: ref[:],
    lambda ref: mnp.reshape(ref[...], (-1, 2)), lambda ref: (ref.__setitem__(..., 2 * ref[...]), ref[...])[1],
    lambda ref: lax.cond(True, lambda: ref[...], lambda: ref[...] + 1), lambda ref: mw.vmap(lambda r: r[...])(ref),
    lambda ref: mw.ref.swap(ref, ..., mnp.full(LARGE, 7.0)), _read_by_a_function, _read_where_it_is_written,
    _given_to_another, _of_two,
])  # fmt: skip
def test_what_else_has_the_value_of_a_reference_keeps_it(made, kept):
    first = mnp.arange(float(np.prod(LARGE))).reshape(LARGE)
    ref = mw.new_ref(first)
    write = made(ref)
    write(1, 4.0)
    array = kept(ref)
    before, known = np.array(array), np.array(ref[...])
    for i in range(3):
        write(i, -1.0 - i)
        known[i] = -1 - i
    np.testing.assert_array_equal(array, before)
    np.testing.assert_array_equal(ref[...], known)
    assert first[1, 1] == LARGE[1] + 1  # what it was made of


def test_references_on_a_mesh_are_updated_in_place_and_keep_their_sharding():
    mesh = mw.make_mesh((4,), ("x",))
    sharding = NamedSharding(mesh, P("x"))
    cache, params = (mw.new_ref(mw.device_put(mnp.zeros(LARGE), sharding)) for _ in range(2))

    @mw.jit
    def step(params, x, *, factor):
        params[...] = params[...] * factor + x
        cache[2] = x[0]
        return cache[0, 0] + params[1, 1]

    x = mw.device_put(mnp.ones(LARGE), sharding)
    outs = [float(step(params, x, factor=2.0)) for _ in range(3)]
    held = [r.held for r in (cache, params)]
    step(params, x, factor=2.0)
    assert outs == [1, 3, 7] and all(x.is_deleted() for x in held)
    assert cache.sharding.is_equivalent_to(sharding, 2) and params.sharding.is_equivalent_to(sharding, 2)
    assert params[...].tolist() == np.full(LARGE, 15.0).tolist() and cache[2, 3] == 1 and cache[1, 3] == 0


# --- stages ---------------------------------------------------------------------------------------------------------
def test_stages_take_references_and_update_them():
    mesh = mw.make_mesh((4,), ("x",))
    cache = mw.new_ref(mw.device_put(mnp.zeros(LARGE), NamedSharding(mesh, P("x"))))
    count = mw.new_ref(mnp.int32(0))

    @mw.jit
    def step(state, i, *, scale):
        count[...] += 1
        state["cache"][mw.ds(i, 1)] = scale * mnp.ones((1, LARGE[1]))
        return state["cache"][...].sum() + state["more"]

    def args(i):
        return {"cache": cache, "more": mnp.ones(())}, mnp.int32(i)

    lowered = step.lower(*args(0), scale=2.0)
    part = lowered.partition()
    assert "all_reduce over x" in str(part.explain()) and "state['cache']" in {
        a.name for a in lowered.program.arguments
    }
    part.verify()
    for n, run in enumerate((step, lowered.compile(), part, part.compile(), step), 1):
        held = cache.held
        assert run(*args(n), scale=2.0) == 1 + 2 * LARGE[1] * n
        assert count[...] == n and cache[n, 3] == 2 and cache[n + 1, 3] == 0 and held.is_deleted() == (n > 1)
    assert cache.sharding.is_equivalent_to(NamedSharding(mesh, P("x")), 2)


def test_what_else_has_a_value_keeps_it_through_stages():
    ref = mw.new_ref(mnp.zeros(LARGE))
    compiled = mw.jit(_write).lower(ref, 0, 1.0).compile()
    compiled(ref, 0, 1.0)
    before = ref[...]
    compiled(ref, 0, 2.0)
    assert before[0, 0] == 1 and ref[0, 0] == 2


def test_stages_refuse_references_elsewhere(refuses):
    ref, x = mw.new_ref(mnp.zeros(3)), mnp.ones(3)
    compiled = mw.jit(lambda a, b: a[...] + b[...]).lower(ref, x).compile()
    assert compiled(ref, x).tolist() == [1, 1, 1]
    with refuses(ArgumentTypeError, "make it again"):
        compiled(x, x)
    with refuses(ArgumentTypeError, "make it again"):
        compiled(x, ref)
    with refuses(ShapeError, "argument a of type"):
        compiled(mw.new_ref(mnp.zeros(4)), x)
    with refuses(ArgumentTypeError, "expected an array"):
        mw.jit(lambda a: a + 1).lower(mnp.ones(3)).compile()(ref)


def test_what_a_function_with_references_returns_and_what_it_cannot_become(refuses):
    ref, other = mw.new_ref(mnp.zeros(3)), mw.new_ref(mnp.zeros(3))
    f = mw.jit(lambda a, x: (a.__setitem__(0, x), other.addupdate(x), {"y": x})[2])
    assert mw.eval_shape(f, ref, 1.0)["y"].shape == () == f.eval_shape(ref, 1.0)["y"].shape
    with refuses(UnexpectedTracerError, "make it inside"):
        mw.export.export(mw.jit(lambda x: other[...] + x))(1.0)
    with refuses(ArgumentTypeError, "expected an array"):
        mw.export.export(f)(ref, 1.0)
    with refuses(ArgumentTypeError, "closes over references"):
        pickle.dumps(f.lower(ref, 1.0))
    given = pickle.loads(pickle.dumps(mw.jit(_write).lower(ref, 0, 1.0)))
    given.compile()(ref, 0, 5.0)
    assert ref[0] == 5


def _writes_where(is_written, ref, x):
    if is_written:
        ref[0] = x
    return ref[1, 0]


def test_what_is_kept_when_a_function_first_writes_in_a_later_trace():
    step = mw.jit(_writes_where, static_argnums=0)
    first = mnp.full(LARGE, 3.0)
    ref = mw.new_ref(first)
    step(False, ref, 1.0)
    step(True, ref, 1.0)
    array = ref[...]
    step(False, ref, 2.0)
    for x in (2.0, 3.0):
        step(True, ref, x)
    memory = ref.unsafe_buffer_pointer()
    step(True, ref, 4.0)
    step(False, ref, 5.0)
    step(True, ref, 6.0)
    assert (first[0, 0], array[0, 0], ref[0, 0]) == (3, 1, 6) and ref.unsafe_buffer_pointer() == memory


def test_values_that_a_function_moves_from_its_argument_to_another_reference():
    ref, other = (mw.new_ref(mnp.zeros(LARGE)) for _ in range(2))
    move = mw.jit(lambda r: other.__setitem__(..., r[...]))
    write = _closing(ref)
    for x in (1.0, 2.0):
        write(0, x)
        move(ref)
    write(0, 3.0)
    assert other[0, 0] == 2 and ref[0, 0] == 3


def _small(x):
    if x > 2:
        raise ValueError("too large")
    return x


def test_references_keep_their_values_when_a_function_fails():
    ref = mw.new_ref(mnp.ones(LARGE))

    @mw.jit
    def called(x):
        ref[0] = mw.pure_callback(_small, mw.ShapeDtypeStruct((), "float32"), x)

    @mw.jit
    def divided(x):
        ref[...] = ref[...] / x

    for f, x in ((called, 3.0), (divided, float("nan"))):
        f(1.0)
        f(1.0)
        with mw.debug_nans(f is divided), pytest.raises(MeshwrightError):
            f(x)
        assert ref[0, 0] == 1 and ref[5, 5] == 1


def test_copies_of_references():
    ref = mw.new_ref(mnp.ones(LARGE))
    write = _closing(ref)
    write(0, 2.0)
    alias, others = copy.copy(ref), [copy.deepcopy(ref), pickle.loads(pickle.dumps(ref))]
    write(0, 3.0)
    assert alias[0, 0] == 3 and [other[0, 0] for other in others] == [2, 2]


def test_donated_values_of_references_are_refused():
    ref = mw.new_ref(mnp.ones(LARGE))
    mw.jit(lambda x: x + 1, donate_argnums=0)(ref[...])
    with pytest.raises(DeletedArrayError, match="shares its memory"):
        ref[0]
