"""pmap as the classic one: what is mapped, on which devices, what it refuses; eager, nested, ahead of time."""

import numpy as np
import pytest
from refusals import message_of

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.sharding import Mesh, NamedSharding
from meshwright.sharding import PartitionSpec as P

A = np.arange(12, dtype=np.float32).reshape(4, 3)
B = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
DEVICES = mw.devices()


def identity(x):
    return x


def two(x, y):
    return x


# --- what is mapped, and where it is ------------------------------------------------------------------------
def test_keywords_are_mapped_and_results_are_split_along_the_axis():
    f = mw.pmap(lambda x, *, s: {"y": x * s, "total": lax.psum(x, "i")}, "i", out_axes={"y": 1, "total": None})
    got = f(A, s=np.arange(4, dtype=np.float32))
    assert np.array_equal(got["y"], (A * np.arange(4)[:, None]).T) and np.array_equal(got["total"], A.sum(0))
    assert got["y"].sharding == NamedSharding(Mesh(DEVICES[:4], ("i",)), P(None, "i"))
    assert [b.shape for b in got["y"].device_buffers] == [(3, 1)] * 4
    assert got["total"].sharding.is_fully_replicated
    again = mw.pmap(lambda x: x + 1, in_axes=1)(got["y"])
    assert again.sharding.is_equivalent_to(NamedSharding(Mesh(DEVICES[:4], ("i",)), P("i")), 2)


def test_devices_are_those_asked_for_and_arguments_may_lie_anywhere():
    y = mw.pmap(lambda x: x + 1, devices=DEVICES[:3:-1])(mw.device_put(A, DEVICES[1]))
    assert y.sharding.devices == tuple(DEVICES[:3:-1]) and np.array_equal(y, A + 1)
    z = mw.pmap(lambda x, y: x + y)(A, y)
    assert z.sharding.devices == tuple(DEVICES[:4]) and np.array_equal(z, 2 * A + 1)


def test_ahead_of_time():
    f = mw.pmap(lambda x, n: x**n, static_broadcasted_argnums=1)
    compiled = f.lower(A, 2).compile()
    y = compiled(A)
    assert np.array_equal(y, A**2) and y.sharding == compiled.output_shardings
    with pytest.raises(mw.errors.ShapeError):
        compiled(A[:2])


def test_nested():
    """Two and three deep: as many devices as the sizes make, collectives along all, gradients through."""
    f = mw.pmap(mw.pmap(lambda v: v / lax.psum(v.sum(), ("i", "j")), "j"), "i")
    y = f(B)
    assert np.allclose(y, B / B.sum()) and y.sharding.devices == tuple(DEVICES)
    assert [b.shape for b in y.device_buffers] == [(1, 1, 3)] * 8
    assert np.allclose(f(2 * B[:2]), B[:2] / B[:2].sum())  # fewer devices, by the same inner function
    slopes = mw.grad(lambda x: (f(x) ** 2).sum())(B)
    assert np.allclose(slopes, mw.grad(lambda x: ((x / x.sum()) ** 2).sum())(B), atol=1e-6)

    def number(x):
        return x + 100 * lax.axis_index("i") + 10 * lax.axis_index("j") + lax.axis_index("k")

    deep = mw.pmap(lambda x: mw.pmap(mw.pmap(number, "k"), "j")(x), "i")(np.zeros((2, 2, 2), np.int32))
    assert np.asarray(deep).ravel().tolist() == [0, 1, 10, 11, 100, 101, 110, 111]
    assert deep.sharding.devices == tuple(DEVICES)


# --- refusals are in messages/pmap.txt ------------------------------------------------------------------
def test_the_first_result_where_it_is_asked_for():
    got = mw.pmap(identity, out_axes=None, check_vma=False)(A)
    assert np.array_equal(got, A[0])


# --- eager --------------------------------------------------------------------------------------------------
def all_kinds(x):
    total = lax.psum(x, "i")
    ring = lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 3), (3, 0)])
    slope = mw.grad(lambda z: (lax.pmean(z, "i") ** 2).sum())(x)
    back, _ = lax.scan(lambda c, y: (c + lax.pmax(y, "i"), y), mnp.zeros(()), x)
    return total / (1 + lax.axis_index("i")), ring, slope, back, lax.all_gather(x, "i")


def test_eager_is_what_is_compiled(capsys):
    f = mw.pmap(all_kinds, "i")
    compiled = f(A)
    with mw.disable_jit():
        eager = f(A)
        nested = mw.pmap(mw.pmap(lambda v: v / lax.psum(v.sum(), ("i", "j")), "j"), "i")(B)
    assert all(np.allclose(a, b) for a, b in zip(compiled, eager)) and np.allclose(nested, B / B.sum())

    def seen(x):
        print(x[0].item(), "large" if x[0] > 5 else "small")
        return x * 2

    with mw.disable_jit():
        assert np.array_equal(mw.pmap(seen)(A), 2 * A)
    assert capsys.readouterr().out.split("\n")[:4] == ["0.0 small", "3.0 small", "6.0 large", "9.0 large"]


def test_eager_devices_that_part_are_told_so():
    def parts(x):
        return lax.psum(x, "i") if x[0] > 5 else x

    with mw.disable_jit():
        said = message_of(ValueError, mw.pmap(parts, "i"), A)
        with pytest.raises(ZeroDivisionError):  # raised by the second device, while the first one waits
            mw.pmap(lambda x: lax.psum(1 / (1 - int(x[0]) // 3), "i"), "i")(A)
    assert "device 0 has returned, device 2 is at psum of f32[3] along i: devices wait for each other" in said


def test_eager_derivatives():
    f = mw.pmap(lambda a: mnp.sin(a) * lax.psum(a, "i"), "i")
    with mw.disable_jit():
        eager = mw.grad(lambda x: f(x).sum())(A)
    assert np.allclose(eager, mw.grad(lambda x: f(x).sum())(A), rtol=1e-5)


def test_eager_shard_map():
    mesh = mw.make_mesh((2, 4), ("x", "y"))
    P = mw.PartitionSpec
    whole = np.arange(32, dtype=np.float32).reshape(8, 4)

    def f(a, b):
        return a * 2 + lax.axis_index("y"), lax.psum(b, ("x", "y")), lax.all_gather(b, "x", tiled=True)

    ins, outs = (P(("y", "x")), P("x", "y")), (P(("y", "x")), P(), P(None, "y"))
    g = mw.shard_map(f, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)
    compiled = g(whole, whole)
    with mw.disable_jit():
        eager = g(whole, whole)
        wrong = mw.shard_map(lambda a: {"r": a}, mesh=mesh, in_specs=P("x"), out_specs=P())
        said = message_of(ValueError, wrong, whole)
    assert all(np.array_equal(a, b) for a, b in zip(compiled, eager))
    assert "output['r'] differs between devices along x, which P() does not name" in said
