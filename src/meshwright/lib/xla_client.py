"""XLA's classes under the names of ``xla_client``, and its builder, based on :mod:`meshwright.builder`.

``ops.Add(x, y)`` is ``builder.op("add", x, y)``, where the builder is that of the values. Names are those of our ops in
camel case, and the names of ``XlaBuilder`` below if they differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from meshwright.builder import Builder, Value, ops_by_name
from meshwright.errors import ArgumentError
from meshwright.lib import xla_extension as _xla  # noqa: F401, what notebooks took ``hlo_module_from_text`` from
from meshwright.lib.xla_bridge import get_backend
from meshwright.lib.xla_extension import (
    CompileOptions,
    DeviceAssignment,
    HloSharding,
    OpSharding,
    PrimitiveType,
    ProgramShape,
    Shape,
    XlaComputation,
)
from meshwright.runtime.pjrt.backend import computation_from_stablehlo

__all__ = [
    "CompileOptions", "DeviceAssignment", "HloSharding", "OpSharding", "PrimitiveType", "ProgramShape", "Shape",
    "XlaBuilder", "XlaComputation", "dtype_to_etype", "get_local_backend", "ops", "shape_to_type",
]  # fmt: skip


def dtype_to_etype(dtype: Any) -> Any:
    """XLA's name of a dtype.

    Example:
      >>> mw.lib.xla_client.dtype_to_etype(np.float32).name
      'F32'
    """
    return Shape.array_shape(np.dtype(dtype), ()).xla_element_type()


def get_local_backend(name: str | None = None) -> Any:
    """Older name of :func:`meshwright.lib.xla_bridge.get_backend`."""
    return get_backend(name)


class XlaBuilder(Builder):
    """A builder whose :meth:`build` returns an ``XlaComputation``; :meth:`program` is ``Builder.build``."""

    def __init__(self, name: str = "computation") -> None:
        super().__init__(name)
        self._last: Any = None

    def op(self, name: str, *operands: Any, **attributes: Any) -> Any:
        self._last = super().op(name, *operands, **attributes)
        return self._last

    def program(self, *results: Any) -> Any:
        """The program that returns ``results``, by default the result of the last op."""
        return super().build(*(results or (self._last,)))

    def build(self, *results: Any) -> Any:
        """The ``XlaComputation`` that returns ``results``, by default the result of the last op."""
        return computation_from_stablehlo(self.program(*results).as_text("stablehlo"))

    Build = build


def shape_to_type(shape: Any) -> Any:
    """Convert a ``Shape`` to a type for our builder; other types are returned unchanged."""
    return _Typed(shape) if isinstance(shape, Shape) else shape


class _Typed:
    def __init__(self, shape: Any) -> None:
        self.shape, self.dtype = tuple(shape.dimensions()), np.dtype(shape.numpy_dtype())


class _Ops:
    """The functions of XLA's builder: ``ops.Add(x, y)``, ``ops.Transpose(x, (1, 0))``."""

    def Parameter(self, builder: Builder, number: int, shape: Any, name: str | None = None, *_: Any) -> Value:
        """Parameter ``number`` of ``builder``."""
        return builder.parameter(number, shape_to_type(shape), name)

    def Constant(self, builder: Builder, value: Any) -> Value:
        """A constant."""
        return builder.constant(value)

    ConstantLiteral = Constant

    def Tuple(self, builder: Builder, elements: Sequence[Value]) -> tuple[Value, ...]:
        """A tuple of values, for ``build``."""
        return tuple(elements)

    def GetTupleElement(self, values: Sequence[Value], index: int) -> Value:
        """An element of a tuple."""
        return values[index]

    def Select(self, which: Value, on_true: Value, on_false: Value) -> Value:
        """``on_true`` where ``which``, else ``on_false``."""
        return which.builder.op("select_n", which, on_false, on_true)

    def Dot(self, lhs: Value, rhs: Value) -> Value:
        """The product of matrices or vectors."""
        return lhs.builder.op("dot_general", lhs, rhs, dimension_numbers=(((len(lhs.shape) - 1,), (0,)), ((), ())))

    def Broadcast(self, x: Value, sizes: Sequence[int]) -> Value:
        """``x`` broadcast along new leading dimensions."""
        ahead = len(sizes)
        dims = tuple(range(ahead, ahead + len(x.shape)))
        return self.BroadcastInDim(x, (*sizes, *x.shape), dims)

    def ConvertElementType(self, x: Value, new_element_type: Any) -> Value:
        """``x`` converted to another dtype."""
        return x.builder.op("convert_element_type", x, new_dtype=_dtype(new_element_type))

    def ConcatInDim(self, builder: Builder, operands: Sequence[Value], dimension: int) -> Value:
        """``operands`` concatenated along ``dimension``."""
        return builder.op("concatenate", *operands, dimension=dimension)

    def Iota(self, builder: Builder, shape: Any, dimension: int = 0) -> Value:
        """The position along ``dimension``."""
        aval = shape_to_type(shape)
        return builder.op("iota", dtype=aval.dtype, shape=tuple(aval.shape), dimension=dimension)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        op = ops_by_name().get(_SPELLED.get(name) or re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower())
        if op is None:
            raise AttributeError(f"xla_client.ops has no {name!r}; Builder.op takes the ops by their names")
        names = [f.name for f in fields(op)]

        def function(*arguments: Any, **attributes: Any) -> Any:
            values = [a for a in arguments if isinstance(a, Value)]
            rest = [a for a in arguments if not isinstance(a, (Value, Builder))]
            if not values:
                raise ArgumentError(f"xla_client.ops.{name}: expected a value of a builder among {arguments!r}")
            return values[0].builder.op(op.name, *values, **dict(zip(names, rest)), **attributes)

        function.__name__ = name
        return function


#: functions of ``XlaBuilder`` whose names differ from those of our ops in camel case
_SPELLED = {"Rsqrt": "rsqrt", "Rev": "rev", "Sub": "sub", "Atan2": "atan2", "Log1p": "log1p", "Expm1": "expm1"}


def _dtype(element_type: Any) -> Any:
    """The dtype for an XLA element type; dtypes are returned unchanged."""
    if not isinstance(element_type, PrimitiveType):
        return element_type
    return np.dtype(Shape.array_shape(element_type, ()).numpy_dtype())


ops = _Ops()
