"""Updates of memory that they read in another shape, which XLA's CPU compiler does in place."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.lowering.overlapping import keep_what_is_read

X = np.arange(72, dtype=np.float32).reshape(12, 6)


def moved(x: np.ndarray) -> np.ndarray:
    """Two columns, one further to the right."""
    result = x.copy()
    result[:, 1:3] = x[:, :2]
    return result


@pytest.mark.parametrize(
    "f",
    [
        lambda x: lax.dynamic_update_slice(x[None], x[:, :2][None], (0, 0, 1)),
        lambda x: lax.dynamic_update_slice(x[:, None], x[:, :2][:, None], (0, 0, 1)),
        lambda x: lax.dynamic_update_slice(x.reshape(4, 3, 6), x[:, :2].reshape(4, 3, 2), (0, 0, 1)),
        lambda x: lax.dynamic_update_slice((x * 1.5)[None], (x * 1.5)[:, :2][None], (0, 0, 1)) / 1.5,
        lambda x: x.reshape(4, 3, 6).at[:, :, 1:3].set(x[:, :2].reshape(4, 3, 2)),
    ],
)
def test_an_update_reads_what_was_there_before(f):
    np.testing.assert_array_equal(np.asarray(mw.jit(f)(X)).reshape(12, 6), moved(X))


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint32, np.float32, np.complex64])
@pytest.mark.parametrize("start", [-3, 0, 1, 4, 100])
def test_starts_that_a_run_knows_are_clamped(start, dtype):
    x = (X % 7).astype(dtype)
    f = mw.jit(lambda x, i: lax.dynamic_update_slice(x[None], x[1:4, :2][None], (0, i + 2, i)))
    expected = x.copy()
    row, column = np.clip((start + 2 if start + 2 >= 0 else start + 14, start if start >= 0 else start + 6), 0, (9, 4))
    expected[row : row + 3, column : column + 2] = x[1:4, :2]
    np.testing.assert_array_equal(np.asarray(f(x, np.int32(start)))[0], expected)


def test_a_row_is_copied_into_the_flat_array():
    expected = X.ravel().copy()
    expected[3:9] = X[0]
    np.testing.assert_array_equal(mw.jit(lambda x: lax.dynamic_update_slice(x.ravel(), x[0], (3,)))(X), expected)


@pytest.mark.parametrize("is_called", [False, True])
@pytest.mark.parametrize("shape", [(6, 2, 1), (1, 6, 2), (6, 1, 2)])
def test_a_result_in_another_shape_reads_what_was_there_before(shape, is_called):
    """Rows one further down, of a sorted array."""
    x = np.arange(12, dtype=np.int32)[::-1].reshape(6, 2)
    rows = shape.index(6)

    def down(x, i):
        x = mnp.sort(x, axis=rows)
        return lax.dynamic_update_slice(x, lax.slice_in_dim(x, 0, 5, axis=rows), [i * (d == rows) for d in range(3)])

    inner = mw.jit(down) if is_called else down
    f = mw.jit(lambda x, i: inner(x.reshape(shape), i).reshape(6, 2))
    found = np.sort(x, axis=0)
    np.testing.assert_array_equal(f(x, np.int32(1)), np.concatenate([found[:1], found[:5]]))


def test_updates_of_what_they_do_not_read_stay():
    def f(x, y):
        seen = x[None]
        return lax.dynamic_update_slice(x, x[:2] + y, (1, 0)), lax.dynamic_update_slice(
            seen, seen[:, :2] * 2, (0, 1, 0)
        )

    jaxpr = mw.make_jaxpr(f)(X, mnp.float32(3))
    assert keep_what_is_read(jaxpr) is jaxpr


def test_arrays_of_one_number_are_updated():
    f = mw.jit(lambda y: lax.dynamic_update_slice(mnp.zeros((3, 4)), y + mnp.zeros((3, 1)), (0, 2)))
    np.testing.assert_array_equal(f(np.float32(2)), np.float32([[0, 0, 2, 0]] * 3))
