"""Comparisons, logic, bitwise operations, tests of numbers, and selection by condition."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.config import config
from meshwright.core.key_types import is_key
from meshwright.errors import ArgumentError, DTypeError, IntegerRangeError, TypePromotionError
from meshwright.ir.tracing import typeof
from meshwright.numpy.axes import no_out
from meshwright.numpy.makers import Unary, binary, unary
from meshwright.numpy.promotion import (
    apply_plan,
    aval_of,
    broadcast_shapes,
    operand_plan,
    operands,
    scalar_like,
    spread,
    taken,
)
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import convert, select
from meshwright.ops.random.keys import unwrap_keys
from meshwright.ops.reduce.reductions import reduce_and, reduce_or
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, match_shape
from meshwright.runtime.values import as_result


def _or_keys(compare: Any, fold: Any) -> Any:
    """A comparison of numbers that also compares random keys, by all their words."""

    def compared(x: Any, y: Any) -> Any:
        if is_key(typeof(x).dtype) != is_key(typeof(y).dtype):
            raise TypePromotionError(
                f"{typeof(x)} and {typeof(y)} are compared; compare random.key_data(key) with numbers"
            )
        if not is_key(typeof(x).dtype):
            return compare.bind(x, y)
        words = [unwrap_keys(x), unwrap_keys(y)]
        shape = max((typeof(w).shape for w in words), key=len)
        full = [broadcast_in_dim(w, shape, range(len(shape) - typeof(w).ndim, len(shape))) for w in words]
        return fold(compare.bind(*full), (len(shape) - 1,))

    return compared


def _comparison(
    name: str, compare: Any, numbers: Callable[[int, int], bool], what: str, example: tuple[str, str]
) -> Any:
    """A comparison; ``numbers`` compares Python integers, for one that the array's dtype cannot represent."""
    inner = binary(name, compare, what, example)

    def f(x1: Any, x2: Any, /) -> Any:
        try:
            return inner(x1, x2)
        except IntegerRangeError:
            # All elements are on the same side of such a number, as 0 is.
            array, answer = (x2, numbers(x1, 0)) if type(x1) is int else (x1, numbers(0, x2))
            return as_result(spread(np.asarray(answer), typeof(array).shape))

    f.__name__ = f.__qualname__ = name
    f.__doc__ = inner.__doc__
    return f


equal = _comparison(
    "equal", _or_keys(ops.eq, reduce_and), operator.eq, "Whether elements are equal.", ("equal(1, 1.0).item()", "True")
)
not_equal = _comparison(
    "not_equal",
    _or_keys(ops.ne, reduce_or),
    operator.ne,
    "Whether elements differ.",
    ("not_equal(1, 2).item()", "True"),
)
less = _comparison("less", ops.lt, operator.lt, "Whether ``x1 < x2``.", ("less(1, 2).item()", "True"))
less_equal = _comparison(
    "less_equal", ops.le, operator.le, "Whether ``x1 <= x2``.", ("less_equal(2, 2).item()", "True")
)
greater = _comparison("greater", ops.gt, operator.gt, "Whether ``x1 > x2``.", ("greater(1, 2).item()", "False"))
greater_equal = _comparison(
    "greater_equal", ops.ge, operator.ge, "Whether ``x1 >= x2``.", ("greater_equal(2, 2).item()", "True")
)

bitwise_and = binary(
    "bitwise_and", ops.and_, "And of the bits of integers or bools.", ("bitwise_and(6, 3).item()", "2")
)
bitwise_or = binary("bitwise_or", ops.or_, "Or of the bits of integers or bools.", ("bitwise_or(6, 3).item()", "7"))
bitwise_xor = binary("bitwise_xor", ops.xor, "Exclusive or of the bits.", ("bitwise_xor(6, 3).item()", "5"))
bitwise_not = bitwise_invert = invert = unary(
    "bitwise_not", ops.not_, "Complement of the bits; of bools, not.", ("bitwise_not(5).item()", "-6")
)


def _shifted(shift: Any) -> Any:
    """A shift of integers; bools are shifted as int32, as in JAX."""

    def f(x: Any, y: Any) -> Any:
        if dtypes.is_bool(typeof(x).dtype):
            x, y = convert(x, dtypes.int32), convert(y, dtypes.int32)
        return shift(x, y)

    return f


def _shift_right(x: Any, y: Any) -> Any:
    unsigned = dtypes.is_unsigned(typeof(x).dtype)
    return (ops.shift_right_logical if unsigned else ops.shift_right_arithmetic)(x, y)


left_shift = bitwise_left_shift = binary(
    "left_shift", _shifted(ops.shift_left), "The bits of ``x1``, ``x2`` places up.", ("left_shift(3, 2).item()", "12")
)


def right_shift(x1: Any, x2: Any, /) -> Any:
    """Shift the bits of ``x1`` right by ``x2``; signed integers keep their sign.

    >>> right_shift(-8, 1).item()
    -4
    """
    return _shifted(_shift_right)(*operands("right_shift", (x1, x2)))


def _magnitude(x: Any) -> Any:
    dtype = typeof(x).dtype
    return convert(x, dtypes.uint8) if dtypes.is_bool(dtype) else ops.abs_(x) if dtypes.is_signed(dtype) else x


bitwise_right_shift = right_shift
bitwise_count = unary(
    "bitwise_count",
    lambda x: convert(ops.population_count(_magnitude(x)), dtypes.uint8),
    "Number of bits set in the magnitude.",
    ("bitwise_count(7).item()", "3"),
)  # fmt: skip


# --- logic --------------------------------------------------------------------------------------------------
def truth(x: Any, name: str = "logical_and", position: int = 0) -> Any:
    """``x != 0`` as bools."""
    aval = aval_of(x, name, position)
    if dtypes.is_bool(aval.dtype):
        return taken(x)
    (x,) = operands(name, (x,))
    return ops.ne(x, scalar_like(0, x))


def _logical(name: str, op: Any, what: str, example: tuple[str, str]) -> Any:
    inner = binary(name, op, what, example)

    def f(x1: Any, x2: Any, /) -> Any:
        return inner(truth(x1, name, 0), truth(x2, name, 1))

    f.__name__ = f.__qualname__ = name
    f.__doc__ = inner.__doc__
    return f


logical_and = _logical("logical_and", ops.and_, "Whether both are true.", ("logical_and(1, 0).item()", "False"))
logical_or = _logical("logical_or", ops.or_, "Whether one is true.", ("logical_or(1, 0).item()", "True"))
logical_xor = _logical("logical_xor", ops.xor, "Whether just one is true.", ("logical_xor(1, 0).item()", "True"))


def logical_not(x: Any, /) -> Any:
    """Whether ``x`` is 0 or false.

    >>> logical_not(0).item()
    True
    """
    return ops.not_(*operands("logical_not", (truth(x, "logical_not"),)))


# --- tests of numbers ---------------------------------------------------------------------------------------
def _number_test(name: str, of_float: Unary, of_exact: bool, join: Any, what: str, example: tuple[str, str]) -> Unary:
    """A test of floats, which either all or no integers pass, joined over the parts of complex numbers."""

    def test(x: Any) -> Any:
        dtype = typeof(x).dtype
        if dtypes.is_complex(dtype) and join is None:
            raise DTypeError(f"{name}: complex numbers have no sign; ask for their real and imaginary part")
        if dtypes.is_complex(dtype):
            return join(of_float(ops.real(x)), of_float(ops.imag(x)))
        if dtypes.is_float(dtype):
            return of_float(x)
        return as_result(match_shape(np.asarray(of_exact), typeof(x).update(dtype=dtypes.bool_, weak_type=False)))

    test_of = unary(name, test, what, example)
    if join is not None:
        return test_of

    def with_out(x: Any, /, out: None = None) -> Any:
        no_out(out, name)
        return test_of(x)

    with_out.__name__ = with_out.__qualname__ = name
    with_out.__doc__ = test_of.__doc__
    return with_out


isnan = _number_test(
    "isnan", lambda x: ops.ne(x, x), False, ops.or_, "Whether elements are NaN.", ("isnan(0.0).item()", "False")
)
isfinite = _number_test(
    "isfinite", ops.is_finite, True, ops.and_, "Whether elements are neither NaN nor infinite.",
    ("isfinite(1.0).item()", "True"),
)  # fmt: skip
isinf = _number_test(
    "isinf", lambda x: ops.eq(ops.abs_(x), scalar_like(np.inf, x)), False, ops.or_, "Whether elements are infinite.",
    ("isinf(1.0).item()", "False"),
)  # fmt: skip
isposinf = _number_test(
    "isposinf", lambda x: ops.eq(x, scalar_like(np.inf, x)), False, None, "Whether elements are +infinity.",
    ("isposinf(1.0).item()", "False"),
)  # fmt: skip
isneginf = _number_test(
    "isneginf", lambda x: ops.eq(x, scalar_like(-np.inf, x)), False, None, "Whether elements are -infinity.",
    ("isneginf(1.0).item()", "False"),
)  # fmt: skip


def isclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    """Whether ``|a - b| <= atol + rtol * |b|``; equal infinities are close, and random keys if they are equal.

    >>> isclose(1.0, 1.0 + 1e-6).item()
    True
    """
    if is_key(aval_of(a, "isclose").dtype):
        return equal(a, b)
    x, y = operands("isclose", (a, b))
    if not dtypes.is_inexact(typeof(x).dtype):
        x, y = operands("isclose", (x, y), to_inexact=True)
    gap = ops.abs_(ops.sub(x, y))
    limit = ops.add(ops.mul(ops.abs_(y), scalar_like(rtol, gap)), scalar_like(atol, gap))
    close = logical_and(ops.le(gap, limit), logical_and(isfinite(x), isfinite(y)))
    close = logical_or(close, ops.eq(x, y))
    return logical_or(close, logical_and(isnan(x), isnan(y))) if equal_nan else close


# --- choosing -----------------------------------------------------------------------------------------------
def where(condition: Any, x: Any = None, y: Any = None, /) -> Any:
    """``x`` where ``condition`` is true, ``y`` elsewhere.

    Args:
      condition: bools, or numbers, where nonzero is true.
      x, y: arrays or numbers; the shapes of all three broadcast together.

    Raises:
      ArgumentError: only one of ``x`` and ``y`` is given.
      ShapeError, DTypeError: shapes do not broadcast, dtypes do not promote.

    >>> where(True, 1, 2).item()
    1
    """
    if x is None or y is None:
        if x is not None or y is not None:
            raise ArgumentError("where: give both x and y, or neither")
        raise ArgumentError(
            "where: with a condition alone the result's shape depends on values; use nonzero(condition)"
        )
    condition = truth(condition, "where", 0)
    avals = (aval_of(x, "where", 1), aval_of(y, "where", 2))
    plan = operand_plan("where", avals, False, config.tracing)
    x, y = apply_plan("where", plan, (x, y))
    flag = aval_of(condition, "where", 0)
    shape = broadcast_shapes(flag.shape, plan.shape, name="where")
    if flag.shape not in ((), shape):
        condition = spread(condition, shape)
    if plan.shape != shape:  # the broadcast cases must have the result's shape; scalars may stay
        x = spread(x, shape) if typeof(x).shape else x
        y = spread(y, shape) if typeof(y).shape else y
        if not typeof(x).shape and not typeof(y).shape:
            x = spread(x, shape)
    return select(condition, x, y)


def select_by(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """For each element, the choice of the first condition that holds, else ``default`` (``numpy.select``).

    >>> select_by([False, True], [1, 2]).item()
    2
    """
    if len(condlist) != len(choicelist) or not condlist:
        raise ArgumentError(
            f"select: expected as many conditions as choices, one at least; got {len(condlist)} and {len(choicelist)}"
        )
    result = default
    for condition, choice in zip(reversed(condlist), reversed(choicelist)):
        result = where(condition, choice, result)
    return result
