"""Collectives as functions over axis names in scope, such as ``psum(x, "data")``, as in ``jax.lax``.

Each takes an array, or a tree of arrays, which it processes leaf by leaf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from meshwright.core import dtypes, pytree
from meshwright.core.expected import as_integers, as_tuple, refused
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, AxisError, ShapeError
from meshwright.ir.state import STATE, axis_size
from meshwright.ir.tracing import Tracer, typeof
from meshwright.ir.varying import axes_of, cast
from meshwright.ops.collective.all_reduce import AllReduce, Pmax, Pmin, Psum
from meshwright.ops.collective.axis_groups import AxisGroups, axis_groups
from meshwright.ops.collective.base import Collective, axis_index_of
from meshwright.ops.collective.exchange import AllToAll, Ppermute
from meshwright.ops.collective.ragged import RaggedAllToAll, with_tables
from meshwright.ops.collective.tiles import AllGather, AllGatherInvariant, ReduceScatter
from meshwright.ops.elementwise.table import convert, copy, div, mul, scalar_like
from meshwright.ops.indexing.dynamic_slice import dynamic_slice_in_dim
from meshwright.ops.reduce.reductions import reduce_max, reduce_min
from meshwright.ops.shape.rearrange import expand_dims, move_dim, reshape, squeeze

Groups = Sequence[Sequence[int]] | None


def _names(axis_name: Any) -> tuple[tuple[str, ...], tuple[int, ...]]:
    names = as_tuple("axis_name", "a name or a tuple of names", axis_name)
    if len(set(names)) < len(names):
        raise ArgumentError(f"axis_name: {names} has an axis more than once; name each once")
    return names, tuple(axis_size(n) for n in names)


def _dim(name: str, argument: str, dim: int, ndim: int) -> int:
    if not -ndim <= dim < ndim:
        raise AxisError(f"{name}: {argument} {dim} does not exist among {counted(ndim, 'dimension')}")
    return dim % ndim


def _each_leaf(collective: Callable[..., Any]) -> Callable[..., Any]:
    """``collective`` mapped over the leaves of a tree."""

    @wraps(collective)
    def wrapped(x: Any, *args: Any, **options: Any) -> Any:
        leaves, tree = pytree.flatten(x)
        return pytree.unflatten(tree, [collective(leaf, *args, **options) for leaf in leaves])

    return wrapped


# --- reductions ---------------------------------------------------------------------------------------------
def _times(x: Any, count: Any) -> Any:
    """The sum over ``count`` positions of a value that is the same at all of them."""
    if not isinstance(x, (int, float)):
        return mul(x, scalar_like(count, x) if isinstance(count, int) else convert(count, typeof(x).dtype))
    if isinstance(count, int):
        return x * count
    return mul(convert(count, dtypes.default_int() if isinstance(x, int) else dtypes.default_float()), x)


def _is_folded(x: Any) -> bool:
    """Whether ``x`` is a concrete array, the same everywhere, of which reductions are wanted as concrete ones too."""
    return STATE.folding and not isinstance(x, Tracer)


@_each_leaf
def psum(x: Any, axis_name: Any, *, axis_index_groups: Groups = None) -> Any:
    """Sum ``x`` over the positions along the named axes; every position gets the result.

    ``x`` is a tree of arrays of any shapes; a Python number is multiplied by the number of positions, and bools are
    counted as int32. With ``axis_index_groups``, lists of positions, each position gets the sum over its group.

    Raises:
      UnboundAxisError: an axis is not in scope.
      ArgumentError: the groups do not contain each position once.

    Example:
      >>> x = jnp.array([1, 2, 4, 8])
      >>> mw.vmap(lambda v: lax.psum(v, "i"), axis_name="i")(x).tolist()
      [15, 15, 15, 15]
      >>> mw.vmap(lambda v: lax.psum(v, "i", axis_index_groups=[[0, 2], [1, 3]]), axis_name="i")(x).tolist()
      [5, 10, 5, 10]
    """
    names, sizes = _names(axis_name)
    groups = axis_groups("psum", names, sizes, axis_index_groups, uneven=True)
    if isinstance(x, (int, float)) and not isinstance(x, bool):
        return _times(x, groups.count() if groups else math.prod(sizes))
    if dtypes.is_bool(typeof(x).dtype):
        x = convert(x, dtypes.int32)
    if _is_folded(x):
        return _times(x, groups.count() if groups else math.prod(sizes))
    return groups.summed(x) if groups else _done(Psum(names, sizes), x)


def _done(op: Collective, x: Any) -> Any:
    """Bind the collective, or return ``x`` if it has no axes."""
    return op.bind(x) if op.axes else x


@_each_leaf
def pmean(x: Any, axis_name: Any, *, axis_index_groups: Groups = None) -> Any:
    """The mean of ``x`` (a tree of arrays) over the positions along the named axes, or over each position's group.

    Raises:
      UnboundAxisError: an axis is not in scope.
      ArgumentError: the groups do not contain each position once.

    Example:
      >>> mw.vmap(lambda v: v - lax.pmean(v, "i"), axis_name="i")(jnp.array([1., 2., 6.])).tolist()
      [-2.0, -1.0, 3.0]
    """
    names, sizes = _names(axis_name)
    groups = axis_groups("pmean", names, sizes, axis_index_groups, uneven=True)
    total = psum(x, axis_name, axis_index_groups=axis_index_groups)
    if not dtypes.is_inexact(typeof(total).dtype):
        total = convert(total, dtypes.default_float())
    count = groups.count() if groups else math.prod(sizes)
    dtype = typeof(total).dtype
    return div(total, scalar_like(count, total) if isinstance(count, int) else convert(count, dtype))


def _extremum(op: type[AllReduce], reduction: Any, what: str, result: list[list[int]]) -> Any:
    def extremum(x: Any, axis_name: Any, *, axis_index_groups: Groups = None) -> Any:
        names, sizes = _names(axis_name)
        groups = axis_groups(op.name, names, sizes, axis_index_groups, uneven=True)
        if _is_folded(x):
            return copy(x)
        if not groups:
            return _done(op(names, sizes), x)
        return groups.reduced(x, reduction, op.monoid.identity(typeof(x).dtype))

    extremum.__name__ = extremum.__qualname__ = op.name
    extremum.__doc__ = f"""The {what} of ``x`` (a tree of arrays), elementwise, over the positions along the named
    axes, or over each position's group.

    Raises:
      UnboundAxisError: an axis is not in scope.
      ArgumentError: groups that do not have each position once.

    Example:
      >>> mw.vmap(lambda v: lax.{op.name}(v, "i"), axis_name="i")(jnp.array([[3, 1], [2, 5]])).tolist()
      {result}
    """
    return _each_leaf(extremum)


pmax = _extremum(Pmax, reduce_max, "maximum", [[3, 5], [3, 5]])
pmin = _extremum(Pmin, reduce_min, "minimum", [[2, 1], [2, 1]])


@_each_leaf
def psum_scatter(
    x: Any, axis_name: Any, *, scatter_dimension: int = 0, axis_index_groups: Groups = None, tiled: bool = False
) -> Any:
    """Sum ``x`` over the positions along the named axes, and return this position's part of the sum.

    With ``tiled``, position ``i`` of ``n`` gets tile ``i`` of ``scatter_dimension``. Without, that dimension has size
    ``n`` and is removed: position ``i`` gets index ``i``. With ``axis_index_groups``, the sum is over the position's
    group, and ``i`` is its place in it.

    Raises:
      UnboundAxisError: an axis is not in scope.
      ShapeError: the dimension has another size, or is not a multiple of the number of positions.
      AxisError: the dimension is out of range.
      ArgumentError: the groups do not contain each position once.

    Example:
      >>> x = jnp.array([[1, 2], [10, 20]])
      >>> mw.vmap(lambda row: lax.psum_scatter(row, "i"), axis_name="i")(x).tolist()
      [11, 22]
    """
    names, sizes = _names(axis_name)
    groups = axis_groups("psum_scatter", names, sizes, axis_index_groups)
    shape = typeof(x).shape
    d = _dim("psum_scatter", "scatter_dimension", scatter_dimension, len(shape))
    _check_parts("psum_scatter", shape, d, groups.size if groups else math.prod(sizes), tiled)
    y = _part(groups.summed(x), d, groups) if groups else _done(ReduceScatter(names, sizes, d), x)
    return y if tiled else squeeze(y, [d])


# --- positions ----------------------------------------------------------------------------------------------
def axis_index(axis_name: Any) -> Any:
    """The position along the named axis, or along several, the first being major: an int32 scalar.

    Raises:
      UnboundAxisError: an axis is not in scope.

    Example:
      >>> mw.vmap(lambda v: v * lax.axis_index("i"), axis_name="i")(jnp.array([5, 6, 7])).tolist()
      [0, 6, 14]
    """
    return axis_index_of(*_names(axis_name))


@_each_leaf
def ppermute(x: Any, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """Send ``x`` from position ``source`` to position ``target`` for each pair in ``perm``; other positions get zeros.

    Positions along several axes are numbered in the order of the mesh, in whichever order the axes are named.

    Raises:
      UnboundAxisError: an axis is not in scope.
      ArgumentError: a position is out of range, or repeats as a source or target.

    Example:
      >>> shift = [(0, 1), (1, 2)]
      >>> mw.vmap(lambda v: lax.ppermute(v, "i", shift), axis_name="i")(jnp.array([5, 6, 7])).tolist()
      [0, 5, 6]
    """
    # As in JAX. The other collectives number positions in the order in which the axes are named.
    scope = list(STATE.axis_env)
    names, sizes = _names(tuple(sorted(_names(axis_name)[0], key=scope.index)))
    expected = "pairs of a source and a target"
    given = [as_integers("ppermute: a pair of perm", pair) for pair in as_tuple("ppermute: perm", expected, perm)]
    if any(len(pair) != 2 for pair in given):
        raise refused("ppermute: perm", expected, perm)
    pairs = tuple((source, target) for source, target in given)
    positions = math.prod(sizes)
    for side in zip(*pairs):
        if len(set(side)) != len(side) or not all(0 <= i < positions for i in side):
            raise ArgumentError(
                f"ppermute: perm {list(pairs)} must have each position at most once as a source and once as a target; "
                f"positions along {names} are 0 to {positions - 1}"
            )
    return Ppermute(names, sizes, pairs).bind(x)


# --- rearrangements -----------------------------------------------------------------------------------------
@_each_leaf
def all_gather(
    x: Any, axis_name: Any, *, axis_index_groups: Groups = None, axis: int = 0, tiled: bool = False, to: str = "varying"
) -> Any:
    """Gather ``x`` (a tree of arrays) from all positions along the named axes, or from each position's group.

    The arrays are stacked along a new dimension ``axis``, or with ``tiled`` concatenated along it. In a ``shard_map``
    the type of the result varies over the axes, since each device has its own cotangent for it: for that,
    ``to="reduced"`` is another word. With ``to="invarying"`` it does not vary, so that it can be returned from the
    region without its axes.

    Raises:
      UnboundAxisError: an axis is not in scope.
      AxisError: the dimension is out of range.
      ArgumentError: the groups do not contain each position once, or another ``to``.

    Example:
      >>> x = jnp.array([[1, 2], [3, 4]])
      >>> mw.vmap(lambda row: lax.all_gather(row, "i", axis=1), axis_name="i")(x)[0].tolist()
      [[1, 3], [2, 4]]
      >>> mw.vmap(lambda row: lax.all_gather(row, "i", tiled=True), axis_name="i")(x)[1].tolist()
      [1, 2, 3, 4]
    """
    names, sizes = _names(axis_name)
    same = _known_as(to, "all_gather") == "invarying"
    groups = axis_groups("all_gather", names, sizes, axis_index_groups)
    d = _dim("all_gather", "axis", axis, typeof(x).ndim + (not tiled))
    if groups:
        if same and STATE.checked.intersection(names):
            raise ArgumentError("all_gather: what groups gather differs between them; it cannot be to='invarying'")
        y = move_dim(groups.gathered(x), 0, d)
        return _merged(y, d) if tiled else y
    op = AllGatherInvariant if same else AllGather
    return _done(op(names, sizes, d), x if tiled else expand_dims(x, [d]))


def all_gather_invariant(x: Any, axis_name: Any, *, axis: int = 0, tiled: bool = False) -> Any:
    """:func:`all_gather` with a result that is known to be the same at all positions along the named axes.

    Example:
      >>> mesh = mw.make_mesh((2,), ("i",))
      >>> f = lambda x: lax.all_gather_invariant(x, "i", tiled=True)
      >>> mw.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P())(jnp.arange(4)).tolist()
      [0, 1, 2, 3]
    """
    return all_gather(x, axis_name, axis=axis, tiled=tiled, to="invarying")


# --- types --------------------------------------------------------------------------------------------------
_TO = ("varying", "invarying", "reduced", "unreduced")


def _known_as(to: str, where: str) -> str:
    if to not in _TO:
        raise ArgumentError(f"{where}: to must be one of {', '.join(map(repr, _TO))}, got {to!r}")
    return to


@_each_leaf
def pcast(x: Any, axis_name: Any, *, to: str) -> Any:
    """Cast ``x`` (a tree of arrays) to a type that varies over the named axes of a ``shard_map``.

    The cast is implicit where an invariant value meets a varying one. It is needed for the types of carries and
    results, and for per-device gradients: the gradient with respect to ``pcast(w, "x", to="varying")`` differs between
    devices, the one with respect to ``w`` is their sum.

    ``to="unreduced"`` says that what varies are terms of a sum that is still to be made, as which it is returned where
    ``out_specs`` has ``P(unreduced={"x"})``; ``to="reduced"`` of what is the same everywhere that its cotangents are
    the terms of such a sum. Both have the types of varying values here.

    Raises:
      UnboundAxisError: an axis is not in scope.
      ArgumentError: ``x`` has the type already, or it would say what no cast makes true: only a collective (psum, pmax,
        all_gather_invariant) makes values equal.

    Example:
      >>> mw.vmap(lambda v: lax.pcast(v, "i", to="varying") + 1, axis_name="i")(jnp.array([4, 6])).tolist()
      [5, 7]
    """
    names, _ = _names(axis_name)
    checked = STATE.checked.intersection(names)
    over = checked & axes_of(x)
    if _known_as(to, "pcast") != "varying" and checked:
        if to == "unreduced" and over == checked:
            return x
        if to == "reduced" and not over:
            return cast(x, checked)
        raise ArgumentError(
            f"pcast: to={to!r} would say of {typeof(x)} what no cast makes true; have devices agree with psum, pmean, "
            "pmax or all_gather_invariant"
        )
    if over:
        raise ArgumentError(f"pcast: {typeof(x)} varies over {', '.join(sorted(over))} already; leave the cast out")
    return cast(x, checked)


def pvary(x: Any, axis_name: Any) -> Any:
    """``pcast(x, axis_name, to="varying")``, under its former name.

    Example:
      >>> mw.vmap(lambda v: lax.pvary(v, "i") + 1, axis_name="i")(jnp.array([4, 6])).tolist()
      [5, 7]
    """
    return pcast(x, axis_name, to="varying")


@_each_leaf
def all_to_all(
    x: Any, axis_name: Any, split_axis: int, concat_axis: int, *, axis_index_groups: Groups = None, tiled: bool = False
) -> Any:
    """Send part ``j`` of ``x`` along ``split_axis`` to position ``j`` along the named axes, or of the group.

    With ``tiled``, the parts are tiles, and received parts are concatenated along ``concat_axis``. Without,
    ``split_axis`` has one index per position and is removed, and received parts are stacked along a new dimension
    ``concat_axis``.

    Raises as :func:`psum_scatter`.

    Example:
      >>> x = jnp.array([[1, 2], [3, 4]])
      >>> mw.vmap(lambda row: lax.all_to_all(row, "i", 0, 0), axis_name="i")(x).tolist()
      [[1, 3], [2, 4]]
    """
    names, sizes = _names(axis_name)
    groups = axis_groups("all_to_all", names, sizes, axis_index_groups)
    shape = typeof(x).shape
    s = _dim("all_to_all", "split_axis", split_axis, len(shape))
    c = _dim("all_to_all", "concat_axis", concat_axis, len(shape))
    _check_parts("all_to_all", shape, s, groups.size if groups else math.prod(sizes), tiled)
    if groups:
        mine = _part(groups.gathered(x), s + 1, groups)
        return _merged(move_dim(mine, 0, c), c) if tiled else move_dim(squeeze(mine, [s + 1]), 0, c)
    if not tiled:
        x = expand_dims(move_dim(x, s, 0), [c + 1])
        return squeeze(_done(AllToAll(names, sizes, 0, c + 1), x), [0])
    if s != c:
        return _done(AllToAll(names, sizes, s, c), x)
    x = expand_dims(x, [s])  # [1, D]: received parts are joined along the new dimension, which is then merged
    return _merged(_done(AllToAll(names, sizes, s + 1, s), x), s)


def ragged_all_to_all(
    operand: Any, output: Any, input_offsets: Any, send_sizes: Any, output_offsets: Any, recv_sizes: Any, *,
    axis_name: Any, axis_index_groups: Groups = None,
) -> Any:  # fmt: skip
    """Write rows from the ``operand [n, ...]`` of each position along the named axes into ``output [m, ...]``.

    Each position sends position ``i`` the ``send_sizes[i]`` rows from ``input_offsets[i]`` on, which position ``i``
    stores from row ``output_offsets[i]`` on; it must know their number as its ``recv_sizes`` for the sender. The four
    are ``[k]`` integers; if ``k`` is a multiple of the number of positions, each is sent that many slices. Slices must
    not write the same row. Accelerators send the slices alone; on CPUs, and in ``axis_index_groups``, the operands are
    gathered.

    Its derivative sums what has been made of a row that went to several positions: exchanges of rows that went to one
    take one exchange back, and others one for each slice.

    Raises:
      ShapeError: shapes do not fit each other or the number of positions.
      DTypeError: ``operand`` and ``output`` have different dtypes, or offsets and sizes are not integers.
      UnboundAxisError, ArgumentError: as :func:`all_to_all`.

    Example:
      >>> rows = jnp.array([[1, 2, 2], [3, 4, 0]])
      >>> tables = [[0, 1], [0, 1]], [[1, 2], [1, 1]], [[0, 0], [1, 2]], [[1, 1], [2, 1]]
      >>> f = lambda x, *tables: lax.ragged_all_to_all(x, jnp.zeros(4, int), *tables, axis_name="i")
      >>> mw.vmap(f, axis_name="i")(rows, *map(jnp.array, tables)).tolist()
      [[1, 3, 0, 0], [2, 2, 4, 0]]
    """
    tables = input_offsets, send_sizes, output_offsets, recv_sizes
    names, sizes = _names(axis_name)
    groups = axis_groups("ragged_all_to_all", names, sizes, axis_index_groups)
    op = RaggedAllToAll(names, sizes) if groups is None else RaggedAllToAll(("group",), (groups.size,))
    operands = with_tables(op, operand, output, tables)
    if groups is None:
        return op.bind(*operands) if names else op.expand(*operands)[0]

    def bind(part: Collective, x: Any) -> Any:
        if isinstance(part, AllGather):
            return all_gather(x, axis_name, tiled=True, axis_index_groups=axis_index_groups)
        return all_to_all(x, axis_name, 1, 0, tiled=True, axis_index_groups=axis_index_groups)

    return op.by_gather(bind, *operands)


def _check_parts(name: str, shape: Sequence[int], dim: int, parts: int, tiled: bool) -> None:
    if shape[dim] % parts if tiled else shape[dim] != parts:
        size = f"a multiple of {parts}" if tiled else f"{parts}"
        hint = "pad it" if tiled else "for tiles pass tiled=True"
        raise ShapeError(
            f"{name}: dimension {dim} of shape {tuple(shape)} must have size {size}, the number of positions; {hint}"
        )


def _part(x: Any, dim: int, groups: AxisGroups) -> Any:
    """The tile of ``dim`` for this position's place in its group."""
    rows = typeof(x).shape[dim] // groups.size
    start = mul(groups.place(), scalar_like(rows, groups.place()))
    return dynamic_slice_in_dim(x, start, rows, dim, allow_negative_indices=False)


def _merged(x: Any, dim: int) -> Any:
    """``x`` with dimensions ``dim`` and ``dim + 1`` merged."""
    shape = typeof(x).shape
    return reshape(x, (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :]))
