"""``to_jax``: functions of ours as functions of JAX, which calls their StableHLO.

A converted function is an exported program wrapped in ``jax.custom_vjp`` and ``custom_vmap``. Its derivative and its
batched form are traced by us on demand, and converted in the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from meshwright.api.jit import jit
from meshwright.api.shape_dtype import ShapeDtypeStruct
from meshwright.api.stages import Lowered
from meshwright.core import dtypes
from meshwright.core.key_types import is_key
from meshwright.core.late import LateModule
from meshwright.core.options import enable_x64
from meshwright.errors import ArgumentTypeError, ImportProgramError
from meshwright.ir.jaxpr import Jaxpr, all_eqns
from meshwright.ops.sharding.constraint import Reshard
from meshwright.ops.sharding.manual import ShardMap
from meshwright.ops.sharding.memory_put import MemoryPut
from meshwright.ops.sharding.mesh_cast import MeshCast
from meshwright.random import key_data, key_impl, wrap_key_data
from meshwright.transforms.autodiff import vjp
from meshwright.transforms.vmap import vmap

Types = tuple[Any, ...]


def _exported(function: Callable[..., Any], types: Types) -> Any:
    """Lower ``function``, which takes and returns flat lists of arrays, for these types to a ``jax.export.Exported``.

    Raises:
      ImportProgramError: it has Python callbacks.
    """
    with enable_x64(jax.dtypes.canonicalize_dtype(np.float64) == np.float64):
        ours = [ShapeDtypeStruct(t.shape, t.dtype, weak_type=t.weak_type) for t in types]
        lowered = Lowered(jit(function, keep_unused=True).program_at(*ours))
        text = lowered.as_text()
    jaxpr = lowered.program.jaxpr
    _refuse_python(jaxpr.jaxpr)
    outs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in jaxpr.out_avals]

    def like(*args: Any) -> list[Any]:
        return [_weak(jax.numpy.zeros(o.shape, o.dtype), o.weak_type) for o in outs]

    # An exported program of the same types, whose module is then replaced by ours.
    shell = jax_export.export(jax.jit(like, keep_unused=True))(*types)
    # A program with regions is for the devices of their mesh; shardings alone are hints on any number of devices.
    regions = (e.op for e in all_eqns(jaxpr.jaxpr) if isinstance(e.op, ShardMap))
    devices = max((op.mesh.size for op in regions), default=1)
    module, name = _serialized(text), lowered.program.name
    return dataclasses.replace(shell, fun_name=name, mlir_module_serialized=module, nr_devices=devices, _get_vjp=None)


def _weak(x: Any, weak_type: bool) -> Any:
    return _LAX._convert_element_type(x, weak_type=True) if weak_type else x


#: ops that move arrays by Python, but are operations of a program
_PLACING = MemoryPut, MeshCast, Reshard


def _refuse_python(jaxpr: Jaxpr) -> None:
    """Raise for Python callbacks: the module refers to them by numbers that JAX's runtime does not know."""
    eqn = next((e for e in all_eqns(jaxpr) if e.op.in_python and not isinstance(e.op, _PLACING)), None)
    if eqn is not None:
        raise ImportProgramError(
            f"to_jax: {eqn.op.name} at {eqn.source} calls a Python function, which an exported program cannot; return "
            "what it needs, and call it in JAX, by jax.pure_callback or jax.debug.callback"
        )


def _serialized(text: str) -> bytes:
    """StableHLO text as a portable artifact (bytecode) of the version that JAX exports."""
    mlir = _EXPORT.mlir
    with mlir.make_ir_context():
        module = mlir.ir.Module.parse(text)
        return _EXPORT._module_to_bytecode(module)


_EXPORT: Any = LateModule("jax._src.export._export")
_LAX: Any = LateModule("jax._src.lax.lax")


def _inexact(types: Sequence[Any]) -> list[int]:
    return [i for i, t in enumerate(types) if dtypes.is_inexact(np.dtype(t.dtype))]


def _for_jax(function: Callable[..., Any], types: Types) -> Callable[..., Any]:
    """A function of JAX for ``function``, which takes and returns flat lists of arrays, at these types.

    Its value, its derivative and its batched form are programs of ours.
    """
    exported = _exported(function, types)
    outs = exported.out_avals
    computed = _batchable(function, exported.call)

    @cache
    def backward() -> Callable[..., Any]:
        cotangents = (jax.ShapeDtypeStruct(outs[i].shape, outs[i].dtype) for i in _inexact(outs))
        return _for_jax(partial(_pulled_back, function, _inexact(types), len(types)), (*types, *cotangents))

    @jax.custom_vjp
    def call(*args: Any) -> Any:
        return computed(*args)

    def fwd(*args: Any) -> Any:
        return call(*args), args  # ``call`` and not ``computed``, so that derivatives of higher order work

    def bwd(args: Any, cotangents: Any) -> Any:
        moving = _inexact(types)
        grads = iter(backward()(*args, *(cotangents[i] for i in _inexact(outs))))
        return tuple(next(grads) if i in moving else np.zeros(t.shape, jax.dtypes.float0) for i, t in enumerate(types))

    call.defvjp(fwd, bwd)
    return call


def _pulled_back(function: Callable[..., Any], moving: Sequence[int], count: int, *values: Any) -> list[Any]:
    """The cotangents of the arguments at the indices ``moving``.

    ``values`` are the ``count`` arguments of ``function``, followed by the cotangents of its inexact results.
    """
    args, cotangents = values[:count], list(values[count:])

    def of_floats(*floats: Any) -> list[Any]:
        full = list(args)
        for i, x in zip(moving, floats):
            full[i] = x
        outs = list(function(*full))
        return [outs[i] for i in _inexact(outs)]

    return list(vjp(of_floats, *(args[i] for i in moving))[1](cotangents))


def _batchable(function: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """``call`` with a ``custom_vmap`` rule that converts our ``vmap`` of ``function``."""
    batched = jax.custom_batching.custom_vmap(lambda *args: call(*args))

    @batched.def_vmap
    def rule(axis_size: int, in_batched: Sequence[bool], *args: Any) -> Any:
        axes = tuple(0 if mapped else None for mapped in in_batched)
        each = _for_jax(vmap(function, in_axes=axes, axis_size=axis_size), tuple(map(_type, args)))
        outs = each(*args)
        return outs, [True] * len(outs)

    return batched


def _type(x: Any) -> Any:
    aval = jax.typeof(x)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def to_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """See :func:`meshwright.to_jax`."""
    if not callable(function):
        raise ArgumentTypeError(f"to_jax: expected a function, got {type(function).__name__}")
    converted: dict[Any, tuple[Any, list[Any]]] = {}

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        static = tuple((i, x) for i, x in enumerate(leaves) if not _is_numeric(x))
        given = [x for x in leaves if _is_numeric(x)]
        keys = tuple(str(jax.random.key_impl(x)) if _is_key(x) else None for x in given)
        plain = [jax.random.key_data(x) if impl else x for x, impl in zip(given, keys)]
        types = tuple(map(_type, plain))
        place = tree, static, keys, types
        if place not in converted:
            trees: list[Any] = []

            def flat(*values: Any) -> list[Any]:
                typed = [wrap_key_data(x, impl=impl) if impl else x for x, impl in zip(values, keys)]
                for i, x in static:
                    typed.insert(i, x)
                args, named = jax.tree_util.tree_unflatten(tree, typed)
                outs, out_tree = jax.tree_util.tree_flatten(function(*args, **named))
                trees.append((out_tree, [str(key_impl(y)) if _is_our_key(y) else None for y in outs]))
                return [key_data(y) if _is_our_key(y) else y for y in outs]

            flat.__name__ = wrapped.__name__
            converted[place] = _for_jax(flat, types), trees
        call, trees = converted[place]
        out_tree, impls = trees[0]
        outs = [jax.random.wrap_key_data(y, impl=impl) if impl else y for y, impl in zip(call(*plain), impls)]
        return jax.tree_util.tree_unflatten(out_tree, outs)

    wrapped.__name__ = getattr(function, "__name__", "function")
    wrapped.__doc__ = function.__doc__
    return wrapped


def _is_numeric(x: Any) -> bool:
    """Whether an argument is an array or a number. Other arguments are static."""
    return hasattr(x, "dtype") or isinstance(x, (bool, int, float, complex))


def _is_key(x: Any) -> bool:
    return hasattr(x, "dtype") and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def _is_our_key(x: Any) -> bool:
    return hasattr(x, "dtype") and is_key(x.dtype)
