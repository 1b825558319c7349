"""Images, segments, vectors of trees and checked derivatives, against JAX."""

from __future__ import annotations

import doctest
import inspect
from importlib import import_module
from typing import Any

import jax
import jax.flatten_util
import jax.image
import jax.ops
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P

IMAGE = np.random.default_rng(0).standard_normal((3, 7, 5, 2)).astype(np.float32)
METHODS = ("nearest", "linear", "cubic", "lanczos3", "lanczos5")


# --- documentation ------------------------------------------------------------------------------------------
FUNCTIONS = [
    f
    for name in ("image.resampling", "flatten_util", "test_util")
    for f in vars(import_module(f"meshwright.{name}")).values()
    if inspect.isfunction(f) and f.__module__ == f"meshwright.{name}" and not f.__name__.startswith("_")
] + [getattr(mw.ops, f"segment_{kind}") for kind in ("sum", "prod", "max", "min")]


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_examples(f: Any) -> None:
    (example,) = doctest.DocTestFinder().find(f, f.__name__, module=False, globs={"mw": mw, "jnp": mnp})
    found = doctest.DocTestRunner().run(example)
    assert found.attempted and not found.failed


def test_modules_are_found_when_asked_for() -> None:
    for name in ("dlpack", "dtypes", "flatten_util", "image", "stages", "test_util", "typing"):
        assert getattr(mw, name).__doc__ and name in dir(mw)
    with pytest.raises(AttributeError, match="nothing_here"):
        mw.nothing_here  # noqa: B018


# --- images -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(3, 9, 11, 2), (3, 4, 3, 2), (3, 7, 1, 2)], ids=str)
@pytest.mark.parametrize("antialias", [True, False])
def test_resize(method: str, shape: tuple[int, ...], antialias: bool) -> None:
    want = jax.image.resize(IMAGE, shape, method, antialias)
    np.testing.assert_allclose(mw.image.resize(IMAGE, shape, method, antialias), want, atol=2e-5)


@pytest.mark.parametrize("method", METHODS[1:])
def test_scale_and_translate_and_its_gradients(method: str) -> None:
    scale, shift = np.array([0.7, 1.6], np.float32), np.array([0.4, -1.2], np.float32)

    def energy(image: Any) -> Any:
        return lambda x, s, t: (image.scale_and_translate(x, (3, 6, 8, 2), (1, 2), s, t, method) ** 2).sum()

    want = jax.value_and_grad(energy(jax.image), (0, 1, 2))(IMAGE, scale, shift)
    got = mw.value_and_grad(energy(mw.image), (0, 1, 2))(IMAGE, scale, shift)
    for a, b in zip(mw.tree.leaves(got), jax.tree.leaves(want)):
        np.testing.assert_allclose(a, b, rtol=3e-4, atol=3e-4)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16", "float32", "complex64"])
@pytest.mark.parametrize("wide", [False, True])
def test_dtypes_of_images(dtype: str, wide: bool) -> None:
    image = np.ones((4, 4), dtype)
    with mw.enable_x64(wide), jax.enable_x64(wide):
        for method in METHODS:
            want = jax.eval_shape(lambda x: jax.image.resize(x, (3, 5), method), image)  # noqa: B023
            assert mw.image.resize(image, (3, 5), method).dtype == want.dtype


def test_images_split_by_rows() -> None:
    mesh = mw.make_mesh((4,), ("rows",))
    put = mw.device_put(IMAGE[:, :4], mw.NamedSharding(mesh, P(None, "rows")))
    got = mw.jit(lambda x: mw.image.resize(x, (3, 8, 10, 2), "cubic"))(put)
    np.testing.assert_allclose(got, jax.image.resize(IMAGE[:, :4], (3, 8, 10, 2), "cubic"), atol=2e-5)


def test_errors_of_images() -> None:
    with pytest.raises(mw.errors.ShapeError, match="4 dimensions"):
        mw.image.resize(IMAGE, (3, 4), "linear")
    with pytest.raises(mw.errors.ArgumentError, match="unknown method 'linaer'"):
        mw.image.resize(IMAGE, IMAGE.shape, "linaer")
    with pytest.raises(mw.errors.ShapeError, match="not in spatial_dims"):
        mw.image.scale_and_translate(IMAGE, (3, 8, 8, 2), (1,), mnp.ones(1), mnp.ones(1), "linear")


# --- segments -----------------------------------------------------------------------------------------------
ROWS = [np.arange(1.0, 6, dtype=np.float32), np.arange(10).reshape(5, 2), np.array([1, 0, 1, 1, 0], bool)]


KINDS = [
    pytest.param(kind, rows, id=f"{kind}_{rows.dtype}")
    for rows in ROWS
    for kind in ("sum", "prod", "max", "min")
    if rows.dtype != bool or kind in ("max", "min")  # JAX does not add bools
]


@pytest.mark.parametrize(("kind", "rows"), KINDS)
@pytest.mark.parametrize("number", [4, None])
def test_segments(kind: str, rows: np.ndarray, number: int | None) -> None:
    ids = np.array([0, 2, -1, 2, 7])
    want = getattr(jax.ops, f"segment_{kind}")(rows, ids, number)
    got = getattr(mw.ops, f"segment_{kind}")(rows, ids, number)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("ids", [[0, 2, 1, 0], [[0, 2], [1, 1]], [[0], [2]], [[2, 0]], [1]])
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_segments_of_rows_that_are_broadcast(kind: str, ids: Any) -> None:
    taken = 0
    for shape in ((), (1,), (2,), (4,), (1, 2), (2, 1), (2, 2), (2, 2, 3), (1, 1, 3), (4, 3), (3,)):
        rows = np.arange(1.0, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
        try:
            want = getattr(jax.ops, f"segment_{kind}")(rows, jax.numpy.array(ids), 3)
        except ValueError:
            with pytest.raises(mw.errors.ShapeError, match="do not number"):
                getattr(mw.ops, f"segment_{kind}")(rows, mnp.array(ids), 3)
            continue
        np.testing.assert_array_equal(getattr(mw.ops, f"segment_{kind}")(rows, mnp.array(ids), 3), want)
        taken += 1
    assert taken > 3


def test_negative_segments_do_not_count_from_the_end() -> None:
    ids = np.array([0, 2, -1, 2, 7], np.int8)
    for mode in ("drop", "clip"):
        np.testing.assert_array_equal(
            mw.ops.segment_sum(ROWS[0], ids, 4, mode=mode), jax.ops.segment_sum(ROWS[0], ids, 4, mode=mode)
        )


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_segments_in_buckets(kind: str) -> None:
    rows, ids = np.arange(1, 15, dtype=np.float32).reshape(7, 2), np.array([0, 2, 1, 2, 0, 5, -1])
    for size in (1, 3, 9):
        got, want = (getattr(m.ops, f"segment_{kind}")(rows, ids, 3, bucket_size=size) for m in (mw, jax))
        np.testing.assert_array_equal(got, want)


def test_gradients_of_segments() -> None:
    ids = np.array([0, 2, 1, 2, 0])
    for kind in ("sum", "min", "max"):
        f, g = getattr(mw.ops, f"segment_{kind}"), getattr(jax.ops, f"segment_{kind}")
        got = mw.grad(lambda x, f=f: (f(x, ids, 3) ** 2).sum())(ROWS[0])
        np.testing.assert_allclose(got, jax.grad(lambda x, g=g: (g(x, ids, 3) ** 2).sum())(ROWS[0]), rtol=1e-6)


def test_errors_of_segments() -> None:
    with pytest.raises(mw.errors.ShapeError, match=r"segment_ids of shape \(4,\)"):
        mw.ops.segment_sum(ROWS[0], np.arange(4), 3)
    with pytest.raises(mw.errors.ArgumentError, match="bucket_size must be at least 1"):
        mw.ops.segment_sum(ROWS[0], np.arange(5), 3, bucket_size=0)
    with pytest.raises(mw.errors.DTypeError, match="must be integers"):
        mw.ops.segment_sum(ROWS[0], ROWS[0], 3)
    with pytest.raises(mw.errors.ConcretizationTypeError, match="num_segments"):
        mw.jit(mw.ops.segment_sum)(ROWS[0], np.arange(5))


# --- trees as vectors ---------------------------------------------------------------------------------------
def test_ravel_pytree() -> None:
    tree = {"a": np.arange(3), "b": (np.ones((2, 2), np.float32), 3.0), "c": np.zeros((0, 4), np.float16)}
    flat, unravel = mw.flatten_util.ravel_pytree(tree)
    want, _ = jax.flatten_util.ravel_pytree(tree)
    assert flat.dtype == want.dtype
    np.testing.assert_array_equal(flat, want)
    back = unravel(flat)
    assert back["a"].dtype == np.int32 and back["c"].shape == (0, 4)
    np.testing.assert_array_equal(mw.grad(lambda v: (unravel(v)["b"][0] ** 2).sum())(flat), [0, 0, 0, 2, 2, 2, 2, 0])
    with pytest.raises(mw.errors.ShapeError, match=r"\(8,\)"):
        unravel(mnp.ones(3))
    with pytest.raises(mw.errors.DTypeError, match="float32"):
        unravel(mnp.ones(8, int))


# --- checked derivatives ------------------------------------------------------------------------------------
def test_check_grads_finds_a_wrong_rule() -> None:
    @mw.custom_jvp
    def square(x: Any) -> Any:
        return x**2

    square.defjvp(lambda primals, tangents: (square(*primals), primals[0] * tangents[0]))
    with pytest.raises(mw.errors.VerificationError, match="differs from finite differences"):
        mw.test_util.check_grads(square, (mnp.arange(3.0),), 1)

    @mw.custom_vjp
    def cube(x: Any) -> Any:
        return x**3

    cube.defvjp(lambda x: (cube(x), x), lambda x, ct: (3 * x * ct,))
    with pytest.raises(mw.errors.VerificationError, match="check_vjp"):
        mw.test_util.check_grads(cube, (mnp.arange(1.0, 4),), 1, modes=("rev",))


def test_check_grads_of_complex_functions_and_second_order() -> None:
    with mw.enable_x64(True):
        z = mnp.asarray(np.array([0.3 + 0.4j, -1.0 + 0.2j]))
        mw.test_util.check_grads(lambda z: mnp.exp(z) * z, (z,), 2)
    with pytest.raises(mw.errors.ArgumentError, match="float or complex"):
        mw.test_util.check_grads(mnp.sin, (np.arange(3),), 1)


@pytest.mark.parametrize("atol", [None, 0.01, 0.5])
def test_check_grads_near_another_branch_and_where_functions_bend(atol: float | None) -> None:
    near = mnp.float32(0.001)  # a long step ends in the other branch
    mw.test_util.check_grads(lambda x: mnp.where(x > 0, 5 * x, -70 * x), (near,), 1, atol=atol)
    mw.test_util.check_grads(lambda x: mnp.sin(300 * x), (mnp.float32(0.2),), 1, atol=atol)
    with pytest.raises(mw.errors.VerificationError):
        mw.test_util.check_grads(lambda x: mnp.sin(300 * x), (mnp.float32(0.2),), 1, atol=atol, eps=0.005)
