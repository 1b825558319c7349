"""Reading rules of library calls that XLA itself knows.

XLA does not check the operands and configuration of such calls, and crashes if they do not fit. So they are read as the
ops that they compute, or refused, and never passed on to XLA. Platforms without LAPACK have other decompositions, such
as cuSOLVER's on GPUs, with LAPACK's results.
"""

from __future__ import annotations

import json
from typing import Any

from meshwright.ir.reading import Reader, reads
from meshwright.ops.linalg.eigh import eigh
from meshwright.ops.linalg.kernel_calls import Flag
from meshwright.ops.linalg.lapack import Lapack, leading_dims
from meshwright.ops.linalg.lu import lu, lu_pivots_to_permutation
from meshwright.ops.linalg.matrices import adjoint
from meshwright.ops.linalg.qr import householder_product
from meshwright.ops.products.conv_op import ConvDimensionNumbers, ConvGeneralDilated


def _kernel(r: Reader, kernel: str, **flags: Flag) -> list[Any]:
    """Bind LAPACK's ``kernel`` on the operands."""
    lead = leading_dims(r, kernel)
    if lead < 0:
        r.fail(f"is of matrices, got {r.in_avals[0]}")
    results = tuple(a.update(shape=a.shape[lead:]) for a in r.out_avals)
    ranks = tuple(a.ndim - lead for a in r.in_avals)
    outs: list[Any] = Lapack(kernel, ranks, results, tuple(flags.items())).bind(*r.operands)
    return outs


# --- XLA's decompositions -----------------------------------------------------------------------------------
def _one_matrix(r: Reader) -> Any:
    if len(r.operands) != 1 or r.in_avals[0].ndim < 2:
        r.fail(f"is of one operand, of matrices; got {', '.join(map(str, r.in_avals)) or 'none'}")
    return r.operands[0]


@reads("custom_call:LuDecomposition")
def _lu(r: Reader) -> list[Any]:
    return lu(_one_matrix(r))


@reads("custom_call:Qr")
def _qr(r: Reader) -> list[Any]:
    _one_matrix(r)
    return _kernel(r, "geqrf")


@reads("custom_call:ProductOfElementaryHouseholderReflectors")
def _householder(r: Reader) -> Any:
    if len(r.operands) != 2 or [a.ndim for a in r.in_avals] != [r.out_avals[0].ndim, r.out_avals[0].ndim - 1]:
        r.fail(f"is of matrices and a number for each reflector, got {', '.join(map(str, r.in_avals))}")
    return householder_product(*r.operands)


@reads("custom_call:Eigh")
def _eigh(r: Reader) -> list[Any]:
    a, (lower, _, config) = _one_matrix(r), str(r.attr("backend_config", "")).partition(",")
    if not config or lower not in ("0", "1"):
        r.fail('has no backend_config like "1,1,100,1e-6", which begins with which triangle is read')
    return eigh(a if lower == "1" else adjoint(a), symmetrize_input=False)


# --- cuSOLVER -----------------------------------------------------------------------------------------------
def _triangle(r: Reader) -> str:
    flags = r.attr("mhlo.backend_config", None) or r.attr("backend_config", None) or {}
    if not isinstance(flags, dict) or not isinstance(lower := flags.get("lower"), bool):
        r.fail("has no flag 'lower' in its backend_config, which says what triangle is read")
    return "L" if lower else "U"


@reads("custom_call:cusolver_potrf_ffi", "custom_call:hipsolver_potrf_ffi")
def _potrf(r: Reader) -> list[Any]:
    return _kernel(r, "potrf", uplo=_triangle(r))


@reads("custom_call:cusolver_syevd_ffi", "custom_call:hipsolver_syevd_ffi")
def _syevd(r: Reader) -> list[Any]:
    return _kernel(r, "syevd", mode="V", uplo=_triangle(r))


@reads("custom_call:cusolver_getrf_ffi", "custom_call:cublas_getrf_batched_ffi", "custom_call:hipsolver_getrf_ffi")
def _getrf(r: Reader) -> list[Any]:
    return _kernel(r, "getrf")


@reads("custom_call:cusolver_geqrf_ffi", "custom_call:cublas_geqrf_batched_ffi", "custom_call:hipsolver_geqrf_ffi")
def _geqrf(r: Reader) -> list[Any]:
    return _kernel(r, "geqrf")


@reads("custom_call:cusolver_orgqr_ffi", "custom_call:hipsolver_orgqr_ffi")
def _orgqr(r: Reader) -> list[Any]:
    return _kernel(r, "orgqr")


@reads("custom_call:cu_lu_pivots_to_permutation", "custom_call:hip_lu_pivots_to_permutation")
def _permutation(r: Reader) -> Any:
    return lu_pivots_to_permutation(r.operands[0], r.out_avals[0].shape[-1])


# --- oneDNN -------------------------------------------------------------------------------------------------
@reads("custom_call:__onednn$convolution")
def _convolution(r: Reader) -> Any:
    """Read a convolution in the form that :mod:`meshwright.lowering.onednn` writes."""
    config = r.attr("backend_config", "")
    config = (json.loads(config) if isinstance(config, str) else config)["onednn_conv_config"]
    if len(r.operands) != 2 or "fusions" in config:
        _of_compilers(r)
    data, taken, window = config["input"]["data"], config["kernel"]["filter"], config["window"]
    picture = (_number(data, "batch_dim"), _number(data, "feature_dim"), *map(int, data["spatial_dims"]))
    features = _number(taken, "output_feature_dim"), _number(taken, "input_feature_dim")
    kernel = (*features, *map(int, taken["spatial_dims"]))
    padding = tuple(zip(map(int, window["pad_left"]), map(int, window["pad_right"]), strict=True))
    dilations = tuple(map(int, window["window_dilations"]))
    return ConvGeneralDilated(
        tuple(map(int, window["strides"])), padding, (1,) * len(dilations), dilations,
        ConvDimensionNumbers(picture, kernel, picture), int(config["feature_groups"]), 1, None, None,
    ).bind(*r.operands)  # fmt: skip


def _number(numbers: dict[str, str], name: str) -> int:
    """A 64-bit number, which protobuf's JSON has as a string, and omits if it is 0."""
    return int(numbers.get(name, 0))


@reads(
    "custom_call:__onednn$matmul", "custom_call:__onednn$matmul_reorder", "custom_call:__onednn$layernorm",
    "custom_call:__onednn$softmax", "custom_call:__op$block_scaled_dot",
)  # fmt: skip
def _of_compilers(r: Reader) -> None:
    r.fail(
        f"calls {r.attr('call_target_name')}, which XLA's compiler makes of other operations; load the program as it "
        "was before it was compiled"
    )
