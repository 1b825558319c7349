"""Keys with a dtype of their own: ``random.key``, through every transformation, against ``jax``."""

from __future__ import annotations

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, errors
from meshwright import PartitionSpec as P
from meshwright.sharding import AxisType

IMPLS = ["threefry2x32", "rbg", "unsafe_rbg"]
NAMES = {"threefry2x32": "key<fry>", "rbg": "key<rbg>", "unsafe_rbg": "key<urbg>"}


def draw_and_split(package, key):
    key, sub = package.random.split(key)
    return key, package.random.uniform(sub)


def with_rules(p):
    """A function of a number and a key with derivative rules of its own, in which others are."""
    inner = p.custom_jvp(lambda x, k: x * p.random.normal(k))
    inner.defjvp(lambda xs, ts: (inner(*xs), 2 * inner(ts[0], xs[1])))
    f = p.custom_vjp(lambda x, k: (inner(x, k), p.random.split(k)[0]))
    f.defvjp(lambda x, k: (f(x, k), k), lambda k, cts: (3 * inner(cts[0], k), None))
    return f


#: ``program(package, package.numpy, key)``
PROGRAMS = {
    "split": lambda p, n, k: p.random.split(k, (2, 3)),
    "fold_in": lambda p, n, k: p.random.fold_in(k, 7),
    "bits": lambda p, n, k: p.random.bits(k, (5,)),
    "bits of 8": lambda p, n, k: p.random.bits(k, (5,), "uint8"),
    "jit": lambda p, n, k: p.jit(lambda k: p.random.normal(k, (4,)))(k),
    "jit in jit": lambda p, n, k: p.jit(lambda k: p.jit(p.random.split)(k)[0])(k),
    "made inside": lambda p, n, k: p.jit(lambda s: p.random.split(p.random.key(s, dtype=k.dtype)))(3),
    "closure": lambda p, n, k: p.jit(lambda x: x + p.random.normal(k))(1.0),
    "scan": lambda p, n, k: p.lax.scan(lambda k, _: draw_and_split(p, k), k, None, length=3),
    "scan in jit": lambda p, n, k: p.jit(lambda k: p.lax.scan(lambda k, _: draw_and_split(p, k), k, length=3))(k),
    "scan over": lambda p, n, k: p.lax.scan(lambda c, k: (c + p.random.uniform(k), k), 0.0, p.random.split(k, 3)),
    "cond": lambda p, n, k: p.jit(lambda b, k: p.lax.cond(b, lambda k: k, lambda k: p.random.clone(k), k))(False, k),
    "cond over closures": lambda p, n, k: p.jit(lambda b: p.lax.cond(b, lambda: k, lambda: p.random.split(k)[0]))(True),
    "while": lambda p, n, k: p.lax.while_loop(
        lambda c: c[1] < 3, lambda c: (p.random.split(c[0])[0], c[1] + 1), (k, 0)
    ),
    "index": lambda p, n, k: p.random.split(k, 3)[1],
    "slice": lambda p, n, k: p.random.split(k, 3)[::-1],
    "index by an array": lambda p, n, k: p.random.split(k, 3)[n.array([2, 0])],
    "set": lambda p, n, k: p.random.split(k, 3).at[1].set(k),
    "stack": lambda p, n, k: n.stack([k, k]),
    "array": lambda p, n, k: n.array([k, k]),
    "concatenate": lambda p, n, k: n.concatenate([p.random.split(k, 3), k[None]]),
    "where": lambda p, n, k: n.where(n.array([True, False]), p.random.split(k), k),
    "reshape": lambda p, n, k: p.random.split(k, 6).reshape(2, 3).T,
    "broadcast": lambda p, n, k: n.broadcast_to(k, (2,)),
    "repeat": lambda p, n, k: n.repeat(n.squeeze(k[None])[None], 2),
    "take": lambda p, n, k: n.take(p.random.split(k, 3), n.array([0, 2])),
    "zeros": lambda p, n, k: n.zeros((2,), k.dtype),
    "equal arrays": lambda p, n, k: (n.array_equal(k, k), n.array_equal(p.random.split(k), p.random.split(k)[::-1])),
    "equal": lambda p, n, k: (p.random.split(k, 3) == p.random.split(k, 3)[0], k != k),
    "iterate": lambda p, n, k: [p.random.uniform(x) for x in p.random.split(k, 3)],
    "words": lambda p, n, k: p.random.wrap_key_data(p.random.key_data(k), dtype=k.dtype),
    "clone": lambda p, n, k: p.random.clone(k),
    "grad": lambda p, n, k: p.grad(lambda x, k: x * p.random.normal(k))(1.0, k),
    "grad of checkpoint": lambda p, n, k: p.grad(p.checkpoint(lambda x, k: n.sin(x * p.random.normal(k))))(1.0, k),
    "rules": lambda p, n, k: p.jit(with_rules(p))(1.0, k),
    "grad by rules": lambda p, n, k: p.jit(p.grad(with_rules(p), has_aux=True))(1.0, k),
    "grad of scan": lambda p, n, k: p.grad(
        lambda x, k: p.lax.scan(
            lambda c, _: ((c[0] * p.random.uniform(c[1]), p.random.split(c[1])[0]), c[0]), (x, k), None, length=3
        )[1].sum()
    )(1.0, k),
}  # fmt: skip

MAPPED = {
    "vmap": lambda p, n, k: p.vmap(lambda k: p.random.normal(k, (2,)))(p.random.split(k, 3)),
    "vmap of split": lambda p, n, k: p.vmap(lambda k: p.random.split(k, 4), out_axes=1)(p.random.split(k, 3)),
    "vmap over the last": lambda p, n, k: p.vmap(lambda k: k, in_axes=-1, out_axes=-1)(p.random.split(k, (2, 3))),
    "vmap of scan": lambda p, n, k: p.vmap(lambda k: p.lax.scan(lambda k, _: draw_and_split(p, k), k, length=2))(
        p.random.split(k, 3)
    ),
    "vmap of vmap": lambda p, n, k: p.vmap(p.vmap(p.random.uniform), in_axes=1)(p.random.split(k, (2, 3))),
    "vmap over data": lambda p, n, k: p.vmap(lambda i: p.random.fold_in(k, i))(n.arange(3)),
    "vmap of narrow bits": lambda p, n, k: p.vmap(lambda k: p.random.bits(k, (3,), "uint8"))(p.random.split(k, 3)),
    "states": lambda p, n, k: p.vmap(lambda w: p.lax.rng_bit_generator(w, (3,)), in_axes=1, out_axes=1)(
        n.arange(8, dtype="uint32").reshape(4, 2)
    ),
}
#: states mapped along dimensions other than the first, first by the inner function, then by the outer one
MAPPED |= {
    f"states along {inner} to {out}, then {outer}": lambda p, n, k, inner=inner, out=out, outer=outer, shape=shape: (
        p.vmap(
            p.vmap(lambda w: p.lax.rng_bit_generator(w, (2, 3))[1], in_axes=inner, out_axes=out),
            in_axes=outer,
            out_axes=1,
        )(n.arange(120, dtype="uint32").reshape(shape))
    )
    for inner, out, outer, shape in [
        (0, 1, 1, (5, 6, 4)),
        (1, 0, 0, (6, 4, 5)),
        (1, 2, 0, (6, 4, 5)),
        (0, 0, 0, (6, 5, 4)),
        (0, 2, 2, (5, 4, 6)),
    ]
}
THREEFRY = {
    "gamma": lambda p, n, k: p.random.gamma(k, 2.0, (3,)),
    "permutation": lambda p, n, k: p.random.permutation(k, 5),
    "poisson": lambda p, n, k: p.random.poisson(k, 3.0, (4,)),
    "choice": lambda p, n, k: p.random.choice(k, 5, (3,), replace=False),
    "categorical": lambda p, n, k: p.random.categorical(k, n.zeros(4)),
}


def numbers(package, tree):
    """The leaves as NumPy arrays, keys as their words, with the names of their dtypes."""
    leaves = package.tree.leaves(tree)
    names = [str(x.dtype) for x in leaves]
    data = package.random.key_data
    return [(n, x.shape, np.asarray(data(x) if n.startswith("key") else x)) for n, x in zip(names, leaves)]


def assert_like_jax(program, impl):
    expected, found = (numbers(p, program(p, n, p.random.key(5, impl=impl))) for p, n in ((jax, jnp), (mw, mnp)))
    assert len(expected) == len(found)
    for (name, shape, want), (own_name, own_shape, got) in zip(expected, found):
        assert (name, shape) == (own_name, own_shape)
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("impl", IMPLS)
def test_programs(name, impl):
    assert_like_jax(PROGRAMS[name], impl)


@pytest.mark.parametrize("name", MAPPED)
@pytest.mark.parametrize("impl", IMPLS)
def test_mapped_programs(name, impl):
    assert_like_jax(MAPPED[name], impl)


@pytest.mark.parametrize("name", THREEFRY)
def test_programs_of_threefry(name):
    assert_like_jax(THREEFRY[name], "threefry2x32")


# --- what keys are ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("impl", IMPLS)
def test_a_key_says_what_it_is(impl):
    key, peer = mw.random.key(3, impl=impl), jax.random.key(3, impl=impl)
    assert str(key.dtype) == NAMES[impl] == str(peer.dtype) and key.shape == ()
    assert repr(key) == repr(peer) and str(mw.random.split(key)) == str(jax.random.split(peer))
    assert (key.nbytes, key.itemsize) == (peer.nbytes, peer.itemsize)
    assert mw.random.key_impl(key) == str(jax.random.key_impl(peer)) == impl
    assert mw.dtypes.issubdtype(key.dtype, mw.dtypes.prng_key) and isinstance(key, mw.Array)


@pytest.mark.parametrize("kind", ["prng_key", "extended", np.number, np.generic, np.uint32])
def test_kinds_of_dtypes(kind):
    for dtype in ("key", np.float32, "prng_key"):
        answers = []
        for package, numpy in ((jax, jnp), (mw, mnp)):
            d = (
                package.random.key(0).dtype
                if dtype == "key"
                else package.dtypes.prng_key
                if dtype == "prng_key"
                else dtype
            )
            answers.append(numpy.issubdtype(d, getattr(package.dtypes, kind) if isinstance(kind, str) else kind))
        assert answers[0] == answers[1]


def test_jaxprs_show_keys():
    text = str(mw.make_jaxpr(lambda k: mw.random.split(k)[0])(mw.random.key(0)))
    assert "a:key<fry>[]" in text and "random_unwrap" in text and "random_wrap" in text


def test_shapes_of_keys():
    out = mw.eval_shape(lambda k: mw.random.split(k, 3), mw.ShapeDtypeStruct((), mw.random.key(0).dtype))
    assert out.shape == (3,) and str(out.dtype) == "key<fry>"


def test_keys_are_close_if_they_are_equal():
    def found(p, q):
        a, b = p.random.split(p.random.key(0), 3), p.random.key(1)
        pairs = [(a, a), (a, b), (b, b), (a[1], a)]
        tests = [q.isclose, q.allclose, q.array_equal, q.isin, lambda x, y: q.isin(x, y, invert=True)]
        return [np.asarray(test(*pair)).tolist() for test in tests for pair in pairs]

    assert found(mw, mnp) == found(jax, jnp)


def test_keys_are_leaves():
    key = mw.random.key(0)
    assert mw.tree.leaves({"a": key}) == [key] and mw.device_get(key) is key


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))])
def test_copies(copied):
    keys = mw.random.split(mw.random.key(0, impl="rbg"))
    assert copied(keys).dtype is keys.dtype and bool((copied(keys) == keys).all())


def test_a_gradient_by_a_key_is_of_no_bytes():
    expected = jax.grad(lambda k: 1.0, allow_int=True)(jax.random.key(0))
    found = mw.grad(lambda k: 1.0, allow_int=True)(mw.random.key(0))
    assert found.dtype == mw.float0 and found.shape == expected.shape


def test_what_makes_the_keys_that_are_not_named():
    with mw.default_prng_impl("rbg"):
        assert mw.random.key_impl(mw.random.key(0)) == "rbg" and mw.random.PRNGKey(3).tolist() == [0, 3, 0, 3]
        assert mw.random.uniform(mw.random.PRNGKey(3)) == mw.random.uniform(mw.random.key(3))
    with mw.enable_custom_prng(True):
        assert str(mw.random.PRNGKey(0).dtype) == "key<fry>"
    assert mw.random.PRNGKey(7).tolist() == [0, 7]


# --- what they are not --------------------------------------------------------------------------------------
REFUSED = {
    "add": lambda k, ks: k + 1,
    "neg": lambda k, ks: -k,
    "less": lambda k, ks: k < k,
    "mul": lambda k, ks: mw.lax.mul(k, k),
    "sum": lambda k, ks: mnp.sum(ks),
    "max": lambda k, ks: mnp.max(ks),
    "sort": lambda k, ks: mnp.sort(ks),
    "argmax": lambda k, ks: mnp.argmax(ks),
    "any": lambda k, ks: mnp.any(ks),
    "count_nonzero": lambda k, ks: mnp.count_nonzero(ks),
    "condition": lambda k, ks: mnp.where(ks, 1, 2),
    "predicate": lambda k, ks: mw.lax.cond(k, lambda: 1, lambda: 2),
    "masked sum": lambda k, ks: mnp.sum(ks, where=mnp.array([True, False, True])),
    "pad": lambda k, ks: mnp.pad(ks, 1),
    "masked max": lambda k, ks: mnp.max(ks, initial=0, where=mnp.array([True, False, True])),
    "relu": lambda k, ks: mw.nn.relu(k),
    "one_hot": lambda k, ks: mw.nn.one_hot(k, 3),
    "cumsum": lambda k, ks: mnp.cumsum(ks),
    "unique": lambda k, ks: mnp.unique(ks),
    "psum": lambda k, ks: mw.vmap(lambda x: mw.lax.psum(x, "i"), axis_name="i")(ks),
    "bitcast": lambda k, ks: mw.lax.bitcast_convert_type(k, "uint32"),
    "astype": lambda k, ks: k.astype("uint32"),
    "numpy": lambda k, ks: np.asarray(k),
    "dlpack": lambda k, ks: k.__dlpack__(),
    "float": lambda k, ks: float(k),
    "bool": lambda k, ks: bool(k),
    "grad": lambda k, ks: mw.grad(lambda x: 1.0)(k),
    "two kinds": lambda k, ks: mnp.stack([k, mw.random.key(0, impl="rbg")]),
    "with numbers": lambda k, ks: mnp.where(True, k, 1),
    "other words": lambda k, ks: mw.random.wrap_key_data(np.zeros((3, 4), "uint32")),
    "jit": lambda k, ks: mw.jit(lambda x: x + 1)(k),
    "arrays of keys": lambda k, ks: mw.random.normal(ks),
    "split of arrays": lambda k, ks: mw.random.split(ks),
    "no generator": lambda k, ks: mw.random.key(0, impl="middle square"),
    "two generators": lambda k, ks: mw.random.key(0, impl="rbg", dtype=k.dtype),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    key = mw.random.key(0)
    with pytest.raises(mw.errors.MeshwrightError, match=r"key|impl"):
        REFUSED[name](key, mw.random.split(key, 3))


def test_every_op_that_takes_keys_moves_them():
    """No op with arithmetic: of those that take keys, each gives words as it would numbers."""
    from meshwright.ir.op import REGISTRY

    computing = {"add", "mul", "reduce_sum", "sort", "argmax", "psum", "pmax", "reduce_max", "convert_element_type"}
    taking = {name for name, op in REGISTRY.items() if op.takes_keys}
    assert not taking & computing and {"gather", "select_n", "scan", "cond", "while", "concatenate"} <= taking


# --- meshes -------------------------------------------------------------------------------------------------
def test_on_a_mesh():
    mesh = mw.make_mesh((4,), ("x",))
    keys = mw.random.split(mw.random.key(0), 8)
    spread = mw.device_put(keys, NamedSharding(mesh, P("x")))
    assert spread.sharding.spec == P("x") and spread.addressable_shards[1].data.shape == (2,)
    assert bool((spread == keys).all())
    drawn = mw.jit(mw.vmap(lambda k: mw.random.normal(k, (3,))))
    expected = jax.vmap(lambda k: jax.random.normal(k, (3,)))(jax.random.split(jax.random.key(0), 8))
    np.testing.assert_allclose(drawn(spread), expected, rtol=1e-5)
    part = drawn.lower(spread).partition()
    assert part.collectives == []
    (shown,) = part.in_shardings
    assert shown.spec == P("x")


def test_results_on_a_mesh():
    mesh = mw.make_mesh((4,), ("x",))
    make = mw.jit(lambda k: mw.random.split(k, 8), out_shardings=NamedSharding(mesh, P("x")))
    keys = make(mw.random.key(0))
    assert keys.shape == (8,) and keys.sharding.spec == P("x")
    assert bool((keys == mw.random.split(mw.random.key(0), 8)).all())


def test_in_a_manual_region():
    mesh = mw.make_mesh((4,), ("x",))
    keys = mw.random.split(mw.random.key(0), 4)
    draw = mw.shard_map(
        lambda k: mw.vmap(mw.random.uniform)(k), mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False
    )
    np.testing.assert_allclose(draw(keys), mw.vmap(mw.random.uniform)(keys))
    np.testing.assert_allclose(mw.jit(draw)(keys), mw.vmap(mw.random.uniform)(keys))


def test_words_of_a_key_stay_together_on_a_mesh():
    mesh = mw.make_mesh((4, 2), ("x", "y"))
    words = mw.random.key_data(mw.random.split(mw.random.key(3), 8))
    split = mw.device_put(words, NamedSharding(mesh, P("x", "y")))
    for wrap in (mw.random.wrap_key_data, mw.jit(lambda w: mw.random.wrap_key_data(w + np.uint32(0)))):
        keys = wrap(split)
        assert keys.sharding.spec == P("x") and {s.data.shape for s in keys.addressable_shards} == {(2,)}
        np.testing.assert_array_equal(mw.random.key_data(mw.jit(lambda k: k)(keys)), words)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_that_types_split_stay_split(impl, refuses):
    """Not refused, as they were where they become words, or where each key's bits are drawn by themselves."""
    mesh = mw.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    keys = mw.random.split(mw.random.key(3, impl=impl), 8)
    words = np.asarray(mw.random.key_data(keys))

    def draw(k):
        return mw.vmap(lambda k: mw.random.normal(k, (3,)))(k), mw.vmap(mw.random.split)(k), mw.random.key_data(k)

    with mw.set_mesh(mesh):
        split = mw.device_put(keys, NamedSharding(mesh, P("x")))
        for drawn in (draw(split), mw.jit(draw)(split)):
            assert [mw.typeof(x).sharding.spec for x in drawn] == [P("x", None)] * 3
            np.testing.assert_allclose(drawn[0], draw(keys)[0], rtol=1e-6)
            np.testing.assert_array_equal(mw.random.key_data(drawn[1]), mw.random.key_data(draw(keys)[1]))
            np.testing.assert_array_equal(drawn[2], words)
        numbers = mw.device_put(np.arange(8), NamedSharding(mesh, P(("x", "y"))))
        folded = mw.vmap(lambda i: mw.random.fold_in(keys[0], i))(numbers)
        assert mw.typeof(folded).sharding.spec[0] == ("x", "y")
        whole = mw.vmap(lambda i: mw.random.fold_in(keys[0], i))(np.arange(8))
        np.testing.assert_array_equal(mw.random.key_data(folded), mw.random.key_data(whole))
        made = mw.random.wrap_key_data(mw.device_put(words, NamedSharding(mesh, P("x"))), impl=impl)
        assert mw.typeof(made).sharding.spec == P("x")
        with refuses(errors.ShardingTypeError, "random_wrap: dimension 1", "split over y", "P('x',)", "reshard"):
            mw.random.wrap_key_data(mw.device_put(words, NamedSharding(mesh, P("x", "y"))), impl=impl)
