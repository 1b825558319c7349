"""Reading rules of operations that are expressed with several ops, and of dynamic forms with constant shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.jaxpr import Literal
from meshwright.ir.reading import READERS, Reader, reads
from meshwright.ir.tracing import Tracer, typeof
from meshwright.ops.elementwise.table import abs_, add, div, eq, imag, mul, real, rsqrt, scalar_like, sub
from meshwright.ops.indexing.gather_add import Gather
from meshwright.ops.indexing.indexed import GatherDimensionNumbers, GatherScatterMode
from meshwright.ops.shape.broadcast_reduce import Iota, broadcast_in_dim, broadcast_to_rank_end, match_shape, reduce_sum
from meshwright.ops.shape.rearrange import expand_dims, reshape
from meshwright.ops.shape.slice_pad import pad, slice_
from meshwright.stablehlo.respelled import Respelled


# --- computed shapes that are static ------------------------------------------------------------------------
@reads("stablehlo.dynamic_reshape")
def _dynamic_reshape(r: Reader) -> Any:
    return reshape(r.operands[0], r.out_avals[0].shape)


@reads("stablehlo.dynamic_broadcast_in_dim")
def _dynamic_broadcast(r: Reader) -> Any:
    return broadcast_in_dim(r.operands[0], r.out_avals[0].shape, r.attr("broadcast_dimensions"))


@reads("stablehlo.dynamic_iota")
def _dynamic_iota(r: Reader) -> Any:
    (out,) = r.out_avals
    return Iota(out.dtype, out.shape, r.attr("iota_dimension")).bind()


def _numbers(r: Reader, operand: int) -> list[int]:
    """The elements of a constant operand.

    Raises:
      ImportProgramError: the operand is not a constant.
    """
    x = r.operands[operand]
    if not isinstance(x, Tracer):
        return [int(v) for v in np.asarray(x).reshape(-1)]
    producer = r.producer_of(operand)  # equal elements are read as a broadcast
    if producer is None or producer.op.name != "broadcast_in_dim" or not isinstance(producer.invars[0], Literal):
        r.fail(f"operand {operand} is computed, so that shapes are; export the program with static shapes")
    return [int(producer.invars[0].val)] * typeof(x).size


@reads("stablehlo.real_dynamic_slice")
def _real_dynamic_slice(r: Reader) -> Any:
    return slice_(r.operands[0], *(_numbers(r, i) for i in (1, 2, 3)))


@reads("stablehlo.dynamic_pad")
def _dynamic_pad(r: Reader) -> Any:
    x, value, *_ = r.operands
    return pad(x, value, list(zip(*(_numbers(r, i) for i in (2, 3, 4)))))


@reads("stablehlo.dynamic_gather")
def _dynamic_gather(r: Reader) -> Any:
    x, indices, _ = r.operands
    sizes = {"slice_sizes": tuple(_numbers(r, 2))}
    return READERS["stablehlo.gather"](Respelled(r, [x, indices], sizes))


@reads("stablehlo.dynamic_conv")
def _dynamic_conv(r: Reader) -> Any:
    lhs, rhs, _ = r.operands
    padding = {"padding": np.reshape(_numbers(r, 2), (-1, 2))}
    return READERS["stablehlo.convolution"](Respelled(r, [lhs, rhs], padding))


# --- implicit broadcasting ----------------------------------------------------------------------------------
def _broadcasting(name: str) -> None:
    plain = f"stablehlo.{name}" if f"stablehlo.{name}" in READERS else f"chlo.{name}"
    rule = READERS[plain]

    def aligned(r: Any) -> Any:
        shape = r.out_avals[0].shape
        return rule(Respelled(r, [broadcast_to_rank_end(x, shape) for x in r.operands]))

    READERS[f"chlo.broadcast_{name}"] = aligned


for _name in (
    "add", "and", "atan2", "compare", "complex", "divide", "maximum", "minimum", "multiply", "next_after", "or",
    "polygamma", "power", "remainder", "select", "shift_left", "shift_right_arithmetic", "shift_right_logical",
    "subtract", "xor", "zeta",
):  # fmt: skip
    _broadcasting(_name)


# --- tests and fills ----------------------------------------------------------------------------------------
@reads("chlo.is_inf")
def _is_inf(r: Reader) -> Any:
    (x,) = r.operands
    return eq(abs_(x), scalar_like(np.inf, x))


@reads("chlo.is_pos_inf")
def _is_pos_inf(r: Reader) -> Any:
    (x,) = r.operands
    return eq(x, scalar_like(np.inf, x))


@reads("chlo.is_neg_inf")
def _is_neg_inf(r: Reader) -> Any:
    (x,) = r.operands
    return eq(x, scalar_like(-np.inf, x))


@reads("chlo.constant_like")
def _constant_like(r: Reader) -> Any:
    (out,) = r.out_avals
    value = r.attr("value")
    return match_shape(np.array(value, out.dtype), out)


# --- parts of numbers ---------------------------------------------------------------------------------------
@reads("stablehlo.real")
def _real(r: Reader) -> Any:
    (x,) = r.operands
    return real(x) if dtypes.is_complex(typeof(x).dtype) else x


@reads("stablehlo.imag")
def _imag(r: Reader) -> Any:
    (x,) = r.operands
    return imag(x) if dtypes.is_complex(typeof(x).dtype) else match_shape(scalar_like(0, x), typeof(x))


# --- lookups ------------------------------------------------------------------------------------------------
@reads("stablehlo.torch_index_select")
def _torch_index_select(r: Reader) -> Any:
    x, index = r.operands
    dim, batch_dims = r.attr("dim"), r.attr("batch_dims", 0)
    shape, index_ndim = typeof(x).shape, typeof(index).ndim
    batch = tuple(range(batch_dims))
    sizes = tuple(1 if d == dim or d in batch else s for d, s in enumerate(shape))
    before = tuple(range(batch_dims, dim))
    behind = tuple(range(dim + index_ndim - batch_dims, len(shape) - 1 + index_ndim - batch_dims))
    numbers = GatherDimensionNumbers((*before, *behind), (dim,), (dim,), batch, batch)
    clip = GatherScatterMode.CLIP
    return Gather(numbers, sizes, clip).bind(x, expand_dims(index, [index_ndim]))


# --- batch normalisation ------------------------------------------------------------------------------------
class _BatchNorm:
    """The operands of a batch normalisation, with per-feature values broadcast to the array's shape."""

    def __init__(self, r: Reader) -> None:
        self.x = r.operands[0]
        aval = typeof(self.x)
        self.shape, self.feature = aval.shape, r.attr("feature_index")
        self.reduced = [d for d in range(aval.ndim) if d != self.feature]
        self.count = scalar_like(max(1, int(np.prod([aval.shape[d] for d in self.reduced]))), self.x)
        self.epsilon = scalar_like(r.attr("epsilon"), self.x)

    def spread(self, v: Any) -> Any:
        return broadcast_in_dim(v, self.shape, (self.feature,))

    def mean(self, v: Any) -> Any:
        return div(reduce_sum(v, self.reduced), self.count)

    def normalised(self, mean: Any, variance: Any) -> Any:
        return mul(sub(self.x, self.spread(mean)), self.spread(rsqrt(add(variance, self.epsilon))))


@reads("stablehlo.batch_norm_inference")
def _batch_norm_inference(r: Reader) -> Any:
    n = _BatchNorm(r)
    _, scale, offset, mean, variance = r.operands
    return add(mul(n.normalised(mean, variance), n.spread(scale)), n.spread(offset))


@reads("stablehlo.batch_norm_training")
def _batch_norm_training(r: Reader) -> list[Any]:
    n = _BatchNorm(r)
    x, scale, offset = r.operands
    mean = n.mean(x)
    centered = sub(x, n.spread(mean))
    variance = n.mean(mul(centered, centered))
    return [add(mul(n.normalised(mean, variance), n.spread(scale)), n.spread(offset)), mean, variance]


@reads("stablehlo.batch_norm_grad")
def _batch_norm_grad(r: Reader) -> list[Any]:
    n = _BatchNorm(r)
    _, scale, mean, variance, grad = r.operands
    normal = n.normalised(mean, variance)
    grad_scale, grad_offset = reduce_sum(mul(grad, normal), n.reduced), reduce_sum(grad, n.reduced)
    along = sub(grad, n.spread(div(grad_offset, n.count)))
    along = sub(along, mul(normal, n.spread(div(grad_scale, n.count))))
    grad_x = mul(along, n.spread(mul(scale, rsqrt(add(variance, n.epsilon)))))
    return [grad_x, grad_scale, grad_offset]
