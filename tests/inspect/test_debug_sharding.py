"""``meshwright.debug``: shardings of arrays at once, of traced values when the program is compiled."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, SingleDeviceSharding
from meshwright import PartitionSpec as P

MESH = mw.make_mesh((4, 2), ("x", "y"))
ROWS, COLUMNS, TILED = (NamedSharding(MESH, P(*s)) for s in (("x",), (None, "y"), ("x", "y")))
X = np.arange(32, dtype=np.float32).reshape(8, 4)


def test_arrays_are_inspected_at_once():
    seen = []
    mw.debug.inspect_array_sharding(mw.device_put(X, ROWS), callback=seen.append)
    mw.debug.inspect_array_sharding(X, callback=seen.append)
    assert seen == [ROWS, SingleDeviceSharding(mw.devices()[0])]


def test_traced_values_are_inspected_when_compiled():
    seen = []

    @mw.jit
    def product(a, b):
        c = a @ b
        mw.debug.inspect_array_sharding(c, callback=seen.append)
        return mnp.tanh(c)

    a, b = mw.device_put(X, ROWS), mw.device_put(X.T, COLUMNS)
    for _ in range(3):
        np.testing.assert_allclose(product(a, b), np.tanh(X @ X.T), rtol=1e-6)
    (found,) = seen
    assert found.mesh == MESH and found.is_equivalent_to(TILED, 2)
    product(mnp.asarray(X), mnp.asarray(X.T))
    assert seen[1:] == [SingleDeviceSharding(mw.devices()[0])]
    product.lower(a, b).partition()
    assert len(seen) == 3
    assert "inspect_sharding" in str(mw.make_jaxpr(product)(X, X.T)) and len(seen) == 3


def test_an_abstract_mesh_can_be_inspected():
    seen = []
    mesh = mw.AbstractMesh((512,), ("x",))

    def fun(a):
        mw.debug.inspect_array_sharding(a * 2, callback=seen.append)
        return a

    shape = mw.ShapeDtypeStruct((1024, 3), np.float32)
    mw.jit(fun, in_shardings=NamedSharding(mesh, P("x"))).lower(shape).partition()
    assert [s.shard_shape((1024, 3)) for s in seen] == [(2, 3)]


def inspected(transform):
    seen = []

    def fun(a):
        mw.debug.inspect_array_sharding(mnp.sin(a), callback=seen.append)
        return mnp.sum(a * a)

    out = transform(fun)
    return out, seen


def test_under_transformations():
    out, seen = inspected(lambda f: mw.jit(mw.grad(f), in_shardings=ROWS)(X))
    np.testing.assert_array_equal(out, 2 * X)
    assert len(seen) == 1 and seen[0].is_equivalent_to(ROWS, 2)
    out, seen = inspected(lambda f: mw.jit(lambda x: mw.jit(f)(x), in_shardings=ROWS)(X))
    assert len(seen) == 1 and seen[0].is_equivalent_to(ROWS, 2)
    out, seen = inspected(lambda f: mw.grad(f)(mw.device_put(X, ROWS)))
    np.testing.assert_array_equal(out, 2 * X)
    assert len(seen) == 1 and seen[0].is_equivalent_to(ROWS, 2)
    out, seen = inspected(lambda f: mw.vmap(f)(mw.device_put(X, ROWS)))
    np.testing.assert_array_equal(out, (X * X).sum(axis=1))
    assert len(seen) == 1


def test_visualize_array_sharding(capsys):
    mw.debug.visualize_array_sharding(mw.device_put(X, TILED))
    shown = capsys.readouterr().out
    assert shown.count("CPU") == 8 and "│ CPU 6 │ CPU 7 │" in shown

    @mw.jit
    def fun(a):
        mw.debug.visualize_array_sharding(a.T)
        return a

    fun(mw.device_put(X, TILED))
    shown = capsys.readouterr().out
    assert "│ CPU 0 │ CPU 2 │ CPU 4 │ CPU 6 │" in shown
    fun(mw.device_put(X, TILED))
    assert capsys.readouterr().out == ""


def test_what_cannot_be_inspected(refuses):
    with refuses(TypeError, "inspect_array_sharding", "callback", "3", "callback=print"):
        mw.debug.inspect_array_sharding(X, callback=3)
    with refuses(TypeError, "expected an array", "'text'"):
        mw.debug.inspect_array_sharding("text", callback=print)


def test_meshes_for_notebooks():
    assert "[6 7]" in MESH._repr_html_() and "4" in MESH._repr_html_().splitlines()[0]


@pytest.mark.parametrize("sharding", [ROWS, TILED])
def test_pictures_for_notebooks(sharding):
    html = mw.debug.picture_of(X.shape, sharding)._repr_html_()
    assert html.startswith("<pre") and "CPU 0" in html and "background" in html
