"""Control flow as functions: ``cond``, ``switch``, ``while_loop``, ``fori_loop``, ``scan``, ``map`` and
``associative_scan``, with the semantics of ``jax.lax``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.api.bodies import (
    Body,
    adapted,
    check_carry,
    leading_size,
    promoted,
    share_constants,
    trace_body,
)
from meshwright.api.carried_references import in_branches, in_scan, in_while
from meshwright.api.in_python import known_value, scan_in_python, while_in_python
from meshwright.core import dtypes, pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.core.expected import as_tuple
from meshwright.core.records import dataclass
from meshwright.core.signature import described
from meshwright.core.static import static_index
from meshwright.core.tracebacks import boundary
from meshwright.errors import ArgumentError, ArgumentTypeError, AxisError, ShapeError, ShardingTypeError
from meshwright.ir.tracing import Tracer, typeof
from meshwright.ops.control.cond import Cond, Platforms
from meshwright.ops.control.platform import PlatformIndex
from meshwright.ops.control.scan import Scan
from meshwright.ops.control.while_loop import While
from meshwright.ops.elementwise.clamp import clamp
from meshwright.ops.elementwise.table import convert, ne, scalar_like
from meshwright.ops.reduce.associative import AssociativeScan, body_of, prefixes
from meshwright.ops.shape.rearrange import reshape
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim
from meshwright.transforms.vmap import vmap
from meshwright.transforms.wrapped import require_callable

_MISSING: Any = object()


# --- branches -----------------------------------------------------------------------------------------------
@boundary
def cond(
    pred: Any,
    true_fun: Callable[..., Any],
    false_fun: Callable[..., Any],
    *operands: Any,
    operand: Any = _MISSING,
) -> Any:
    """``true_fun(*operands)`` if the scalar ``pred`` is true (nonzero), ``false_fun(*operands)`` otherwise.

    Only the branch taken runs, except under ``vmap`` over ``pred``, where both run and the results are selected. Both
    must return the same structure with the same types.

    Raises:
      ArgumentTypeError: ``pred`` is not a scalar, or the branches return different structures.
      ShapeError: the branches return different types.

    Example:
      >>> lax.cond(True, lambda x: x + 1, lambda x: x - 1, 3)
      Array(4, dtype=int32, weak_type=True)
    """
    if len(operands) == 2 and not callable(true_fun) and callable(false_fun) and callable(operands[1]):
        # JAX's first form: cond(pred, true_operand, true_fun, false_operand, false_fun)
        of_true, of_false = false_fun, operands[1]
        return cond(pred, lambda x, _: of_true(x), lambda _, y: of_false(y), true_fun, operands[0])
    require_callable(true_fun, "cond true_fun")
    require_callable(false_fun, "cond false_fun")
    if operand is not _MISSING:
        operands = (operand,)
    aval = typeof(pred)
    if aval.shape != ():
        raise ArgumentTypeError(f"cond: the predicate must be a scalar, got {aval}; reduce it with all() or any()")
    if dtypes.is_complex(aval.dtype):
        raise ArgumentTypeError(f"cond: the predicate must be a bool or a real number, got {aval}; compare it")
    if not dtypes.is_bool(aval.dtype):
        pred = ne(pred, scalar_like(0, pred))
    known = known_value(pred)
    if known is not None:
        return (true_fun if known else false_fun)(*operands)
    return _branches("cond", convert(pred, dtypes.int32), (false_fun, true_fun), ("false_fun", "true_fun"), operands)


@boundary
def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any, operand: Any = _MISSING) -> Any:
    """``branches[index](*operands)``, with ``index`` clamped to the range of branches.

    ``operand`` is an alternative way to pass a single operand.

    Raises:
      ArgumentTypeError: ``index`` is not an integer scalar, or the branches return different structures.
      ArgumentError: there are no branches.
      ShapeError: the branches return different types.

    Example:
      >>> lax.switch(1, [lambda x: x + 1, lambda x: x * 10], 3)
      Array(30, dtype=int32, weak_type=True)
    """
    if operand is not _MISSING:
        if operands:
            raise ArgumentError("switch: give operands by position or as operand, not both")
        operands = (operand,)
    branches = as_tuple("switch: branches", "a sequence of functions", branches)
    for i, branch in enumerate(branches):
        require_callable(branch, f"switch branch {i}")
    aval = typeof(index)
    if aval.shape != () or not dtypes.is_integer(aval.dtype):
        raise ArgumentTypeError(f"switch: the index must be an integer scalar, got {aval}")
    if not branches:
        raise ArgumentError("switch: expected at least one branch, got none")
    if len(branches) == 1:
        return branches[0](*operands)
    last = len(branches) - 1
    if dtypes.is_unsigned(aval.dtype) or dtypes.bit_width(aval.dtype) > 32:
        index = clamp(scalar_like(0, index), index, scalar_like(min(last, int(dtypes.max_value(aval.dtype))), index))
    number = clamp(np.int32(0), convert(index, dtypes.int32), np.int32(last))
    known = known_value(number)
    if known is not None:
        return branches[int(known)](*operands)
    return _branches("switch", number, branches, [f"branch {i}" for i in range(len(branches))], operands)


def by_platform(functions: Sequence[Callable[..., Any]], platforms: Platforms, operands: tuple[Any, ...]) -> Any:
    """The function for the platform, applied to operands; ``platforms`` names those of each function.

    Raises:
      ArgumentError: none is for the platform, where that is known already.
      ArgumentTypeError, ShapeError: the functions return different structures or types.
    """
    index = PlatformIndex(platforms).bind()
    known = known_value(index)
    if known is not None:
        return functions[int(known)](*operands)
    names = [f"function for {' and '.join(p) if p else 'other platforms'}" for p in platforms]
    return _branches("platform_dependent", index, functions, names, operands, platforms)


@in_branches
def _branches(
    what: str,
    index: Any,
    functions: Sequence[Callable[..., Any]],
    names: Sequence[str],
    operands: tuple[Any, ...],
    platforms: Platforms | None = None,
) -> Any:
    leaves, in_tree = pytree.flatten(operands)
    avals = [typeof(x) for x in leaves]
    # the branch traced first, with which the others are compared: true_fun of cond, or the first
    main = len(functions) - 1 if what == "cond" else 0
    order = [main, *(i for i in range(len(functions)) if i != main)]
    traced = {i: trace_body(functions[i], in_tree, avals, what) for i in order}
    first, bodies = traced[main], [traced[i] for i in range(len(functions))]
    full_names = [f"{name} {described(f)}" for name, f in zip(names, functions)]
    for name, body in zip(full_names, bodies):
        _check_branch(what, full_names[main], first, name, body)
    jaxprs, consts = share_constants(bodies)
    return pytree.unflatten(first.out_tree, Cond(tuple(jaxprs), platforms).bind(index, *consts, *leaves))


_REMEDIES = {"dtypes": "; convert one with .astype", "shardings": "; bring one to the other's with reshard"}


def _check_branch(what: str, first_name: str, first: Body, name: str, body: Body) -> None:
    if body.out_tree != first.out_tree:
        raise ArgumentTypeError(
            f"{what}: branches must return one structure, but {first_name} returns {pytree.show(first.out_tree)} and "
            f"{name} returns {pytree.show(body.out_tree)} "
            f"({pytree.difference(first.out_tree, body.out_tree, exact=True)})"
        )
    paths = pytree.paths(pytree.outline(first.out_tree))
    for path, want, got in zip(paths, first.out_avals, body.out_avals):
        if (want.shape, want.dtype, want.explicit) != (got.shape, got.dtype, got.explicit):
            pairs = (("shapes", want.shape, got.shape), ("dtypes", want.dtype, got.dtype))
            differ = next((name for name, a, b in pairs if a != b), "shardings")
            raise (ShardingTypeError if differ == "shardings" else ShapeError)(
                f"{what}: branches must return equal types, but output{path} is {want} from {first_name} and {got} "
                f"from {name}: {differ} differ" + _REMEDIES.get(differ, "")
            )


# --- loops --------------------------------------------------------------------------------------------------
@boundary
def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any) -> Any:
    """``while cond_fun(val): val = body_fun(val)`` from ``init_val`` (a tree of arrays of fixed types).

    Only forward-mode differentiable; for reverse mode use ``scan``, or ``fori_loop`` with static bounds.

    Raises:
      ArgumentTypeError: the predicate is not a bool scalar, or the structure of the carry changes.
      ShapeError: the types of the carry change.

    Example:
      >>> lax.while_loop(lambda x: x < 100, lambda x: x * 3, 1)
      Array(243, dtype=int32, weak_type=True)
    """
    require_callable(cond_fun, "while_loop cond_fun")
    require_callable(body_fun, "while_loop body_fun")
    return _while(_Loop("while_loop", body_fun), cond_fun, body_fun, init_val)


@dataclass(frozen=True)
class _Loop:
    """The function the user called, its body, and the number of carried values that precede the user's carry."""

    name: str
    body: Callable[..., Any]
    hidden: int = 0

    def check(self, value: Any, out_tree: Any, out_avals: Sequence[Any]) -> None:
        """Raise unless the user's part of the carry keeps its structure and types."""
        n = self.hidden
        if n:
            value, out_tree, out_avals = value[n], out_tree.children()[n], out_avals[n:]
        check_carry(self.name, self.body, value, out_tree, out_avals)

    def with_hidden(self, number: int) -> _Loop:
        return _Loop(self.name, self.body, self.hidden + number)


@in_while
def _while(loop: _Loop, cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any) -> Any:
    if config.disable_jit:
        over, init_val = while_in_python(cond_fun, body_fun, init_val)
        if over:
            return init_val
    what = loop.name
    in_tree = pytree.structure((init_val,))
    body = _trace_carry(what, body_fun, (init_val,))
    new = promoted(pytree.leaves(init_val), body.out_avals) if body.out_tree == pytree.structure(init_val) else None
    if new is not None:
        (init_val,) = pytree.unflatten(in_tree, new)
        body = _trace_carry(what, body_fun, (init_val,))
    loop.check(init_val, body.out_tree, body.out_avals)
    leaves = pytree.leaves(init_val)
    pred = trace_body(cond_fun, in_tree, [typeof(x) for x in leaves], what)
    expected = f"{what}: cond_fun must return a bool scalar, it returned"
    if len(pred.out_avals) != 1 or pred.out_tree != pytree.structure(0):
        raise ArgumentTypeError(f"{expected} {pytree.show(pred.out_tree)} ({described(cond_fun)})")
    if pred.out_avals[0].shape != () or not dtypes.is_bool(pred.out_avals[0].dtype):
        raise ArgumentTypeError(f"{expected} {pred.out_avals[0]} ({described(cond_fun)})")
    op = While(body.jaxpr, len(body.consts), pred.jaxpr, len(pred.consts))
    return pytree.unflatten(body.out_tree, op.bind(*pred.consts, *body.consts, *leaves))


def _trace_carry(what: str, fun: Callable[..., Any], args: Any) -> Body:
    leaves, in_tree = pytree.flatten(args)
    return trace_body(fun, in_tree, [typeof(x) for x in leaves], what)


@boundary
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
) -> tuple[Any, Any]:
    """Loop over the leading dimension of ``xs`` with ``carry, y = f(carry, x)``; return the final carry and the ``y``,
    stacked along a new leading dimension.

    ``xs`` is a tree of arrays, or None together with ``length``. ``reverse`` goes from the last index to the first (the
    ``y`` of index ``i`` is still at ``i``). ``unroll`` is the number of steps per iteration of the compiled loop; True
    unrolls it fully. ``_split_transpose``, which changes no results, is accepted and ignored.

    Raises:
      ArgumentTypeError: ``f`` does not return a pair, or the structure of the carry changes.
      ShapeError: the types of the carry change.
      ArgumentError: inputs have different leading dimensions, or are scalars.

    Example:
      >>> lax.scan(lambda total, x: (total + x, total), 0, mnp.arange(4))
      (Array(6, dtype=int32), Array([0, 0, 1, 3], dtype=int32, weak_type=True))
    """
    require_callable(f, "scan")
    return _scan(_Loop("scan", f), f, init, xs, length, reverse, unroll)


@in_scan
def _scan(
    loop: _Loop, f: Callable[..., Any], init: Any, xs: Any, length: int | None, reverse: bool, unroll: int | bool
) -> tuple[Any, Any]:
    steps = leading_size("scan", xs, length)
    rounds = _unroll(loop.name, unroll, steps)
    if config.disable_jit and steps:
        return scan_in_python(f, init, xs, steps, bool(reverse))
    xs_leaves = pytree.leaves(xs)
    slices = [_sliced(typeof(x), loop.name, i) for i, x in enumerate(xs_leaves)]
    body, carry_tree, carry_avals = _trace_scan(loop.name, f, init, xs, slices)
    new = promoted(pytree.leaves(init), carry_avals) if carry_tree == pytree.structure(init) else None
    if new is not None:
        init = pytree.unflatten(pytree.structure(init), new)
        body, carry_tree, carry_avals = _trace_scan(loop.name, f, init, xs, slices)
    loop.check(init, carry_tree, carry_avals)
    leaves = pytree.leaves(init)
    op = Scan(body.jaxpr, steps, len(leaves), len(body.consts), bool(reverse), rounds)
    outs = op.bind(*body.consts, *leaves, *xs_leaves)
    return pytree.unflatten(body.out_tree, outs)


def _sliced(aval: Any, what: str, number: int) -> Any:
    """The type of one slice of an input.

    Raises:
      ShardingTypeError: explicit axes split the scanned dimension.
    """
    axes = aval.explicit.spec.axes(0) if aval.explicit is not None else ()
    if axes:
        raise ShardingTypeError(
            f"{what}: it goes over the leading dimension of its inputs, and that of input {number}, {aval}, is split "
            f"over {', '.join(axes)}; reshard it so that another dimension is split, or none"
        )
    return aval.without_dim(0)


def _trace_scan(
    what: str, f: Callable[..., Any], init: Any, xs: Any, slices: Sequence[ShapedArray]
) -> tuple[Body, Any, tuple[Any, ...]]:
    """The body traced at types of slices of ``xs``, and the structure and types of the carry it returns."""
    avals = [*(typeof(x) for x in pytree.leaves(init)), *slices]
    body = trace_body(f, pytree.structure((init, xs)), avals, what)
    kind, children = body.out_tree.type, body.out_tree.children()
    if kind is None or not issubclass(kind, (tuple, list)) or len(children) != 2:
        raise ArgumentTypeError(
            f"scan: {described(f)} must return a pair (carry, y), it returned {pytree.show(body.out_tree)}; return "
            "(carry, None) if there is nothing to stack"
        )
    return body, children[0], body.out_avals[: children[0].num_leaves]


def _unroll(what: str, unroll: int | bool, steps: int) -> int:
    if isinstance(unroll, bool):
        return max(steps, 1) if unroll else 1
    try:
        number = operator.index(unroll)
    except TypeError:
        raise ArgumentTypeError(f"{what}: unroll must be an int or a bool, got {unroll!r}") from None
    if number < 0:
        raise ArgumentError(f"{what}: unroll must not be negative, got {number}")
    return min(max(number, 1), max(steps, 1))


@boundary
def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init_val: Any, *, unroll: int | bool | None = None
) -> Any:
    """``for i in range(lower, upper): val = body_fun(i, val)``.

    With bounds known at trace time it is a ``scan``, differentiable in both modes; with traced bounds it is a
    ``while_loop``.

    Raises:
      ArgumentTypeError: a bound is not an integer scalar.
      ArgumentError: ``unroll`` with traced bounds.

    Example:
      >>> lax.fori_loop(0, 5, lambda i, total: total + i, 0)
      Array(10, dtype=int32, weak_type=True)
    """
    require_callable(body_fun, "fori_loop")
    for bound, name in ((lower, "lower"), (upper, "upper")):
        aval = typeof(bound)
        if aval.shape != () or not dtypes.is_integer(aval.dtype):
            raise ArgumentTypeError(f"fori_loop: {name} must be an integer scalar, got {aval}")
    kinds = [typeof(b) for b in (lower, upper)]
    dtype, _ = dtypes.promote([(a.dtype, a.weak_type) for a in kinds])
    known = not isinstance(lower, Tracer) and not isinstance(upper, Tracer)
    # With static bounds the index is weakly typed, as a Python integer is, so that the carry keeps its dtype.
    first = convert(lower, dtypes.default_int(), True) if known else convert(lower, dtype, kinds[0].weak_type)
    if known:
        steps = max(int(upper) - int(lower), 0)
        start = (first, init_val)
        rounds = 1 if unroll is None else unroll
        loop = _Loop("fori_loop", body_fun, hidden=1)
        return _scan(loop, adapted(body_fun, _counting), start, None, steps, False, rounds)[0][1]
    if unroll is not None and unroll is not False and unroll != 1:
        raise ArgumentError("fori_loop: unroll needs bounds that are known when the loop is traced (Python integers)")
    carry = (first, convert(upper, dtype), init_val)
    return _while(_Loop("fori_loop", body_fun, hidden=2), _below, adapted(body_fun, _counting_up), carry)[2]


def _counting(body_fun: Callable[..., Any]) -> Callable[..., Any]:
    def step(carry: Any, _: Any) -> Any:
        number, val = carry
        return (number + 1, body_fun(number, val)), None

    step.__name__ = "fori_loop"
    return step


def _below(carry: Any) -> Any:
    return carry[0] < carry[1]


def _counting_up(body_fun: Callable[..., Any]) -> Callable[..., Any]:
    def step(carry: Any) -> Any:
        number, upper, val = carry
        return number + 1, upper, body_fun(number, val)

    step.__name__ = "fori_loop"
    return step


@boundary
def map_(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """Apply ``f`` to each index of the leading dimension of ``xs``, one after the other, or ``batch_size`` at a time
    with ``vmap``.

    Example:
      >>> lax.map(lambda x: x * x, mnp.arange(4))
      Array([0, 1, 4, 9], dtype=int32)
    """
    require_callable(f, "map")
    if batch_size is None:
        return scan(adapted(f, _mapping), None, xs)[1]
    size = leading_size("map", xs, None)
    if batch_size < 1:
        raise ArgumentError(f"map: batch_size must be at least 1, got {batch_size}")
    batches, rest = divmod(size, batch_size)
    parts = []
    if batches:
        first = pytree.map(lambda x: _batches(x, batches, batch_size), xs)
        out = scan(adapted(f, _mapping_batches), None, first)[1]
        parts.append(pytree.map(lambda y: reshape(y, (batches * batch_size, *typeof(y).shape[2:])), out))
    if rest or not size:
        parts.append(vmap(f)(pytree.map(lambda x: slice_in_dim(x, batches * batch_size, size), xs)))
    return parts[0] if len(parts) == 1 else pytree.map(lambda a, b: concatenate([a, b], 0), *parts)


map_.__name__ = "map"


def _batches(x: Any, batches: int, size: int) -> Any:
    return reshape(slice_in_dim(x, 0, batches * size), (batches, size, *typeof(x).shape[1:]))


def _mapping(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda carry, x: (carry, f(x))


def _mapping_batches(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda carry, x: (carry, vmap(f)(x))


# --- parallel prefix ----------------------------------------------------------------------------------------
@boundary
def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """Combine all prefixes of ``elems`` along ``axis`` with the associative ``fn``, in logarithmic depth (Blelloch
    1990).

    ``fn(a, b)`` takes and returns trees like ``elems`` and must accept any size of ``axis``. ``reverse`` combines
    suffixes instead, from the last element on; ``a`` is then the combination of the later elements.

    Raises:
      AxisError: a leaf has no such axis. ArgumentError: sizes along the axis differ, or ``fn`` changes the structure.

    Example:
      >>> lax.associative_scan(lambda a, b: a * b, mnp.arange(1, 6))
      Array([  1,   2,   6,  24, 120], dtype=int32)
    """
    require_callable(fn, "associative_scan")
    leaves, treedef = pytree.flatten(elems)
    if not leaves:
        return elems
    axis = static_index(axis, "associative_scan", "axis")
    for x, path in zip(leaves, pytree.paths(elems)):
        if not -typeof(x).ndim <= axis < typeof(x).ndim:
            raise AxisError(f"associative_scan: axis {axis} is out of range for elems{path} of shape {typeof(x).shape}")
    dims = [axis % typeof(x).ndim for x in leaves]
    if len({typeof(x).shape[d] for x, d in zip(leaves, dims)}) != 1:
        shapes = ", ".join(str(typeof(x).shape) for x in leaves)
        raise ArgumentError(f"associative_scan: leaves must have one size along axis {axis}, got shapes {shapes}")

    def combine(a: list[Any], b: list[Any]) -> list[Any]:
        out, out_tree = pytree.flatten(fn(pytree.unflatten(treedef, a), pytree.unflatten(treedef, b)))
        if out_tree != treedef:
            raise ArgumentError(
                f"associative_scan: {described(fn)} returned structure {pytree.show(out_tree)}, its arguments have "
                f"{pytree.show(treedef)}"
            )
        return out

    if len(set(dims)) == 1 and (body := body_of(combine, [typeof(x) for x in leaves])) is not None:
        return pytree.unflatten(treedef, AssociativeScan(body, dims[0], bool(reverse)).bind(*leaves))
    return pytree.unflatten(treedef, prefixes(combine, leaves, dims, bool(reverse)))
