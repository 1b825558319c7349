"""The MLIR context for emission, with caches of types, attributes and locations, most of which occur repeatedly."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from meshwright.core.avals import ShapedArray
from meshwright.core.dtypes import NUMPY_DTYPES, bit_width, is_integer, short_name
from meshwright.core.source import SourceLocation
from meshwright.stablehlo.dialects import new_context


@cache
def context() -> ir.Context:
    """The context of all emitted modules."""
    return new_context()


_MLIR_NAMES = {"bool": "i1", "c64": "complex<f32>", "c128": "complex<f64>"}


@cache
def element_type(dtype: np.dtype) -> ir.Type:
    """The MLIR element type of a dtype."""
    short = short_name(dtype)
    name = _MLIR_NAMES.get(short)
    if name is None:
        name = "ui" + short[1:] if short.startswith("u") else short
        if short.startswith("f8") or short.startswith("f4"):
            name = _float8_name(dtype.name)
    return ir.Type.parse(name, context())


def _float8_name(name: str) -> str:
    """``float8_e4m3fn`` is ``f8E4M3FN`` in MLIR."""
    bits, form = name.removeprefix("float").split("_")
    return f"f{bits}{form.upper()}"


@cache
def tensor_type(aval: ShapedArray) -> ir.Type:
    """The ranked tensor type of an aval."""
    with context(), ir.Location.unknown():
        return ir.RankedTensorType.get(aval.shape, element_type(aval.dtype))


@lru_cache(maxsize=16384)
def _small_attribute(kind: type, value: Any, of: type | None) -> ir.Attribute:
    """The attribute for a value of this type, or for a tuple ``of`` such elements: True and 1 are equal keys."""
    ctx = context()
    with ctx, ir.Location.unknown():
        if kind is bool:
            return ir.BoolAttr.get(value)
        if kind is int:
            return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
        if kind is tuple:
            if of is bool:
                return ir.DenseBoolArrayAttr.get(list(value))
            return ir.DenseI64ArrayAttr.get(list(value))
        return ir.Attribute.parse(value, ctx)


def attribute(value: Any) -> ir.Attribute:
    """The attribute for a Python value (see :class:`meshwright.ir.op.Builder`)."""
    if isinstance(value, np.ndarray):
        return dense(value)
    if isinstance(value, ir.Attribute):
        return value
    if isinstance(value, dict):
        return ir.DictAttr.get({k: attribute(v) for k, v in value.items()}, context())
    elements = type(value[0]) if isinstance(value, tuple) and value else None
    return _small_attribute(type(value), value, elements)  # type: ignore[arg-type]


def dense(array: np.ndarray, aval: ShapedArray | None = None) -> ir.Attribute:
    """Dense elements. A rank-0 ``array`` with an ``aval`` of another shape is a splat."""
    with context(), ir.Location.unknown():
        dtype = array.dtype
        shape = array.shape if aval is None else aval.shape
        element = element_type(dtype)
        if is_integer(dtype) and bit_width(dtype) < 8:
            array = array.astype(np.int8)
        elif dtype not in NUMPY_DTYPES:
            array = array.view({1: np.uint8, 2: np.uint16}[dtype.itemsize])
        return ir.DenseElementsAttr.get(np.ascontiguousarray(array), type=element, shape=shape)


@lru_cache(maxsize=16384)
def _scalar_constant(data: bytes, dtype: np.dtype, shape: tuple[int, ...]) -> ir.Attribute:
    return dense(np.frombuffer(data, dtype)[0].reshape(()), ShapedArray(shape, dtype))


def constant_attribute(value: Any, aval: ShapedArray) -> ir.Attribute:
    """Dense elements of ``aval``'s type from an array, or from a scalar that fills it."""
    array = np.asarray(value)
    if array.dtype != aval.dtype:
        array = array.astype(aval.dtype)
    if array.ndim == 0:
        return _scalar_constant(array.tobytes(), aval.dtype, aval.shape)
    return dense(array)


_locations: dict[tuple[SourceLocation, str], ir.Location] = {}
_stacks: dict[SourceLocation, ir.Location] = {}


def location(source: SourceLocation, name: str) -> ir.Location:
    """The MLIR location of an op called ``name`` from a line of the user's program."""
    key = (source, name)
    loc = _locations.get(key)
    if loc is None:
        ctx = context()
        where = _call_stack(source) if source.file else ir.Location.unknown(ctx)
        loc = _locations[key] = ir.Location.name(name, where, context=ctx)
    return loc


def _call_stack(source: SourceLocation) -> ir.Location:
    """A location with its callers, from which XLA builds its table of stack frames."""
    caller: ir.Location | None = None
    for place in reversed(list(source.stack)):
        frame = _stacks.get(place)
        if frame is None:
            frame = _stacks[place] = _frame(place, caller)
        caller = frame
    return frame


def _frame(place: SourceLocation, caller: ir.Location | None) -> ir.Location:
    ctx = context()
    first, last, start, end = place.range
    known = last is not None and start is not None and end is not None
    columns = (start, last, end) if known else (start or 0,)
    frame = ir.Location.file(place.file, first, *columns, context=ctx)
    if place.function:
        frame = ir.Location.name(place.function, frame, context=ctx)
    return frame if caller is None else ir.Location.callsite(frame, [caller], context=ctx)
