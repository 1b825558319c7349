"""Reading rules of operations without an op of ours: constants, calls, tuples, tokens, and unsupported operations."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.passes import inlined_size
from meshwright.ir.reading import reads
from meshwright.ir.tracing import Tracer, typeof
from meshwright.ops.elementwise.bitcast import bitcast
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.ops.shape.rearrange import reshape, transpose
from meshwright.ops.sharding.custom import PARTITIONED_BY_USER
from meshwright.stablehlo.read_attributes import constant_array, resource_name


@reads("stablehlo.constant", "chlo.constant", "sdy.constant", "arith.constant")
def _constant(r: Any) -> Any:
    (aval,) = r.out_avals
    name = resource_name(r.operation)
    array = constant_array(r.operation, aval) if name is None else r.resource(name, aval)
    if array.ndim == aval.ndim:
        return array if array.ndim else array[()]
    return broadcast_in_dim(array[()], aval.shape, ())


#: marks calls that XLA's CPU compiler makes of small loops; they are inlined so that the start of the counter is known
_SPLIT_OFF = "xla_cpu_small_call"
#: the maximum number of equations of such a loop
_MOST = 10_000


# --- calls --------------------------------------------------------------------------------------------------
@reads("func.call", "call")
def _call(r: Any) -> Any:
    marks = r.operation.attributes
    given = marks["mhlo.frontend_attributes"] if "mhlo.frontend_attributes" in marks else {}
    function = r.module.functions.get(r.attr("callee"))
    if _SPLIT_OFF in given and function is not None and inlined_size(function.jaxpr) <= _MOST:
        return r.body.block(r.module.block_of(r.attr("callee")), r.operands)
    if PARTITIONED_BY_USER in given:
        name = given[PARTITIONED_BY_USER].value
        r.warn(
            f"custom_partitioning {name}: its user's functions partitioned it, which a text does not hold; here it is "
            "partitioned as the ops in it are"
        )
    return r.call(r.attr("callee"), r.operands)


@reads("stablehlo.async_start")
def _async_start(r: Any) -> Any:
    """Read an asynchronous operation as one that completes at once, since scheduling is left to the compiler."""
    if "called_computation" in r.operation.attributes:
        return [tuple(r.call(r.attr("called_computation"), r.operands))]
    return [tuple(r.body.block(r.operation.regions[0].blocks[0], r.operands))]


@reads("stablehlo.async_done")
def _async_done(r: Any) -> Any:
    results = list(r.operands[0])
    return results if len(results) == len(r.operation.results) else [tuple(results)]


@reads("mhlo.fusion")
def _fusion(r: Any) -> Any:
    return r.body.block(r.operation.regions[0].blocks[0], r.operands)


# --- tuples and barriers ------------------------------------------------------------------------------------
@reads("stablehlo.tuple")
def _tuple(r: Any) -> Any:
    return tuple(r.operands)


@reads("stablehlo.get_tuple_element")
def _get_tuple_element(r: Any) -> Any:
    return r.operands[0][r.attr("index")]


@reads("custom_call:shape_assertion")
def _shape_assertion(r: Any) -> list[Any]:
    """Drop an assertion about sizes that holds."""
    (held, *_) = r.operands
    if isinstance(held, Tracer):
        r.fail("asserts something of sizes that are not known; export the program with static shapes")
    if not np.all(held):
        said = dict(r.attribute_texts()).get("error_message", "").strip('"')
        r.fail(f"the shapes of the program are not those that it asserts{': ' if said else ''}{said}")
    return []


@reads(
    "custom_call:annotate_device_placement", "custom_call:LayoutConstraint", "custom_call:MoveToHost",
    "custom_call:MoveToDevice", "mhlo.copy", "mhlo.domain",
)  # fmt: skip
def _same(r: Any) -> Any:
    return list(r.operands)


@reads("mhlo.add_dependency")
def _add_dependency(r: Any) -> Any:
    return r.operands[0]


@reads("mhlo.bitcast")
def _bitcast(r: Any) -> Any:
    """Read the same bytes of memory as another shape, layout (minor to major) or dtype of the same width."""
    (x,), (out,) = r.operands, r.out_avals
    if dtypes.bit_width(typeof(x).dtype) != dtypes.bit_width(out.dtype):
        r.fail(f"gives {typeof(x)} the type {out}; expected one of as many bits, or a bitcast_convert")
    held, given = _major_to_minor(r, "source_layout", x.ndim), _major_to_minor(r, "result_layout", out.ndim)
    lying = reshape(transpose(x, held), tuple(out.shape[d] for d in given))
    moved = transpose(lying, tuple(int(d) for d in np.argsort(given)))
    return moved if typeof(moved).dtype == out.dtype else bitcast(moved, out.dtype)


def _major_to_minor(r: Any, layout: str, ndim: int) -> tuple[int, ...]:
    written = r.operation.attributes
    return tuple(reversed(r.attr(layout))) if layout in written else tuple(range(ndim))


# --- sizes --------------------------------------------------------------------------------------------------
@reads("stablehlo.get_dimension_size")
def _dimension_size(r: Any) -> Any:
    return np.int32(typeof(r.operands[0]).shape[r.attr("dimension")])


# --- tokens -------------------------------------------------------------------------------------------------
@reads("stablehlo.create_token", "stablehlo.after_all")
def _token(r: Any) -> list[Any]:
    """Represent a token by a number. Tokens order effects, and ops with effects are kept in order anyway."""
    return [np.int32(0)]


# --- unsupported operations ---------------------------------------------------------------------------------
@reads(
    "stablehlo.infeed",
    "stablehlo.outfeed",
    "stablehlo.send",
    "stablehlo.recv",
    "mhlo.xla.rng_get_and_update_state",
)
def _communicates(r: Any) -> Any:
    r.fail("talks to the host or to other programs, which has no meaning here; pass values as arguments and results")


@reads("stablehlo.set_dimension_size", "custom_call:PadToStatic", "custom_call:SliceToDynamic")
def _dynamic(r: Any) -> Any:
    r.fail("makes a dynamic shape; export the program with static shapes")


@reads("stablehlo.uniform_quantize", "stablehlo.uniform_dequantize")
def _quantized(r: Any) -> Any:
    r.fail("works on quantized elements, which are not supported; export the program without them")
