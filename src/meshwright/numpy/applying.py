"""Functions of elements, vectors and axes applied to whole arrays: vectorize, apply_along_axis, apply_over_axes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes, pytree
from meshwright.core.naming import wraps
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentNumberError, ArgumentTypeError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.axes import normal_axis, normal_shape
from meshwright.numpy.creation import arange, asarray
from meshwright.numpy.manipulation import expand_dims, moveaxis
from meshwright.numpy.promotion import broadcast_shapes
from meshwright.transforms.vmap import vmap

_NAMES = r"\((\w+(?:,\w+)*)?\)"
_SIGNATURE = re.compile(rf"{_NAMES}(?:,{_NAMES})*->{_NAMES}(?:,{_NAMES})*")


def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply ``func1d`` to every vector along ``axis``; its results take the place of the axis.

    The function is mapped with ``vmap``, so it is called once.

    Args:
      func1d: takes a vector, ``*args`` and ``**kwargs``; returns an array of any shape.

    >>> apply_along_axis(lambda v: v[0] + v[-1], 1, np.array([[1, 2, 3], [4, 5, 6]])).tolist()
    [4, 10]
    """
    x = asarray(arr)
    ndim = typeof(x).ndim
    d = normal_axis(axis, ndim, "apply_along_axis")

    rows = moveaxis(x, d, -1)
    lead = typeof(rows).shape[:-1]
    out = vmap(lambda v: asarray(func1d(v, *args, **kwargs)))(rows.reshape((math.prod(lead), typeof(x).shape[d])))
    inner = typeof(out).shape[1:]
    ends = tuple(range(len(lead), len(lead) + len(inner)))
    return moveaxis(out.reshape((*lead, *inner)), ends, tuple(range(d, d + len(inner))))


def apply_over_axes(func: Callable[[Any, int], Any], a: Any, axes: Any) -> Any:
    """Apply ``func(a, axis)`` for each of ``axes`` in turn; axes that it removes are restored with size 1.

    Raises:
      ShapeError: the function changes the number of dimensions in another way.

    >>> apply_over_axes(lambda x, axis: x.sum(axis), np.ones((2, 3)), (0, 1)).tolist()
    [[6.0]]
    """
    x = asarray(a)
    for axis in [axes] if np.ndim(axes) == 0 else axes:
        ndim = typeof(x).ndim
        d = normal_axis(axis, ndim, "apply_over_axes")
        result = asarray(func(x, d))
        missing = ndim - typeof(result).ndim
        if missing not in (0, 1):
            raise ShapeError(
                f"apply_over_axes: the function made {counted(typeof(result).ndim, 'dimension')} of {ndim}"
            )
        x = expand_dims(result, d) if missing else result
    return x


def _parse(signature: str) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Parse a signature into the names of the core dimensions of arguments and results."""
    text = signature.replace(" ", "")
    if not _SIGNATURE.fullmatch(text):
        raise ArgumentError(f"vectorize: signature {signature!r} is not of the form '(m,n),(n)->(m)'")
    sides = [[tuple(filter(None, names.split(","))) for names in re.findall(_NAMES, side)] for side in text.split("->")]
    return sides[0], sides[1]


def vectorize(
    pyfunc: Callable[..., Any], *, excluded: Sequence[int | str] = (), signature: str | None = None
) -> Callable[..., Any]:
    """Vectorize ``pyfunc``, a function of scalars (or of the core dimensions of ``signature``), over broadcast arrays.

    Args:
      excluded: numbers and names of arguments that are passed unchanged.
      signature: core dimensions as for NumPy's generalized ufuncs, such as ``"(m,n),(n)->(m)"``.

    Raises:
      ArgumentError: an invalid signature, or one for another number of arguments. ShapeError: dimensions do not fit.
      ArgumentTypeError: the number of results differs from the signature.

    >>> vectorize(lambda a, b: a + b)(np.array([1, 2]), np.array([[3], [4]])).tolist()
    [[4, 5], [5, 6]]
    """
    core = None if signature is None else _parse(signature)
    if not all(isinstance(name, (int, str)) for name in excluded):
        raise ArgumentTypeError(f"vectorize: excluded must hold numbers and names of arguments, got {excluded!r}")
    if any(isinstance(name, int) and name < 0 for name in excluded):
        raise ArgumentError(f"vectorize: excluded holds numbers from 0 on, got {excluded!r}")

    @wraps(pyfunc)
    def call(*args: Any, **kwargs: Any) -> Any:
        mapped = [i for i in range(len(args)) if i not in excluded]
        names = [n for n in kwargs if n not in excluded]
        given = [asarray(args[i]) for i in mapped] + [asarray(kwargs[n]) for n in names]
        dims = [()] * len(given) if core is None else core[0]
        if len(dims) != len(given):
            raise ArgumentNumberError(
                f"vectorize: signature {signature!r} is for {counted(len(dims), 'argument')}, got {len(given)}"
            )

        def inner(*arrays: Any) -> Any:
            full, named = list(args), dict(kwargs)
            for i, x in zip(mapped, arrays):
                full[i] = x
            named.update(zip(names, arrays[len(mapped) :]))
            return pyfunc(*full, **named)

        return _mapped(inner, given, dims, None if core is None else core[1])

    return call


def _checked(f: Callable[..., Any], results: Sequence[tuple[str, ...]], sizes: dict[str, int]) -> Callable[..., Any]:
    """``f`` with a check that its results have the core dimensions ``results``.

    Raises (when called):
      ArgumentTypeError: the number of results differs. ShapeError: dimensions or sizes differ.
    """

    def checked(*arrays: Any) -> Any:
        out = f(*arrays)
        outs = out if isinstance(out, tuple) else (out,)
        if len(outs) != len(results):
            raise ArgumentTypeError(
                f"vectorize: the signature is for {counted(len(results), 'result')}, a tuple if they are several; the "
                f"function returned {len(outs)}"
            )
        for y, names in zip(outs, results):
            shape = typeof(y).shape
            if len(shape) != len(names) or any(sizes.setdefault(n, s) != s for n, s in zip(names, shape)):
                known = ", ".join(f"{n}={sizes[n]}" for n in names if n in sizes)
                raise ShapeError(
                    f"vectorize: a result of shape {shape} has not the core dimensions ({', '.join(names)}) of the "
                    f"signature{known and f', of which {known}'}"
                )
        return out

    return checked


def _mapped(
    f: Callable[..., Any], arrays: list[Any], dims: Sequence[tuple[str, ...]], results: Sequence[tuple[str, ...]] | None
) -> Any:
    """Map ``f`` over all dimensions before the core dimensions, broadcast together."""
    sizes: dict[str, int] = {}
    f = f if results is None else _checked(f, results, sizes)
    loops = []
    for x, names in zip(arrays, dims):
        shape = typeof(x).shape
        if len(shape) < len(names):
            raise ShapeError(f"vectorize: an argument of shape {shape} lacks core dimensions ({','.join(names)})")
        split = len(shape) - len(names)
        loops.append(shape[:split])
        for name, size in zip(names, shape[split:]):
            if sizes.setdefault(name, size) != size:
                raise ShapeError(f"vectorize: core dimension {name} has sizes {sizes[name]} and {size}")
    loop = broadcast_shapes(*loops, name="vectorize")
    for d in reversed(range(len(loop))):
        # A dimension that an argument lacks, or has with size 1, is not mapped over.
        axes = []
        for own in loops:
            place = d - (len(loop) - len(own))
            axes.append(None if place < 0 or own[place] == 1 != loop[d] else 0)
        f = vmap(f, in_axes=tuple(axes), axis_size=loop[d])
    squeezed = []
    for x, own in zip(arrays, loops):
        gone = tuple(i for i, n in enumerate(own) if n == 1 != loop[i + len(loop) - len(own)])
        squeezed.append(x.squeeze(gone) if gone else x)
    return pytree.map(asarray, f(*squeezed))


def fromfunction(function: Any, shape: Sequence[int], *, dtype: Any = float, **kwargs: Any) -> Any:
    """The results of ``function`` for the coordinates of each element of an array of ``shape``, which are scalars of
    ``dtype``. Dimensions of results come after those of ``shape``.

    >>> fromfunction(lambda i, j: i + j, (2, 2), dtype=int).tolist()
    [[0, 1], [1, 2]]
    """
    sizes = normal_shape(shape, "fromfunction")
    axes = [arange(n, dtype=dtypes.requested(dtype, "fromfunction")) for n in sizes]
    mapped: Any = lambda *coordinates: function(*coordinates, **kwargs)  # noqa: E731
    for d in reversed(range(len(sizes))):
        mapped = vmap(mapped, in_axes=tuple(0 if d == e else None for e in range(len(sizes))))
    return mapped(*axes)
