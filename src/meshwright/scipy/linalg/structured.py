"""Structured matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import linalg

from meshwright.errors import ArgumentError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.creation import arange, asarray, zeros_like
from meshwright.numpy.joining import concatenate
from meshwright.numpy.logic import where
from meshwright.numpy.manipulation import atleast_1d, atleast_2d, broadcast_to, flip
from meshwright.numpy.padding import pad
from meshwright.numpy.promotion import broadcast_shapes, promote_all
from meshwright.numpy.ranges import diag
from meshwright.ops.elementwise.table import convert


def _vector(name: str, x: Any) -> Any:
    x = atleast_1d(asarray(x))
    if x.ndim != 1:
        raise ShapeError(f"{name}: expected a vector, got shape {x.shape}")
    return x


def block_diag(*arrs: Any) -> Any:
    """A block diagonal matrix.

    Args:
      arrs: the blocks: numbers, vectors (which become rows) or matrices.

    Raises:
      ShapeError: a block has more than two dimensions.

    >>> block_diag(np.ones((1, 2)), 3.0).tolist()
    [[1.0, 1.0, 0.0], [0.0, 0.0, 3.0]]
    """
    blocks = promote_all([atleast_2d(asarray(a)) for a in (arrs or (np.zeros((1, 0)),))])
    for number, block in enumerate(blocks):
        if block.ndim != 2:
            raise ShapeError(f"block_diag: argument {number} has shape {block.shape}, expected at most two dimensions")
    width = sum(b.shape[1] for b in blocks)
    rows, before = [], 0
    for block in blocks:
        rows.append(pad(block, ((0, 0), (before, width - before - block.shape[1]))))
        before += block.shape[1]
    return _strong(concatenate(rows))


def toeplitz(c: Any, r: Any = None) -> Any:
    """The Toeplitz matrix, with constant diagonals, whose first column is ``c`` and first row ``r``.

    ``c`` has shape (..., m), ``r`` shape (..., n); by default, it is the conjugate of ``c``. Its first element is
    ignored. Leading dimensions are batch dimensions, and are broadcast.

    >>> toeplitz(np.array([1, 2]), np.array([1, 5, 6])).tolist()
    [[1, 5, 6], [2, 1, 5]]
    """
    c, r = _column_and_row(c, asarray(c).conj() if r is None else r)
    m, n = c.shape[-1], r.shape[-1]
    values = concatenate([flip(r[..., 1:], -1), c], -1)  # by distance below the diagonal, from n - 1 above it
    return _strong(values[..., arange(m)[:, None] - arange(n)[None, :] + n - 1])


def _strong(x: Any) -> Any:
    """The array without weak type: matrices are strongly typed even if made of Python numbers."""
    return convert(x, typeof(x).dtype, False)


def _column_and_row(c: Any, r: Any) -> list[Any]:
    """The column and the row, promoted to one dtype, with leading dimensions broadcast."""
    c, r = promote_all([atleast_1d(asarray(c)), atleast_1d(asarray(r))])
    lead = broadcast_shapes(c.shape[:-1], r.shape[:-1])
    return [broadcast_to(v, (*lead, v.shape[-1])) for v in (c, r)]


def hankel(c: Any, r: Any = None) -> Any:
    """The Hankel matrix, with constant anti-diagonals, whose first column is ``c`` and last row ``r``.

    ``c`` has shape (..., m), ``r`` shape (..., n); by default, it is zero. Its first element is ignored. Leading
    dimensions are batch dimensions, and are broadcast.

    >>> hankel(np.array([1, 2]), np.array([2, 5, 6])).tolist()
    [[1, 2, 5], [2, 5, 6]]
    """
    c, r = _column_and_row(c, zeros_like(asarray(c)) if r is None else r)
    values = concatenate([c, r[..., 1:]], -1)
    return _strong(values[..., arange(c.shape[-1])[:, None] + arange(r.shape[-1])[None, :]])


def circulant(c: Any) -> Any:
    """The circulant matrix: column ``i`` is ``c``, shape (..., n), rotated by ``i``.

    >>> circulant(np.array([1, 2, 3])).tolist()
    [[1, 3, 2], [2, 1, 3], [3, 2, 1]]
    """
    c = atleast_1d(asarray(c))
    n = c.shape[-1]
    return c[..., (arange(n)[:, None] - arange(n)[None, :]) % max(n, 1)]


def companion(a: Any) -> Any:
    """The companion matrix, whose eigenvalues are the roots of a polynomial.

    ``a``, shape (n,), are the coefficients, that of the highest power first.

    Raises:
      ShapeError: there are fewer than two coefficients.

    >>> companion(np.array([1.0, -3.0, 2.0])).tolist()
    [[3.0, -2.0], [1.0, 0.0]]
    """
    a = _vector("companion", a)
    if a.shape[0] < 2:
        raise ShapeError(f"companion: expected two coefficients or more, got shape {a.shape}")
    first = -(a[1:] / a[0])  # negated as floats: unsigned integers would wrap around
    n = first.shape[0]
    below = diag(np.ones(n - 1, first.dtype), -1)
    return where(arange(n)[:, None] == 0, first[None], below)


def fiedler(a: Any) -> Any:
    """The Fiedler matrix of a vector, whose elements are ``|a[i] - a[j]|``.

    >>> fiedler(np.array([1, 4])).tolist()
    [[0, 3], [3, 0]]
    """
    a = _vector("fiedler", a)
    return abs(a[:, None] - a[None, :])


def leslie(f: Any, s: Any) -> Any:
    """The Leslie matrix, with fecundities ``f`` (n,) in the first row and survival rates ``s`` (n - 1,) below it.

    Raises:
      ShapeError: the sizes do not fit each other.

    >>> leslie(np.array([0.0, 2.0]), np.array([0.5])).tolist()
    [[0.0, 2.0], [0.5, 0.0]]
    """
    f, s = promote_all([_vector("leslie", f), _vector("leslie", s)])
    if s.shape[0] != f.shape[0] - 1:
        raise ShapeError(f"leslie: s of shape {s.shape} must be one shorter than f of shape {f.shape}")
    return where(arange(f.shape[0])[:, None] == 0, f[None], diag(s, -1))


def convolution_matrix(a: Any, n: int, mode: str = "full") -> Any:
    """The matrix whose product with a vector of size ``n`` is its convolution with ``a`` (m,).

    Args:
      mode: ``full``, ``same`` or ``valid``, as for :func:`meshwright.numpy.convolve`.

    Raises:
      ArgumentError: another ``mode``.

    >>> convolution_matrix(np.array([1, 2]), 2).tolist()
    [[1, 0], [2, 1], [0, 2]]
    """
    a = _vector("convolution_matrix", a)
    m = a.shape[0]
    whole = toeplitz(pad(a, (0, n - 1)), pad(a[:1], (0, n - 1)))
    sizes = {"full": m + n - 1, "same": max(m, n), "valid": max(m, n) - min(m, n) + 1}
    if mode not in sizes:
        raise ArgumentError(f"convolution_matrix: mode must be full, same or valid, got {mode!r}")
    before = (m + n - 1 - sizes[mode]) // 2
    return whole[before : before + sizes[mode]]


def _constant(name: str, make: Callable[..., np.ndarray], what: str, example: str, shown: str) -> Callable[..., Any]:
    """A matrix that is determined by its size, computed by SciPy."""

    def f(n: int, *args: Any, **kwargs: Any) -> Any:
        dtype = kwargs.pop("dtype", None) if name == "dft" else float if name.endswith("pascal") else None
        return asarray(make(n, *args, **kwargs), dtype=dtype)

    f.__name__ = f.__qualname__ = name
    f.__doc__ = f"{what}; further arguments as for ``scipy.linalg.{name}``.\n\n>>> {example}\n{shown}\n"
    return f


hilbert = _constant("hilbert", linalg.hilbert, "Hilbert's matrix of size n", "hilbert(2)[1, 0].item()", "0.5")
invhilbert = _constant(
    "invhilbert", linalg.invhilbert, "The inverse of Hilbert's matrix", "invhilbert(1).tolist()", "[[1.0]]"
)
hadamard = _constant(
    "hadamard", linalg.hadamard, "Hadamard's matrix of size n, a power of two", "hadamard(2).tolist()",
    "[[1, 1], [1, -1]]",
)  # fmt: skip
pascal = _constant(
    "pascal", lambda n, kind="symmetric": linalg.pascal(n, kind or "symmetric"), "Pascal's matrix",
    "int(pascal(3)[2, 2])", "6",
)  # fmt: skip
invpascal = _constant(
    "invpascal", lambda n, kind="symmetric": linalg.invpascal(n, kind or "symmetric"), "The inverse of Pascal's matrix",
    "int(invpascal(2)[0, 0])", "2",
)  # fmt: skip
helmert = _constant("helmert", linalg.helmert, "Helmert's matrix, (n - 1, n)", "helmert(3).shape", "(2, 3)")
dft = _constant("dft", linalg.dft, "The matrix of the discrete Fourier transform", "dft(3).shape", "(3, 3)")
