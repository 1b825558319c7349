"""Conversion of MLIR types, attributes and locations to Python values, once per program for each distinct one."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
from jaxlib.mlir import ir

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.source import UNKNOWN, Range, SourceLocation
from meshwright.stablehlo.lines import hlo_lines

_ELEMENT_TYPES: dict[str, np.dtype] = {
    "i1": dtypes.bool_, "i2": np.dtype(ml_dtypes.int2), "i4": dtypes.int4, "i8": dtypes.int8, "i16": dtypes.int16,
    "i32": dtypes.int32, "i64": dtypes.int64, "ui2": np.dtype(ml_dtypes.uint2), "ui4": dtypes.uint4,
    "ui8": dtypes.uint8, "ui16": dtypes.uint16, "ui32": dtypes.uint32, "ui64": dtypes.uint64, "f16": dtypes.float16,
    "bf16": dtypes.bfloat16, "f32": dtypes.float32, "f64": dtypes.float64, "complex<f32>": dtypes.complex64,
    "complex<f64>": dtypes.complex128,
}  # fmt: skip
for _name in dir(ml_dtypes):
    if _name.startswith(("float8_", "float4_")):
        _bits, _form = _name.removeprefix("float").split("_")
        _ELEMENT_TYPES[f"f{_bits}{_form.upper()}"] = np.dtype(getattr(ml_dtypes, _name))

_NUMBERS_FIELD = re.compile(r"(\w+) = (\[[^\]]*\]|-?\d+)")
_CONV_SIDE = re.compile(r"\[([^\]]*)\]")
_ENUM = re.compile(r"#\w+<\w+ (\w+)>\Z")
#: the maximum number of frames of a call stack that are read
_MOST_FRAMES = 100
_SCOPE = re.compile(r"^(?:p?jit|xmap|pmap|while|cond|scan)\([^()]*\)$")


class UnsupportedType(Exception):
    """An MLIR type that arrays cannot have; the message says why."""


def is_token(type_: ir.Type) -> bool:
    """Whether it is the type of tokens, which order effects and have no value."""
    return str(type_) in ("!stablehlo.token", "!mhlo.token")


class Attributes:
    """Converts the types, attributes and locations of one module, with a cache.

    ``file`` is the name of the file that the module was read from, ``name`` that of the module, ``hlo`` its text if it
    was HLO.
    """

    def __init__(self, file: str, name: str = "", hlo: str = "") -> None:
        self.file = file
        self.name = name
        self._hlo = hlo
        self._types: dict[ir.Type, Any] = {}
        self._values: dict[ir.Attribute, Any] = {}
        self._locations: dict[ir.Attribute, SourceLocation] = {}

    # --- types ----------------------------------------------------------------------------------------------
    def type(self, type_: ir.Type) -> Any:
        """The aval of a tensor type, or a tuple of avals for a tuple type. Tokens are represented by a number.

        Raises:
          UnsupportedType: dynamic shapes, quantized elements, and other types that arrays cannot have.
        """
        aval = self._types.get(type_, self)
        if aval is self:
            aval = self._types[type_] = self._type(type_)
        return aval

    def _type(self, type_: ir.Type) -> Any:
        if isinstance(type_, ir.RankedTensorType):
            return ShapedArray(_static_shape(type_), _element_dtype(type_.element_type))
        if isinstance(type_, ir.TupleType):
            return tuple(self.type(type_.get_type(i)) for i in range(type_.num_types))
        if is_token(type_):
            return ShapedArray((), dtypes.int32)
        raise UnsupportedType(f"values of type {type_} have no meaning here")

    # --- attributes -----------------------------------------------------------------------------------------
    def value(self, attribute: ir.Attribute) -> Any:
        """An attribute as a Python value (see :class:`meshwright.ir.reading.Reader`)."""
        decoded = self._values.get(attribute, self)
        if decoded is self:
            decoded = self._values[attribute] = self._value(attribute)
        return decoded

    def _value(self, a: ir.Attribute) -> Any:
        if isinstance(a, (ir.BoolAttr, ir.IntegerAttr, ir.FloatAttr, ir.StringAttr, ir.FlatSymbolRefAttr)):
            return a.value
        if isinstance(a, (ir.DenseI64ArrayAttr, ir.DenseI32ArrayAttr, ir.DenseBoolArrayAttr)):
            return tuple(a)
        if isinstance(a, ir.ArrayAttr):
            return tuple(self.value(x) for x in a)
        if isinstance(a, ir.DictAttr):
            return {n.name: self.value(n.attr) for n in a}
        if isinstance(a, ir.DenseElementsAttr):
            elements = np.array(a)  # of rank 1: how MHLO, and StableHLO before arrays, spell them
            return tuple(elements.tolist()) if elements.ndim == 1 and elements.dtype.kind in "bi" else elements
        if isinstance(a, ir.TypeAttr):
            return self.type(a.value) if isinstance(a.value, ir.RankedTensorType) else str(a.value)
        if isinstance(a, ir.UnitAttr):
            return True
        return _from_text(str(a))

    # --- locations ------------------------------------------------------------------------------------------
    def location(self, location: ir.Location) -> SourceLocation:
        """File, line and function of the innermost frame, and the op's name path."""
        key = location.attr
        source = self._locations.get(key)
        if source is None:
            source = self._locations[key] = _source(location, self.file, self.name, self._line)
        return source

    def hlo_line(self, location: ir.Location) -> int:
        """The line of HLO text at which the operation at ``location`` stands; 0 if that is not known."""
        if isinstance(location, ir.FusedLoc):
            return max(map(self.hlo_line, location.locations), default=0)
        return self._line(location.name_str) if isinstance(location, ir.NameLoc) else 0

    @cached_property
    def _lines(self) -> dict[str, int]:
        return hlo_lines(self._hlo)

    def _line(self, name: str) -> int:
        """The line of HLO text with the instruction of this name; 0 if there is none, or not a single one."""
        return self._lines.get(name, 0)


def _static_shape(type_: ir.RankedTensorType) -> tuple[int, ...]:
    if not type_.has_static_shape:
        raise UnsupportedType(f"{type_} has a dynamic shape; export the program with static shapes")
    return tuple(type_.shape)


def _element_dtype(type_: ir.Type) -> np.dtype:
    text = str(type_)
    dtype = _ELEMENT_TYPES.get(text)
    if dtype is None:
        raise UnsupportedType(f"element type {text} is not supported")
    return dtype


def _from_text(text: str) -> Any:
    """The value of an attribute without a Python class (an enum, dimension numbers), or its text."""
    enum = _ENUM.match(text)
    if enum:
        return enum[1]
    if ".conv<" in text:
        names = ("lhs", "rhs", "out")
        return {n: tuple(p.strip() for p in s.split(",")) for n, s in zip(names, _CONV_SIDE.findall(text))}
    if text.startswith(("#stablehlo.", "#mhlo.", "#chlo.")) and ".dot_algorithm<" not in text:
        return {name: _numbers(value) for name, value in _NUMBERS_FIELD.findall(text)}
    return text


def _numbers(text: str) -> int | tuple[int, ...]:
    if not text.startswith("["):
        return int(text)
    inner = text[1:-1].strip()
    return tuple(int(v) for v in inner.split(",")) if inner else ()


# --- constants ----------------------------------------------------------------------------------------------
_SCALAR_COMPLEX = re.compile(r"\(([^,()]+),([^,()]+)\)")


def constant_array(operation: ir.Operation, aval: ShapedArray) -> np.ndarray:
    """The elements of a constant; an array of rank 0 if all are equal, to save memory."""
    if not aval.size:
        return np.zeros((), aval.dtype)
    try:
        elements = operation.attributes["value"]
        if elements.is_splat and aval.size != 1:
            return _splat(elements, aval)
        return np.array(elements, copy=True).reshape(aval.shape)
    except TypeError:  # element types without a Python buffer: bf16, 8-bit floats, complex, ...
        return _from_assembly(operation, aval)


_RESOURCE = re.compile(r"dense_resource<([^>]*)>")
_BLOB = re.compile(r'^\s*"?([^\s":]+)"?: "0x([0-9A-Fa-f]*)"', re.MULTILINE)
ELIDED = "__elided__"


def resource_name(operation: ir.Operation) -> str | None:
    """The name of the blob after the module that stores a constant's elements, if there is one."""
    try:
        value = operation.attributes["value"]
    except TypeError:  # as in constant_array: no Python object stands for it
        return None
    if isinstance(value, ir.DenseElementsAttr):
        return None
    match = _RESOURCE.match(str(value))
    return match[1].strip('"') if match else None


def resource_blobs(text: str) -> dict[str, bytes]:
    """The blobs of a module's text, by name. Each begins with its alignment, in four bytes."""
    start = text.rfind("{-#")
    return {} if start < 0 else {name: bytes.fromhex(hexa)[4:] for name, hexa in _BLOB.findall(text[start:])}


def blob_array(blob: bytes, aval: ShapedArray) -> np.ndarray:
    """The elements of a blob; an array of rank 0 if it has a single one for all."""
    elements = np.frombuffer(blob, aval.dtype)
    return elements.reshape(() if elements.size == 1 != aval.size else aval.shape)


def _splat(elements: Any, aval: ShapedArray) -> np.ndarray:
    value = elements.get_splat_value().value
    if dtypes.is_float(aval.dtype) or dtypes.is_bool(aval.dtype):
        return np.array(value).astype(aval.dtype)
    bits = dtypes.bit_width(aval.dtype)
    return np.array(int(value) % 2**bits, f"uint{max(bits, 8)}").astype(aval.dtype)


def _from_assembly(operation: ir.Operation, aval: ShapedArray) -> np.ndarray:
    """The elements in the printed form, which has many elements as hexadecimal bytes, and few as numbers."""
    try:
        text = str(operation.attributes["value"])
    except TypeError:  # no Python object stands for it; this numbers the values of the whole module
        text = operation.get_asm(enable_debug_info=False)
    body = text[text.index("dense<") + len("dense<") : text.rindex("> : tensor")].strip()
    if body.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(body[3:-1]), aval.dtype).reshape(aval.shape)
    if dtypes.is_complex(aval.dtype):
        pairs = _SCALAR_COMPLEX.findall(body)
        values = [complex(_number(a, aval), _number(b, aval)) for a, b in pairs]
    else:
        values = [_number(v, aval) for v in re.findall(r"[^\[\],\s]+", body)]
    array = np.array(values).astype(aval.dtype)
    return array.reshape(aval.shape if array.size == aval.size else ())


def _number(text: str, aval: ShapedArray) -> Any:
    text = text.strip()
    part = dtypes.real_of(aval.dtype)
    if text.startswith("0x"):
        bits = int(text, 16)
        return np.array(bits, f"uint{part.itemsize * 8}").view(part)[()]
    return int(text) if dtypes.is_integer(aval.dtype) else float(text)


# --- locations ----------------------------------------------------------------------------------------------
def _source(location: ir.Location, own: str, module: str, line: Callable[[str], int]) -> SourceLocation:
    path, function, called = "", "", False
    frames: list[tuple[str, Range, str]] = []
    pending = [(location, False)]  # locations, and whether they are callers
    while pending and len(frames) < _MOST_FRAMES:
        here, _ = pending.pop()
        if isinstance(here, ir.NameLoc):
            # The outermost name is the op's path; those inside name the functions of frames.
            path, function = (path, here.name_str) if path or called else (here.name_str, function)
            pending.append((here.child_loc, False))
        elif isinstance(here, ir.CallSiteLoc):
            called = True
            pending += [(here.caller, True), (here.callee, False)]
        elif isinstance(here, ir.FusedLoc):
            pending += [(x, False) for x in reversed(list(here.locations))]
        elif isinstance(here, ir.FileLineColLoc):
            file = own if here.filename in ("", "-") else here.filename
            columns = (here.start_col, here.end_col) if here.end_col else (None, None)
            frames.append((file, (here.start_line, here.end_line, *columns), function))
            function = ""
            pending = [p for p in pending if p[1]]
    if not frames and not path:
        return UNKNOWN
    unknown = (0 if frames else line(path), None, None, None)
    scope, _, _ = path.rpartition("/")
    first, _, rest = scope.partition("/")
    if _same_name(first, module):  # the name of the program, which is added to all scopes later
        scope = rest
    caller = None
    for frame in reversed(frames[1:]):
        caller = SourceLocation.at(*frame, caller=caller)
    file, lines, function = frames[0] if frames else (own, unknown, function)
    return SourceLocation.at(file, lines, function, scope, caller, _readable(path))


def _same_name(scope: str, module: str) -> bool:
    """Whether the scope ``jit(f)`` is that of the module ``jit_f``, whose name omits characters invalid in symbols."""
    return scope.startswith("jit(") and re.sub(r"[\W_]", "", scope) == re.sub(r"[\W_]", "", module)


def _readable(path: str) -> str:
    """An op's path without the scopes of all ops: ``h/0/add`` for ``jit(step)/jit(main)/h/0/add``."""
    parts = path.split("/")
    while len(parts) > 1 and _SCOPE.match(parts[0]):
        parts.pop(0)
    return "/".join(parts)
