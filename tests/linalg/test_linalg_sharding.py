"""Linear algebra and Fourier transforms on a mesh: batches stay split, whole gradients too; what must move is said."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright.core.avals import ShapedArray
from meshwright.ops.linalg.lapack import Lapack
from meshwright.spmd.work import operations

pytestmark = pytest.mark.filterwarnings("ignore::meshwright.errors.PaddingWarning")

RNG = np.random.default_rng(13)
F32 = np.dtype(np.float32)
MESH = mw.make_mesh((4, 2), ("data", "model"))
#: five matrices on four devices: one device has a row of padding, another none but padding
S = (RNG.normal(size=(5, 3, 3)) + 3 * np.eye(3)).astype(np.float32)
EVEN = (RNG.normal(size=(8, 4, 4)) + 3 * np.eye(4)).astype(np.float32)


def on(spec: P) -> mw.NamedSharding:
    return mw.NamedSharding(MESH, spec)


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "cholesky": lambda n, x: n.linalg.cholesky(x @ n.matrix_transpose(x)).sum(),
    "solve": lambda n, x: (n.linalg.solve(x, x[..., :2] ** 2) ** 2).sum(),
    "slogdet": lambda n, x: n.linalg.slogdet(x)[1].sum(),
    "eigh": lambda n, x: (n.linalg.eigh(x + n.matrix_transpose(x))[1] ** 3).sum(),
    "svd": lambda n, x: n.linalg.svdvals(x).sum(),
    "qr": lambda n, x: (n.linalg.qr(x)[0] ** 3).sum(),
    "fft": lambda n, x: (n.abs(n.fft.fft2(x)) ** 3).sum(),
    "rfft and irfft": lambda n, x: (n.fft.irfft(n.fft.rfft(x) ** 2, n=5) ** 2).sum(),
}


@pytest.mark.parametrize("x", [S, EVEN], ids=["uneven", "even"])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_split_batches(name: str, x: np.ndarray) -> None:
    """Nothing is sent but the sum of the loss."""
    f = LOSSES[name]
    step = mw.jit(mw.value_and_grad(lambda v: f(mnp, v)), in_shardings=on(P("data")))
    part = step.lower(x).partition()
    assert part.bytes_sent <= 8, part.explain()
    value, grad = step(x)
    want_value, want_grad = jax.value_and_grad(lambda v: f(jnp, v))(x)
    np.testing.assert_allclose(value, want_value, rtol=1e-4)
    np.testing.assert_allclose(grad, want_grad, rtol=1e-3, atol=1e-4 * np.abs(want_grad).max())


def test_right_hand_sides_stay_split() -> None:
    """One matrix on every device, columns in tiles: nothing is sent, forwards or back."""
    b = RNG.normal(size=(4, 10)).astype(np.float32)
    shardings = (on(P()), on(P(None, "data")))
    part = mw.jit(mnp.linalg.solve, in_shardings=shardings).lower(EVEN[0], b).partition()
    assert part.bytes_sent == 0, part.explain()
    part.verify(EVEN[0], b)
    grad = mw.jit(mw.grad(lambda v: (mnp.linalg.solve(EVEN[0], v) ** 2).sum()), in_shardings=on(P(None, "data")))
    assert grad.lower(b).partition().bytes_sent == 0
    want = 2 * np.linalg.solve(EVEN[0].T, np.linalg.solve(EVEN[0], b))
    np.testing.assert_allclose(grad(b), want, rtol=1e-3, atol=1e-3 * np.abs(want).max())


@pytest.mark.parametrize("columns", [12, 10])
def test_columns_of_tridiagonal_systems_stay_split(columns: int) -> None:
    """Solving along the rows of a grid and then along its columns takes an all-to-all in between, and one back."""
    low, main = np.full(12, -0.2, np.float32), np.arange(2, 14, dtype=np.float32)

    def solve(b: Any) -> Any:
        return mw.lax.linalg.tridiagonal_solve(low, main, 2 * low, b)

    b = RNG.normal(size=(12, columns)).astype(np.float32)
    tiles = on(P(None, "data"))
    part = mw.jit(solve, in_shardings=tiles).lower(b).partition()
    assert part.bytes_sent == 0, part.explain()
    part.verify(b)
    full = np.diag(main) + np.diag(low[1:], -1) + np.diag(2 * low[:-1], 1)
    np.testing.assert_allclose(mw.jit(solve, in_shardings=tiles)(b), np.linalg.solve(full, b), rtol=1e-4)
    read = mw.load(mw.jit(solve, in_shardings=tiles).lower(b).as_text("stablehlo")).partition()  # a call of LAPACK
    assert read.bytes_sent == 0, read.explain()
    read.verify(b)
    if columns == 12:
        both = mw.jit(lambda b: solve(solve(b).T).T, in_shardings=tiles, out_shardings=tiles).lower(b).partition()
        assert [c.kind for c in both.collectives] == ["all_to_all"] * 2, both.explain()
        both.verify(b)


@pytest.mark.parametrize("left", [True, False])
def test_what_reflections_are_applied_to_stays_split(left: bool) -> None:
    a, scales = np.linalg.qr(RNG.normal(size=(6, 6)), mode="raw")
    c = RNG.normal(size=(6, 10) if left else (10, 6))
    a, scales, c = (x.astype(np.float32) for x in (a.T, scales, c))
    tiles = on(P(None, "data") if left else P("data"))
    part = mw.jit(partial(mw.lax.linalg.ormqr, left=left), in_shardings=(on(P()), on(P()), tiles)).lower(a, scales, c)
    part = part.partition()
    assert part.bytes_sent == 0, part.explain()
    part.verify(a, scales, c)


def test_split_matrices_are_gathered_and_the_explanation_says_so() -> None:
    program = mw.jit(lambda x: mnp.linalg.inv(x), in_shardings=on(P(None, "data")), out_shardings=on(P(None, "data")))
    part = program.lower(EVEN).partition()
    assert {c.kind for c in part.collectives} <= {"all_gather", "all_to_all"}
    part.verify(EVEN)
    # To the batch dimension and back: cheaper than that every device inverts all.
    assert part.bytes_sent < EVEN.nbytes
    assert "lu" in part.explain() or "inv" in part.explain()


def test_vmap_over_matrices_and_right_hand_sides() -> None:
    b = RNG.normal(size=(8, 4)).astype(np.float32)
    want = np.stack([np.linalg.solve(m, v) for m, v in zip(EVEN, b)])
    np.testing.assert_allclose(mw.vmap(mnp.linalg.solve)(EVEN, b), want, rtol=1e-3)
    one = mw.vmap(lambda v: mnp.linalg.solve(EVEN[0], v))(b)
    np.testing.assert_allclose(one, np.linalg.solve(EVEN[0], b.T).T, rtol=1e-3)
    text = str(mw.make_jaxpr(mw.vmap(lambda v: mnp.linalg.solve(EVEN[0], v)))(b))
    assert "lu" in text and "f32[8,4,4]" not in text  # the matrix is not repeated


@pytest.mark.parametrize("name", ["fft2", "rfft2", "irfft2"])
@pytest.mark.parametrize("rows", [16, 15])
def test_split_rows_are_exchanged_for_columns(name: str, rows: int) -> None:
    """Two all-to-alls of a tile each, and not the array on every device."""
    real, half = RNG.normal(size=(rows, 20)).astype(np.float32), RNG.normal(size=(2, rows, 11)).astype(np.float32)
    x = (half[0] + 1j * half[1]).astype(np.complex64) if name == "irfft2" else real
    f = getattr(mnp.fft, name)
    part = mw.jit(f, in_shardings=on(P("data")), out_shardings=on(P("data"))).lower(x).partition()
    assert [c.kind for c in part.collectives] == ["all_to_all"] * 2
    spectrum = (16 if rows == 15 else rows) * 12 * 8  # a tile's columns are filled up to a multiple of four, too
    sizes = spectrum if name != "fft2" else 16 * 20 * 8
    assert part.bytes_sent <= 2 * sizes // 4 * 3 // 4
    part.verify(x)
    jitted = mw.jit(f, in_shardings=on(P("data")), out_shardings=on(P("data")))
    np.testing.assert_allclose(jitted(x), getattr(np.fft, name)(x), rtol=1e-4, atol=1e-4)


#: operations of one problem, from the tables of Golub and Van Loan
OPERATIONS = {
    "cholesky": (mnp.linalg.cholesky, (30, 30), 30**3 // 3),
    "lu": (mw.lax.linalg.lu, (30, 30), 2 * 30**3 // 3),
    "lu, tall": (mw.lax.linalg.lu, (50, 30), 50 * 30**2 - 30**3 // 3),
    "qr": (mnp.linalg.qr, (50, 30), 4 * 30**2 * (50 - 10)),
    "eigh": (mw.lax.linalg.eigh, (30, 30), 9 * 30**3),
    "svd": (partial(mw.lax.linalg.svd, full_matrices=False), (30, 50), 14 * 50 * 30**2 + 8 * 30**3),
    "singular values": (partial(mw.lax.linalg.svd, compute_uv=False), (50, 30), 4 * 50 * 30**2 - 4 * 30**3 // 3),
    "triangular": (lambda a: mw.lax.linalg.triangular_solve(a[:, :, :30], a, left_side=True), (30, 50), 30 * 30 * 50),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_decompositions_count_their_operations(name):
    """Not their elements: what is repeated is seen in ``work``, and priced."""
    f, shape, count = OPERATIONS[name]
    jaxpr = mw.make_jaxpr(f)(mw.ShapeDtypeStruct((4, *shape), np.float32)).jaxpr
    assert max(map(operations, jaxpr.eqns)) == pytest.approx(4 * count, rel=1e-3)


def test_kernels_of_nothing_do_nothing():
    """As programs from elsewhere may have them."""
    a, b = ShapedArray((0, 0), F32), ShapedArray((0, 3), F32)
    flags = (("diag", "N"), ("side", "L"), ("trans_x", "N"), ("uplo", "L"))
    assert Lapack("trsm", (2, 2), (b,), flags).sharding_rule(a, b).work == 0


@pytest.mark.parametrize("columns", [0, 3])
def test_there_are_as_many_solutions_as_right_hand_sides(columns):
    a, b = ShapedArray((4, 4), F32), ShapedArray((4, 2), F32)
    flags = (("diag", "N"), ("side", "L"), ("trans_x", "N"), ("uplo", "L"))
    others = b.update(shape=(4, columns))
    assert Lapack("trsm", (2, 2), (b,), flags).infer(a, others) == (others,)


def test_singular_values_alone_take_no_memory_for_vectors():
    values = mw.jit(lambda a: mw.lax.linalg.svd(a, compute_uv=False))
    x = RNG.normal(size=(500, 4)).astype(F32)
    assert "500x500" not in values.lower(x).as_text()
    np.testing.assert_allclose(values(x), np.linalg.svd(x, compute_uv=False), rtol=1e-5)


TALL = RNG.normal(size=(64, 3)).astype(np.float32)
#: what is gathered of two square matrices of each of four tiles
TRIANGLES = 2 * 3 * 3 * 4 * 3
TALL_DECOMPOSITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "qr": lambda n, x: tuple(n.linalg.qr(x)),
    "complex qr": lambda n, x: tuple(n.linalg.qr(x * (1 + 2j))),
    "svd": lambda n, x: tuple(n.linalg.svd(x, full_matrices=False)),
    "singular values": lambda n, x: n.linalg.svdvals(x),
    "least squares": lambda n, x: n.linalg.lstsq(x, x[:, 0] ** 2)[0],
    "pinv": lambda n, x: n.linalg.pinv(x),
    "rank": lambda n, x: n.linalg.matrix_rank(x),
    "columns with zeros": lambda n, x: tuple(n.linalg.qr(x * (x > 1))),
    "of a rank that is not full": lambda n, x: n.abs(n.linalg.svdvals(x.at[:, 1].set(x[:, 0]))),
    "of a batch": lambda n, x: tuple(n.linalg.qr(n.stack([x, x[:, ::-1]], 1).transpose(1, 0, 2))),
    "gradient": lambda n, x: (mw if n is mnp else jax).grad(lambda x: (n.linalg.qr(x)[0] ** 3).sum())(x),
}


@pytest.mark.parametrize("name", TALL_DECOMPOSITIONS)
def test_split_rows_of_tall_matrices_stay_split(name: str) -> None:
    """Triangular factors are gathered, not rows. The factors are those of one device, signs included."""
    f = TALL_DECOMPOSITIONS[name]
    jitted = mw.jit(lambda x: f(mnp, x), in_shardings=on(P("data")))
    part = jitted.lower(TALL).partition()
    times = {"complex qr": 2, "of a batch": 2}.get(name, 1)
    sums = 1000 if name in ("gradient", "least squares", "pinv") else 0
    assert part.bytes_sent <= times * TRIANGLES * 4 + sums, part.explain()
    for got, want in zip(jax.tree.leaves(jitted(TALL)), jax.tree.leaves(jax.jit(lambda x: f(jnp, x))(TALL))):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(12, 3), (62, 3), (64, 20)])
@pytest.mark.filterwarnings("ignore::meshwright.errors.MeshwrightWarning")
def test_rows_that_are_too_few_or_uneven_are_gathered(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    jitted = mw.jit(lambda x: tuple(mnp.linalg.qr(x)), in_shardings=on(P("data")))
    q, r = jitted(x)
    np.testing.assert_allclose(q @ r, x, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(q.T @ q, np.eye(shape[1]), atol=1e-4)
