"""LAPACK's kernels on NVIDIA GPUs: calls of cuSOLVER and cuSPARSE, or of LAPACK on the host where these have none.

The calls are provided by ``jax-cuda13-plugin``. Operands and results are LAPACK's, except where noted. Kernels missing
here (Hessenberg and Schur forms) are not available on GPUs in other libraries either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.contract import Emitted
from meshwright.ir.op import Builder
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import traced
from meshwright.ops.elementwise.table import imag, is_finite, real, select
from meshwright.ops.linalg.chains import JACOBI, SMALL
from meshwright.ops.linalg.kernel_calls import OVERWRITTEN, Flag, Word, kernel_call
from meshwright.ops.linalg.matrices import adjoint, corner, tril, triu
from meshwright.ops.reduce.reductions import reduce_and
from meshwright.ops.shape.broadcast_reduce import match_shape
from meshwright.ops.shape.slice_pad import pad, slice_

Flags = Mapping[str, Any]
#: the minimum number of rows of a tridiagonal system
_ROWS = 3


#: ``partial``, where equal arguments give the same object, so that its traces are found again
bound = lru_cache(maxsize=1024)(partial)


def _lead(b: Builder) -> int:
    return b.in_avals[0].ndim - 2


def _cusolver(b: Builder, kernel: str, flags: Mapping[str, Flag], operands: Sequence[Emitted]) -> list[Emitted]:
    return kernel_call(
        b, f"cusolver_{kernel}_ffi", operands, b.in_avals, b.out_avals,
        lead=_lead(b), flags=flags, over=OVERWRITTEN.get(kernel, (0,)),
    )  # fmt: skip


def _host(b: Builder, name: str, over: Sequence[int], operands: Sequence[Emitted], **flags: Flag) -> list[Emitted]:
    """A LAPACK kernel on the host, or of MAGMA if that is installed, as in JAX."""
    flags = {**flags, "magma": Word("auto")}
    return kernel_call(b, f"cuhybrid_{name}", operands, b.in_avals, b.out_avals, lead=_lead(b), flags=flags, over=over)


def _failed(b: Builder, info: Emitted, x: Emitted, lower: Any = None) -> Any:
    """An ``info`` that is nonzero also for matrices with NaN or infinities (in a triangle), for which some kernels
    return numbers."""
    return b.call("failed", traced(bound(_info_of, lower), "failed", (b.in_avals[0], b.out_avals[-1])), [x, info])[0]


def _info_of(lower: bool | None, x: Any, info: Any) -> list[Any]:
    parts = [real(x), imag(x)] if dtypes.is_complex(typeof(x).dtype) else [x]
    axes = tuple(range(typeof(x).ndim - 2, typeof(x).ndim))
    for part in parts:
        part = part if lower is None else tril(part) if lower else triu(part)
        info = select(reduce_and(is_finite(part), axes), info, match_shape(np.ones((), np.int32), typeof(info)))
    return [info]


def _syevd(b: Builder, flags: Flags, operands: Sequence[Emitted]) -> list[Emitted]:
    lower = _lower(flags)  # algorithm 0: chosen by the library
    *outs, info = _cusolver(b, "syevd", {"algorithm": chr(0), **lower}, operands)
    return [*outs, _failed(b, info, operands[0], lower["lower"])]


def _geev(b: Builder, flags: Flags, operands: Sequence[Emitted]) -> list[Emitted]:
    name = "eig_comp" if dtypes.is_complex(b.in_avals[0].dtype) else "eig_real"
    sides = {"left": flags["compute_left"] == "V", "right": flags["compute_right"] == "V"}
    return _host(b, name, (), operands, **sides)


# --- singular values ----------------------------------------------------------------------------------------
def _gesdd(b: Builder, flags: Flags, operands: Sequence[Emitted]) -> list[Emitted]:
    """The results, with zeros for vectors not requested; kernels are called as by JAX."""
    with_vectors, is_full = flags["mode"] != "N", flags["mode"] != "S"
    m, n = b.in_avals[0].shape[-2:]
    wanted = {"compute_uv": with_vectors, "full_matrices": is_full}
    by_qr = partial(_by_qr, transposed=m < n)
    x, s, u, vh, info = (_jacobi if max(m, n) <= JACOBI else by_qr)(b, wanted, operands)
    if not with_vectors:
        u, vh = (b.constant(np.zeros((), a.dtype), a) for a in b.out_avals[2:4])
    return [x, s, u, vh, _failed(b, info, operands[0])]


def _by_qr(b: Builder, flags: Flags, operands: Sequence[Emitted], transposed: bool) -> list[Emitted]:
    """SVD of matrices with at least as many rows as columns; others are passed as their transposes, whose ``u`` is in
    the memory of ``vh``. Vectors not requested are replaced by a number."""
    a, s, u, vh, info = b.out_avals
    if not flags["compute_uv"]:
        u = vh = u.update(shape=a.shape[:-2])
    outs = kernel_call(
        b, "cusolver_gesvd_ffi", operands, b.in_avals, [a, s, vh, u, info] if transposed else [a, s, u, vh, info],
        lead=_lead(b), flags={**flags, "transposed": transposed}, rows_first=transposed,
    )  # fmt: skip
    return [*outs[:2], outs[3], outs[2], outs[4]] if transposed else outs


def _jacobi(b: Builder, flags: Flags, operands: Sequence[Emitted]) -> list[Emitted]:
    """SVD by Jacobi's method. ``v`` is not transposed; small matrices return all their vectors."""
    a, s, u, vh, info = b.out_avals
    *lead, m, n = a.shape
    is_full = flags["full_matrices"] or max(m, n) <= SMALL
    k = min(m, n)
    given = u.update(shape=(*lead, m, m if is_full else k)), u.update(shape=(*lead, n, n if is_full else k))
    flags = {**flags, "full_matrices": is_full}
    x, values, left, right, failed = kernel_call(
        b, "cusolver_gesvdj_ffi", operands, b.in_avals, [a, s, *given, info], lead=len(lead), flags=flags
    )
    if not flags["compute_uv"]:
        return [x, values, left, right, failed]
    taken = b.call("vectors", traced(bound(_vectors, u.shape, vh.shape), "vectors", given), [left, right])
    return [x, values, *taken, failed]


def _vectors(left: tuple[int, ...], right: tuple[int, ...], u: Any, v: Any) -> list[Any]:
    return [corner(u, *left[-2:]), adjoint(corner(v, right[-1], right[-2]))]


# --- three diagonals ----------------------------------------------------------------------------------------
def _gtsv(b: Builder, flags: Flags, operands: Sequence[Emitted]) -> list[Emitted]:
    prepare = traced(_longer, "rows", tuple(b.in_avals))
    given, solved = b.call("rows", prepare, operands), prepare.out_avals[3]
    lead = b.in_avals[0].ndim - 1
    x = kernel_call(
        b, "cusparse_gtsv2_ffi", given, prepare.out_avals, [solved], lead=lead, flags={}, over=(3,)
    )  # fmt: skip
    taken = b.call("rows", traced(bound(_corner, b.out_avals[3].shape), "rows", (solved,)), x)
    return [*operands[:3], *taken, b.constant(np.zeros((), np.int32), b.out_avals[4])]


def _longer(dl: Any, d: Any, du: Any, x: Any) -> list[Any]:
    """Pad to at least three rows, with zeros where LAPACK does not read, as cuSPARSE requires."""
    *lead, n = typeof(d).shape
    more, zero, one = max(0, _ROWS - n), *(np.array(v, typeof(d).dtype) for v in (0, 1))
    still = [(0, 0, 0)] * len(lead)
    start = (0,) * len(lead)
    below, above = slice_(dl, (*start, 1), (*lead, n)), slice_(du, (*start, 0), (*lead, n - 1))
    return [
        pad(below, zero, [*still, (1, more, 0)]), pad(d, one, [*still, (0, more, 0)]),
        pad(above, zero, [*still, (0, more + 1, 0)]), pad(x, zero, [*still, (0, more, 0), (0, 0, 0)]),
    ]  # fmt: skip


def _corner(shape: tuple[int, ...], x: Any) -> list[Any]:
    return [corner(x, *shape[-2:])]


#: by LAPACK's names
FORMS: dict[str, Callable[[Builder, Flags, Sequence[Emitted]], list[Emitted]]] = {
    "geev": _geev,
    "geqp3": lambda b, flags, operands: _host(b, "geqp3", (0, 1), operands),
    "geqrf": lambda b, flags, operands: _cusolver(b, "geqrf", {}, operands),
    "gesdd": _gesdd,
    "gesvd": _gesdd,
    "getrf": lambda b, flags, operands: _cusolver(b, "getrf", {}, operands),
    "gtsv": _gtsv,
    "orgqr": lambda b, flags, operands: _cusolver(b, "orgqr", {}, operands),
    "ormqr": lambda b, flags, operands: _cusolver(b, "ormqr", flags, operands),
    "potrf": lambda b, flags, operands: _cusolver(b, "potrf", _lower(flags), operands),
    "syevd": _syevd,
    "sytrd": lambda b, flags, operands: _cusolver(b, "sytrd", _lower(flags), operands),
}


def _lower(flags: Flags) -> dict[str, Flag]:
    return {"lower": flags["uplo"] == "L"}
