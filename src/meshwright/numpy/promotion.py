"""Brings operands of array functions to one dtype and one shape, by a plan cached for each combination of types.

Promotion follows JAX's lattice (:func:`meshwright.core.dtypes.promote`). A Python number or rank-0 operand next to
arrays is passed to the op as a scalar, which ops accept, so nothing is recorded for broadcasting it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray, Typed
from meshwright.core.config import Setting, config
from meshwright.core.records import dataclass
from meshwright.core.source import warn
from meshwright.errors import (
    ArgumentError,
    ArgumentTypeError,
    IntegerRangeError,
    RankPromotionWarning,
    ShapeError,
    TypePromotionError,
)
from meshwright.ir.state import STATE
from meshwright.ir.tracing import EVAL, FOREIGN, Tracer, typeof
from meshwright.ops.elementwise.conversion import convert, warn_of_lost_parts
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.runtime.array import Array, from_numpy

_PYTHON_NUMBERS = (bool, int, float, complex)
_WEAK = {int: dtypes.int32, float: dtypes.float32, complex: dtypes.complex64}
_WIDE = {int: dtypes.int64, float: dtypes.float64, complex: dtypes.complex128}


def is_python_number(x: Any) -> bool:
    """Whether ``x`` is a Python ``bool``, ``int``, ``float`` or ``complex`` (NumPy scalars are arrays)."""
    return isinstance(x, _PYTHON_NUMBERS) and not isinstance(x, np.generic)


def is_arraylike(x: Any) -> bool:
    """Whether array functions accept ``x``: an array, tracer, NumPy array or scalar, or Python number."""
    return isinstance(x, (Array, np.ndarray, np.generic, *_PYTHON_NUMBERS)) or type(x) in FOREIGN


def taken(x: Any) -> Any:
    """``x``, or the array that it stands for, as parameters of layers of other libraries do (``__jax_array__``)."""
    if isinstance(x, Typed) or not hasattr(type(x), "__jax_array__"):
        return x
    stands_for = x.__jax_array__  # None in JAX's tracers
    return x if stands_for is None else stands_for()


def aval_of(x: Any, name: str, position: int = 0) -> ShapedArray:
    """The aval of the argument number ``position`` of function ``name``.

    Raises:
      ArgumentTypeError: the argument cannot be an array; says which one.
    """
    if isinstance(x, Typed):
        return x.aval
    if type(x) is int:  # the range of integers is checked later, against the promoted dtype
        return ShapedArray((), dtypes.int64 if config.enable_x64 else dtypes.int32, True)
    try:
        return typeof(taken(x))
    except ArgumentTypeError as error:
        if hasattr(type(x), "__dlpack__"):
            raise ArgumentTypeError(f"{name}: argument {position}: {error}") from None
        kind = f"a {type(x).__name__}" if isinstance(x, (list, tuple, dict)) else f"{x!r} of type {type(x).__name__}"
        remedy = "; convert it with meshwright.numpy.array" if isinstance(x, (list, tuple)) else ""
        raise ArgumentTypeError(f"{name}: argument {position} must be an array or number, got {kind}{remedy}") from None


# --- scalars ------------------------------------------------------------------------------------------------
@lru_cache(maxsize=4096)
def _scalar_array(key: Any, dtype: np.dtype, weak: bool) -> Array:
    return from_numpy(np.asarray(key[0], dtype), weak_type=weak)


def scalar(value: Any, dtype: np.dtype, weak: bool = False, name: str = "array") -> Any:
    """A Python number as a rank-0 operand of ``dtype``: a cached array when evaluating, else a literal.

    Raises:
      IntegerRangeError: ``dtype`` cannot represent the integer.
    """
    if STATE.trace is EVAL:
        kind = type(value)
        # 0.0 and -0.0 are equal keys but different values; so are 1, 1.0 and True.
        negative = math.copysign(1.0, value) < 0 if kind is float and value == 0 else False
        if kind is not complex:
            try:
                return _scalar_array((value, kind, negative), dtype, weak)
            except (OverflowError, ValueError):
                raise _too_large(value, dtype, name) from None
    try:
        fixed = np.asarray(value, dtype)[()]
    except (OverflowError, ValueError):
        raise _too_large(value, dtype, name) from None
    if weak:
        kind = type(value)
        defaults = _WIDE if config.enable_x64 else _WEAK
        for python in (int, float, complex):
            if dtype == defaults[python]:
                return value if kind is python else python(value)  # type: ignore[call-overload]
    return fixed


def scalar_like(value: Any, x: Any) -> Any:
    """``value`` as a rank-0 constant of ``x``'s dtype, weakly typed if ``x`` is; of traced values, what is traced."""
    aval = typeof(x)
    if isinstance(value, Tracer):
        return convert(value, aval.dtype, aval.weak_type)
    if aval.weak_type:
        for kind, dtype in (_WIDE if config.enable_x64 else _WEAK).items():
            if dtype == aval.dtype:
                return kind(value)
    return dtypes.constant(value, aval.dtype)


def strong_array(x: Any) -> Any:
    """``x``, not weakly typed unless it is of rank 0, like JAX's result of combining a constant with an array."""
    aval = typeof(x)
    return convert(x, aval.dtype) if aval.ndim and aval.weak_type else x


def as_operand(x: Any, name: str) -> Any:
    """An argument of function ``name`` in a form that ops accept; Python numbers become rank-0 constants."""
    return x if isinstance(x, Typed) else operands(name, (x,))[0]


def misfit(value: Any, dtype: np.dtype | None, name: str) -> str:
    """That a Python number does not fit a dtype, for messages."""
    return f"{name}: Python {'integer' if isinstance(value, int) else 'float'} {value} does not fit in {dtype}"


def _too_large(value: Any, dtype: np.dtype, name: str) -> IntegerRangeError:
    return IntegerRangeError(
        f"{misfit(value, dtype, name)}; convert the other operand to a wider dtype with "
        ".astype, or pass a NumPy value with the dtype that is meant"
    )


def check_integer(value: Any, dtype: np.dtype, name: str) -> None:
    """Raise if a Python integer fits neither ``dtype`` nor the default integer type, from which it would wrap.

    Raises:
      IntegerRangeError: out of range; names a remedy.
    """
    own = dtypes.int64 if config.enable_x64 else dtypes.int32
    if not any(np.iinfo(t).min <= value <= np.iinfo(t).max for t in (own, dtype) if t.name in _NUMPYS_INTEGERS):
        raise _too_large(value, dtype, name)


_NUMPYS_INTEGERS = frozenset(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))


# --- shapes -------------------------------------------------------------------------------------------------
@lru_cache(maxsize=4096)
def broadcast_shapes(*shapes: tuple[int, ...], name: str = "broadcast_shapes") -> tuple[int, ...]:
    """The common shape to which arrays of these shapes broadcast, as in NumPy.

    Raises:
      ShapeError: two sizes of a dimension differ and neither is 1.

    >>> broadcast_shapes((3, 1), (4,))
    (3, 4)
    """
    ndim = max((len(s) for s in shapes), default=0)
    result = [1] * ndim
    for shape in shapes:
        for d, size in enumerate(shape, ndim - len(shape)):
            if size != 1 and result[d] not in (1, size):
                listed = " and ".join(map(str, shapes))
                raise ShapeError(
                    f"{name}: shapes {listed} do not broadcast together: sizes {result[d]} and {size} of dimension "
                    f"{d - ndim} differ and neither is 1; reshape one of them"
                )
            if size != 1:
                result[d] = size
    return tuple(result)


def spread(x: Any, shape: Sequence[int]) -> Any:
    """Broadcast ``x`` to ``shape``, with which it must be compatible."""
    ndim = typeof(x).ndim
    return broadcast_in_dim(x, shape, range(len(shape) - ndim, len(shape)))


# --- inside of the library ----------------------------------------------------------------------------------
F = TypeVar("F", bound=Callable[..., Any])


def promotes_freely(*given: str, ranks: bool = True) -> Callable[[F], F]:
    """Decorate a function so that mixing ranks and dtypes inside it is allowed.

    The options ``numpy_rank_promotion`` and ``numpy_dtype_promotion`` then apply only to operands given by the user.

    Args:
      given: the parameters to which the options apply; name several only if they are combined in one operation.
      ranks: whether the option for ranks applies; false if the function specifies different ranks for them.

    >>> promotes_freely("x")(lambda x: x)(3)
    3
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if config.numpy_rank_promotion == "allow" and config.numpy_dtype_promotion == "standard":
                return function(*args, **kwargs)
            if len(given) > 1:
                arguments = signature.bind(*args, **kwargs).arguments
                held = [x for a in map(arguments.get, given) for x in (a if isinstance(a, tuple) else (a,))]
                _hold_to_options(function.__name__, held, ranks)
            with config.override("numpy_rank_promotion", "allow"), config.override("numpy_dtype_promotion", "standard"):
                return function(*args, **kwargs)

        return cast(F, call)

    return decorate


def _hold_to_options(name: str, args: Sequence[Any], ranks: bool) -> None:
    """Apply the promotion options to these operands: refuse or warn.

    Raises:
      TypePromotionError, ShapeError: the options forbid it; names ``name``.
    """
    avals = [aval_of(x, name, i) for i, x in enumerate(args) if is_arraylike(x)]
    with _naming(name):
        dtypes.promote((a.dtype, a.weak_type) for a in avals)
    if ranks and (message := _rank_warning(name, avals)):
        warn(message, RankPromotionWarning)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Add the function's name to promotion errors raised inside."""
    try:
        yield
    except TypePromotionError as error:
        raise TypePromotionError(f"{name}: {error}") from None


# --- plans --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class OperandPlan:
    """The conversions that operands need: ``converts[i]``, ``spreads[i]``; ``ready`` if there are none."""

    dtype: np.dtype
    weak: bool
    shape: tuple[int, ...]
    converts: tuple[bool, ...]
    spreads: tuple[bool, ...]
    ready: bool
    #: the warning about different ranks, if one is to be given
    warning: str = ""


inexact = dtypes.inexact


@lru_cache(maxsize=8192)
def operand_plan(name: str, avals: tuple[ShapedArray, ...], to_inexact: bool, setting: Setting) -> OperandPlan:
    """The plan for operands of these types; ``setting`` is ``config.tracing``."""
    with _naming(name):
        dtype, weak = dtypes.promote((a.dtype, a.weak_type) for a in avals)
    if to_inexact:
        dtype = inexact(dtype)
    shape = broadcast_shapes(*(a.shape for a in avals), name=name)
    converts = tuple(a.dtype != dtype for a in avals)
    spreads = tuple(a.shape != shape and a.shape != () for a in avals)
    ready = not any(converts) and not any(spreads)
    return OperandPlan(dtype, weak, shape, converts, spreads, ready, _rank_warning(name, avals))


#: functions for which JAX always allows operands of different ranks
_RANKS_DIFFER = frozenset({"where", "heaviside", "gcd"})


def _rank_warning(name: str, avals: Sequence[ShapedArray]) -> str:
    """The warning that ``numpy_rank_promotion`` requires for these operands, or "".

    Raises:
      ShapeError: they have different ranks, and the option is "raise".
    """
    shapes = [a.shape for a in avals if a.shape]
    if config.numpy_rank_promotion == "allow" or name in _RANKS_DIFFER or len(set(map(len, shapes))) < 2:
        return ""
    message = (
        f"{name}: operands of shapes {' and '.join(map(str, shapes))} have different ranks, and "
        f"numpy_rank_promotion is {config.numpy_rank_promotion!r}; give them equal ranks with reshape or [None]"
    )
    if config.numpy_rank_promotion == "raise":
        raise ShapeError(message)
    return message


def operands(name: str, args: Sequence[Any], to_inexact: bool = False) -> list[Any]:
    """``args`` promoted to one dtype and broadcast to one shape (scalars stay scalars).

    Raises:
      ArgumentTypeError, DTypeError, ShapeError: invalid operands; names ``name``.
    """
    avals = tuple([aval_of(x, name, i) for i, x in enumerate(args)])
    return apply_plan(name, operand_plan(name, avals, to_inexact, config.tracing), args)


def apply_plan(name: str, plan: OperandPlan, args: Sequence[Any]) -> list[Any]:
    """Apply ``plan`` to the operands."""
    if plan.warning:
        warn(plan.warning, RankPromotionWarning)
    out = []
    for x, needs_convert, needs_spread in zip(args, plan.converts, plan.spreads):
        kind = type(x)
        if kind is float or kind is int or kind is complex or kind is bool:
            x = scalar(x, plan.dtype, plan.weak, name)
        else:
            x = converted(taken(x), plan.dtype, plan.weak) if needs_convert else taken(x)
        out.append(spread(x, plan.shape) if needs_spread else x)
    return out


def promote_all(arrays: Sequence[Any]) -> list[Any]:
    """Arrays in their common dtype; shapes are unchanged."""
    dtype, weak = dtypes.promote((typeof(x).dtype, typeof(x).weak_type) for x in arrays)
    return [converted(x, dtype, weak) for x in arrays]


def converted(x: Any, dtype: np.dtype, weak: bool = False) -> Any:
    """``x`` in another dtype; NumPy values are converted by NumPy, so that nothing is recorded."""
    if isinstance(x, (np.ndarray, np.generic)) and not weak:
        return x if x.dtype == dtype else cast_numpy(np.asarray(x), dtype)
    return convert(x, dtype, weak)


def as_positions(x: Any) -> Any:
    """Bools and narrow integers as 32-bit integers, which can represent positions."""
    dtype = typeof(x).dtype
    narrow = dtypes.is_bool(dtype) or (dtypes.is_integer(dtype) and dtypes.bit_width(dtype) < 32)
    return convert(x, dtypes.int32) if narrow else x


def known_positions(x: np.ndarray) -> np.ndarray:
    """Concrete integers as int64, clamped to its maximum, so that adding a size cannot overflow."""
    if x.dtype.kind == "u":
        x = np.minimum(x.astype(np.uint64), np.iinfo(np.int64).max)
    return x.astype(np.int64)


def cast_numpy(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert by NumPy, without its warnings about NaN to integer."""
    if value.dtype.kind == "c" and (dtypes.is_integer(dtype) or dtypes.is_float(dtype)):
        warn_of_lost_parts(value.dtype, dtype)
        value = value.real
    with warnings.catch_warnings(), np.errstate(invalid="ignore", over="ignore"):
        warnings.simplefilter("ignore")
        return value.astype(dtype)


def dtypes_of(*args: Any) -> list[tuple[np.dtype, bool]]:
    """The dtypes of arrays, numbers and dtypes, and whether they are weak.

    Raises:
      ArgumentError: there are no arguments.
    """
    pairs = []
    for i, x in enumerate(args):
        if isinstance(x, (np.dtype, str)) or isinstance(x, type) or not is_arraylike(x):
            dtype = dtypes.as_dtype(x)
            weak = x is int or x is float or x is complex
            pairs.append((dtypes.canonical(dtype), weak))
        else:
            aval = aval_of(x, "result_type", i)
            pairs.append((aval.dtype, aval.weak_type))
    if not pairs:
        raise ArgumentError("result_type: expected at least one array, number or dtype, got none")
    return pairs


def result_type(*args: Any) -> np.dtype:
    """The dtype to which arrays, numbers and dtypes promote.

    >>> result_type(np.int32, 1.0)
    dtype('float32')
    """
    return dtypes.promote(dtypes_of(*args))[0]
