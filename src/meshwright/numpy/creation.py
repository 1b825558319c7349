"""Creation of arrays: from values, filled, counting, and from buffers of other libraries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.api.placement import put_by
from meshwright.api.shardings import has_no_devices, resolve
from meshwright.core import dtypes
from meshwright.core.avals import Typed, as_typed
from meshwright.core.config import config
from meshwright.core.key_types import is_key
from meshwright.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConcretizationTypeError,
    DTypeError,
    NoArrayError,
    ShapeError,
)
from meshwright.ir.not_arrays import refuse_masked
from meshwright.ir.state import STATE
from meshwright.ir.tracing import EVAL, FOREIGN, Tracer, typeof
from meshwright.numpy.axes import normal_shape
from meshwright.numpy.promotion import cast_numpy, is_python_number, misfit, result_type, scalar, scalar_like, spread
from meshwright.ops.elementwise.table import add, convert, copy, mul
from meshwright.ops.random.keys import wrap_words
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota
from meshwright.ops.shape.rearrange import expand_dims
from meshwright.ops.shape.slice_pad import concatenate
from meshwright.ops.sharding.constraint import with_type
from meshwright.runtime.array import Array, from_numpy
from meshwright.runtime.devices import Device
from meshwright.runtime.dlpack import from_dlpack as dlpack_array
from meshwright.sharding import Sharding, SingleDeviceSharding
from meshwright.sharding.format import Format


def _sharding(device: Any, name: str) -> Sharding | None:
    if isinstance(device, Device):
        return SingleDeviceSharding(device)
    if device is None or isinstance(device, (Sharding, Format)):
        return resolve(device, name)
    raise ArgumentTypeError(f"{name}: device must be a device or a sharding, got {device!r}")


def on_device(x: Any, device: Any, name: str) -> Any:
    """``x``, made by the function ``name``, where its argument ``device`` says (a device, a sharding or None).

    >>> on_device(zeros(2), None, "zeros").tolist()
    [0.0, 0.0]
    """
    return put_by(name, x, _sharding(device, name))


def _of_host(value: np.ndarray, sharding: Sharding | None, name: str, copy: bool, weak: bool = False) -> Any:
    """An array of a NumPy value, made where it is wanted."""
    if sharding is None or has_no_devices(sharding):
        return put_by(name, from_numpy(value, copy=copy, weak_type=weak), sharding)
    sharding.check_compatible(value.shape, name)
    return from_numpy(value, sharding=sharding, copy=copy, weak_type=weak)


def _holds_arrays(x: Any) -> bool:
    if isinstance(x, (list, tuple)):
        return any(_holds_arrays(e) for e in x)
    return isinstance(x, Array)


def _from_sequence(x: Sequence[Any], dtype: np.dtype | None, name: str) -> Any:
    """An array of nested sequences. Sequences that contain arrays are stacked, others are converted by NumPy."""
    if _holds_arrays(x):
        dtype = result_type(*_leaves(x)) if dtype is None else dtype
        parts = [array(e, dtype=dtype) for e in x]
        shapes = {p.shape for p in parts}
        if len(shapes) > 1:
            raise ShapeError(f"{name}: elements of a sequence have different shapes {sorted(shapes)}")
        return concatenate([expand_dims(p, (0,)) for p in parts], 0)
    typed = [leaf for leaf in _leaves(x) if isinstance(leaf, (np.generic, np.ndarray))]
    for leaf in typed:
        refuse_masked(leaf)
    if typed and dtype is None:  # NumPy promotes differently: [np.int8(1), 2] is int64 there
        dtype = result_type(*_leaves(x))
    try:
        value = np.asarray(x, dtype)
    except (ValueError, OverflowError, TypeError) as error:
        raise ArgumentError(f"{name}: cannot make an array of this sequence: {error}") from None
    return _checked(value, x, name) if dtype is None else value


def _leaves(x: Any) -> list[Any]:
    return [leaf for e in x for leaf in _leaves(e)] if isinstance(x, (list, tuple)) else [x]


def _checked(value: np.ndarray, source: Any, name: str) -> np.ndarray:
    """Refuse a NumPy value made of Python objects that is not numeric or has integers too large for the dtype."""
    if value.dtype.kind not in "biufc" and value.dtype not in dtypes._SHORT:
        raise NoArrayError(
            f"{name}: cannot make an array of {type(source).__name__} {str(source)[:60]!r}: expected numbers or bools "
            "in sequences of equal lengths"
        )
    if value.dtype == np.int64 and not config.enable_x64 and value.size:
        low, high = value.min(), value.max()
        if low < -(2**31) or high >= 2**31:
            raise ArgumentError(
                f"{name}: Python integer {high if high >= 2**31 else low} does not fit in int32; give a dtype, or "
                "config.update('enable_x64', True)"
            )
    return value


def array(
    object: Any, dtype: Any = None, copy: bool | None = True, order: str | None = None, ndmin: int = 0, *,
    device: Any = None,
) -> Any:  # fmt: skip
    """Create an array from a number, nested sequences, a NumPy array, an array, or anything with ``__array__``.

    Args:
      object: the source. NumPy arrays are copied unless ``copy`` is false.
      dtype: of the result; by default that of ``object``, 32 bits wide unless x64 is enabled.
      ndmin: the minimum number of dimensions; new ones are added in front.
      device: a device or sharding to place it on.

    Raises:
      ArgumentError: ragged sequences, or integers that do not fit. ArgumentTypeError: not numbers.

    >>> array([[1, 2], [3, 4]]).shape
    (2, 2)
    """
    if order not in (None, "C", "K", "A"):
        raise ArgumentError(f"array: order must be 'C' or 'K' (arrays have no memory order), got {order!r}")
    target = None if dtype is None else dtypes.requested(dtype, "array")
    sharding = _sharding(device, "array")
    result = _make(object, target, copy is not False, None if ndmin else sharding)
    missing = ndmin - typeof(result).ndim
    return put_by("array", expand_dims(result, range(missing)) if missing > 0 else result, sharding)


def _is_buffer(x: Any) -> bool:
    """Whether ``x`` exposes its memory (a ``memoryview``, ``array.array``, ...), other than strings and bytes."""
    if isinstance(x, (str, bytes)):
        return False
    try:
        memoryview(x)
    except TypeError:
        return False
    return True


def stand_in(x: Any) -> Any:
    """The method of ``x`` that returns the array it stands for, as JAX's tracers have; None if it has none."""
    return getattr(x, "__jax_array__", None)


def _make(x: Any, dtype: np.dtype | None, copy_: bool, sharding: Sharding | None) -> Any:
    if isinstance(x, Array):
        result = x if dtype is None else _strongly(x, dtype)
        return copy(result) if copy_ and result is x else result
    if is_python_number(x):
        return _from_number(x, dtype, sharding)
    if isinstance(x, (list, tuple, range)):
        value = _from_sequence(list(x) if isinstance(x, range) else x, dtype, "array")
        if not isinstance(value, np.ndarray):
            return value
        return _of_host(_to_dtype(value, dtype), sharding, "array", copy=False)
    if isinstance(x, (np.ndarray, np.generic)):
        refuse_masked(x)
        return _of_host(_to_dtype(np.asarray(x), dtype), sharding, "array", copy_)
    if type(x) in FOREIGN:
        return _make(FOREIGN[type(x)](x), dtype, copy_, sharding)
    if (array := stand_in(x)) is not None:
        return _make(array(), dtype, copy_, sharding)
    if hasattr(x, "__dlpack__") and not _numpy_has(x):
        return _make(dlpack_array(x, copy_), dtype, False, None)
    if hasattr(x, "__array__") or hasattr(x, "__array_interface__") or _is_buffer(x):
        return _of_host(_to_dtype(_checked(np.asarray(x), x, "array"), dtype), sharding, "array", copy_)
    if hasattr(x, "__dlpack__"):
        return _make(dlpack_array(x, copy_), dtype, False, None)
    raise NoArrayError(f"array: cannot make an array of {x!r} of type {type(x).__name__}")


def _numpy_has(x: Any) -> bool:
    """Whether NumPy has the dtype of another library's array."""
    return not any(name in str(getattr(x, "dtype", "")) for name in ("bfloat16", "float8", "float4"))


def _strongly(x: Any, dtype: np.dtype) -> Any:
    return x if typeof(x).dtype == dtype and not typeof(x).weak_type else convert(x, dtype)


def _to_dtype(value: np.ndarray, dtype: np.dtype | None) -> np.ndarray:
    dtype = dtypes.canonical(dtypes.as_dtype(value.dtype)) if dtype is None else dtype
    return value if value.dtype == dtype else cast_numpy(value, dtype)


def _from_number(x: Any, dtype: np.dtype | None, sharding: Sharding | None) -> Any:
    aval = typeof(x) if dtype is None else None
    target = aval.dtype if aval is not None else dtype
    weak = aval is not None and aval.weak_type
    try:
        value = np.asarray(x, target)
    except (OverflowError, ValueError):
        raise ArgumentError(misfit(x, target, "array")) from None
    except TypeError:
        raise ArgumentTypeError(f"array: {x!r} is no {target}; take its real part, or give a complex dtype") from None
    return _of_host(value, sharding, "array", copy=True, weak=weak)


def asarray(
    a: Any, dtype: Any = None, order: str | None = None, *, copy: bool | None = None, device: Any = None
) -> Any:
    """``a`` as an array. Arrays are returned as they are; NumPy arrays and other buffers are copied, so that later
    writes to them have no effect.

    With ``copy=False`` memory aligned to 64 bytes is shared and must not be written to afterwards.

    >>> asarray(1.5).dtype
    dtype('float32')
    """
    if copy is None:
        copy = not isinstance(a, Array) and (isinstance(a, np.ndarray) or _is_buffer(a))
    return array(a, dtype, copy, order, device=device)


def copy_of(a: Any, order: str | None = None) -> Any:
    """A copy of ``a`` (``numpy.copy``).

    >>> copy_of([1, 2]).tolist()
    [1, 2]
    """
    return array(a, order=order)


# --- filled -------------------------------------------------------------------------------------------------
def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """An array of ``shape`` filled with ``fill_value``, which may be an array that broadcasts to it.

    Raises:
      ArgumentError: negative sizes. ShapeError: ``fill_value`` does not broadcast to ``shape``.

    >>> full((2,), 7).tolist()
    [7, 7]
    """
    shape = normal_shape(shape, "full")
    sharding = _sharding(device, "full")
    if isinstance(fill_value, (Array, np.ndarray, list, tuple)):
        return put_by("full", spread(asarray(fill_value, dtype), shape), sharding)
    if dtype is not None:
        return _filled("full", shape, fill_value, dtypes.requested(dtype, "full"), sharding)
    own = typeof(fill_value)
    return _filled("full", shape, fill_value, own.dtype, sharding, own.weak_type)


def _filled(
    name: str, shape: tuple[int, ...], value: Any, dtype: np.dtype, sharding: Sharding | None, weak: bool = False
) -> Any:
    if is_key(dtype):
        words = _filled(name, (*shape, dtype.words), value, dtypes.uint32, None)  # type: ignore[attr-defined]
        return put_by(name, wrap_words(words, dtype), sharding)  # type: ignore[arg-type]
    if STATE.trace is EVAL or (sharding is not None and not has_no_devices(sharding)):
        if is_python_number(value):
            value = np.asarray(_from_number(value, dtype, None))
        return _of_host(np.full(shape, value, dtype), sharding, name, copy=False, weak=weak)
    filled = broadcast_in_dim(scalar(value, dtype, weak, "full"), shape, ()) if shape else asarray(value, dtype)
    return put_by(name, filled, sharding)


def _filler(name: str, value: int) -> Any:
    def make(shape: Any, dtype: Any = None, *, device: Any = None) -> Any:
        target = dtypes.default_float() if dtype is None else dtypes.requested(dtype, name)
        kind = bool if dtypes.is_bool(target) else float if dtypes.is_inexact(target) else int
        return _filled(name, normal_shape(shape, name), kind(value), target, _sharding(device, name))

    make.__name__ = make.__qualname__ = name
    make.__doc__ = (
        f"An array of ``shape`` filled with {value}; float32 (float64 with x64) unless ``dtype`` says otherwise.\n\n"
        f"Raises:\n  ArgumentError: a negative size.\n\n>>> {name}((2,)).tolist()\n[{value}.0, {value}.0]\n"
    )
    return make


zeros = _filler("zeros", 0)
ones = _filler("ones", 1)


def empty(shape: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """An array of ``shape`` with unspecified values (zeros).

    >>> empty((2, 3)).shape
    (2, 3)
    """
    return zeros(shape, dtype, device=device)


def full_like(a: Any, fill_value: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Any:
    """``fill_value`` with the shape and dtype of ``a``, unless others are given, and its sharding if the shape is the
    same.

    >>> full_like(array([1, 2]), 7).tolist()
    [7, 7]
    """
    filled = not getattr(fill_value, "shape", None) and not isinstance(fill_value, (list, tuple))
    return _like(
        lambda sizes, kind, place: full(sizes, fill_value, kind, device=place), a, dtype, shape, device, weak=filled
    )


def _like(make: Callable[[Any, Any, Any], Any], a: Any, dtype: Any, shape: Any, device: Any, weak: bool = True) -> Any:
    """``make(shape, dtype, device)``, with defaults taken from ``a``.

    As in JAX, the result is weakly typed if ``a`` is, unless it is filled with an array (not ``weak``).
    """
    a = as_typed(a)
    a = a if isinstance(a, Typed) else asarray(a)
    aval = a.aval
    shape = aval.shape if shape is None else normal_shape(shape, "full_like")
    if device is None and getattr(a, "committed", False) and shape == aval.shape:
        device = a.sharding
    out = make(shape, aval.dtype if dtype is None else dtype, device)
    if device is None and aval.explicit is not None and shape == aval.shape:
        out = with_type(out, aval.update(explicit=aval.explicit.replaced(aval.explicit.spec, ())))
    return convert(out, aval.dtype, True) if weak and dtype is None and aval.weak_type else out


def zeros_like(a: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Any:
    """Zeros with the shape and dtype of ``a``, unless others are given.

    >>> zeros_like(array([1, 2])).tolist()
    [0, 0]
    """
    return _like(lambda sizes, kind, place: zeros(sizes, kind, device=place), a, dtype, shape, device)


def ones_like(a: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Any:
    """Ones with the shape and dtype of ``a``, unless others are given.

    >>> ones_like(array([1, 2])).tolist()
    [1, 1]
    """
    return _like(lambda sizes, kind, place: ones(sizes, kind, device=place), a, dtype, shape, device)


def empty_like(prototype: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Any:
    """An array with the shape and dtype of another, and unspecified values (zeros).

    >>> empty_like(array([1, 2])).shape
    (2,)
    """
    return zeros_like(prototype, dtype, shape, device=device)


# --- counting -----------------------------------------------------------------------------------------------
def _concrete(x: Any, name: str, what: str) -> Any:
    if isinstance(x, Tracer):
        raise ConcretizationTypeError(
            f"{name}: {what} decides the shape of the result and must be known while tracing, but it is traced "
            f"({x.aval}{' from ' + x.origin() if x.origin() else ''}); make it static (static_argnums)"
        )
    return x.item() if isinstance(x, (Array, np.ndarray, np.generic)) else x


def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None, *, device: Any = None) -> Any:
    """``start, start + step, …`` up to but not including ``stop``; with one argument, from 0.

    Raises:
      ConcretizationTypeError: a bound is traced; ArgumentError: ``step`` is 0.

    >>> arange(3).tolist()
    [0, 1, 2]
    """
    given = [a for a in (start, stop, step) if a is not None]
    target = result_type(*given) if dtype is None else dtypes.requested(dtype, "arange")
    if dtypes.is_bool(target):
        raise DTypeError("arange: bools do not count; give a number dtype, and compare")
    if any(dtypes.is_complex(result_type(a)) for a in given):
        raise DTypeError("arange: complex bounds or steps have no order; count with real ones and multiply")
    if stop is None:
        start, stop = 0, start
    start, stop, step = (_concrete(a, "arange", w) for a, w in ((start, "start"), (stop, "stop"), (step, "step")))
    step = 1 if step is None else step
    if step == 0:
        raise ArgumentError("arange: step must not be 0")
    count = max(math.ceil((stop - start) / step), 0)
    sharding = _sharding(device, "arange")
    if STATE.trace is EVAL or (sharding is not None and not has_no_devices(sharding)):
        if dtypes.is_inexact(target):
            value = np.arange(start, stop, step)
        else:  # as in NumPy and JAX, and while tracing: start and step are truncated first
            first, each = (np.uint64(int(n) % 2**64) for n in (start, step))  # exact for every integer
            value = np.arange(count, dtype=np.uint64) * each + first
            value = value if dtypes.is_unsigned(target) else value.view(np.int64)
        return _of_host(cast_numpy(value[:count], target), sharding, "arange", copy=False)
    result = iota(target, (count,), 0)
    if step != 1:
        result = mul(result, scalar_like(step, result))
    return put_by("arange", add(result, scalar_like(start, result)) if start else result, sharding)


# --- from elsewhere -----------------------------------------------------------------------------------------
def from_dlpack(external_array: Any, device: Any = None, copy: bool | None = None) -> Any:
    """An array from any object that supports DLPack (PyTorch, NumPy, CuPy on the host), sharing its memory if possible.

    >>> from_dlpack(np.arange(3, dtype=np.int32)).tolist()
    [0, 1, 2]
    """
    if isinstance(external_array, Array):
        return on_device(asarray(external_array, copy=copy), device, "from_dlpack")
    if not hasattr(external_array, "__dlpack__"):
        raise ArgumentTypeError(f"from_dlpack: expected an object with __dlpack__, got {type(external_array).__name__}")
    return on_device(dlpack_array(external_array, bool(copy)), device, "from_dlpack")


def frombuffer(buffer: Any, dtype: Any = float, count: int = -1, offset: int = 0) -> Any:
    """A one-dimensional array from the bytes of ``buffer``.

    >>> frombuffer(b"\\x01\\x02", "uint8").tolist()
    [1, 2]
    """
    return from_numpy(np.frombuffer(buffer, dtypes.requested(dtype, "frombuffer"), count, offset))
