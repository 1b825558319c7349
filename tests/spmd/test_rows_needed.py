"""Only the rows that are needed, and not known to be zero, are computed between slices, transforms and pads."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, P, lax
from meshwright.ir.jaxpr import Var
from meshwright.ir.passes import run_passes
from meshwright.ops.rows_needed import rows_needed
from meshwright.ops.rows_of_a_ring import Run
from meshwright.spmd.driver import PREPARE

MESH = mw.AbstractMesh((4, 2), ("r", "c"))
ROWS = P("r")
N, M, W = 64, 6, 8
#: bytes of the low frequencies of one dimension, the other being whole, on one of the devices that split rows
LOW = N * M * W * 8 // 4


def rows(run: Run) -> set[int]:
    return {(run.start + i) % run.size for i in range(run.length)}


def runs(size: int) -> list[Run]:
    return [*(Run(a, n, size) for a in range(size) for n in range(size)), Run.whole(size)]


def test_runs_of_a_ring() -> None:
    for a, b in itertools.product(runs(5), runs(5)):
        joined, common = a.joined(b), a.common(b)
        assert rows(a) | rows(b) <= rows(joined)
        shortest = min(c.length for c in runs(5) if rows(a) | rows(b) <= rows(c))
        assert joined.length == shortest
        assert a.contains(b) == (rows(b) <= rows(a))
        if common is not None:
            assert rows(common) == rows(a) & rows(b)
        inside = Run(a.start, a.length, 5).inside(Run(2, 5, 8))
        assert {(2 + row) % 8 for row in rows(a)} <= rows(inside) <= {2, 3, 4, 5, 6}
        if a.contains(b) and b.length and (place := b.among(a)) is not None and not a.is_whole:
            assert rows(place.inside(a)) == rows(b)


def split(function: Any, *args: Any, spec: P = ROWS, out: P | None = ROWS) -> Any:
    where = None if out is None else NamedSharding(MESH, out)
    run = mw.jit(function, in_shardings=NamedSharding(MESH, spec), out_shardings=where)
    return run.lower(*args).partition(MESH)


def like(*shape: int, dtype: Any = np.complex64) -> Any:
    return mw.ShapeDtypeStruct(shape, dtype)


def centre(x: Any) -> Any:
    return mnp.fft.ifftshift(mnp.fft.fftshift(mnp.fft.fft2(x))[N // 2 - M : N // 2 + M, N // 2 - M : N // 2 + M])


SLICED = {
    "of one sign": lambda x: mnp.fft.fft2(x, axes=(0, 1))[:M, :M],
    "of real numbers": lambda x: mnp.fft.rfft2(x.real, axes=(0, 1))[:M, :M],
    "scaled": lambda x: (mnp.fft.fft2(x, axes=(0, 1)) * np.float32(0.5))[:M, :M],
    "padded again": lambda x: mnp.fft.fft2(x, axes=(0, 1))[:M, :M] * mnp.ones((M, M, W)),
}


@pytest.mark.parametrize("name", SLICED)
def test_low_frequencies_move_alone(name: str) -> None:
    """The other dimension is transformed and cut before the split one: one exchange of what is left."""
    part = split(SLICED[name], like(N, N, W), out=None)
    part.verify()
    assert part.bytes_sent <= LOW, part.explain()
    assert part.work.redundancy < 0.9  # rows of the second transform that nothing needs are left out


@pytest.mark.parametrize("signs", [1, 2])
def test_filled_spectra_move_while_they_are_small(signs: int) -> None:
    """Both corners of a spectrum are one run of rows: they are filled and transformed after they have moved."""

    def f(x: Any) -> Any:
        full = mnp.zeros((N, N, W), np.complex64).at[:M, :M].set(x[:M])
        full = full if signs == 1 else full.at[-M:, :M].set(x[M:])
        return mnp.fft.ifft2(full, axes=(0, 1))

    part = split(f, like(signs * M, M, W), spec=P())
    part.verify()
    assert part.bytes_sent <= 1.2 * LOW, part.explain()


def test_derivatives_of_low_frequencies() -> None:
    """A spectral convolution and its gradient send four times what the low frequencies of one dimension are."""

    def loss(x: Any) -> Any:
        z = mnp.fft.rfft2(x, axes=(0, 1))
        low = mnp.concatenate([z[:M, :M], z[-M:, :M]]) * (1 + 2j)
        full = mnp.zeros((N, N // 2 + 1, W), np.complex64).at[:M, :M].set(low[:M]).at[-M:, :M].set(low[M:])
        return (mnp.fft.irfft2(full, s=(N, N), axes=(0, 1)) ** 3).sum()

    part = split(mw.grad(loss), like(N, N, W, dtype=np.float32))
    part.verify()
    assert part.bytes_sent <= 5 * LOW, part.explain()


def test_shifted_spectra() -> None:
    part = split(centre, like(N, N), out=None)
    part.verify()
    assert part.bytes_sent <= N * 2 * M * 8 // 4 * 1.5, part.explain()


RNG = np.random.default_rng(5)


def computed(f: Any, *args: Any) -> Any:
    """The program with only the rows needed computed, on arrays; every equation may be one of those that start it."""
    closed = run_passes(mw.make_jaxpr(f)(*args), PREPARE)
    less = rows_needed(closed, closed.jaxpr.eqns, lambda _, aval: Var(aval))
    return mw.core.eval_jaxpr(less.jaxpr, less.consts, *args)


def turned(x: Any) -> Any:
    """Twice as many rows, of which those at both ends are not zero."""
    return mnp.roll(mnp.pad(x, [(0, len(x)), (0, 0)]), -2, 0)


def filled(x: Any) -> Any:
    low = mnp.pad(x, [(0, 0), (3, 0)])
    return mnp.roll(low, -1, 1) + low


MOVED = {
    "padded": lambda x: mnp.pad(turned(x), [(2, 2), (0, 0)]),
    "written": lambda x: mnp.zeros((16, x.shape[1]), x.dtype).at[1 : 1 + 2 * len(x)].set(turned(x)),
    "needed twice": filled,
    "given as it is, and moved": lambda x: (y := mnp.zeros((9, 7), x.dtype).at[1:7].set(x), mnp.roll(y, 1, 0)),
    "too large for its type": lambda x: mnp.pad(x.real.astype(np.float16), 1) * mnp.asarray(1e5).astype(np.float16),
}


@pytest.mark.parametrize("name", MOVED)
def test_rows_that_move(name: str) -> None:
    x = RNG.normal(size=(6, 7)).astype(np.complex64)
    for got, want in zip(computed(MOVED[name], x), mw.tree.leaves(MOVED[name](x))):
        np.testing.assert_array_equal(got, want)


def test_rotated_rows_in_larger_spectra() -> None:
    def f(x: Any) -> Any:
        return mnp.fft.ifft2(mnp.pad(turned(x), [(8, 8), (0, 0)]))

    split(f, like(8, 8), out=None).verify()


def random_program(seed: int) -> Any:
    """Slices, pads, rotations, updates, transforms, transposes and elementwise ops, of which some results are used."""
    rng = np.random.default_rng(seed)
    plan = [(rng.integers(9), rng.random(4)) for _ in range(9)]

    def cut(x: Any, d: int, u: np.ndarray) -> tuple[int, int]:
        low = int(u[1] * x.shape[d] * 0.6)
        return low, low + 1 + int(u[2] * (x.shape[d] - low - 1))

    def f(x: Any) -> Any:
        kept = [x]
        for kind, u in plan:
            x = kept[-1 - int(u[3] * min(2, len(kept)))]
            d = int(u[0] * x.ndim)
            low, high = cut(x, d, u)
            size = x.shape[d]
            match kind:
                case 0 | 1:
                    x = lax.slice_in_dim(x, low, high, axis=d)
                case 2 if size < 12:
                    x = mnp.pad(x, [(low, size - high) if e == d else (0, 0) for e in range(x.ndim)])
                case 3:
                    x = mnp.roll(x, low, d)
                case 4 | 5:
                    x = mnp.fft.fft(x, axis=d)
                case 6:
                    part = lax.slice_in_dim(x, 0, high - low, axis=d)
                    x = mnp.zeros_like(x).at[(slice(None),) * d + (slice(low, high),)].set(part)
                case 7:
                    x = mnp.conj(x).T * np.float32(u[1]) if u[2] < 0.5 else x + mnp.conj(x)
                case _:
                    x = mnp.sin(x) if u[1] < 0.3 else x * 2
            kept.append(x)
        return kept[-1], kept[-3]

    return f


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    """The same results as of all rows, also where every equation may be one of those that start it."""
    x = (RNG.normal(size=(6, 7)) + 1j * RNG.normal(size=(6, 7))).astype(np.complex64)
    for got, want in zip(computed(random_program(seed), x), random_program(seed)(x)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_zeros_are_not_left_out_before_factors_that_a_conversion_makes_infinite() -> None:
    """Infinity times zero is NaN, as on one device."""

    def function(x: Any) -> Any:
        low = mnp.pad(mnp.fft.fft2(x)[:, :M], ((0, 0), (0, 16 - M)))
        huge = lax.full((16, 16), 1e300, np.float64).astype(np.complex64)
        return mnp.fft.ifft2(low), low * huge

    with mw.enable_x64(True):
        x = (1.0 + np.arange(256).reshape(16, 16) ** 1.5).astype(np.complex64)
        mesh = mw.make_mesh((4,), ("r",))
        run = mw.jit(function, in_shardings=NamedSharding(mesh, ROWS), out_shardings=NamedSharding(mesh, ROWS))
        here, alone = run(x)[1], mw.jit(function)(x)[1]
    np.testing.assert_array_equal(np.isnan(here)[:, M:], True)
    np.testing.assert_array_equal(np.isnan(here), np.isnan(alone))
