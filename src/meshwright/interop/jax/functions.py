"""``to_jax``: our functions as JAX's, by StableHLO, each with its derivative."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from meshwright.api.jit import jit
from meshwright.api.shape_dtype import ShapeDtypeStruct
from meshwright.core import dtypes
from meshwright.core.late import LateModule
from meshwright.errors import ArgumentTypeError, ImportProgramError
from meshwright.ir.jaxpr import Jaxpr, all_eqns
from meshwright.transforms.autodiff import vjp

Types = tuple[Any, ...]


def _exported(function: Callable[..., Any], types: Types) -> Any:
    """A flat function of ours at these types, as an exported program of JAX's."""
    ours = [ShapeDtypeStruct(t.shape, t.dtype) for t in types]
    lowered = jit(function).lower(*ours)
    _refuse_python(lowered.program.jaxpr.jaxpr)
    outs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in lowered.program.jaxpr.out_avals]

    def like(*args: Any) -> list[Any]:
        return [jax.numpy.zeros(o.shape, o.dtype) for o in outs]

    # A program of the same types, whose body is then ours.
    shell = jax_export.export(jax.jit(like, keep_unused=True))(*types)
    return dataclasses.replace(shell, mlir_module_serialized=_serialized(lowered.as_text()), _get_vjp=None)


def _refuse_python(jaxpr: Jaxpr) -> None:
    """JAX's runtime would call functions by numbers that only ours knows."""
    eqn = next((e for e in all_eqns(jaxpr) if e.op.in_python), None)
    if eqn is not None:
        raise ImportProgramError(
            f"to_jax: {eqn.op.name} at {eqn.source} calls a Python function, which an exported program cannot; return "
            "what it needs, and call it in JAX, by jax.pure_callback or jax.debug.callback"
        )


def _serialized(text: str) -> bytes:
    """StableHLO text as a portable artifact, of the version that JAX exports."""
    mlir = _EXPORT.mlir
    with mlir.make_ir_context():
        module = mlir.ir.Module.parse(text)
        return _EXPORT._module_to_bytecode(module)


_EXPORT: Any = LateModule("jax._src.export._export")


def _inexact(types: Sequence[Any]) -> list[int]:
    return [i for i, t in enumerate(types) if dtypes.is_inexact(np.dtype(t.dtype))]


def _with_derivative(function: Callable[..., Any], types: Types) -> Callable[..., Any]:
    """A flat function for JAX: forward and backward are programs of ours."""
    moving = _inexact(types)
    forward = _exported(function, types)
    outs = forward.out_avals

    def pulled_back(*values: Any) -> list[Any]:
        args, cotangents = values[: len(types)], list(values[len(types) :])

        def of_floats(*floats: Any) -> list[Any]:
            full = list(args)
            for i, x in zip(moving, floats):
                full[i] = x
            return [o for i, o in enumerate(function(*full)) if i in _inexact(outs)]

        return list(vjp(of_floats, *(args[i] for i in moving))[1](cotangents))

    @cache
    def backward() -> Any:
        inexact = [outs[i] for i in _inexact(outs)]
        return _exported(pulled_back, (*types, *(jax.ShapeDtypeStruct(o.shape, o.dtype) for o in inexact)))

    @jax.custom_vjp
    def call(*args: Any) -> Any:
        return forward.call(*args)

    def fwd(*args: Any) -> Any:
        return forward.call(*args), args

    def bwd(args: Any, cotangents: Any) -> Any:
        grads = iter(backward().call(*args, *(cotangents[i] for i in _inexact(outs))))
        return tuple(next(grads) if i in moving else np.zeros(t.shape, jax.dtypes.float0) for i, t in enumerate(types))

    call.defvjp(fwd, bwd)
    return call


def to_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """See :func:`meshwright.to_jax`."""
    if not callable(function):
        raise ArgumentTypeError(f"to_jax: expected a function, got {type(function).__name__}")
    converted: dict[Any, tuple[Any, list[Any]]] = {}

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        types = tuple(jax.ShapeDtypeStruct(np.shape(x), jax.numpy.result_type(x)) for x in leaves)
        key = tree, types
        if key not in converted:
            trees: list[Any] = []

            def flat(*values: Any) -> list[Any]:
                given, named = jax.tree_util.tree_unflatten(tree, values)
                outs, out_tree = jax.tree_util.tree_flatten(function(*given, **named))
                trees.append(out_tree)
                return outs

            converted[key] = _with_derivative(flat, types), trees
        call, trees = converted[key]
        return jax.tree_util.tree_unflatten(trees[0], call(*leaves))

    wrapped.__name__ = getattr(function, "__name__", "function")
    wrapped.__doc__ = function.__doc__
    return wrapped
