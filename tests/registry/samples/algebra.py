"""Samples of Fourier transforms and linear algebra.

Vectors of complex decompositions are determined up to phases, which LAPACK chooses and derivatives leave alone: those
samples are not ``smooth``, and tests/linalg checks functions of them that do not depend on phases.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.ops.linalg.cholesky import Cholesky
from meshwright.ops.linalg.eig import Eig
from meshwright.ops.linalg.eigh import Eigh
from meshwright.ops.linalg.fft import FFT, IFFT, IRFFT, RFFT, Fft
from meshwright.ops.linalg.lapack import Lapack
from meshwright.ops.linalg.lu import Lu, PivotsToPermutation
from meshwright.ops.linalg.qr import Qr
from meshwright.ops.linalg.svd import Svd
from meshwright.ops.linalg.triangular_solve import ADJOINT, PLAIN, TRANSPOSE, TriangularSolve
from meshwright.ops.linalg.tridiagonal import TridiagonalSolve
from samples.sample import Sample, complexes, floats, sample


def _transforms() -> Iterator[Sample]:
    for shape, lengths in (((5, 4), (4,)), ((3, 5), (5,)), ((2, 3, 4), (3, 4)), ((4, 2, 3), (4, 2, 3)), ((6,), (6,))):
        half = (*shape[:-1], shape[-1] // 2 + 1)
        label = "x".join(map(str, lengths))
        yield sample(Fft(FFT, lengths), complexes(*shape), label=label)
        yield sample(Fft(IFFT, lengths), complexes(*shape), label=label)
        yield sample(Fft(RFFT, lengths), floats(*shape), label=label)
        yield sample(Fft(IRFFT, lengths), complexes(*half), label=label)
    yield sample(Fft(RFFT, (2, 1, 3)), floats(2, 1, 3))


def dominant(*shape: int, seed: int = 0, kind: Any = floats) -> np.ndarray:
    """Matrices with a large diagonal of distinct elements: well conditioned, with distinct eigenvalues."""
    x = kind(*shape, seed=seed)
    m, n = shape[-2:]
    return (x + np.eye(m, n) * (4 + 3 * np.arange(n))).astype(x.dtype)


def positive(*shape: int, kind: Any = floats) -> np.ndarray:
    """Hermitian positive definite matrices."""
    x = kind(*shape) / 3
    return (x @ np.conj(x.swapaxes(-1, -2)) + np.eye(shape[-1])).astype(x.dtype)


def _solves() -> Iterator[Sample]:
    for left, lower, how, unit in (
        (True, True, PLAIN, False), (True, False, TRANSPOSE, False), (False, True, PLAIN, True),
        (False, False, TRANSPOSE, False),
    ):  # fmt: skip
        b = (3, 2) if left else (2, 3)
        op = TriangularSolve(left, lower, how, unit)
        label = f"{'left' if left else 'right'}-{'lower' if lower else 'upper'}-{how}{'-unit' * unit}"
        yield sample(op, dominant(5, 3, 3), floats(5, *b), label=label)
        yield sample(op, dominant(3, 3), floats(*b, seed=2), label=label)
    for left in (True, False):
        op = TriangularSolve(left, True, ADJOINT)
        yield sample(op, dominant(2, 3, 3, kind=complexes), complexes(2, 3, 3), label=f"adjoint-{left}")


def _decompositions() -> Iterator[Sample]:
    yield sample(Cholesky(), positive(5, 3, 3))
    yield sample(Cholesky(), positive(2, 3, 2, 2))
    yield sample(Cholesky(), positive(3, 3, kind=complexes))
    for shape in ((5, 3, 3), (2, 4, 2), (3, 2, 4), (4, 4)):
        yield sample(Lu(), floats(*shape))
        yield sample(Qr(), dominant(*shape))
        yield sample(Svd(), dominant(*shape))
        yield sample(Svd(full_matrices=True), dominant(*shape), smooth=shape[-1] == shape[-2], label="full")
        yield sample(Svd(compute_uv=False), dominant(*shape), label="values")
    yield sample(Qr(full_matrices=True), dominant(3, 4, 2), label="full")
    for shape in ((5, 4, 3), (2, 2, 3)):  # columns of lengths that differ: another order takes more than a step
        yield sample(
            Qr(pivoting=True), floats(*shape) * np.arange(1, shape[-1] + 1, dtype=np.float32), label="pivoting"
        )
    yield sample(Lu(), dominant(3, 2, 2, kind=complexes))
    yield sample(Qr(), complexes(3, 4, 2))
    yield sample(Svd(), complexes(3, 3, 2), smooth=False)
    yield sample(PivotsToPermutation(5), np.array([[2, 1, 3], [4, 4, 2], [1, 2, 2]], np.int32))
    yield sample(Eigh(), positive(5, 3, 3))
    yield sample(Eigh(), positive(3, 2, 2, kind=complexes), smooth=False)
    yield sample(Eig(), floats(3, 3, 3) / 3 + np.diag([1, 4, 9]).astype(np.float32))  # real eigenvalues
    yield sample(Eig(right=False), dominant(2, 3, 3), label="values")
    yield sample(Eig(right=False), complexes(3, 3), label="values")
    yield sample(Eig(left=True), floats(5, 2, 2), smooth=False, label="left")


def _three_diagonals() -> Iterator[Sample]:
    for shape, kind in (((5, 4), floats), ((4,), floats), ((2, 3), complexes)):
        diagonals = kind(*shape), kind(*shape, seed=1) + 5, kind(*shape, seed=2)
        yield sample(TridiagonalSolve(), *diagonals, kind(*shape, 2, seed=3))


def _kernels() -> Iterator[Sample]:
    def kernel(name: str, results: list[tuple[tuple[int, ...], Any]], *args: np.ndarray, **flags: Any) -> Sample:
        types = tuple(ShapedArray(shape, np.dtype(dtype)) for shape, dtype in results)
        ranks = tuple(x.ndim - 1 for x in args)
        return sample(Lapack(name, ranks, types, tuple(flags.items())), *args, smooth=False, label=name)

    f32, i32 = np.float32, np.int32
    yield kernel("getrf", [((3, 3), f32), ((3,), i32), ((), i32)], floats(5, 3, 3))
    yield kernel("geqrf", [((4, 2), f32), ((2,), f32)], floats(3, 4, 2))
    yield kernel("orgqr", [((4, 2), f32)], floats(3, 4, 2), floats(3, 2))
    yield kernel("ormqr", [((4, 3), f32)], floats(3, 4, 2), floats(3, 2), floats(3, 4, 3), left=True, transpose=True)
    yield kernel("gehrd", [((3, 3), f32), ((2,), f32), ((), i32)], floats(5, 3, 3), low=1, high=3)
    yield kernel(
        "gees", [((3, 3), f32), ((3, 3), f32), ((3,), f32), ((3,), f32), ((), i32), ((), i32)], floats(3, 3, 3),
        mode="V", sort="N",
    )  # fmt: skip
    yield kernel(
        "syevd", [((2, 2), np.complex64), ((2,), f32), ((), i32)],
        positive(3, 2, 2, kind=complexes), mode="V", uplo="L",
    )  # fmt: skip
    yield kernel(
        "gtsv", [((4,), f32), ((4,), f32), ((4,), f32), ((4, 2), f32), ((), i32)],
        floats(3, 4), floats(3, 4, seed=1) + 5, floats(3, 4, seed=2), floats(3, 4, 2),
    )  # fmt: skip


def algebra_samples() -> list[Sample]:
    """All of them."""
    return [*_transforms(), *_solves(), *_decompositions(), *_three_diagonals(), *_kernels()]
