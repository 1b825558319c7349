"""Operators and methods of arrays and tracers; each calls a function of this package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshwright.api.placement import device_put, made_as
from meshwright.core import dtypes
from meshwright.core.slots import Slot
from meshwright.errors import ArgumentTypeError, ShapeError
from meshwright.ir.tracing import FOREIGN, ArrayMethods, Tracer
from meshwright.numpy import arithmetic as ar
from meshwright.numpy import functions as fn
from meshwright.numpy import joining, linear, logic, manipulation, ranges, reductions, repeating, rounding
from meshwright.numpy.at import IndexUpdater
from meshwright.numpy.bits import bits_as
from meshwright.numpy.creation import asarray, copy_of, stand_in
from meshwright.numpy.indexing import getitem, take
from meshwright.numpy.linear import matmul
from meshwright.runtime.array import Array

_OPERANDS = (Array, Tracer, bool, int, float, complex, np.ndarray, np.generic)
#: types that Python would compare with an array by identity, and so find different
_CONTAINERS = (list, tuple, set, dict)


def _is_taken(other: Any, beside: Any) -> bool:
    """Whether an operator accepts an array of another library: not next to an array with values, where the other
    library's operator decides. Objects that convert themselves to arrays are accepted."""
    return (type(other) in FOREIGN and type(beside) is not Array) or stand_in(other) is not None


def _taken(other: Any) -> Any:
    array = stand_in(other)
    return other if array is None else asarray(array())


def _not_taken(other: Any, name: str) -> Any:
    """The result of an operator for a non-array: Python may ask the other operand, unless that is a container.

    Raises:
      ArgumentTypeError: ``other`` is a container.
    """
    if isinstance(other, _CONTAINERS):
        raise ArgumentTypeError(
            f"{name} of an array: expected an array or a number, got a {type(other).__name__}; convert it with "
            "meshwright.numpy.array"
        )
    return NotImplemented


def _operator(f: Callable[[Any, Any], Any], name: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if type(other) is Array or isinstance(other, _OPERANDS):
            return f(self, other)
        return f(self, _taken(other)) if _is_taken(other, self) else _not_taken(other, name)

    method.__name__ = name
    return method


def _reflected(f: Callable[[Any, Any], Any], name: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if isinstance(other, _OPERANDS):
            return f(other, self)
        return f(_taken(other), self) if _is_taken(other, self) else _not_taken(other, name)

    method.__name__ = name
    return method


def _method(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda self: f(self)


_BINARY = {
    "add": ar.add, "sub": ar.subtract, "mul": ar.multiply, "truediv": ar.divide, "floordiv": ar.floor_divide,
    "mod": ar.remainder, "divmod": ar.divmod, "pow": ar.power, "matmul": matmul, "and": logic.bitwise_and,
    "or": logic.bitwise_or, "xor": logic.bitwise_xor, "lshift": logic.left_shift, "rshift": logic.right_shift,
}  # fmt: skip
_COMPARISONS = {
    "eq": logic.equal, "ne": logic.not_equal, "lt": logic.less, "le": logic.less_equal, "gt": logic.greater,
    "ge": logic.greater_equal,
}  # fmt: skip
_UNARY = {
    "neg": ar.negative, "pos": ar.positive, "abs": ar.absolute, "invert": logic.bitwise_not,
}  # fmt: skip


def _reshape(self: Any, *shape: Any, order: str = "C", out_sharding: Any = None) -> Any:
    """``reshape(x, shape)``; the shape is one argument or several."""
    return made_as(out_sharding, lambda: manipulation.reshape(self, shape[0] if len(shape) == 1 else shape, order))


def _transpose(self: Any, *axes: Any) -> Any:
    """``transpose(x, axes)``; the axes are one argument or several."""
    if not axes or (len(axes) == 1 and axes[0] is None):
        return manipulation.transpose(self)
    return manipulation.transpose(self, axes[0] if np.ndim(axes[0]) else axes)


def _astype(self: Any, dtype: Any, copy: bool = False, device: Any = None) -> Any:
    """``astype(x, dtype)``, on ``device`` (a device or a sharding)."""
    return fn.astype(self, dtype, copy=copy, device=device)


def _len(self: Any) -> int:
    if not self.shape:
        raise ArgumentTypeError("len() of a 0-d array")
    return self.shape[0]


def _iter(self: Any) -> Iterator[Any]:
    if not self.shape:
        raise ArgumentTypeError("iteration over a 0-d array")
    return iter(joining.unstack(self))


def _contains(self: Any, value: Any) -> bool:
    return bool(reductions.any(logic.equal(self, value)))


def _round(self: Any, ndigits: int | None = None) -> Any:
    """``round(x)``, which returns integers by Python's protocol; with ``ndigits``, the dtype of ``x``."""
    rounded = rounding.round(self, ndigits or 0)
    return rounded if ndigits is not None or dtypes.is_complex(self.dtype) else rounded.astype(int)


def _flatten(self: Any, order: str = "C", *, out_sharding: Any = None) -> Any:
    """A flattened copy."""
    return made_as(out_sharding, lambda: manipulation.ravel(self, order))


def _clip(self: Any, min: Any = None, max: Any = None) -> Any:
    """``clip(x, min, max)``."""
    return ar.clip(self, min, max)


def _copy(self: Any) -> Any:
    """A copy."""
    return copy_of(self)


def _view(self: Any, dtype: Any = None, type: None = None) -> Any:
    """The bits as another dtype; if the width differs, the last dimension grows or shrinks.

    Raises:
      ShapeError: the last dimension cannot be divided into elements of that width.
    """
    if type is not None:
        raise ArgumentTypeError("view: type= is for NumPy's subclasses of arrays; leave it out")
    return self if dtype is None else bits_as(self, dtypes.requested(dtype, "view"))


def _matrix_t(self: Any) -> Any:
    if self.ndim < 2:
        raise ShapeError(f".mT needs two dimensions or more, this array has shape {self.shape}")
    return manipulation.swapaxes(self, -1, -2)


def _to_device(self: Any, device: Any, *, stream: Any = None) -> Any:
    """The array on another device or with another sharding."""
    return device_put(self, device)


def _byteswap(self: Any) -> Any:
    """The array with the bytes of each element in reverse order."""
    wide = self.dtype if not dtypes.is_complex(self.dtype) else dtypes.real_of(self.dtype)
    count = dtypes.bit_width(wide) // 8
    if count < 2:
        return self
    parts = self.dtype.itemsize // count
    each = bits_as(self[..., None], dtypes.uint8).reshape(*self.shape, parts, count)
    return bits_as(each[..., ::-1].reshape(*self.shape, parts * count), self.dtype)[..., 0]


_METHODS: dict[str, Any] = {
    "byteswap": _byteswap,
    "reshape": _reshape, "transpose": _transpose, "astype": _astype, "flatten": _flatten, "clip": _clip,
    "copy": _copy, "view": _view, "to_device": _to_device, "ravel": manipulation.ravel, "squeeze": manipulation.squeeze,
    "swapaxes": manipulation.swapaxes, "repeat": repeating.repeat, "round": rounding.round, "dot": linear.dot,
    "trace": linear.trace, "diagonal": ranges.diagonal, "take": take, "conj": fn.conj, "conjugate": fn.conj,
    **{
        name: getattr(reductions, name)
        for name in ("sum", "prod", "max", "min", "mean", "var", "std", "any", "all", "argmax", "argmin", "ptp")
    },
}  # fmt: skip
_PROPERTIES: dict[str, Callable[[Any], Any]] = {
    "T": manipulation.transpose, "mT": _matrix_t, "real": fn.real, "imag": fn.imag, "at": IndexUpdater,
}  # fmt: skip


def _array_namespace(self: Any, *, api_version: str | None = None) -> Any:
    return NAMESPACE.value


#: the package ``meshwright.numpy`` itself
NAMESPACE: Slot[Any] = Slot("the namespace of arrays", "meshwright.numpy")


def add_methods(methods: dict[str, Any]) -> None:
    """Install further methods; each function takes the array first."""
    for name, function in methods.items():
        setattr(ArrayMethods, name, function)


def install() -> None:
    """Install operators and methods on arrays and tracers."""
    for name, f in _BINARY.items():
        setattr(ArrayMethods, f"__{name}__", _operator(f, f"__{name}__"))
        setattr(ArrayMethods, f"__r{name}__", _reflected(f, f"__r{name}__"))
    for name, f in _COMPARISONS.items():
        setattr(ArrayMethods, f"__{name}__", _operator(f, f"__{name}__"))
    for name, g in _UNARY.items():
        setattr(ArrayMethods, f"__{name}__", _method(g))
    add_methods(
        {"__getitem__": getitem, "__len__": _len, "__contains__": _contains, "__round__": _round,
         "__array_namespace__": _array_namespace, **_METHODS}
    )  # fmt: skip
    Tracer.__iter__ = _iter  # type: ignore[attr-defined]
    for name, getter in _PROPERTIES.items():
        setattr(ArrayMethods, name, property(getter))


install()
