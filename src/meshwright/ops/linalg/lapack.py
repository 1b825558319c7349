"""The LAPACK kernels that ``jaxlib`` registers with XLA, as custom calls of the typed FFI.

There is one op for all: a kernel works on column-major matrices in the last dimensions of its operands, and loops over
any number of leading dimensions itself. Decompositions (``lu``, ``qr``, ...) are separate ops, defined with this one,
and have derivatives; imported programs contain the kernels themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import DifferentiationError, DTypeError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.op import Builder, Dual, Tangent
from meshwright.ir.reading import Reader, Unreadable, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import eq, ge, select
from meshwright.ops.linalg import flops
from meshwright.ops.linalg.batched import Factorization
from meshwright.ops.linalg.kernel_calls import OVERWRITTEN, Flag, column_major, kernel_call
from meshwright.ops.linalg.lapack_forms import emit_form
from meshwright.ops.linalg.matrices import constant_like, eye
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, match_shape

_PREFIX = {dtypes.float32: "s", dtypes.float64: "d", dtypes.complex64: "c", dtypes.complex128: "z"}
#: kernels whose complex form has another name
_COMPLEX_NAMES = {"orgqr": "ungqr", "ormqr": "unmqr", "syevd": "heevd", "sytrd": "hetrd"}
_REAL_NAMES = {v: k for k, v in _COMPLEX_NAMES.items()}
KERNELS = (
    "gees", "geev", "gehrd", "geqp3", "geqrf", "gesdd", "gesvd", "getrf", "gtsv", "orgqr", "ormqr", "potrf", "syevd",
    "sytrd", "trsm",
)  # fmt: skip
#: the rank of a problem's first operand, if it is not a matrix
_FIRST_RANK = {"gtsv": 1}


def require_lapack_dtype(name: str, aval: ShapedArray) -> None:
    """Raise unless there are kernels for the dtype.

    Raises:
      DTypeError: there are none; names the supported dtypes.
    """
    if aval.dtype not in _PREFIX:
        raise DTypeError(
            f"{name}: expected float32, float64, complex64 or complex128, got {aval}; convert it with .astype(float)"
        )


@dataclass(frozen=True)
class Lapack(Factorization):
    """``kernel`` without its letter for the dtype; ``operand_ranks`` and ``results`` describe one problem.

    Results are as precise as the operands.
    """

    kernel: str
    operand_ranks: tuple[int, ...]
    results: tuple[ShapedArray, ...]
    flags: tuple[tuple[str, Flag], ...] = ()
    name: ClassVar[str] = "lapack"
    multiple_results: ClassVar[bool] = True
    hidden_params: ClassVar[tuple[str, ...]] = ("operand_ranks", "results")

    def core_ranks(self) -> tuple[int, ...]:
        return self.operand_ranks

    @property
    def algorithm(self) -> str:
        return self.kernel

    def free_dims(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        flags = dict(self.flags)
        match self.kernel:
            case "gtsv":
                return {3: -1}, {3: -1}
            case "ormqr":
                d = -1 if flags["left"] else -2
                return {2: d}, {0: d}
            case "trsm":
                d = -1 if flags["side"] == "L" else -2
                return {1: d}, {0: d}
        return {}, {}

    def flops(self, *cores: tuple[int, ...]) -> int:
        count = flops.KERNELS.get(self.kernel, super().flops)
        return count(*cores)

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        lead = self.lead(*avals)
        require_lapack_dtype(self.kernel, avals[0])
        dtypes_of = partial(_as_precise, avals[0].dtype)
        return tuple(r.update(shape=(*lead, *r.shape), dtype=dtypes_of(r.dtype)) for r in self._results(avals))

    def _results(self, avals: Sequence[ShapedArray]) -> list[ShapedArray]:
        """Those of one problem, with as many solutions as there are right-hand sides."""
        results, (free, solutions) = list(self.results), self.free_dims()
        for i, d in solutions.items():
            ((operand, columns),) = free.items()
            sizes = list(results[i].shape)
            sizes[d] = avals[operand].shape[columns]
            results[i] = results[i].update(shape=tuple(sizes))
        return results

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        raise DifferentiationError(
            f"lapack {self.kernel}: a kernel of a program from elsewhere has no derivative here; differentiate the "
            "program where it was written, or use the function of meshwright.linalg"
        )

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        dtype, flags = b.in_avals[0].dtype, dict(self.flags)
        if b.platform != "cpu":
            return emit_form(b, self.kernel, flags, operands)
        base = _COMPLEX_NAMES.get(self.kernel, self.kernel) if dtypes.is_complex(dtype) else self.kernel
        return kernel_call(
            b, f"lapack_{_PREFIX[dtype]}{base}_ffi", operands, b.in_avals, b.out_avals,
            lead=b.in_avals[0].ndim - self.operand_ranks[0], flags=flags, over=OVERWRITTEN.get(self.kernel, (0,)),
        )  # fmt: skip


def _as_precise(of: np.dtype, dtype: np.dtype) -> np.dtype:
    """A dtype with the precision of the dtype of operands; integers as they are."""
    double = of in (dtypes.float64, dtypes.complex128)
    if dtypes.is_complex(dtype):
        return dtypes.complex128 if double else dtypes.complex64
    return (dtypes.float64 if double else dtypes.float32) if dtypes.is_float(dtype) else dtype


def lapack(
    kernel: str, operands: Sequence[Any], results: Sequence[tuple[Sequence[int], np.dtype]], **flags: Flag
) -> list[Any]:
    """Run ``kernel``. The core of an operand is what follows the leading dimensions of the first operand, usually a
    matrix.

    ``results`` are shape and dtype for one problem. For empty problems, LAPACK is not called: they give identity
    matrices and zeros.
    """
    avals = [typeof(x) for x in operands]
    lead = avals[0].shape[: avals[0].ndim - _FIRST_RANK.get(kernel, 2)]
    if any(a.size == 0 for a in avals):
        return [_trivial(lead, tuple(shape), dtype) for shape, dtype in results]
    weak = all(a.weak_type for a in avals)
    types = tuple(ShapedArray(tuple(shape), dtype, weak) for shape, dtype in results)
    outs: list[Any] = Lapack(kernel, tuple(a.ndim - len(lead) for a in avals), types, tuple(flags.items())).bind(
        *operands
    )
    return outs


def _trivial(lead: tuple[int, ...], shape: tuple[int, ...], dtype: np.dtype) -> Any:
    aval = ShapedArray((*lead, *shape), dtype)
    if len(shape) != 2:
        return match_shape(np.zeros((), dtype), aval)
    return broadcast_in_dim(eye(*shape, dtype), aval.shape, (len(lead), len(lead) + 1))


def nan_where_failed(info: Any, x: Any, positive_fails: bool = True) -> Any:
    """``x``, or NaN for problems whose ``info`` reports failure.

    A positive ``info`` means that the algorithm failed, except for LU, where it reports a singular matrix.
    """
    aval, zero = typeof(x), np.zeros((), np.int32)
    fine = eq(info, zero) if positive_fails else ge(info, zero)
    fine = broadcast_in_dim(fine, aval.shape, range(typeof(info).ndim))
    nan = complex(np.nan, np.nan) if dtypes.is_complex(aval.dtype) else np.nan
    return select(fine, x, match_shape(constant_like(nan, x), aval))


# --- reading ------------------------------------------------------------------------------------------------
#: flags that are numbers rather than letters
_NUMBERS = ("low", "high")


def kernel_of(target: str) -> str:
    """``getrf`` for ``lapack_zgetrf_ffi``."""
    base = target.removeprefix("lapack_")[1:].removesuffix("_ffi")
    return _REAL_NAMES.get(base, base)


def flags_of(r: Reader) -> dict[str, Flag]:
    """The flags of a kernel in a program from elsewhere."""
    backend_config = r.attr("mhlo.backend_config", None) or r.attr("backend_config", None) or {}
    if not isinstance(backend_config, dict):
        raise Unreadable("a kernel without a dictionary of flags")
    return {n: v if isinstance(v, bool) or n in _NUMBERS else chr(v) for n, v in backend_config.items()}


def leading_dims(r: Reader, kernel: str) -> int:
    """The number of leading dimensions of a kernel's operands.

    Raises:
      Unreadable: the kernel's matrices are not column-major.
    """
    lead = r.in_avals[0].ndim - _FIRST_RANK.get(kernel, 2)
    for name, avals in (("operand_layouts", r.in_avals), ("result_layouts", r.out_avals)):
        layouts = r.attr(name, None)
        for a, layout in zip(avals, () if layouts is None else layouts):
            if a.size > 1 and list(np.ravel(layout)) != column_major(a.ndim, lead):
                raise Unreadable(f"{kernel} with another order of dimensions")
    return lead


@reads(*(
    f"custom_call:lapack_{letter}{_COMPLEX_NAMES.get(k, k) if letter in 'cz' else k}_ffi"
    for letter in "sdcz" for k in KERNELS
))  # fmt: skip
def _read_lapack(r: Reader) -> list[Any]:
    kernel = kernel_of(r.attr("call_target_name"))
    lead = leading_dims(r, kernel)
    results = tuple(a.update(shape=a.shape[lead:]) for a in r.out_avals)
    ranks = tuple(a.ndim - lead for a in r.in_avals)
    outs: list[Any] = Lapack(kernel, ranks, results, tuple(flags_of(r).items())).bind(*r.operands)
    return outs
