"""Replacements of LAPACK kernels on hardware without LAPACK.

For all backends, XLA expands QR decompositions (Householder), Hermitian eigenproblems (Jacobi) and Cholesky
decompositions itself, and singular values are made of these (``polar``); LU decomposition is a custom call of libtpu.
On NVIDIA GPUs, all are library calls (``lapack_cuda``). Kernels without a replacement are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.core.late import LateModule
from meshwright.errors import RuleError
from meshwright.ir.contract import Emitted
from meshwright.ir.op import Builder
from meshwright.ops.composite import emit_traced
from meshwright.ops.linalg import lapack_cuda

polar: Any = LateModule("meshwright.ops.linalg.polar")

Flags = Mapping[str, Any]
Form = Callable[[Builder, Flags, Sequence[Any]], list[Any]]
_I32 = np.dtype(np.int32)
#: the maximum number of sweeps of Jacobi's method, and the fraction of the norm that may remain off the diagonal
_SWEEPS = 100
_TOLERANCE = {4: "1e-6", 8: "1e-12"}
_INSTEAD = {
    "geqp3": "order the columns by their norms and use qr without pivoting, or svd",
    "geev": "eigenvalues of matrices that are not Hermitian are computed on CPUs and GPUs only",
    "gees": "Schur forms are computed on CPUs only",
    "gehrd": "Hessenberg forms are computed on CPUs only",
    "gtsv": "write the tridiagonal matrix as a full one, and use solve",
}


def _fine(b: Builder, aval: ShapedArray) -> Any:
    """An ``info`` of zeros: these forms return NaN if they fail."""
    return b.constant(np.zeros((), _I32), aval)


def _call(
    b: Builder, target: str, operands: Sequence[Any], avals: Sequence[ShapedArray], config: str = ""
) -> list[Any]:
    return b.op("stablehlo.custom_call", operands, avals, call_target_name=f'"{target}"', backend_config=f'"{config}"')


def _potrf(b: Builder, flags: Flags, operands: Sequence[Emitted]) -> list[Emitted]:
    factor = b.op("stablehlo.cholesky", operands, b.out_avals[:1], lower=flags["uplo"] == "L")
    return [*factor, _fine(b, b.out_avals[1])]


def _geqrf(b: Builder, flags: Flags, operands: Sequence[Emitted]) -> list[Emitted]:
    return _call(b, "Qr", operands, b.out_avals)


def _orgqr(b: Builder, flags: Flags, operands: Sequence[Emitted]) -> list[Emitted]:
    return _call(b, "ProductOfElementaryHouseholderReflectors", operands, b.out_avals)


def _syevd(b: Builder, flags: Flags, operands: Sequence[Emitted]) -> list[Emitted]:
    values = b.out_avals[1]
    config = f"{int(flags['uplo'] == 'L')},1,{_SWEEPS},{_TOLERANCE[values.dtype.itemsize]}"
    return [*_call(b, "Eigh", operands, b.out_avals[:2], config), _fine(b, b.out_avals[2])]


#: keyword arguments of :func:`polar.singular_values`, by LAPACK's letter for the vectors that are returned
_VECTORS = {"N": {"compute_uv": False}, "S": {}, "A": {"full_matrices": True}}


def _gesdd(b: Builder, flags: Flags, operands: Sequence[Emitted]) -> list[Emitted]:
    with config.override("default_matmul_precision", "highest"):
        found = emit_traced(b, lapack_cuda.bound(polar.singular_values, **_VECTORS[flags["mode"]]), "svd", *operands)
    # Vectors that are not requested are not read.
    unread = [b.constant(np.zeros((), a.dtype), a) for a in b.out_avals[1 + len(found) : 4]]
    return [*operands, *found, *unread, _fine(b, b.out_avals[4])]


def _trsm(b: Builder, flags: Flags, operands: Sequence[Emitted]) -> list[Emitted]:
    how = {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}[flags["trans_x"]]
    return b.op(
        "stablehlo.triangular_solve", operands, b.out_avals, left_side=flags["side"] == "L",
        lower=flags["uplo"] == "L", unit_diagonal=flags["diag"] == "U", transpose_a=f"#stablehlo<transpose {how}>",
    )  # fmt: skip


def _getrf_tpu(b: Builder, flags: Flags, operands: Sequence[Emitted]) -> list[Emitted]:
    factors, pivots, info = b.out_avals
    if factors.dtype != np.float32:
        raise RuleError(f"lapack getrf: on TPUs there is an LU decomposition of float32 only, got {factors}")
    rows = factors.shape[:-1]
    lu, exchanged, _ = _call(b, "LuDecomposition", operands, [factors, pivots, ShapedArray(rows, _I32)])
    one = b.constant(np.ones((), _I32), pivots)  # LAPACK counts from 1
    return [lu, b.op("stablehlo.add", [exchanged, one], [pivots])[0], _fine(b, info)]


#: for all targets
FORMS: dict[str, Form] = {
    "gesdd": _gesdd, "gesvd": _gesdd, "potrf": _potrf, "geqrf": _geqrf, "orgqr": _orgqr, "syevd": _syevd, "trsm": _trsm,
}  # fmt: skip
#: for one platform; these take precedence
_OF_PLATFORM: dict[str, dict[str, Form]] = {"tpu": {"getrf": _getrf_tpu}, "cuda": lapack_cuda.FORMS}


def emit_form(b: Builder, kernel: str, flags: Flags, operands: Sequence[Emitted]) -> list[Emitted]:
    """The results of ``kernel`` on the builder's platform.

    Raises:
      RuleError: there is no replacement; names an alternative.
    """
    form = _OF_PLATFORM.get(b.platform, {}).get(kernel) or FORMS.get(kernel)
    if form is None:
        instead = _INSTEAD.get(kernel, "another decomposition may do")
        raise RuleError(
            f"lapack {kernel}: there is no form of this kernel for {b.platform}; {instead}, or compute it on the CPU"
        )
    return form(b, flags, operands)
