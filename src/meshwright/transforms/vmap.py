"""``vmap``: vectorizes a function over a batch axis of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, SupportsIndex

import numpy as np

from meshwright.core import pytree
from meshwright.core.dtypes import float0
from meshwright.core.expected import as_tuple
from meshwright.core.float0 import is_float0
from meshwright.core.naming import wraps
from meshwright.core.records import dataclass
from meshwright.core.signature import described, leaf_names
from meshwright.core.source import name_scope
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError, RuleError, ShapeError
from meshwright.ir.leaks import ends_traces, watched
from meshwright.ir.op import BatchAxis
from meshwright.ir.state import STATE, extend_axis_env, set_trace
from meshwright.ir.tracing import check_alive, typeof
from meshwright.ops.shape.broadcast_reduce import put_batch_dim
from meshwright.transforms.batching import BatchTrace
from meshwright.transforms.references import REFERENCES
from meshwright.transforms.vmappable import Held, held, is_spec
from meshwright.transforms.wrapped import name_of, require_callable, transformed


def _is_none(x: Any) -> bool:
    return x is None


def flat_axes(axes: Any, tree: Any, what: str) -> list[int | None]:
    """One axis (or None) per leaf of ``tree``, from a tree prefix of ints and None."""
    # Here None is a leaf that means "not batched"; elsewhere it is an empty container.
    per_leaf = pytree.broadcast_prefix(axes, tree, what, _is_none)
    for axis in per_leaf:
        if axis is not None and (isinstance(axis, bool) or not (is_spec(axis) or isinstance(axis, int))):
            raise ArgumentTypeError(
                f"{what} must hold ints and None, got {axis!r}; give the mapped axis of each argument"
            )
    return per_leaf


def vmap(
    fun: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Hashable | None = None,
    axis_size: int | None = None,
    spmd_axis_name: str | Sequence[str] | None = None,
) -> Callable[..., Any]:
    """``fun`` mapped over an axis of its arguments.

    ``in_axes`` (an int, None, or a tree prefix of the positional arguments with ints and None as leaves) gives the
    mapped axis of each argument; None passes the argument unmapped, whatever it is. ``out_axes`` gives the position of
    the mapped axis in the results. Keyword arguments are mapped over axis 0. With ``axis_name``, collectives in ``fun``
    may use the axis by that name. ``spmd_axis_name`` names the mesh axes over which the mapped axis is sharded; they
    are added to sharding constraints and ``shard_map`` calls in ``fun``.

    Raises (when called):
      ArgumentTypeError: ``in_axes`` or ``out_axes`` hold something other than ints and None;
        for ``in_axes`` of another type at once.
      ArgumentError: the axes do not match the arguments or results; or nothing is mapped and ``axis_size`` is missing.
      ShapeError: mapped axes have different sizes.

    Example:
      >>> rows, vector = mnp.array([[0, 1, 2], [3, 4, 5]]), mnp.array([1, 10, 100])
      >>> mw.vmap(lambda row, v: row @ v, in_axes=(0, None))(rows, vector)
      Array([210, 543], dtype=int32)
    """
    require_callable(fun, "vmap")
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    if not (in_axes is None or isinstance(in_axes, (tuple, SupportsIndex))):
        raise ArgumentTypeError(
            f"vmap: in_axes must be an int, None, or a tuple with an entry for each positional argument, "
            f"got {in_axes!r}; for an argument that is a tree, put its axes into a tuple"
        )
    spmd = as_tuple("vmap: spmd_axis_name", "names of mesh axes", spmd_axis_name or ())

    def with_results(fun: Callable[..., Any], out_axes: Any) -> Callable[..., Any]:
        return vmap(fun, in_axes, out_axes, axis_name, axis_size, spmd_axis_name)

    @wraps(fun)
    @ends_traces
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if isinstance(in_axes, tuple) and len(in_axes) != len(args):
            raise ArgumentError(
                f"vmap: in_axes has {counted(len(in_axes), 'entry', 'entries')}, {name_of(fun)} was called with "
                f"{counted(len(args), 'positional argument')}; give one entry an argument, or a single int"
            )
        args, kwargs = held(args), held(kwargs)
        flat, treedef = pytree.flatten((args, kwargs))
        call = MappedCall("vmap", fun, args, kwargs)
        axes = [*flat_axes(in_axes, args, "vmap in_axes"), *([0] * len(pytree.leaves(kwargs)))]
        for i in _not_arrays(flat, axes):
            again = REFERENCES.value.mapped(with_results, fun, args, kwargs, axes, out_axes)
            if again is not None:
                return again()
            call.check(i, flat[i])
        axes = [call.axis(x, a, i) for i, (x, a) in enumerate(zip(flat, axes))]
        size = call.size(flat, axes, axis_size)
        trace = watched(BatchTrace(STATE.trace, BatchAxis(size, axis_name, spmd)))  # type: ignore[arg-type]
        env: dict[Any, int] = {axis_name: size} if axis_name is not None else {}
        with trace:
            with extend_axis_env(env), set_trace(trace), name_scope(f"vmap({name_of(fun)})"):
                new_args, new_kwargs = pytree.unflatten(treedef, [_element(trace, x, a) for x, a in zip(flat, axes)])
                out = held(fun(*new_args, **new_kwargs))
            leaves, out_tree = pytree.flatten(out)
            targets = flat_axes(out_axes, out, "vmap out_axes")
            results = [
                _result(trace, lambda i=i: f"vmap of {described(fun)}: result{pytree.paths(out)[i]}", x, t)  # type: ignore[misc]
                for i, (x, t) in enumerate(zip(leaves, targets))
            ]
        return pytree.unflatten(out_tree, results)

    return transformed(wrapped, fun, "vmap", in_axes, out_axes, axis_name, axis_size, spmd)


def _not_arrays(flat: Sequence[Any], axes: Sequence[Any]) -> Iterator[int]:
    """Which leaves are to be mapped, and are neither arrays nor of registered classes."""
    for i, (x, axis) in enumerate(zip(flat, axes)):
        check_alive(x)
        if isinstance(x, Held):
            x.require_spec(axis)
        elif axis is not None:  # what is not mapped need not be an array
            try:
                typeof(x)
            except ArgumentTypeError:
                yield i


def _element(trace: BatchTrace, x: Any, axis: Any) -> Any:
    """A tracer for one element of ``x`` along ``axis``; for ``float0``, which is not traced, an array of its shape."""
    if isinstance(x, Held):
        if axis is None:
            return x.value
        return x.handlers.to_element(partial(_part, trace), _no_index, x.value, axis)
    if axis is not None and is_float0(x):
        return np.zeros(np.delete(x.shape, axis), float0)
    return trace.wrap(x, axis)


def _no_index() -> NoReturn:
    raise RuleError("vmap: values of registered classes have no index here; pass numpy.arange of the size, mapped")


def _part(trace: BatchTrace, x: Any, axis: Any) -> Any:
    """One element of a part of a value of a registered class, whose parts are trees of such values and arrays."""
    tree = held(x)
    return pytree.map(lambda x: _element(trace, x, axis), tree)


def _result(trace: BatchTrace, name: Callable[[], str], x: Any, target: Any) -> Any:
    """The batch of the results ``x``, at ``target``."""
    if isinstance(x, Held):
        x.require_spec(target)
        whole = partial(_whole, trace, name)
        return x.value if target is None else x.handlers.from_element(whole, trace.axis.size, x.value, target)
    val, dim = trace.unwrap(x)
    with set_trace(trace.parent):
        return _place(name, val, dim, target, trace.axis.size)


def _whole(trace: BatchTrace, name: Callable[[], str], size: int, x: Any, axis: Any) -> Any:
    """The batch of a part of a value of a registered class."""
    return pytree.map(lambda x: _result(trace, name, x, axis), held(x))


def _shape(x: Any) -> tuple[int, ...]:
    """The shape of an argument; of a value of a registered class without one, ()."""
    return getattr(x.value, "shape", ()) if isinstance(x, Held) else typeof(x).shape


@dataclass(frozen=True)
class MappedCall:
    """A call of ``fun`` mapped by ``what`` (``vmap`` or ``pmap``); holds the argument checks and their messages."""

    what: str
    fun: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def check(self, number: int, leaf: Any) -> None:
        """Raise unless ``leaf`` is an array.

        Raises:
          ArgumentTypeError: names the argument.
        """
        try:
            typeof(leaf)
        except ArgumentTypeError as error:
            name = leaf_names(self.fun, self.args, self.kwargs)[number]
            raise ArgumentTypeError(f"{self.what} of {described(self.fun)}: argument {name}: {error}") from None

    def argument(self, number: int) -> str:
        """The name and shape of an argument leaf, for messages."""
        leaf = pytree.leaves((self.args, self.kwargs))[number]
        return f"argument {leaf_names(self.fun, self.args, self.kwargs)[number]} of shape {_shape(leaf)}"

    def axis(self, x: Any, axis: int | None, number: int) -> int | None:
        """The mapped axis of a leaf as a non-negative number.

        Raises:
          ArgumentError: the axis is out of range.
        """
        if axis is None or isinstance(x, Held):
            return axis
        ndim = typeof(x).ndim
        if not -ndim <= axis < ndim:
            which = f"name one of {-ndim} to {ndim - 1}, or use" if ndim else "a scalar has none: use"
            raise ArgumentError(
                f"{self.what}: in_axes names axis {axis} of {self.argument(number)}; {which} None to pass it unmapped"
            )
        return axis % ndim

    def size(self, flat: Sequence[Any], axes: Sequence[int | None], given: int | None) -> int:
        """The size of the mapped axes.

        Raises:
          ArgumentError: nothing is mapped. ShapeError: the sizes differ; each argument is named.
        """
        sizes: dict[int, list[str]] = {} if given is None else {given: ["axis_size"]}
        for i, (x, a) in enumerate(zip(flat, axes)):
            shape = _shape(x) if isinstance(a, int) else ()
            if isinstance(a, int) and -len(shape) <= a < len(shape):
                sizes.setdefault(shape[a], []).append(f"axis {a} of {self.argument(i)}")
        if not sizes:
            raise ArgumentError(
                f"{self.what} of {name_of(self.fun)}: no argument is mapped; give axis_size, or an axis in in_axes"
            )
        if len(sizes) > 1:
            listed = "; ".join(f"{size}: {', '.join(which)}" for size, which in sizes.items())
            raise ShapeError(
                f"{self.what} of {name_of(self.fun)}: mapped axes must have one size, got {listed}; map other axes "
                "(in_axes), or pass an argument unmapped (None)"
            )
        return next(iter(sizes))


def _place(name: Callable[[], str], x: Any, dim: int | None, target: int | None, size: int) -> Any:
    try:
        ndim = typeof(x).ndim + (dim is None)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{name()} is no array: {error}") from None
    if target is None:
        if dim is not None:
            raise ArgumentError(
                f"{name()}: out_axes is None for a result that differs along the mapped axis; give the axis it is to "
                "stand at"
            )
        return x
    if not -ndim <= target < ndim:
        raise ArgumentError(f"{name()}: out_axes names axis {target} of a result with {counted(ndim, 'dimension')}")
    if is_float0(x):
        shape = x.shape
        return np.zeros((*shape[: target % ndim], size, *shape[target % ndim :]), float0)
    return put_batch_dim(x, dim, target % ndim, size)
