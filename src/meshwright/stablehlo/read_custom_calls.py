"""Reading rules of custom calls and composites that stand for known operations.

Serialized programs contain CHLO's operations as composites (``chlo.erf``) or, in older programs, as custom calls
(``mhlo.erf``), with their attributes in a dictionary. They are read with the rules of those operations. For the largest
elements (``top_k``) there are several further forms.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import Op
from meshwright.ir.passes import inline_calls
from meshwright.ir.reading import READERS, ReadRule, Unreadable, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.control.kernel_call import KernelCall
from meshwright.ops.elementwise.table import convert, neg, not_, or_, scalar_like, shift_left, shift_right_logical
from meshwright.ops.imported.opaque import CUSTOM_CALL, Opaque
from meshwright.ops.shape.broadcast_reduce import Iota, broadcast_in_dim
from meshwright.ops.shape.rearrange import move_dim
from meshwright.ops.shape.slice_pad import slice_in_dim
from meshwright.ops.sort.sorting import SortBody
from meshwright.ops.sort.top_k import TopK
from meshwright.stablehlo.read_bodies import leaves, read_opaque
from meshwright.stablehlo.respelled import Respelled

#: names that differ between dialects
_SYNONYMS = {"topk": "top_k"}


def rule_by_name(name: str) -> ReadRule | None:
    """The reading rule of the CHLO or StableHLO operation that a custom call or composite is named after."""
    dialect, _, rest = name.partition(".")
    if dialect not in ("chlo", "mhlo", "stablehlo"):
        return None
    rest = _SYNONYMS.get(rest, rest)
    return READERS.get(f"chlo.{rest}") or READERS.get(f"stablehlo.{rest}")


#: the name of composites that stand for kernels of a platform: attributes are, by platform, those of the custom call as
#: MLIR texts, one for each line
KERNELS = "meshwright.kernels"


@reads("stablehlo.composite")
def _composite(r: Any) -> Any:
    name = r.attr("name")
    if name == KERNELS:
        return _kernels(r, r.attr("composite_attributes"))
    rule = None if name.startswith("stablehlo.") else rule_by_name(name)
    if rule is not None:
        try:
            outs = rule(Respelled(r, attributes=r.attr("composite_attributes", {})))
            if _types(_several(outs)) == _types(r.out_avals):
                return outs
        except Unreadable:
            pass
    return r.call(r.attr("decomposition"), r.operands)


def _kernels(r: Any, attributes: dict[str, Any]) -> Any:
    results = tuple(r.out_avals)
    calls: list[tuple[str, Op]] = []
    for platform in attributes["platforms"].split():
        texts = tuple(tuple(line.split("=", 1)) for line in attributes[platform].splitlines())
        effects = dict(texts).get("has_side_effect") == "true"
        calls.append((platform, Opaque(CUSTOM_CALL, texts, (), results, effects)))
    grid = r.host_function(attributes.get("grid"))
    return KernelCall(attributes["name"], r.function(r.attr("decomposition")), tuple(calls), grid).bind(*r.operands)


@reads("stablehlo.custom_call")
def _custom_call(r: Any) -> Any:
    if len(r.out_avals) == 1 and isinstance(r.out_avals[0], tuple):  # HLO's form of several results
        outs = _called(Respelled(r, out_avals=r.out_avals[0]))
        return [tuple(outs) if isinstance(outs, list) else (outs,)]
    return _called(r)


def _called(r: Any) -> Any:
    target = r.attr("call_target_name")
    rule = READERS.get(f"custom_call:{target}")
    if rule is not None:
        try:
            return _as_declared(r, rule(r))
        except Unreadable:
            pass
    rule = rule_by_name(target)
    if rule is not None:
        return _as_declared(r, rule(Respelled(r, attributes=r.attr("mhlo.attributes", {}))))
    r.warn(f"custom call {target!r} is not known: it runs whole on every device")
    return read_opaque(r)


def _as_declared(r: Any, outs: Any) -> Any:
    """The results ``outs``, after a check that they have the declared types, which MLIR does not verify."""
    given, declared = (", ".join(_types(v)) for v in (_several(outs), r.out_avals))
    if given != declared:
        r.fail(f"calls {r.attr('call_target_name')!r}, which gives {given}; the program says {declared}")
    return outs


def _several(outs: Any) -> list[Any]:
    return outs if isinstance(outs, list) else [outs]


def _types(values: Sequence[Any]) -> list[str]:
    """The types of values (or types), including those in tuples, as texts."""
    avals = (v if isinstance(v, ShapedArray) else typeof(v) for v in leaves(values))
    return [str(a.update(weak_type=False)) for a in avals]


# --- words of 64 bits ---------------------------------------------------------------------------------------
@reads("custom_call:X64SplitLow", "custom_call:X64SplitHigh")
def _half(r: Any) -> Any:
    """The lower or upper 32 bits."""
    (x,) = r.operands
    if not dtypes.is_integer(typeof(x).dtype):
        raise Unreadable
    if r.attr("call_target_name") == "X64SplitHigh":
        x = shift_right_logical(x, scalar_like(32, x))
    return convert(x, r.out_avals[0].dtype)


@reads("custom_call:X64Combine")
def _whole(r: Any) -> Any:
    (out,) = r.out_avals
    if not all(dtypes.is_integer(a.dtype) for a in (*r.in_avals, out)):
        raise Unreadable
    low, high = (convert(convert(x, np.dtype(np.uint32)), out.dtype) for x in r.operands)
    return or_(low, shift_left(high, scalar_like(32, high)))


# --- the largest elements -----------------------------------------------------------------------------------
def largest(x: Any, k: int, dim: int, descending: bool = True) -> tuple[Any, Any]:
    """The ``k`` largest elements along ``dim``, or the smallest, and their positions."""
    last = typeof(x).ndim - 1
    flip = neg if dtypes.is_float(typeof(x).dtype) else not_
    values, positions = TopK(k).bind(move_dim(x if descending else flip(x), dim, last))
    values = values if descending else flip(values)
    return move_dim(values, last, dim), move_dim(positions, last, dim)


@reads("custom_call:AllocateBuffer")
def _memory(r: Any) -> Any:
    """Read memory whose elements compilers for TPUs do not care for, as they write them before they read them."""
    (out,) = r.out_avals
    return broadcast_in_dim(convert(np.int32(0), out.dtype), out.shape, ())


@reads("custom_call:AssumeGatherIndicesInBound")
def _assumption(r: Any) -> Any:
    return r.operands[0]


@reads("custom_call:mhlo.topk", "custom_call:TopK", "custom_call:__gpu$TopK", "mhlo.topk")
def _top_k(r: Any) -> list[Any]:
    attributes = r.attr("mhlo.attributes", {})
    descending = attributes.get("largest", r.attr("largest", True))
    values_aval, positions_aval = r.out_avals
    values, positions = largest(r.operands[0], values_aval.shape[-1], values_aval.ndim - 1, descending)
    return [values, convert(positions, positions_aval.dtype)]


@reads("custom_call:ApproxTopK", "custom_call:PartialReduce")
def _approximate_top_k(r: Any) -> list[Any]:
    """Read an approximate ``top_k`` as an exact one, with as many elements as the result has."""
    backend_config = r.attr("mhlo.backend_config", None) or r.attr("backend_config", "") or {}
    if isinstance(backend_config, str):
        backend_config = json.loads(backend_config)
    if "reduction_dim" not in backend_config:
        r.fail("has no reduction_dim in its backend_config, which says along what to look")
    dim, operands = backend_config["reduction_dim"], r.operands[: len(r.operands) // 2]
    k = r.out_avals[0].shape[dim]
    (name,) = r.attr("called_computations")
    comparator = inline_calls(r.function(name))
    producer = r.producer_of(1) if len(operands) == 2 else None
    order = _order_of_first(comparator)
    if order and producer is not None and isinstance(producer.op, Iota) and producer.op.dimension == dim:
        values, positions = largest(operands[0], k, dim, order == "gt")
        return [values, convert(positions, r.out_avals[1].dtype)]
    outs: Sequence[Any] = SortBody(dim, comparator).bind(*operands)
    return [slice_in_dim(y, 0, k, axis=dim) for y in outs]


def _order_of_first(comparator: ClosedJaxpr) -> str:
    """``gt`` or ``lt`` if a comparator is only that comparison of its first two arguments; otherwise empty."""
    inner = comparator.jaxpr
    if len(inner.eqns) != 1 or inner.outvars != list(inner.eqns[0].outvars):
        return ""
    (eqn,) = inner.eqns
    return eqn.op.name if eqn.op.name in ("gt", "lt") and list(eqn.invars) == inner.invars[:2] else ""
