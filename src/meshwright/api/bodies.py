"""Tracing the functions that control flow takes into closed bodies.

Values that a function closes over become operands. A function object called again with the same types is not traced
again, so a loop in op-by-op code compiles once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import numpy as np

from meshwright.core import pytree
from meshwright.core.avals import ShapedArray, Typed
from meshwright.core.caches import on_clear
from meshwright.core.config import config
from meshwright.core.depth import room
from meshwright.core.dtypes import promote
from meshwright.core.expected import as_integer
from meshwright.core.records import dataclass
from meshwright.core.signature import described
from meshwright.core.source import own_scope
from meshwright.core.weak import WeakKeys
from meshwright.errors import ArgumentError, ArgumentTypeError, ShapeError
from meshwright.ir.jaxpr import ClosedJaxpr, Var
from meshwright.ir.leaks import ends_traces, watched
from meshwright.ir.state import scope, set_trace
from meshwright.ir.tracing import JaxprTrace, Tracer, array_leaves, typeof
from meshwright.ops.control.regions import arranged
from meshwright.ops.elementwise.table import convert
from meshwright.sharding import get_mesh
from meshwright.transforms.autodiff import lift_constants
from meshwright.transforms.wrapped import name_of


@dataclass(frozen=True)
class Body:
    """A traced function of flat values: its jaxpr takes ``consts`` before the values."""

    jaxpr: ClosedJaxpr
    consts: tuple[Any, ...]
    out_tree: Any
    out_avals: tuple[ShapedArray, ...]


_bodies: WeakKeys[Any, dict[Any, Body]] = WeakKeys()
_wrapped: WeakKeys[Any, dict[Any, Any]] = WeakKeys()
on_clear(_bodies.clear)


def trace_body(fun: Callable[..., Any], in_tree: Any, avals: Sequence[ShapedArray], what: str) -> Body:
    """Trace ``fun(*args)``, where ``avals`` are the types of the leaves of ``args``.

    Raises:
      ArgumentTypeError: ``fun`` returned something other than arrays; ``what`` names the function that takes it.
    """
    key = (in_tree, tuple(avals), scope(), get_mesh(), config.tracing)
    try:
        traced = _bodies.setdefault(fun, {})
    except TypeError:  # not hashable, or does not support weak references: traced at every call
        traced = {}
    if key not in traced:
        body = _trace(fun, in_tree, avals, what)
        if any(isinstance(c, Tracer) for c in body.consts):
            return body
        traced[key] = body
    return traced[key]


@ends_traces
def _trace(fun: Callable[..., Any], in_tree: Any, avals: Sequence[ShapedArray], what: str) -> Body:
    trace = watched(JaxprTrace())
    args = [trace.new_arg(a) for a in avals]
    with trace:
        with room(what), set_trace(trace), own_scope():
            out = fun(*pytree.unflatten(in_tree, args))
        leaves, out_tree = array_leaves(out, lambda path: f"{what}: {described(fun)} returned output{path}, no array")
        out_avals = tuple(typeof(x) for x in leaves)
        jaxpr, consts = lift_constants(trace.finish(leaves, name_of(fun)))
    return Body(jaxpr, tuple(consts), out_tree, out_avals)


def share_constants(bodies: Sequence[Body]) -> tuple[list[ClosedJaxpr], list[Any]]:
    """The jaxprs with the constants of all bodies as leading parameters, and those constants."""
    every = {id(c): c for body in bodies for c in body.consts}
    jaxprs = []
    for body in bodies:
        n = len(body.consts)
        inner = body.jaxpr.jaxpr
        own = {id(c): v for c, v in zip(body.consts, inner.invars)}
        params = [own.get(key) or Var(typeof(c)) for key, c in every.items()]
        jaxprs.append(arranged(body.jaxpr, [*params, *inner.invars[n:]]))
    return jaxprs, list(every.values())


def adapted(fun: Callable[..., Any], adapt: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[..., Any]:
    """``adapt(fun)``: the same object as long as ``fun`` lives, so that its traces are found again."""
    try:
        entries = _wrapped.setdefault(fun, {})
        alive = ref(fun)
    except TypeError:
        return adapt(fun)
    if adapt not in entries:
        # Through a weak reference: the entry must not keep ``fun`` alive.
        entries[adapt] = adapt(lambda *args: alive()(*args))  # type: ignore[misc]
    return entries[adapt]


# --- types of what is carried -------------------------------------------------------------------------------
def promoted(leaves: Sequence[Any], outs: Sequence[ShapedArray]) -> list[Any] | None:
    """Weakly typed ``leaves`` (Python numbers) converted to the output dtypes; None if there is nothing to convert.

    As in JAX, a number that already has the output dtype stays weakly typed in the body.
    """
    if len(leaves) != len(outs):
        return None
    new, changed = [], False
    for x, out in zip(leaves, outs):
        aval = typeof(x)
        if aval.weak_type and out.dtype != aval.dtype:
            dtype, _ = promote([(aval.dtype, True), (out.dtype, out.weak_type)])
            x = convert(x, dtype) if isinstance(x, Typed) else np.asarray(x, dtype)
            changed = True
        new.append(x)
    return new if changed else None


def check_carry(what: str, fun: Any, value: Any, out_tree: Any, out_avals: Sequence[ShapedArray]) -> None:
    """Raise unless the carry that ``fun`` returns has the structure and types of the one it takes.

    Raises:
      ArgumentTypeError: the structure differs. ShapeError: a type differs.
    """
    in_tree = pytree.structure(value)
    if in_tree != out_tree:
        before = set(pytree.paths(value))
        after = set(pytree.paths(pytree.outline(out_tree)))
        parts = [
            f"only {side}: {', '.join('carry' + p for p in sorted(paths))}"
            for side, paths in (("going in", before - after), ("coming out", after - before))
            if paths
        ]
        raise ArgumentTypeError(
            f"{what}: the carry must come out of the body {described(fun)} with the structure it goes in with, but it "
            f"goes in as {pytree.show(in_tree)} and comes out as {pytree.show(out_tree)}"
            f" ({'; '.join(parts) or pytree.difference(in_tree, out_tree, exact=True)})"
        )
    wrong = []
    for path, x, got in zip(pytree.paths(value), pytree.leaves(value), out_avals):
        want = typeof(x)
        if (want.shape, want.dtype, want.explicit) != (got.shape, got.dtype, got.explicit):
            pairs = (("shapes", want.shape, got.shape), ("dtypes", want.dtype, got.dtype))
            differ = " and ".join(name for name, a, b in pairs if a != b) or "shardings"
            remedy = "" if want.dtype == got.dtype else f"; convert it with .astype({want.dtype.name!r})"
            if differ == "shardings":
                remedy = "; bring it to the sharding it goes in with by reshard, or start with that it comes out with"
            wrong.append(f"carry{path} goes in as {want} and comes out as {got}: {differ} differ{remedy}")
    if wrong:
        raise ShapeError(
            f"{what}: the carry must come out of the body {described(fun)} with the types it goes in with. "
            + ". ".join(wrong)
        )


def _steps(what: str, length: Any) -> int:
    """A number of steps; integral floats are accepted, since quotients are floats."""
    whole = isinstance(length, (float, np.floating)) and float(length).is_integer()
    return as_integer(f"{what}: length", int(length) if whole else length)


def leading_size(what: str, xs: Any, length: int | None) -> int:
    """The common leading dimension of the leaves of ``xs``.

    Raises:
      ArgumentError: the leaves have none, or it is not ``length``.
    """
    sizes: dict[int, str] = {} if length is None else {_steps(what, length): "length"}
    for path, x in zip(pytree.paths(xs), pytree.leaves(xs)):
        aval = typeof(x)
        if not aval.shape:
            raise ArgumentError(f"{what}: xs{path} is a scalar; every input needs a leading dimension to go over")
        sizes.setdefault(aval.shape[0], f"xs{path} of shape {aval.shape}")
    if not sizes:
        raise ArgumentError(f"{what}: there are no inputs to take the number of steps from; give length")
    if len(sizes) > 1:
        raise ArgumentError(
            f"{what}: inputs must have one leading dimension, got "
            + "; ".join(f"{n}: {where}" for n, where in sizes.items())
        )
    return next(iter(sizes))
