"""Donated arguments: their memory becomes a result's, using them again is an error, donating in vain a warning."""

import copy
import pickle

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, errors
from meshwright import PartitionSpec as P

MESH = mw.make_mesh((4, 2), ("x", "y"))
ROWS = NamedSharding(MESH, P("x"))


def fresh(sharding=None, size=4096):
    return mw.device_put(np.arange(size, dtype=np.float32), sharding) + 1


def pointer(array):
    return np.asarray(array).ctypes.data


@pytest.mark.parametrize("sharding", [None, ROWS], ids=["one device", "mesh"])
def test_donated_memory_is_reused(sharding):
    step = mw.jit(lambda x, y: x * 2 + y, donate_argnums=0)
    x = fresh(sharding).block_until_ready()
    where = x.buffer.unsafe_buffer_pointer()
    out = step(x, 1.0).block_until_ready()
    assert x.is_deleted() and out.buffer.unsafe_buffer_pointer() == where
    np.testing.assert_array_equal(out, (np.arange(4096) + 1) * 2 + 1)


def test_a_training_loop_keeps_one_copy():
    step = mw.jit(lambda w: w * 0.5 + 1, donate_argnums=0)
    w = step(fresh())
    places = set()
    for _ in range(6):
        places.add(w.buffer.unsafe_buffer_pointer())
        w = step(w)
    assert len(places) <= 2


USES = {
    "op": lambda a: a + 1,
    "comparison": lambda a: a == a,
    "np.asarray": np.asarray,
    "float": lambda a: float(a[0]),
    "str": str,
    "tolist": lambda a: a.tolist(),
    "jit": lambda a: mw.jit(lambda x: x)(a),
    "compiled": lambda a: mw.jit(lambda x: x).lower(a).compile()(a),
    "closure": lambda a: mw.jit(lambda x: x + a)(1.0),
    "grad": lambda a: mw.grad(mnp.sum)(a),
    "vmap": lambda a: mw.vmap(mnp.sin)(a),
    "device_put": lambda a: mw.device_put(a, ROWS),
    "device_get": mw.device_get,
    "shards": lambda a: a.addressable_shards,
    "dlpack": lambda a: np.from_dlpack(a),
    "block": lambda a: a.block_until_ready(),
    "is_ready": lambda a: a.is_ready(),
    "iter": list,
    "pickle": pickle.dumps,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("use", USES)
def test_donated_arrays_cannot_be_used(refuses, use):
    x = fresh()
    mw.jit(lambda x: x * 2, donate_argnums=0)(x)
    with refuses(RuntimeError, "f32[4096]", "deleted", "donate_argnums", "use the function's result"):
        USES[use](x)


def test_deleted_arrays_still_have_a_type():
    x = fresh()
    x.delete()
    assert x.shape == (4096,) and x.dtype == np.float32 and x.is_deleted() and "deleted" in repr(x)


def test_an_array_that_shares_donated_memory(refuses):
    x = fresh()
    other = mw.device_put(x, mw.devices()[0])
    mw.jit(lambda x: x * 2, donate_argnums=0)(x)
    for use in (np.asarray, lambda a: a + 1, lambda a: a.block_until_ready()):
        with refuses(errors.DeletedArrayError, "donated"):
            use(other)
    assert other.is_deleted() and "deleted" in repr(other)


def test_copies_outlive_donation():
    x = fresh()
    copies = [copy.deepcopy(x), copy.copy(x), copy.deepcopy({"a": x})["a"], mnp.array(x), np.array(x)]
    view = np.asarray(x)
    mw.jit(lambda x: x * 2, donate_argnums=0)(x).block_until_ready()
    for kept in (*copies, view):
        np.testing.assert_array_equal(kept, np.arange(4096) + 1)


@pytest.mark.parametrize("options", [{"donate_argnums": 0}, {"donate_argnames": "x"}, {"donate_argnums": (-2,)}])
@pytest.mark.parametrize("keyword", [False, True])
def test_donation_by_number_and_by_name(options, keyword):
    step = mw.jit(lambda x, y: x + y, **options)
    x, y = fresh(), fresh()
    out = step(x=x, y=y) if keyword else step(x, y)
    assert x.is_deleted() and not y.is_deleted()
    np.testing.assert_array_equal(out, y * 2)


def test_donated_trees_and_compiled_programs():
    tree = {"w": fresh(), "b": fresh(size=8)}
    compiled = mw.jit(lambda t, s: {k: v * s for k, v in t.items()}, donate_argnums=0).lower(tree, 2.0).compile()
    out = compiled(tree, 2.0)
    assert all(leaf.is_deleted() for leaf in tree.values()) and out["b"][1] == 4


def test_numpy_arguments_are_never_overwritten():
    v = np.arange(64, dtype=np.float32)
    step = mw.jit(lambda x: x + 1, donate_argnums=0)
    shared = mw.device_put(v)
    np.testing.assert_array_equal(step(v), np.arange(64) + 1)
    np.testing.assert_array_equal(step(shared), np.arange(64) + 1)
    np.testing.assert_array_equal(v, np.arange(64))


@pytest.mark.parametrize("sharding", [None, ROWS], ids=["one device", "mesh"])
def test_donation_that_cannot_be_used_warns(sharding):
    x = fresh(sharding)
    total = mw.jit(lambda weights: mnp.sum(weights), donate_argnums=0)
    with pytest.warns(errors.DonationWarning, match=r"weights \(f32\[4096\]\) cannot be reused.*stay valid"):
        total(x)
    assert not x.is_deleted()
    np.testing.assert_array_equal(x, np.arange(4096) + 1)


def test_the_same_array_donated_and_passed(refuses):
    x = fresh()
    with refuses(ValueError, "f32[4096]", "donated as argument 0", "argument 1", "copy"):
        mw.jit(lambda a, b: a + b, donate_argnums=0)(x, x)
    assert not x.is_deleted()


def test_donation_into_another_sharding():
    x = mw.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), ROWS) + 0
    columns = NamedSharding(MESH, P(None, "y"))
    out = mw.jit(lambda x: x + 1, donate_argnums=0, out_shardings=columns)(x)
    assert x.is_deleted() and out.sharding.is_equivalent_to(columns, 2)
    np.testing.assert_array_equal(out, np.arange(64).reshape(8, 8) + 1)


def test_results_that_replace_donated_arguments_lie_where_those_do():
    """Replicated parameters of a data-parallel step come back replicated; where it is open which argument a result
    replaces, the partitioner chooses."""
    mesh = mw.make_mesh((8,), ("b",), axis_types=(mw.sharding.AxisType.Auto,))
    rows, whole = (mw.NamedSharding(mesh, mw.PartitionSpec(*spec)) for spec in (("b",), ()))

    def step(w, momentum, x):
        momentum = 0.9 * momentum + mw.grad(lambda w: ((x @ w) ** 2).mean())(w)
        return w - 0.1 * momentum, momentum

    w, x = (np.arange(n * m, dtype=np.float32).reshape(n, m) / 99 for n, m in ((64, 16), (16, 64)))
    want = step(w, np.ones_like(w), x)
    for donated, place in (((0, 1), whole), ((0, 1), rows)):
        args = mw.device_put(w, place), mw.device_put(np.ones_like(w), place), mw.device_put(x, rows)
        got = mw.jit(step, donate_argnums=donated)(*args)
        for a, b in zip(got, want):
            assert a.sharding.is_equivalent_to(place, 2)
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    apart = mw.jit(step, donate_argnums=(0, 1)).lower(
        mw.ShapeDtypeStruct(w.shape, w.dtype, sharding=whole), mw.ShapeDtypeStruct(w.shape, w.dtype, sharding=rows), x
    )
    assert apart.program.out_shardings == (None, None)
