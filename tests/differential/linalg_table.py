# ruff: noqa: E501
"""Calls of every function of ``meshwright.numpy.linalg`` and ``meshwright.lax.linalg``.

Vectors of decompositions are compared as they are: both libraries call the same LAPACK.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from arguments import BF16, COMPLEX, FLOATS, INTEGERS, plain
from kinds import Kind
from outcomes import Call, Weak, call

BOOL_TOO = [np.dtype(bool), *INTEGERS, *FLOATS, *COMPLEX]
HALVES = [BF16, np.dtype("float16")]
WHOLE = [np.dtype(n) for n in ("float32", "float64", "complex64", "complex128")]


def regular(d: np.dtype, *lead: int, n: int = 3) -> np.ndarray:
    """Matrices with distinct singular values, far from singular."""
    x = plain(d, *lead, n, n).astype(d)
    return (x + np.diag(np.arange(7, 7 + n)).astype(d)).astype(d)


def definite(d: np.dtype, *lead: int, n: int = 3) -> np.ndarray:
    x = regular(d, *lead, n=n).astype(np.complex128 if d.kind == "c" else np.float64)
    return (x @ np.conj(np.swapaxes(x, -1, -2)) / 16).astype(d)


def _special(d: np.dtype) -> list[np.ndarray]:
    """Matrices at which decompositions go wrong: null, of rank one, with NaN and infinity, empty, of one element."""
    nan, inf = regular(d), regular(d)
    if d.kind in "fcV":
        nan[0, 1], inf[1, 1] = np.nan, np.inf
    return [
        np.zeros((2, 2), d),
        np.ones((2, 2), d),
        nan,
        inf,
        np.zeros((0, 0), d),
        regular(d, n=1),
        regular(d, 0),
        plain(d, 3),
    ]


def square(*options: dict) -> Kind:
    def calls(d: np.dtype) -> Iterator[Call]:
        for named in options or ({},):
            yield from (call(regular(d), **named), call(regular(d, 2), **named))
        yield from (call(x) for x in _special(d))

    return Kind(calls, (call(2.0), call(Weak(3))), BOOL_TOO, 64)


def hermitian(*options: dict) -> Kind:
    def calls(d: np.dtype) -> Iterator[Call]:
        for named in options or ({},):
            yield from (call(definite(d), **named), call(definite(d, 2), **named), call(regular(d), **named))
        yield from (call(x) for x in _special(d))

    return Kind(calls, (), BOOL_TOO, 64)


def anything(*options: dict) -> Kind:
    """Of matrices of any shape."""

    def calls(d: np.dtype) -> Iterator[Call]:
        for named in options or ({},):
            yield from (call(x, **named) for x in (plain(d, 3, 2), plain(d, 2, 3), regular(d, 2)))
        yield from (call(x) for x in (*_special(d), plain(d, 2, 0), plain(d, 0, 3)))

    return Kind(calls, (), BOOL_TOO, 64)


def of(calls: object, loose: float = 64) -> Kind:
    return Kind(calls, (), BOOL_TOO, loose)  # type: ignore[arg-type]


_ORDERS = (None, 1, 2, np.inf, -np.inf, 0, -1, 3, 0.5)
NUMPY: dict[str, Kind] = {
    "cholesky": hermitian({}, {"upper": True}, {"symmetrize_input": False}),
    "cond": anything({}, {"p": 1}, {"p": np.inf}, {"p": "fro"}, {"p": -2}, {"p": "nuc"}),
    "cross": of(lambda d: [call(plain(d, 2, 3), plain(d, 2, 3, seed=1)), call(plain(d, 3, 2), plain(d, 3, 2), axis=0), call(plain(d, 2), plain(d, 2))], 4),
    "det": square(),
    "diagonal": of(lambda d: [call(plain(d, 3, 4)), call(plain(d, 2, 3, 4), offset=1), call(plain(d, 3))]),
    "eig": square(),
    "eigh": hermitian({}, {"UPLO": "U"}, {"symmetrize_input": False}),
    "eigvals": square(),
    "eigvalsh": hermitian({}, {"UPLO": "U"}),
    "inv": square(),
    "lstsq": of(lambda d: [call(plain(d, 4, 2), plain(d, 4)), call(plain(d, 2, 3), plain(d, 2, 2)), call(np.ones((3, 2), d), plain(d, 3)), call(regular(d), plain(d, 3, 2), rcond=0.1), call(regular(d), plain(d, 3), numpy_resid=True), call(plain(d, 0, 2), plain(d, 0))], 256),
    "matmul": of(lambda d: [call(plain(d, 2, 3), plain(d, 3, 2)), call(plain(d, 3), plain(d, 2, 3, 2)), call(plain(d, 2, 3), plain("float32", 3, 2))], 4),
    "matrix_norm": anything({}, {"ord": 1}, {"ord": -np.inf}, {"ord": 2}, {"ord": "nuc"}, {"keepdims": True}),
    "matrix_power": of(lambda d: [call(regular(d), n) for n in (0, 1, 3, -2)] + [call(regular(d, 2), 2), call(plain(d, 2, 3), 2), call(np.zeros((2, 2), d), 0)]),
    "matrix_rank": anything({}, {"rtol": 0.2}),
    "matrix_transpose": of(lambda d: [call(plain(d, 2, 3)), call(plain(d, 2)), call(plain(d, 2, 1, 3))]),
    "multi_dot": of(lambda d: [call([plain(d, 2, 3), plain(d, 3, 4), plain(d, 4, 2)]), call([plain(d, 3), plain(d, 3, 2)]), call([plain(d, 2, 2)])]),
    "norm": of(lambda d: [c for o in _ORDERS for c in (call(plain(d, 4), o), call(plain(d, 2, 3), o, axis=1))] + [call(plain(d, 2, 3), o) for o in (None, "fro", "nuc", 1, -1, 2, -2, np.inf)] + [call(plain(d, 2, 3, 2), axis=(0, 2), keepdims=True), call(np.zeros(3, d)), call(plain(d, 0)), call(plain(d, 0), np.inf), call(plain(d))]),
    "outer": of(lambda d: [call(plain(d, 2), plain(d, 3)), call(plain(d, 2), plain("float32", 2)), call(plain(d, 2, 2), plain(d, 3))]),
    "pinv": anything({}, {"rtol": 0.2}, {"hermitian": True}),
    "qr": anything({}, {"mode": "r"}, {"mode": "complete"}, {"mode": "raw"}),
    "slogdet": square({}, {"method": "lu"}, {"method": "qr"}),
    "solve": of(lambda d: [call(regular(d), plain(d, 3)), call(regular(d), plain(d, 3, 2)), call(regular(d, 2), plain(d, 2, 3, 1)), call(regular(d, 2), plain(d, 3)), call(np.zeros((2, 2), d), plain(d, 2)), call(regular(d), plain("float32", 3)), call(plain(d, 2, 3), plain(d, 2)), call(regular(d, 0), plain(d, 0, 3, 2))]),
    "svd": anything({}, {"full_matrices": False}, {"compute_uv": False}, {"hermitian": True}),
    "svdvals": anything(),
    "tensordot": of(lambda d: [call(plain(d, 2, 3), plain(d, 3, 2), axes=1), call(plain(d, 2, 3), plain(d, 2, 3)), call(plain(d, 2), plain(d, 3), axes=0)], 4),
    "tensorinv": of(lambda d: [call(regular(d, n=4).reshape(2, 2, 4), ind=2), call(regular(d, n=4).reshape(4, 2, 2), ind=1), call(plain(d, 2, 3), ind=1)]),
    "tensorsolve": of(lambda d: [call(regular(d, n=4).reshape(2, 2, 4), plain(d, 2, 2)), call(regular(d, n=4).reshape(4, 2, 2), plain(d, 4))]),
    "trace": of(lambda d: [call(plain(d, 3, 4)), call(plain(d, 2, 3, 4), offset=-1), call(plain(d, 3, 3), dtype="float32")], 4),
    "vecdot": of(lambda d: [call(plain(d, 2, 3), plain(d, 2, 3, seed=1)), call(plain(d, 3), plain(d, 2, 3)), call(plain(d, 2, 3), plain(d, 2, 3), axis=0)], 4),
    "vector_norm": of(lambda d: [call(plain(d, 2, 3), ord=o) for o in (2, 1, 0, np.inf, -np.inf, 3)] + [call(plain(d, 2, 3), axis=0, keepdims=True), call(plain(d, 0))]),
}  # fmt: skip


def _triangular(d: np.dtype) -> Iterator[Call]:
    for named in (
        {},
        {"lower": True},
        {"left_side": True},
        {"transpose_a": True, "left_side": True},
        {"conjugate_a": True},
        {"unit_diagonal": True, "lower": True},
    ):
        yield call(regular(d), plain(d, 3, 3), **named)
    yield from (call(regular(d, 2), plain(d, 2, 3, 3), left_side=True), call(np.zeros((2, 2), d), plain(d, 2, 2)))
    yield call(regular(d), plain(d, 3), left_side=True)


_BANDS = np.array([[0, 1, 2], [4, 5, 6], [1, 2, 0]], float)
LAX: dict[str, Kind] = {
    "cholesky": hermitian({}, {"symmetrize_input": False}),
    "cholesky_update": of(lambda d: [call(np.triu(regular(d)), plain(d, 3))]),
    "eig": square({}, {"compute_left_eigenvectors": False}, {"compute_left_eigenvectors": False, "compute_right_eigenvectors": False}),
    "eigh": hermitian({}, {"lower": False}, {"symmetrize_input": False}, {"sort_eigenvalues": False}, {"subset_by_index": (0, 3)}, {"subset_by_index": (0, 2)}),
    "hessenberg": square(),
    "householder_product": of(lambda d: [call(plain(d, 3, 2), plain(d, 2)), call(plain(d, 2, 3, 3), plain(d, 2, 3)), call(plain(d, 3, 2), plain(d, 3))]),
    "lu": anything(),
    "lu_pivots_to_permutation": Kind(lambda d: [call(np.array([2, 2, 3], d), 4), call(np.array([[0, 1], [1, 1]], d), 2), call(np.array([1, 1], d), 1)], (), INTEGERS),
    "ormqr": of(lambda d: [call(plain(d, 3, 2), plain(d, 2), plain(d, 3, 2)), call(plain(d, 3, 2), plain(d, 2), plain(d, 3, 2), transpose=True), call(plain(d, 3, 2), plain(d, 2), plain(d, 2, 3), left=False)]),
    "qdwh": anything(),
    "qr": anything({}, {"full_matrices": False}, {"pivoting": True}, {"pivoting": True, "full_matrices": False}),
    "schur": square({}, {"compute_schur_vectors": False}),
    "svd": anything({}, {"full_matrices": False}, {"compute_uv": False}),
    "symmetric_product": of(lambda d: [call(plain(d, 3, 2), plain(d, 3, 3)), call(plain(d, 3, 2), np.zeros((3, 3), d), alpha=2.0), call(plain(d, 3, 2), regular(d), beta=0.5, symmetrize_output=True)]),
    "triangular_solve": Kind(_triangular, (), BOOL_TOO, 64),
    "tridiagonal": hermitian({}, {"lower": False}),
    "tridiagonal_solve": of(lambda d: [call(*_BANDS.astype(d), plain(d, 3, 1)), call(*_BANDS.astype(d), plain(d, 3, 2))]),
}  # fmt: skip


class _Module:
    """What ``tables.MODULES`` expects of a module."""

    SYNONYMS: dict[str, str] = {}
    ELSEWHERE = ""

    def __init__(self, table: dict[str, Kind]):
        self.TABLE = table


numpy_linalg, lax_linalg = _Module(NUMPY), _Module(LAX)
