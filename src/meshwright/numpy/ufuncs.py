"""Universal functions: NumPy's callable objects that can also reduce, accumulate and scatter.

Any function of two scalars can be folded along an axis with ``scan``; functions with a reduction of their own (``sum``
for ``add``) pass it to the object instead. The methods and their arguments are NumPy's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.api.control_flow import fori_loop, scan
from meshwright.core import dtypes
from meshwright.core.tracebacks import boundary
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError
from meshwright.ir.tracing import typeof
from meshwright.numpy import arithmetic, logic, reductions, sorting
from meshwright.numpy.applying import vectorize
from meshwright.numpy.at import IndexUpdater
from meshwright.numpy.axes import normal_axes, normal_axis
from meshwright.numpy.creation import asarray, full
from meshwright.numpy.indexing import getitem, take
from meshwright.numpy.logic import where as where_
from meshwright.numpy.manipulation import broadcast_to, moveaxis, ravel, reshape
from meshwright.numpy.promotion import converted
from meshwright.numpy.stages import trace
from meshwright.ops.elementwise import table as ops
from meshwright.ops.reduce import cumulative
from meshwright.ops.shape.rearrange import transpose

Function = Callable[..., Any]


class ufunc:
    """An elementwise function of ``nin`` scalars, with NumPy's methods.

    Args:
      func: the function of scalars; if ``call``, the function of arrays, is given, only the methods use it.
      nin, nout: the numbers of arguments and of results.
      name: default: that of ``func``.
      identity: the initial value of a reduction; ``None``: the first element.
      call, reduce, accumulate, at: implementations that are better than element by element.

    Raises:
      ArgumentError: ``out=`` or ``where=`` is given, or a method needs two arguments and one result.

    >>> minus = ufunc(lambda x, y: x - y, 2, 1)
    >>> minus.reduce(np.array([9, 3, 2])).item()
    4
    """

    def __init__(
        self,
        func: Function,
        /,
        nin: int,
        nout: int,
        *,
        name: str | None = None,
        identity: Any = None,
        call: Function | None = None,
        reduce: Function | None = None,
        accumulate: Function | None = None,
        at: str | None = None,
    ) -> None:
        self.nin, self.nout, self.nargs, self.identity = nin, nout, nin + nout, identity
        self.__name__ = self.__qualname__ = name or getattr(func, "__name__", "function")
        self.__doc__ = (call or func).__doc__
        self._call = call or vectorize(func)
        self._reduce, self._accumulate, self._at = reduce, accumulate, at

    def trace(self, *args: Any) -> Any:
        """Trace the function at its arguments, as ``jit(...).trace`` does."""
        return trace(self, *args)

    def lower(self, *args: Any) -> Any:
        """Lower the function at its arguments, as ``jit(...).lower`` does."""
        return trace(self, *args).lower()

    @boundary
    def __call__(self, *args: Any, out: None = None, where: None = None) -> Any:
        if out is not None or where is not None:
            raise ArgumentError(f"{self.__name__}: out= and where= are not supported, arrays are immutable; use the "
                                "result, and where() to choose elements of it")  # fmt: skip
        if len(args) != self.nin:
            raise ArgumentTypeError(f"{self.__name__}: expected {counted(self.nin, 'argument')}, got {len(args)}")
        return self._call(*args)

    def __repr__(self) -> str:
        return f"<meshwright.numpy.ufunc {self.__name__!r}>"

    def __reduce__(self) -> Any:
        return self.__name__ if _NAMED.get(self.__name__) is self else object.__reduce__(self)

    def _binary(self, method: str, out: Any = None) -> str:
        name = f"{self.__name__}.{method}"
        if self.nin != 2 or self.nout != 1:
            raise ArgumentError(f"{name}: needs a function of two arguments and one result, not {self.nin}")
        if out is not None:
            raise ArgumentError(f"{name}: out= is not supported, arrays are immutable; use the result")
        return name

    def reduce(
        self, a: Any, axis: Any = 0, dtype: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
        where: Any = None,
    ) -> Any:  # fmt: skip
        """Fold the function over ``axis`` (one, several, or ``None`` for all) from the first element to the last.

        Raises:
          ArgumentError: no elements, or ``where``, without ``initial`` or an identity.
        """
        name = self._binary("reduce", out)
        if self._reduce is not None:
            return self._reduce(a, axis=axis, dtype=dtype, keepdims=keepdims, initial=initial, where=where)
        x = _asked(a, dtype, name)
        shape = typeof(x).shape
        axes = normal_axes(axis, len(shape), name)
        initial = self.identity if initial is None else initial
        count = math.prod(shape[d] for d in axes)
        if initial is None and (count == 0 or where is not None):
            raise ArgumentError(f"{name}: the function has no identity; pass initial= to say what no elements give")
        kept = [d for d in range(len(shape)) if d not in axes]
        rows = reshape(transpose(x, (*axes, *kept)), (count, *(shape[d] for d in kept)))
        flags = None
        if where is not None:
            flags = reshape(transpose(broadcast_to(where, shape), (*axes, *kept)), typeof(rows).shape)
        result = self._folded(rows, initial, flags)[0]
        return reductions.keep_dims(result, shape, axes, keepdims)

    def accumulate(self, a: Any, axis: int = 0, dtype: Any = None, out: None = None) -> Any:
        """The results of :meth:`reduce` for all prefixes along ``axis``."""
        name = self._binary("accumulate", out)
        x = _asked(a, dtype, name)
        d = normal_axis(axis, typeof(x).ndim, name)
        stays_bool = dtypes.is_bool(typeof(x).dtype) and (dtype is not None or self.identity is None)
        if self._accumulate is not None and not stays_bool:
            return self._accumulate(x, d)
        if typeof(x).shape[d] == 0:
            return x
        return moveaxis(self._folded(moveaxis(x, d, 0), None, None)[1], 0, d)

    def _folded(self, rows: Any, initial: Any, flags: Any) -> tuple[Any, Any]:
        """The fold over the first dimension, and its value after each row."""
        if initial is None:
            start, rows = getitem(rows, 0), getitem(rows, slice(1, None))
        else:
            start = broadcast_to(asarray(initial), typeof(rows).shape[1:])
            if initial is self.identity and not dtypes.is_inexact(typeof(start).dtype):  # -1: all bits of any dtype
                start = ops.convert(start, typeof(rows).dtype)
        start = self._settled(start, rows)

        def step(carry: Any, row: Any) -> tuple[Any, Any]:
            value, flag = row
            new = converted(self._call(carry, value), typeof(carry).dtype)
            new = new if flag is None else where_(flag, new, carry)
            return new, new

        last, steps = scan(step, start, (rows, flags))
        if initial is None:
            steps = sorting.concatenate([reshape(start, (1, *typeof(start).shape)), steps])
        return last, steps

    def _settled(self, start: Any, *others: Any) -> Any:
        """The first carry, in the dtype of the results with elements of the others."""
        example = self._call(start, *(full(typeof(start).shape, 0, typeof(v).dtype) for v in others))
        return converted(start, typeof(example).dtype)

    def at(self, a: Any, indices: Any, b: Any = None, /, *, inplace: bool = True) -> Any:
        """``a`` with the function applied to its elements at ``indices`` (and ``b``), repeatedly at repeated indices.

        Raises:
          ArgumentError: ``inplace`` is not False (NumPy's method writes into ``a``).
        """
        if inplace:
            raise ArgumentError(f"{self.__name__}.at: arrays are immutable; pass inplace=False and use the result")
        x = asarray(a)
        if self._at is not None:
            return getattr(IndexUpdater(x)[indices], self._at)(b)
        places = getitem(reshape(np.arange(typeof(x).size, dtype=dtypes.default_int()), typeof(x).shape), indices)
        others = () if b is None else (ravel(broadcast_to(asarray(b), typeof(places).shape)),)
        flat, where_to = self._settled(ravel(x), *others), ravel(places)

        def one(i: Any, values: Any) -> Any:
            spot = getitem(where_to, i)
            new = self._call(getitem(values, spot), *(getitem(v, i) for v in others))
            return IndexUpdater(values)[spot].set(new)

        return reshape(fori_loop(0, typeof(where_to).size, one, flat), typeof(x).shape)

    def reduceat(self, a: Any, indices: Any, axis: int = 0, dtype: Any = None, out: None = None) -> Any:
        """:meth:`reduce` over each part of ``axis`` from one of ``indices`` to the next, or only the element there."""
        name = self._binary("reduceat", out)
        x = _asked(a, dtype, name)
        d = normal_axis(axis, typeof(x).ndim, name)
        rows, first = moveaxis(x, d, 0), asarray(indices)
        n = typeof(rows).shape[0]
        if typeof(first).ndim != 1 or not dtypes.is_integer(typeof(first).dtype):
            raise ArgumentError(f"{name}: indices must be a vector of integers, got {typeof(first)}")
        last = sorting.concatenate([getitem(first, slice(1, None)), full((1,), n, typeof(first).dtype)])
        shape = (typeof(first).shape[0],) + (1,) * (typeof(rows).ndim - 1)
        first, last = reshape(first, shape), reshape(last, shape)
        start = self._settled(take(rows, ravel(first), 0, mode="clip"), rows)

        def step(p: Any, parts: Any) -> Any:
            inside = ops.and_(ops.lt(first, p), ops.lt(p, last))
            return where_(inside, converted(self._call(parts, getitem(rows, p)), typeof(parts).dtype), parts)

        return moveaxis(fori_loop(np.array(0, typeof(first).dtype), n, step, start), 0, d)

    def outer(self, A: Any, B: Any, /) -> Any:
        """The function applied to every pair of elements of ``A`` and ``B``."""
        if self.nin != 2:
            raise ArgumentError(f"{self.__name__}.outer: needs a function of two arguments, not {self.nin}")
        x, y = asarray(A), asarray(B)
        return self(reshape(x, typeof(x).shape + (1,) * typeof(y).ndim), y)


def frompyfunc(func: Function, /, nin: int, nout: int, *, identity: Any = None) -> ufunc:
    """A :class:`ufunc` made from a traceable function of scalars.

    >>> frompyfunc(lambda x, y: 10 * x + y, 2, 1).reduce(np.array([1, 2, 3])).item()
    123
    """
    return ufunc(func, nin, nout, identity=identity)


def _asked(a: Any, dtype: Any, name: str) -> Any:
    x = asarray(a)
    return x if dtype is None else ops.convert(x, dtypes.requested(dtype, name))


def _test(function: Function) -> Function:
    def reduce(a: Any, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Any:
        out = function(a, axis, keepdims=keepdims, where=where)
        if initial is not None:
            out = (logic.logical_and if function is reductions.all else logic.logical_or)(out, initial)
        return out if dtype is None else ops.convert(out, dtypes.requested(dtype, function.__name__))

    return reduce


def _extreme(function: Function) -> Function:
    return lambda a, dtype, **options: function(_asked(a, dtype, function.__name__), **options)


def _named(function: Function, nin: int = 2, **methods: Any) -> ufunc:
    return ufunc(function, nin, 1, name=function.__name__, call=function, **methods)


add = _named(arithmetic.add, identity=0, reduce=reductions.sum, accumulate=sorting.cumsum, at="add")
subtract = _named(arithmetic.subtract, at="subtract")
multiply = _named(arithmetic.multiply, identity=1, reduce=reductions.prod, accumulate=sorting.cumprod, at="multiply")
maximum = _named(arithmetic.maximum, reduce=_extreme(reductions.max), accumulate=cumulative.cummax, at="max")
minimum = _named(arithmetic.minimum, reduce=_extreme(reductions.min), accumulate=cumulative.cummin, at="min")
negative = _named(arithmetic.negative, nin=1)
logaddexp = _named(arithmetic.logaddexp, identity=-np.inf)
logaddexp2 = _named(arithmetic.logaddexp2, identity=-np.inf)
bitwise_and = _named(logic.bitwise_and, identity=-1)
bitwise_or = _named(logic.bitwise_or, identity=0)
bitwise_xor = _named(logic.bitwise_xor, identity=0)
logical_and = _named(logic.logical_and, identity=True, reduce=_test(reductions.all))
logical_or = _named(logic.logical_or, identity=False, reduce=_test(reductions.any))
logical_xor = _named(logic.logical_xor, identity=False)

_NAMED = {
    f.__name__: f
    for f in (add, subtract, multiply, maximum, minimum, negative, logaddexp, logaddexp2, bitwise_and, bitwise_or,
              bitwise_xor, logical_and, logical_or, logical_xor)
}  # fmt: skip
