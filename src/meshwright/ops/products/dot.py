"""dot_general: contraction of two arrays with batch dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.core.dot_algorithms import Algorithm
from meshwright.core.precision import PRECISIONS, PrecisionLike
from meshwright.core.records import dataclass
from meshwright.core.static import static_shape
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Linear
from meshwright.ir.reading import Reader, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import convert
from meshwright.ops.products.algorithms import (
    as_algorithm,
    check_operands,
    converted,
    emit_by_algorithm,
    read_algorithm,
)
from meshwright.ops.products.bilinear import Bilinear
from meshwright.ops.products.on_gpus import computed_in
from meshwright.ops.shape.rearrange import above, move_dim, transpose
from meshwright.sharding.rule import REDUCTION, ShardingRule, make_rule

Dims = tuple[int, ...]
#: ((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))
DotDimensionNumbers = tuple[tuple[Dims, Dims], tuple[Dims, Dims]]


def free_dims(ndim: int, *used: Sequence[int]) -> list[int]:
    """The dimensions of an operand that are in none of these, in order."""
    taken = {d for dims in used for d in dims}
    return [d for d in range(ndim) if d not in taken]


@dataclass(frozen=True)
class DotGeneral(Bilinear):
    """Result dimensions: batch, then the free dimensions of lhs, then those of rhs."""

    dimension_numbers: DotDimensionNumbers
    precision: str | Algorithm | None = None
    preferred_element_type: np.dtype | None = None
    name: ClassVar[str] = "dot_general"
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,), (1,))
    hidden_params: ClassVar[tuple[str, ...]] = ("precision",)

    def infer(self, lhs: ShapedArray, rhs: ShapedArray) -> ShapedArray:
        (lc, rc), (lb, rb) = self.dimension_numbers
        if len(lc) != len(rc) or len(lb) != len(rb):
            raise ShapeError(f"dot_general: dimension_numbers {self.dimension_numbers} pair different numbers of dims")
        if any(len({*contracted, *batch}) < len(contracted) + len(batch) for contracted, batch in ((lc, lb), (rc, rb))):
            raise ShapeError(
                f"dot_general: dimension_numbers {self.dimension_numbers} name a dimension twice; name each once"
            )
        for ld, rd, what in [
            *((a, b, "contracting") for a, b in zip(lc, rc)),
            *((a, b, "batch") for a, b in zip(lb, rb)),
        ]:
            if not (0 <= ld < lhs.ndim and 0 <= rd < rhs.ndim) or lhs.shape[ld] != rhs.shape[rd]:
                raise ShapeError(
                    f"dot_general: {what} dimensions {ld} of lhs {lhs} and {rd} of rhs {rhs} must exist and have equal "
                    "sizes; transpose an operand or change the contracted axes"
                )
        if lhs.dtype != rhs.dtype and self.preferred_element_type is None:
            raise DTypeError(f"dot_general: operands have dtypes {lhs.dtype} and {rhs.dtype}; convert one with .astype")
        if isinstance(self.precision, Algorithm):
            check_operands(self.precision, lhs, rhs)
        shape = (
            *(lhs.shape[d] for d in lb),
            *(lhs.shape[d] for d in free_dims(lhs.ndim, lc, lb)),
            *(rhs.shape[d] for d in free_dims(rhs.ndim, rc, rb)),
        )
        preferred, is_complex = self.preferred_element_type, dtypes.is_complex
        if preferred is not None and (is_complex(lhs.dtype) or is_complex(rhs.dtype)) and not is_complex(preferred):
            raise DTypeError(
                f"dot_general: complex sums are not kept in preferred_element_type={preferred}; "
                "take real parts first, or name a complex type"
            )
        return ShapedArray(shape, self.preferred_element_type or lhs.dtype, lhs.weak_type and rhs.weak_type)

    def transpose(self, ct: Any, x: Any, y: Any) -> Cotangents:
        (lc, rc), (lb, rb) = self.dimension_numbers
        if isinstance(x, Linear):
            return [self._transpose_side(ct, x.aval, y, (lc, lb), (rc, rb), ct_free_first=True), None]
        return [None, self._transpose_side(ct, y.aval, x, (rc, rb), (lc, lb), ct_free_first=False)]

    def _transpose_side(
        self, ct: Any, mine: ShapedArray, other: Any, my_dims: tuple[Dims, Dims], other_dims: tuple[Dims, Dims],
        ct_free_first: bool,
    ) -> Any:  # fmt: skip
        (mc, mb), (oc, ob) = my_dims, other_dims
        my_free = free_dims(mine.ndim, mc, mb)
        other_ndim = typeof(other).ndim
        other_free = free_dims(other_ndim, oc, ob)
        nb, nm, no = len(mb), len(my_free), len(other_free)
        start = nb + nm if ct_free_first else nb
        ct_contract = tuple(range(start, start + no))
        numbers = ((ct_contract, tuple(other_free)), (tuple(range(nb)), tuple(ob)))
        out = DotGeneral(numbers, self.precision, self.preferred_element_type).bind(ct, other)
        # The result has batch, my free and then, in the other operand's order, my contracted dimensions.
        contracted = [mc[oc.index(d)] for d in sorted(oc)]
        order = [*mb, *my_free, *contracted]
        out = transpose(out, [order.index(d) for d in range(mine.ndim)])
        return convert(out, mine.dtype)

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x, y), (dx, dy) = args, dims
        (lc, rc), (lb, rb) = self.dimension_numbers
        if dx is not None:
            lc, lb = tuple(above(d, dx) for d in lc), tuple(above(d, dx) for d in lb)
        if dy is not None:
            rc, rb = tuple(above(d, dy) for d in rc), tuple(above(d, dy) for d in rb)
        if dx is not None and dy is not None:
            # Batched on both sides: a batch dimension of the product too, next to the one it preceded, else first.
            place = next((i for i, d in enumerate(lb) if d == dx + 1), 0)
            lb, rb = (*lb[:place], dx, *lb[place:]), (*rb[:place], dy, *rb[place:])
            out = place
            return DotGeneral(((lc, rc), (lb, rb)), self.precision, self.preferred_element_type).bind(x, y), out
        # Batched on one side: an additional free dimension. If it was next to a batch dimension, the result is moved
        # there.
        new = DotGeneral(((lc, rc), (lb, rb)), self.precision, self.preferred_element_type)
        z = new.bind(x, y)
        if dx is not None:
            out = len(lb) + free_dims(typeof(x).ndim, lc, lb).index(dx)
            beside = next((i for i, d in enumerate(lb) if d == dx + 1), None)
        else:
            lhs_free = len(free_dims(typeof(x).ndim, lc, lb))
            out = len(lb) + lhs_free + free_dims(typeof(y).ndim, rc, rb).index(dy)  # type: ignore[arg-type]
            beside = next((i for i, d in enumerate(rb) if d == dy + 1), None)  # type: ignore[operator]
        if beside is not None:
            z, out = move_dim(z, out, beside), beside
        return z, out

    def sharding_rule(self, lhs: ShapedArray, rhs: ShapedArray) -> ShardingRule:
        (lc, rc), (lb, rb) = self.dimension_numbers
        left = [f"i{d}" for d in range(lhs.ndim)]
        right = [f"j{d}" for d in range(rhs.ndim)]
        sizes = {**dict(zip(left, lhs.shape)), **dict(zip(right, rhs.shape))}
        kinds = {}
        for i, (a, b) in enumerate(zip(lb, rb)):
            left[a] = right[b] = f"b{i}"
            sizes[f"b{i}"] = lhs.shape[a]
        for i, (a, b) in enumerate(zip(lc, rc)):
            left[a] = right[b] = f"k{i}"
            sizes[f"k{i}"] = lhs.shape[a]
            kinds[f"k{i}"] = REDUCTION
        out = [
            *(left[d] for d in lb),
            *(left[d] for d in free_dims(lhs.ndim, lc, lb)),
            *(right[d] for d in free_dims(rhs.ndim, rc, rb)),
        ]
        return make_rule([left, right], [out], sizes, kinds)

    def _emitted_in(self, b: Builder) -> np.dtype | None:
        """The type in which the platform is given the product, if it cannot take the operands' types."""
        if b.platform != "cuda":
            return None
        lhs, rhs = b.in_avals
        matrices = max(1, math.prod(lhs.shape[d] for d in self.dimension_numbers[1][0]))
        return computed_in(lhs.dtype, rhs.dtype, b.out_avals[0].dtype, self.sharding_rule(lhs, rhs).work // matrices)

    def emit(self, b: Builder, x: Emitted, y: Emitted) -> Emitted | Sequence[Emitted]:
        (lc, rc), (lb, rb) = self.dimension_numbers
        pairs = [
            ("lhs_batching_dimensions", lb), ("rhs_batching_dimensions", rb),
            ("lhs_contracting_dimensions", lc), ("rhs_contracting_dimensions", rc),
        ]  # fmt: skip
        text = ", ".join(f"{name} = [{', '.join(map(str, dims))}]" for name, dims in pairs if dims)
        numbers = f"#stablehlo.dot<{text}>"
        if isinstance(self.precision, Algorithm):
            return emit_by_algorithm(b, self.precision, x, y, numbers)
        (out,) = made = b.out_avals
        if (dtype := self._emitted_in(b)) is not None:
            x, y = (converted(b, v, a, a.update(dtype=dtype)) for v, a in zip((x, y), b.in_avals))
            made = [out.update(dtype=dtype)]
        precision = f"#stablehlo<precision {(self.precision or 'default').upper()}>"
        (product,) = b.op(
            "stablehlo.dot_general", [x, y], made,
            dot_dimension_numbers=numbers, precision_config=f"[{precision}, {precision}]",
        )  # fmt: skip
        return converted(b, product, made[0], out)


def precisions(name: str, precision: PrecisionLike) -> tuple[str, str] | None:
    """The precision of both operands of a product, from a user's argument or ``config.default_matmul_precision``.

    Raises:
      ArgumentError: invalid; ``name`` is the calling function.
    """
    if precision is None:
        precision = config.default_matmul_precision
        if precision is None or as_algorithm(precision) is not None:  # algorithms apply only to matrix products
            return None
    both = precision if isinstance(precision, (tuple, list)) else (precision, precision)
    words = [str(getattr(p, "name", p) or "default").lower() for p in both]
    if len(words) != 2 or not set(words) <= set(PRECISIONS):
        more = "" if as_algorithm(precision) is None else "; algorithms are for matrix products, such as dot_general"
        raise ArgumentError(
            f"{name}: precision must be one of {', '.join(PRECISIONS)}, or a pair of them, got {precision!r}{more}"
        )
    return PRECISIONS[words[0]], PRECISIONS[words[1]]


def matrix_precision(precision: PrecisionLike, operands: Sequence[ShapedArray]) -> str | Algorithm | None:
    """The precision or algorithm of a matrix product, from a user's argument; a configured algorithm applies only to
    floats."""
    algorithm = as_algorithm(config.default_matmul_precision if precision is None else precision)
    if algorithm is not None and (precision is not None or algorithm.takes(*(a.dtype for a in operands))):
        return algorithm
    both = precisions("dot_general", precision)
    return both and max(both)  # alphabetical order: default, high, highest


def product_type(name: str, preferred: Any, operands: Sequence[ShapedArray]) -> np.dtype | None:
    """The ``preferred_element_type`` of a matrix product, from a user's argument: the promoted dtype of operands that
    have several, else None."""
    if preferred is not None:
        return dtypes.requested(preferred, name)
    if len({a.dtype for a in operands}) == 1:
        return None
    return dtypes.product_dtype((a.dtype, a.weak_type) for a in operands)


def dot_general(
    lhs: Any, rhs: Any, dimension_numbers: Any, precision: PrecisionLike = None, preferred_element_type: Any = None,
) -> Any:  # fmt: skip
    """Contract paired dimensions of ``lhs`` and ``rhs``, for each index of paired batch dimensions.

    ``dimension_numbers`` is ``((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))``, of sequences or single
    dimensions. The result has the batch dimensions, then the remaining ones of ``lhs``, then those of ``rhs``. Its
    dtype is the promoted one of the operands, or ``preferred_element_type``, which is also the accumulation type. An
    algorithm as ``precision`` determines the types of operands and accumulation, not the dtype of the result.

    Raises:
      DTypeError: the algorithm does not support the operands.
      ShapeError: paired dimensions are out of range or differ in size.
      ArgumentError: an unknown ``precision``, or (when compiled) an algorithm that CPUs do not support.

    Example:
      >>> x, y = jnp.arange(12).reshape(2, 2, 3), jnp.arange(6).reshape(2, 3)
      >>> lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))).tolist()
      [[5, 14], [86, 122]]
    """
    (lc, rc), (lb, rb) = dimension_numbers
    lc, rc, lb, rb = (static_shape(dims, "dot_general") for dims in (lc, rc, lb, rb))
    numbers = ((lc, rc), (lb, rb))
    avals = typeof(lhs), typeof(rhs)
    preferred = product_type("dot_general", preferred_element_type, avals)
    return DotGeneral(numbers, matrix_precision(precision, avals), preferred).bind(lhs, rhs)


# --- reading ------------------------------------------------------------------------------------------------
def read_precision(r: Reader) -> str | Algorithm | None:
    """The precision or algorithm of a product in an imported program."""
    if (algorithm := read_algorithm(r)) is not None:
        return algorithm
    precision = r.attr("precision_config", None) or ("DEFAULT",)
    return None if set(precision) == {"DEFAULT"} else max(precision).lower()  # alphabetical: DEFAULT, HIGH, HIGHEST


@reads("stablehlo.dot_general")
def _read_dot_general(r: Reader) -> Any:
    n = r.attr("dot_dimension_numbers")
    contracting = n.get("lhs_contracting_dimensions", ()), n.get("rhs_contracting_dimensions", ())
    batch = n.get("lhs_batching_dimensions", ()), n.get("rhs_batching_dimensions", ())
    return _bind_dot(r, (contracting, batch))


@reads("stablehlo.dot")
def _read_dot(r: Reader) -> Any:
    return _bind_dot(r, (((r.in_avals[0].ndim - 1,), (0,)), ((), ())))


def _bind_dot(r: Reader, numbers: DotDimensionNumbers) -> Any:
    (lhs, rhs), (out,) = r.in_avals, r.out_avals
    preferred = None if lhs.dtype == rhs.dtype == out.dtype else out.dtype
    return DotGeneral(numbers, read_precision(r), preferred).bind(*r.operands)
