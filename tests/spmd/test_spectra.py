"""Spectra stay split along the dimension in which a transform leaves them, also where annotations of others differ."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.spmd.pencils import Step, cheapest

MESH = mw.AbstractMesh((8,), ("x",))
ROWS = NamedSharding(MESH, P("x"))
N = 64
#: the bytes that an all-to-all of an array sends
MOVED = N * N * 8 // 8 * 7 // 8


def filtered(x, k):
    return mnp.fft.ifft2(mnp.fft.fft2(x) * k)


def steps(x, k, v):
    """Split steps of a Schrödinger equation."""
    return lax.fori_loop(0, 5, lambda i, x: filtered(x * v, k) * v, x)


def residuals(x, k, v):
    """From a spectrum to its array, and corrections in which spectra are compared."""
    y = mnp.fft.ifft2(x)
    for _ in range(3):
        y = y - mnp.fft.ifft2(v * mnp.fft.fft2(y) - k)
    return y


@pytest.mark.parametrize(
    ("fun", "moves"),
    [
        (lambda x, k, v: filtered(x, k), 1 + 2),
        (steps, 1 + 5 * 2),  # before the loop, and two in each step
        (residuals, 2 + 3 * 2),  # both spectra, the first of which is on its way, and two for each correction
    ],
    ids=["a filter", "split steps", "residuals"],
)
def test_spectra_that_are_split_by_rows_are_moved_once(fun, moves):
    rng = np.random.default_rng(0)
    args = [(rng.normal(size=(N, N)) + 1j * rng.normal(size=(N, N))).astype(np.complex64) / 4 for _ in range(3)]
    part = mw.jit(fun, in_shardings=ROWS, out_shardings=ROWS).lower(*args).partition()
    assert {c.kind for c in part.collectives} == {"all_to_all"}
    assert part.bytes_sent == moves * MOVED
    part.verify(*args)


def cubes(shape, n, devices=(2, 4)):
    """Semi-implicit steps of a real field, whose spectrum a loop carries, on pencils."""
    rows, columns, depth = shape
    mesh = mw.AbstractMesh(devices, ("x", "y"))
    k = np.random.default_rng(1).normal(size=(rows, columns, depth // 2 + 1)).astype(np.float32) / 4

    def run(x):
        def step(spectrum, _):
            y = mnp.fft.irfftn(spectrum, s=shape)
            return spectrum * k + mnp.fft.rfftn(y * y * y), (y * y).sum()

        spectrum, sums = lax.scan(step, mnp.fft.rfftn(x), None, length=n)
        return mnp.fft.irfftn(spectrum, s=shape), sums

    lowered = mw.jit(run, in_shardings=NamedSharding(mesh, P("x", "y"))).lower(mw.ShapeDtypeStruct(shape, np.float32))
    return lowered.partition()


@pytest.mark.parametrize(("shape", "n"), [((64, 64, 64), 1), ((64, 64, 64), 4), ((96, 64, 48), 2)])
def test_pencils_of_real_arrays_are_exchanged_twice_for_each_transform(shape, n):
    """Spectra that a loop carries are split, too, as the transforms leave them; devices repeat nothing."""
    part = cubes(shape, n)
    rows, columns, depth = shape
    tile = rows * columns * (depth // 2 + 2) * 8 // 8  # terms are padded for two devices
    # Each transform exchanges over 2 and over 4 devices.
    assert part.bytes_sent <= (2 + 2 * n) * (tile // 2 + tile * 3 // 4) * 1.01
    assert part.work.redundancy < 1.1


def test_pencils_on_devices_that_no_size_is_a_multiple_of_repeat_little():
    assert cubes((64, 64, 64), 4, devices=(2, 3)).work.redundancy < 1.2


@pytest.mark.parametrize("shape", [(8, 8, 8), (10, 12, 6), (7, 5, 9)])
def test_pencils_that_are_uneven(shape):
    cubes(shape, 2).verify()


@pytest.mark.parametrize("kind", ["fftn", "rfftn", "ifftn"])
@pytest.mark.parametrize("dims", [("x", "y", None), (None, "x", "y"), ("y", None, "x"), (None, ("x", "y"), None)])
def test_each_dimension_of_a_transform_may_be_split(kind, dims):
    mesh = mw.AbstractMesh((2, 2), ("x", "y"))
    x = np.random.default_rng(0).normal(size=(6, 5, 7)).astype(np.float32 if kind == "rfftn" else np.complex64)
    place = NamedSharding(mesh, P(*dims))
    mw.jit(getattr(mnp.fft, kind), in_shardings=place, out_shardings=place).lower(x).partition().verify(x)


@pytest.mark.parametrize("shape", [(32, 24, 20), (64, 32, 100), (16, 8, 9)])
def test_filters_of_real_planes_are_left_split_where_devices_divide_them_best(shape):
    """A dimension that gets smaller is transformed before axes move off another one, to where least is sent then."""
    rows, columns, _ = shape
    k = np.random.default_rng(1).normal(size=(rows, columns // 2 + 1, 1)).astype(np.float32)

    def run(x):
        return mnp.fft.irfftn(mnp.fft.rfftn(x, axes=(0, 1)) * k, s=(rows, columns), axes=(0, 1)) + x

    x = mw.ShapeDtypeStruct(shape, np.float32)
    part = mw.jit(run, in_shardings=ROWS, out_shardings=ROWS).lower(x).partition()
    assert [c.kind for c in part.collectives] == ["all_to_all"] * 2
    part.verify()


@pytest.mark.parametrize("end", [((), (), ()), (("y",), (), ())])
@pytest.mark.parametrize("sizes", [(96, 32, 32), (24, 32, 20), (48, 15, 21)])
def test_axes_that_a_result_does_not_use_are_not_gathered_for_its_transforms(end, sizes):
    """Each transform is done while its dimension is whole, and devices repeat none of them."""
    mesh = mw.AbstractMesh((2, 3), ("x", "y"))
    steps = [Step(2, sizes[2] // 2 + 1), Step(1, sizes[1])]
    path = cheapest((("y",), ("x",), ()), end, steps, sizes, 8, mesh)
    assert all(not dims[step.dim] for dims, step in zip(path, steps))
    assert all({axis for axes in dims for axis in axes} == {"x", "y"} for dims in path)


def test_two_spectra_that_are_combined_are_exchanged_once_each():
    shape, mesh = (24, 32, 32), mw.AbstractMesh((2, 4), ("x", "y"))

    def transformed(x):
        return mnp.fft.rfftn(x, axes=(1, 2))

    def run(x):
        spectrum = transformed(x) + transformed(mnp.tanh(x)) ** 2
        return mnp.fft.irfftn(spectrum, s=shape[1:], axes=(1, 2)).sum(1)

    lowered = mw.jit(run, in_shardings=NamedSharding(mesh, P("y", "x"))).lower(mw.ShapeDtypeStruct(shape, np.float32))
    part = lowered.partition()
    assert "all_gather" not in {c.kind for c in part.collectives}
    assert part.work.redundancy < 1.1
    part.verify()
