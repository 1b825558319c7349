"""Jacobians and Hessians (``vmap`` over a basis of tangents or cotangents), ``closure_convert``, ``named_call``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from meshwright.core import dtypes, pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.naming import wraps
from meshwright.core.signature import described
from meshwright.core.source import name_scope
from meshwright.errors import ArgumentTypeError, DifferentiationError
from meshwright.ir.state import set_trace
from meshwright.ir.tracing import JaxprTrace, Tracer, eval_jaxpr, typeof
from meshwright.ops.shape.rearrange import reshape
from meshwright.transforms.autodiff import argument_numbers, function_of, jvp, lift_constants, vjp
from meshwright.transforms.vmap import vmap
from meshwright.transforms.wrapped import name_of, require_callable, transformed


def _selected(argnums: int | Sequence[int], args: Sequence[Any], where: str) -> tuple[tuple[int, ...], Any]:
    """The argument numbers, and what is differentiated: one argument, or a tuple of them."""
    numbers = argument_numbers(argnums, len(args), where)
    return numbers, args[numbers[0]] if isinstance(argnums, int) else tuple(args[i] for i in numbers)


def _check(where: str, side: str, tree: Any, holomorphic: bool) -> None:
    for path, x in zip(pytree.paths(tree), pytree.leaves(tree)):
        dtype = typeof(x).dtype
        # Reverse mode supports complex inputs of real functions; forward mode would need two tangents for each element.
        allowed = dtypes.is_float(dtype) or (where == "jacrev" and side == "input" and dtypes.is_complex(dtype))
        if dtypes.is_complex(dtype) if holomorphic else allowed:
            continue
        kind = "complex" if holomorphic else "real floating-point"
        remedy = "" if holomorphic else "; convert with .astype(float), or pass holomorphic=True for complex functions"
        raise DifferentiationError(f"{where} needs {kind} {side}s, got {dtype} ({side}{path}){remedy}")


def _basis(avals: Sequence[ShapedArray]) -> list[np.ndarray]:
    """The standard basis of the space that all ``avals`` span together: its vectors stacked, one array per aval."""
    total = sum(a.size for a in avals)
    basis, at = [], 0
    for a in avals:
        basis.append(np.eye(total, a.size, -at, dtype=a.dtype).reshape(total, *a.shape))
        at += a.size
    return basis


def _cut(x: Any, axis: int, avals: Sequence[ShapedArray]) -> list[Any]:
    """``x`` split along ``axis``, which runs over the elements of all ``avals``; one part per aval, in its shape."""
    shape = typeof(x).shape
    axis %= len(shape)
    parts, at = [], 0
    for a in avals:
        index = (slice(None),) * axis + (slice(at, at + prod(a.shape)),)
        parts.append(reshape(x[index], (*shape[:axis], *a.shape, *shape[axis + 1 :])))
        at += a.size
    return parts


def jacfwd(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """The Jacobian of ``fun``, column by column in forward mode; efficient if there are more outputs than inputs.

    Each leaf of the output becomes a tree with the structure of the differentiated arguments. Its arrays have the
    dimensions of the output followed by those of the input. With ``has_aux``, returns ``(jacobian, aux)``.

    Raises (when called):
      DifferentiationError: an input is not real floating-point (with ``holomorphic``: an input or output is not
        complex).

    Example:
      >>> mw.jacfwd(lambda x: x * x)(mnp.array([1.0, 2.0]))
      Array([[2., 0.],
             [0., 4.]], dtype=float32)
    """
    require_callable(fun, "jacfwd")

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        numbers, value = _selected(argnums, args, "jacfwd")
        _check("jacfwd", "input", value, holomorphic)
        call = function_of(fun, numbers, args, kwargs)
        leaves, treedef = pytree.flatten(value)
        avals = [typeof(x) for x in leaves]
        primals = tuple(args[i] for i in numbers)
        arguments = pytree.structure(primals)

        def push(*tangents: Any) -> Any:
            result = jvp(call, primals, pytree.unflatten(arguments, tangents), has_aux=has_aux)
            if holomorphic:
                _check("jacfwd", "output", result[0], holomorphic)
            return result[1:]

        out = vmap(push, out_axes=(-1, None) if has_aux else (-1,))(*_basis(avals))
        jacobian = pytree.map(lambda y: pytree.unflatten(treedef, _cut(y, -1, avals)), out[0])
        return (jacobian, out[1]) if has_aux else jacobian

    return transformed(wrapped, fun, "jacfwd", argnums, has_aux, holomorphic)


def jacrev(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """The Jacobian of ``fun``, row by row in reverse mode; efficient if there are more inputs than outputs.

    The result is arranged as by :func:`jacfwd`.

    Raises (when called):
      DifferentiationError: an input is not floating-point, or an output is not real floating-point (with
        ``holomorphic``: one of either is not complex).

    Example:
      >>> mw.jacrev(lambda x: (x * x).sum())(mnp.array([1.0, 2.0]))
      Array([2., 4.], dtype=float32)
    """
    require_callable(fun, "jacrev")

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        numbers, value = _selected(argnums, args, "jacrev")
        if not allow_int:
            _check("jacrev", "input", value, holomorphic)
        call = function_of(fun, numbers, args, kwargs)
        out, pull, *aux = vjp(call, *(args[i] for i in numbers), has_aux=has_aux)
        _check("jacrev", "output", out, holomorphic)
        leaves, out_tree = pytree.flatten(out)
        avals = [typeof(y) for y in leaves]
        rows = vmap(lambda *cts: pull(pytree.unflatten(out_tree, cts)))(*_basis(avals))
        rows = rows[0] if isinstance(argnums, int) else rows
        flat, in_tree = pytree.flatten(rows)
        columns = zip(*(_cut(x, 0, avals) for x in flat))
        jacobian = pytree.unflatten(out_tree, [pytree.unflatten(in_tree, column) for column in columns])
        return (jacobian, aux[0]) if has_aux else jacobian

    return transformed(wrapped, fun, "jacrev", argnums, has_aux, holomorphic, allow_int)


def hessian(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """The Hessian (second derivatives) of ``fun``, computed as forward over reverse mode.

    Example:
      >>> mw.hessian(lambda x: (x**3).sum())(mnp.array([1.0, 2.0]))
      Array([[ 6.,  0.],
             [ 0., 12.]], dtype=float32)
    """
    return jacfwd(jacrev(fun, argnums, has_aux, holomorphic), argnums, has_aux, holomorphic)


# --- functions of functions ---------------------------------------------------------------------------------
def closure_convert(fun: Callable[..., Any], *example_args: Any) -> tuple[Callable[..., Any], list[Any]]:
    """``(converted, consts)``: ``fun`` with the values it closes over turned into additional arguments.

    ``converted(*args, *consts)`` equals ``fun(*args)`` for arguments with the types of the examples. ``consts`` are the
    floating-point tracers that ``fun`` closes over, which may be differentiated.

    Raises (when ``converted`` is called):
      ArgumentTypeError: the structure of the arguments differs from the examples'.

    Example:
      >>> def at_four(w):
      ...     f, consts = mw.closure_convert(lambda x: w * x, 0.0)
      ...     return f(4.0, *consts)
      >>> float(mw.grad(at_four)(3.0))
      4.0
    """
    require_callable(fun, "closure_convert")
    flat, in_tree = pytree.flatten(example_args)
    trace = JaxprTrace()
    tracers = [trace.new_arg(typeof(x)) for x in flat]
    with trace:
        with set_trace(trace):
            out = fun(*pytree.unflatten(in_tree, tracers))
        leaves, out_tree = pytree.flatten(out)
        jaxpr, every = lift_constants(trace.finish(leaves, name_of(fun)))
    moved = [isinstance(c, Tracer) and dtypes.is_inexact(c.dtype) for c in every]

    def converted(*args: Any) -> Any:
        n = len(args) - sum(moved)
        got, got_tree = pytree.flatten(args[:n])
        if got_tree != in_tree:
            raise ArgumentTypeError(
                f"closure_convert of {described(fun)}: arguments have structure {pytree.show(got_tree)}, the examples "
                f"had {pytree.show(in_tree)}"
            )
        given = iter(args[n:])
        consts = [next(given) if m else c for c, m in zip(every, moved)]
        return pytree.unflatten(out_tree, eval_jaxpr(jaxpr, (), *consts, *got))

    return converted, [c for c, m in zip(every, moved) if m]


def named_call(fun: Callable[..., Any], *, name: str | None = None) -> Callable[..., Any]:
    """``fun``, whose ops appear under its name (or ``name``) in lowered programs and profiles.

    Raises:
      ArgumentTypeError: ``fun`` is not a function.

    Example:
      >>> head = mw.named_call(lambda x: x + 1, name="head")
      >>> "head" in mw.jit(head).lower(1).as_text(debug_info=True)
      True
    """
    require_callable(fun, "named_call")

    @wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with name_scope(name or name_of(fun)):
            return fun(*args, **kwargs)

    return wrapped
