"""Discrete Fourier transforms over up to three last dimensions: ``stablehlo.fft``.

Each kind is linear. The matrix of the complex transforms is symmetric, so they are their own transposes. A real
transform is the complex one restricted to half of the spectrum, the other half being its conjugate: in the inverse,
terms with a conjugate count twice, which explains the weights in the transposes.

Of several transformed dimensions, those that keep their size may be split. The tiles of each are exchanged for whole
columns, which are transformed, and exchanged back: two all-to-alls, as in "slab decomposition" of one, and in "pencil
decomposition" of two (S. Foster and D. Worley, "Parallel algorithms for the spectral transform method", 1997).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Localizer
from meshwright.ir.op import Builder, Cotangents, Dual, Tangent
from meshwright.ir.reading import Reader, Unreadable, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import conj, convert, mul
from meshwright.ops.linalg.batched import Batched
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.ops.shape.rearrange import move_dim
from meshwright.ops.shape.slice_pad import pad
from meshwright.sharding.rule import EXCHANGED, WINDOW, ShardingRule, make_rule

#: the kinds, by StableHLO's names
FFT, IFFT, RFFT, IRFFT = KINDS = ("FFT", "IFFT", "RFFT", "IRFFT")


class FftType(enum.Enum):
    """The kinds, for :func:`fft`: complex, real to half a spectrum, and the inverses of both."""

    FFT = 0
    IFFT = 1
    RFFT = 2
    IRFFT = 3


#: the lengths, and the most rows, of transforms that are products with a constant matrix on TPUs. XLA multiplies by
#: matrices as well, but computes them, cosines and sines, in the kernel of each product. Cycles that libtpu 0.0.42
#: estimates for a v5e, with an elementwise op before and after:
#:
#: ======  ================  ================  ================
#: length  16 rows           256 rows          2048 rows
#: ======  ================  ================  ================
#: 160      8128, here 3477  11370, here 5781  52120, here 25941
#: 256     13010, here 3677  15008, here 7709  37632, here 39954
#: ======  ================  ================  ================
#:
#: Shorter ones take as long either way, and the matrices of longer ones (three real ones) would take megabytes.
_MATRIX_LENGTHS = range(129, 257)
_MATRIX_ROWS = 1024

_COMPLEX: dict[np.dtype, np.dtype] = {dtypes.float32: dtypes.complex64, dtypes.float64: dtypes.complex128}


@dataclass(frozen=True)
class Fft(Batched):
    """``fft_lengths`` are the sizes of the transformed dimensions; for real transforms, those of the real array."""

    fft_type: str
    fft_lengths: tuple[int, ...]
    name: ClassVar[str] = "fft"
    only_by_rows: ClassVar[bool] = True
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)

    def core_ranks(self) -> tuple[int, ...]:
        return (len(self.fft_lengths),)

    def infer(self, x: ShapedArray) -> ShapedArray:
        lead, lengths = self.lead(x), self.fft_lengths
        if not 1 <= len(lengths) <= 3:
            raise ShapeError(f"fft: {len(lengths)} dimensions to transform, expected 1 to 3; transform some at a time")
        half = (*lengths[:-1], lengths[-1] // 2 + 1)
        given, out_lengths = {RFFT: (lengths, half), IRFFT: (half, lengths)}.get(self.fft_type, (lengths, lengths))
        if x.shape[len(lead) :] != given:
            raise ShapeError(
                f"fft: {self.fft_type} of lengths {lengths} takes the last sizes {given}, got shape {x.shape}; pad or "
                "slice the operand"
            )
        if self.fft_type == RFFT:
            if x.dtype not in _COMPLEX:
                raise DTypeError(f"fft: RFFT takes float32 or float64, got {x}; use FFT for complex numbers")
            return ShapedArray((*lead, *out_lengths), _COMPLEX[x.dtype])
        if not dtypes.is_complex(x.dtype):
            raise DTypeError(f"fft: {self.fft_type} takes complex numbers, got {x}; convert it with .astype(complex)")
        return ShapedArray((*lead, *out_lengths), dtypes.real_of(x.dtype) if self.fft_type == IRFFT else x.dtype)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        return self.bind(*primals), self.bind(*tangents)

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        size = math.prod(self.fft_lengths)
        if self.fft_type == RFFT:
            back = Fft(IRFFT, self.fft_lengths).bind(conj(self._scaled(ct, lambda w: size / w)))
            return [back]
        if self.fft_type == IRFFT:
            return [self._scaled(conj(Fft(RFFT, self.fft_lengths).bind(ct)), lambda w: w / size)]
        return [self.bind(ct)]

    def _scaled(self, x: Any, factor: Any) -> Any:
        """Multiply each term of half a spectrum by a function of how often it counts."""
        n, aval = self.fft_lengths[-1], typeof(x)
        counts = np.full(n // 2 + 1, 2.0)
        counts[0] = 1
        if n % 2 == 0:
            counts[-1] = 1
        factors = factor(counts).astype(aval.dtype)
        return mul(x, broadcast_in_dim(factors, aval.shape, (aval.ndim - 1,)))

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        rule = super().sharding_rule(x)
        rank = len(self.fft_lengths)
        if rank == 1:
            return rule
        # Transforms and their inverses are told apart by the rule: one may turn what the other turns back.
        kind = "frequencies" if self.fft_type in (IFFT, IRFFT) else "rows"
        exchanged = [f"{kind}{d}" for d in range(rank - (self.fft_type in (RFFT, IRFFT)))]
        names = [*(f"b{d}" for d in range(x.ndim - rank)), *exchanged, None][: x.ndim]
        sizes = {n: x.shape[d] for d, n in enumerate(names) if n is not None}
        windows, passes = dict.fromkeys(exchanged, WINDOW), dict.fromkeys(exchanged, EXCHANGED)
        return make_rule([names], [names], sizes, windows, passes=passes, points=rank * x.size)

    def localize(self, ctx: Localizer, x: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        lead = len(ctx.in_avals[0].shape) - len(self.fft_lengths)
        split = [d for d in range(len(self.fft_lengths)) if ctx.is_split(0, lead + d)]
        if len(self.fft_lengths) == 1 or not split:
            return self.bind(x)
        complex_kind = IFFT if self.fft_type in (IFFT, IRFFT) else FFT
        whole = self.fft_lengths[split[-1] + 1 :]
        if whole and self.fft_type != IRFFT:
            x = Fft(self.fft_type, whole).bind(x)
        for d, n in enumerate(self.fft_lengths[: split[-1] + 1]):
            op = Fft(complex_kind, (n,))
            x = _over_columns(ctx, x, lead + d, op) if d in split else _along(op, x, lead + d)
        # Only the last step of an inverse real transform is real.
        return Fft(self.fft_type, whole).bind(x) if self.fft_type == IRFFT else x

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        (out,) = b.out_avals
        if out.size == 0:
            return b.constant(0, out)
        if b.platform == "tpu" and self._is_product(out):
            return self._emit_product(b, x, out)
        return b.op(
            "stablehlo.fft", [x], b.out_avals, fft_type=f"#stablehlo<fft_type {self.fft_type}>",
            fft_length=self.fft_lengths,
        )[0]  # fmt: skip

    def _is_product(self, x: ShapedArray) -> bool:
        n = self.fft_lengths[-1]
        is_plain = len(self.fft_lengths) == 1 and self.fft_type in (FFT, IFFT) and x.dtype == dtypes.complex64
        return is_plain and n in _MATRIX_LENGTHS and x.size // n <= _MATRIX_ROWS

    def _emit_product(self, b: Builder, x: Emitted, out: ShapedArray) -> Emitted:
        matrix = _matrix(self.fft_type, *self.fft_lengths)
        numbers = f"lhs_contracting_dimensions = [{out.ndim - 1}], rhs_contracting_dimensions = [0]"
        return b.op(
            "stablehlo.dot_general", [x, b.constant(matrix, ShapedArray(matrix.shape, out.dtype))], [out],
            dot_dimension_numbers=f"#stablehlo.dot<{numbers}>",
            precision_config="[#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]",
        )[0]  # fmt: skip


@cache
def _matrix(fft_type: str, n: int) -> np.ndarray:
    """The matrix of a transform of length ``n``, rounded once."""
    turns = np.arange(n)[:, None] * np.arange(n) % n / n
    matrix = np.exp((2j if fft_type == IFFT else -2j) * np.pi * turns)
    return (matrix / n if fft_type == IFFT else matrix).astype(np.complex64)


def _over_columns(ctx: Localizer, x: Any, d: int, op: Fft) -> Any:
    """Apply ``op`` along dimension ``d``, which is split: each device transforms some columns of the last other one."""
    (rows,), axes, shape = op.fft_lengths, ctx.axes(0, d), typeof(x).shape
    tiles = ctx.num_tiles(0, d)
    other = len(shape) - (2 if d == len(shape) - 1 else 1)
    columns = shape[other]
    x = _resized(x, other, -(-columns // tiles) * tiles)
    x = _resized(ctx.all_to_all(x, axes, split=other, concat=d), d, rows)
    x = _along(op, x, d)
    x = ctx.all_to_all(_resized(x, d, shape[d] * tiles), axes, split=d, concat=other)
    return _resized(x, other, columns)


def _along(op: Fft, x: Any, d: int) -> Any:
    """Apply the transform of one dimension along dimension ``d``."""
    last = typeof(x).ndim - 1
    return move_dim(op.bind(move_dim(x, d, last)), last, d)


def _resized(x: Any, dim: int, size: int) -> Any:
    """``x`` truncated or zero-padded at the end of a dimension."""
    missing = size - typeof(x).shape[dim]
    config = [(0, 0, 0)] * typeof(x).ndim
    config[dim] = (0, missing, 0)
    return pad(x, np.zeros((), typeof(x).dtype), config) if missing else x


def fft(x: Any, fft_type: FftType | str, fft_lengths: Sequence[int]) -> Any:
    """The discrete Fourier transform of the last dimensions of ``x``.

    Args:
      x: shape (..., *fft_lengths); for "IRFFT" the last size is ``fft_lengths[-1] // 2 + 1``. Converted to float32,
        float64 or complex if necessary.
      fft_type: a :class:`FftType`, or its name in any case.
      fft_lengths: one to three sizes.

    Raises:
      ShapeError, DTypeError: the operand does not fit. ArgumentError: an unknown kind.

    Example:
      >>> lax.fft(mnp.array([1.0, 0.0, 0.0, 0.0]), "RFFT", (4,)).tolist()
      [(1+0j), (1+0j), (1+0j)]
    """
    kind = str(getattr(fft_type, "name", fft_type)).upper()
    if kind not in KINDS:
        raise ArgumentError(f"fft: fft_type must be one of {', '.join(KINDS)}, got {fft_type!r}")
    dtype = typeof(x).dtype
    if not dtypes.is_complex(dtype):
        part = dtypes.float64 if dtype.itemsize == 8 else dtypes.float32
        x = convert(x, part if kind == RFFT else _COMPLEX[part])
    return Fft(kind, tuple(int(n) for n in fft_lengths)).bind(x)


@reads("stablehlo.fft")
def _read_fft(r: Reader) -> Any:
    if 0 in r.attr("fft_length"):
        raise Unreadable("nothing to transform")
    return Fft(r.attr("fft_type"), tuple(r.attr("fft_length"))).bind(*r.operands)
