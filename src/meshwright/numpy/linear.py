"""Products of arrays: dot, matmul, tensordot, outer, inner, kron and related functions, all on ``dot_general``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.api.placement import made_as
from meshwright.core import dtypes
from meshwright.core.config import config
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.arithmetic import multiply, negative, subtract
from meshwright.numpy.axes import no_out, normal_axes, normal_axis, static_int
from meshwright.numpy.functions import conjugate
from meshwright.numpy.manipulation import moveaxis, ravel, reshape
from meshwright.numpy.promotion import (
    as_operand,
    aval_of,
    broadcast_shapes,
    converted,
    operand_plan,
    operands,
    promote_all,
    promotes_freely,
    strong_array,
)
from meshwright.numpy.ranges import diagonal
from meshwright.numpy.reductions import strong, sum
from meshwright.ops.elementwise.table import convert, mul, ne
from meshwright.ops.products.dot import dot_general
from meshwright.ops.shape.rearrange import squeeze, transpose
from meshwright.ops.shape.slice_pad import concatenate as join


def _pair(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Two operands promoted to one dtype; shapes are unchanged."""
    x, y = as_operand(a, name), as_operand(b, name)
    first, second = typeof(x), typeof(y)
    if first.dtype == second.dtype:
        return x, y
    scalars = (first.update(shape=()), second.update(shape=()))
    plan = operand_plan(name, scalars, False, config.tracing)
    return converted(x, plan.dtype, plan.weak), converted(y, plan.dtype, plan.weak)


def contract(name: str, x: Any, y: Any, dims: Any, precision: Any = None, preferred: Any = None) -> Any:
    """``dot_general`` for operands of one dtype; bools are multiplied as integers, or as numbers of ``preferred``."""
    if dtypes.is_bool(typeof(x).dtype):
        wanted = None if preferred is None else dtypes.requested(preferred, name)
        if wanted is not None and not dtypes.is_bool(wanted):
            return dot_general(convert(x, wanted), convert(y, wanted), dims, precision)
        out = dot_general(convert(x, dtypes.int32), convert(y, dtypes.int32), dims, precision)
        return ne(out, np.int32(0))
    out = dot_general(x, y, dims, precision, preferred)
    return out if preferred is None else strong(out, typeof(out).dtype)


def matmul(
    a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None, out_sharding: Any = None
) -> Any:
    """Matrix product. Leading dimensions are batches and broadcast; a vector is a row as ``a`` and a column as ``b``.

    Args:
      a: shape (..., n, k) or (k,).
      b: shape (..., k, m) or (k,).
      precision: "default", "high" or "highest", or a ``lax.Precision``.
      preferred_element_type: the dtype of the result and of accumulation.
      out_sharding: a constraint on the result, as by :func:`meshwright.with_sharding_constraint`.

    Raises:
      ShapeError: an operand is a scalar, the sizes k differ, or batches do not broadcast.

    >>> matmul(np.ones((2, 3)), np.ones((3, 4))).shape
    (2, 4)
    """
    x, y = _pair("matmul", a, b)
    sx, sy = typeof(x).shape, typeof(y).shape
    if not sx or not sy:
        raise ShapeError(
            f"matmul: shapes {sx} and {sy}: operands need one dimension at least; use multiply for scalars"
        )
    k = sy[-2] if len(sy) > 1 else sy[0]
    if sx[-1] != k:
        raise ShapeError(
            f"matmul: shapes {sx} and {sy} do not fit: the last dimension of the first has size {sx[-1]}, the "
            f"{'second to last' if len(sy) > 1 else 'only'} dimension of the second has size {k}; they must be equal"
        )
    if len(sy) <= 2:  # one matrix for all batches
        dims = (((len(sx) - 1,), (max(len(sy) - 2, 0),)), ((), ()))
        return made_as(out_sharding, lambda: contract("matmul", x, y, dims, precision, preferred_element_type))
    return made_as(out_sharding, lambda: _batched_matmul(x, y, precision, preferred_element_type))


def _batched_matmul(x: Any, y: Any, precision: Any, preferred: Any) -> Any:
    """``matmul`` with batch dimensions in ``y``. Batch dimensions of only one operand are free dimensions."""
    sx, sy = typeof(x).shape, typeof(y).shape
    bx, by = sx[:-2], sy[:-2]
    n = len(broadcast_shapes(bx, by, name="matmul"))
    # The position in the result of each batch dimension of each operand; size 1 against another size is dropped.
    wide = (1,) * (n - len(bx)) + bx, (1,) * (n - len(by)) + by
    drop_x = [d - (n - len(bx)) for d in range(n - len(bx), n) if wide[0][d] == 1 and wide[1][d] != 1]
    drop_y = [d - (n - len(by)) for d in range(n - len(by), n) if wide[1][d] == 1 and wide[0][d] != 1]
    batch_x = [d for d in range(n - len(bx), n) if d - (n - len(bx)) not in drop_x]
    batch_y = [d for d in range(n - len(by), n) if d - (n - len(by)) not in drop_y]
    x, y = squeeze(x, drop_x), squeeze(y, drop_y)
    shared = [d for d in batch_x if d in batch_y]
    lb, rb = tuple(map(batch_x.index, shared)), tuple(map(batch_y.index, shared))
    dims = (((typeof(x).ndim - 1,), (len(batch_y),)), (lb, rb))
    out = contract("matmul", x, y, dims, precision, preferred)
    rows = [n] if len(sx) > 1 else []
    order = [*shared, *(d for d in batch_x if d not in shared), *rows, *(d for d in batch_y if d not in shared), n + 1]
    target = [*range(n), *rows, n + 1]
    return transpose(out, [order.index(d) for d in target])


def dot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None, out_sharding: Any = None) -> Any:
    """Sum of products over the last dimension of ``a`` and the second to last (or only) one of ``b``; scalars multiply.

    Raises:
      ShapeError: the sizes of the two dimensions differ.

    >>> dot(np.array([1, 2]), np.array([3, 4])).item()
    11
    """
    x, y = _pair("dot", a, b)
    sx, sy = typeof(x).shape, typeof(y).shape
    if not sx or not sy:
        if preferred_element_type is None:
            return made_as(out_sharding, lambda: mul(x, y))
        none = (((), ()), ((), ()))
        return made_as(out_sharding, lambda: contract("dot", x, y, none, precision, preferred_element_type))
    c = max(len(sy) - 2, 0)
    if sx[-1] != sy[c]:
        raise ShapeError(f"dot: shapes {sx} and {sy} do not fit: sizes {sx[-1]} and {sy[c]} must be equal")
    dims = (((len(sx) - 1,), (c,)), ((), ()))
    return made_as(out_sharding, lambda: contract("dot", x, y, dims, precision, preferred_element_type))


def inner(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """Sum of products over the last dimensions of both operands; scalars multiply.

    >>> inner(np.array([1, 2]), np.array([3, 4])).item()
    11
    """
    if not aval_of(a, "inner").shape or not aval_of(b, "inner", 1).shape:
        return dot(a, b, precision=precision, preferred_element_type=preferred_element_type)
    return tensordot(a, b, (-1, -1), precision=precision, preferred_element_type=preferred_element_type)


def outer(a: Any, b: Any, out: None = None) -> Any:
    """All products of an element of ``a`` and an element of ``b`` (both flattened).

    >>> outer(np.array([1, 2]), np.array([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    no_out(out, "outer")
    x, y = _pair("outer", a, b)
    return contract("outer", ravel(x), ravel(y), (((), ()), ((), ())))


def vdot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """Sum of products of the flattened arrays, the first conjugated.

    >>> vdot(np.array([1, 2]), np.array([3, 4])).item()
    11
    """
    x = conjugate(ravel(a))
    return dot(x, ravel(b), precision=precision, preferred_element_type=preferred_element_type)


@promotes_freely("x1", "x2")
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """Sum of products along one axis, the first operand conjugated; other dimensions broadcast.

    Raises:
      ShapeError: the sizes along ``axis`` differ.

    >>> vecdot(np.ones((2, 3)), np.ones(3)).tolist()
    [3.0, 3.0]
    """
    x, y = _pair("vecdot", x1, x2)
    x = moveaxis(x, normal_axis(axis, typeof(x).ndim, "vecdot"), -1)
    y = moveaxis(y, normal_axis(axis, typeof(y).ndim, "vecdot"), -1)
    if typeof(x).shape[-1] != typeof(y).shape[-1]:
        raise ShapeError(f"vecdot: sizes along axis {axis} differ in shapes {typeof(x).shape} and {typeof(y).shape}")
    column = reshape(y, (*typeof(y).shape, 1))
    row = reshape(conjugate(x), (*typeof(x).shape[:-1], 1, typeof(x).shape[-1]))
    out = matmul(row, column, precision=precision, preferred_element_type=preferred_element_type)
    return reshape(out, typeof(out).shape[:-2])


def matvec(x1: Any, x2: Any, /) -> Any:
    """Products of matrices and vectors; leading dimensions broadcast.

    >>> matvec(np.ones((2, 3)), np.ones(3)).tolist()
    [3.0, 3.0]
    """
    y = as_operand(x2, "matvec")
    out = matmul(x1, reshape(y, (*typeof(y).shape, 1)))
    return reshape(out, typeof(out).shape[:-1])


def vecmat(x1: Any, x2: Any, /) -> Any:
    """Products of conjugated vectors and matrices; leading dimensions broadcast.

    >>> vecmat(np.ones(2), np.ones((2, 3))).tolist()
    [2.0, 2.0, 2.0]
    """
    x = conjugate(as_operand(x1, "vecmat"))
    shape = typeof(x).shape
    out = matmul(reshape(x, (*shape[:-1], 1, *shape[-1:])), x2)
    return reshape(out, (*typeof(out).shape[:-2], typeof(out).shape[-1]))


def tensordot(
    a: Any, b: Any, axes: Any = 2, *, precision: Any = None, preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:  # fmt: skip
    """Sum of products over pairs of dimensions.

    Args:
      axes: the number of last dimensions of ``a`` and first ones of ``b``, or (axes of ``a``, axes of ``b``).

    Raises:
      ShapeError: the paired dimensions differ in number or size.

    >>> tensordot(np.ones((2, 3, 4)), np.ones((3, 4, 5))).shape
    (2, 5)
    """
    x, y = _pair("tensordot", a, b)
    nx, ny = typeof(x).ndim, typeof(y).ndim
    if isinstance(axes, Sequence):
        cx, cy = normal_axes(_listed(axes[0]), nx, "tensordot"), normal_axes(_listed(axes[1]), ny, "tensordot")
    else:
        n = static_int(axes, "tensordot", "axes")
        if n > min(nx, ny):
            raise ShapeError(
                f"tensordot: axes={n} needs {counted(n, 'dimension')}, shapes are {typeof(x).shape}, {typeof(y).shape}"
            )
        cx, cy = tuple(range(nx - n, nx)), tuple(range(n))
    if [typeof(x).shape[d] for d in cx] != [typeof(y).shape[d] for d in cy]:
        raise ShapeError(
            f"tensordot: axes {cx} of shape {typeof(x).shape} and {cy} of shape {typeof(y).shape} must pair equal sizes"
        )
    dims = ((cx, cy), ((), ()))
    return made_as(out_sharding, lambda: contract("tensordot", x, y, dims, precision, preferred_element_type))


def _listed(axes: Any) -> tuple[int, ...]:
    return tuple(axes) if isinstance(axes, Sequence) else (axes,)


def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: None = None) -> Any:
    """Sum of a diagonal of the matrices along two axes.

    >>> trace(np.eye(3)).item()
    3.0
    """
    return sum(diagonal(a, offset, axis1, axis2), -1, dtype, out)


def kron(a: Any, b: Any) -> Any:
    """Kronecker product: each element of ``a`` times all of ``b``.

    >>> kron(np.array([1, 2]), np.array([1, 1])).tolist()
    [1, 1, 2, 2]
    """
    x, y = promote_all([as_operand(a, "kron"), as_operand(b, "kron")])
    n = max(typeof(x).ndim, typeof(y).ndim)
    sx = (1,) * (n - typeof(x).ndim) + typeof(x).shape
    sy = (1,) * (n - typeof(y).ndim) + typeof(y).shape
    left = reshape(x, [v for s in sx for v in (s, 1)])
    right = reshape(y, [v for s in sy for v in (1, s)])
    return reshape(mul(*operands("kron", (left, right))), [p * q for p, q in zip(sx, sy)])


def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any:
    """Cross product of vectors with 2 or 3 components; a missing third one is 0. Of two 2-vectors, only the third
    component.

    Args:
      axisa, axisb: the axes of the components in ``a`` and ``b``. axisc: their axis in the result.
      axis: overrides all three.

    Raises:
      ShapeError: another number of components.

    >>> cross(np.array([1, 0, 0]), np.array([0, 1, 0])).tolist()
    [0, 0, 1]
    """
    x, y = _pair("cross", a, b)
    axisa, axisb, axisc = (axisa, axisb, axisc) if axis is None else (axis, axis, axis)
    x = moveaxis(x, normal_axis(axisa, typeof(x).ndim, "cross"), 0)
    y = moveaxis(y, normal_axis(axisb, typeof(y).ndim, "cross"), 0)
    sizes = typeof(x).shape[0], typeof(y).shape[0]
    if not {2, 3}.issuperset(sizes):
        raise ShapeError(
            f"cross: vectors need 2 or 3 components along axes {axisa} and {axisb}, got shapes "
            f"{aval_of(a, 'cross').shape} and {aval_of(b, 'cross', 1).shape}"
        )
    last = subtract(multiply(x[0], y[1]), multiply(x[1], y[0]))
    if sizes == (2, 2):
        return last
    # The products with a third component, which is 0 where missing.
    rows = [_less(x, y, 1, 2), _less(x, y, 2, 0), last]
    from_rows = [reshape(r, (1, *typeof(last).shape)) for r in rows]
    return strong_array(moveaxis(join(from_rows, 0), 0, axisc))


def _less(x: Any, y: Any, i: int, j: int) -> Any:
    """``x[i] y[j] - x[j] y[i]``, where components past the last are 0; at least one operand has all of them."""
    nx, ny = typeof(x).shape[0], typeof(y).shape[0]
    first = multiply(x[i], y[j]) if i < nx and j < ny else None
    second = multiply(x[j], y[i]) if j < nx and i < ny else None
    if second is None:
        return first
    return negative(second) if first is None else subtract(first, second)


def multi_dot(arrays: Sequence[Any], *, precision: Any = None) -> Any:
    """The product of several matrices, contracting the largest inner dimensions first.

    Raises:
      ArgumentError: fewer than two arrays.

    >>> multi_dot([np.ones((2, 3)), np.ones((3, 4)), np.ones((4, 1))]).shape
    (2, 1)
    """
    parts = [as_operand(a, "multi_dot") for a in arrays]
    if len(parts) < 2:
        raise ArgumentError(f"multi_dot: expected at least two arrays, got {len(parts)}; one is its own product")
    while len(parts) > 1:  # greedily contract the largest dimension
        sizes = [typeof(p).shape[0] for p in parts[1:]]
        i = sizes.index(max(sizes))
        parts[i : i + 2] = [matmul(parts[i], parts[i + 1], precision=precision)]
    return parts[0]
