"""Programs and weights from elsewhere: ``interop.torch``, ``interop.jax``, ``interop.safetensors``.

Each needs a library that Meshwright itself does not, and is imported when first asked for.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from meshwright.core.late import late_attributes, submodules

__getattr__, __dir__ = late_attributes(__name__, {}, submodules(__name__, "torch", "jax", "safetensors"))


def from_torch(
    module: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *, dynamic: Any = None,
    share: bool | None = None,
) -> Any:  # fmt: skip
    """A PyTorch module as a pure function of its parameters, which is differentiated, batched and partitioned.

    ``model = from_torch(module, (x,))`` has trees ``model.params`` and ``model.buffers`` under torch's names;
    ``model(model.params, x)`` is the module's output, and ``model.apply(params, buffers, x, key=key)`` a pair of it and
    the new buffers. A module in train mode normalizes by the batch, and draws its dropout from ``key``. Modules on the
    meta device give types for parameters, with which ``jit(model).lower(...)`` partitions without any memory.
    Gradients by complex parameters are the conjugates of torch's, as JAX has them.

    Args:
      module: any ``torch.nn.Module``; what it is when converted (train or eval) it stays.
      args: example arguments, torch's tensors or arrays: the program is that of their shapes and dtypes.
      kwargs: example keyword arguments.
      dynamic: dimensions that may vary: True (all), or as torch.export's ``dynamic_shapes``, where a word names a
        dimension: ``({0: "batch"},)``.
      share: whether parameters may have the module's memory, so that what torch writes to them shows. By default they
        do unless the module is in train mode. Buffers that the module writes to never do.

    Raises:
      ImportProgramError: torch cannot export the module: shapes or control flow depend on values.
      RuleError: an op that is not known here, with its line; an ``autograd.Function`` whose backward cannot
        be traced.
      ArgumentTypeError: not a module, or arguments that are no tensors.
      MissingExtraError: torch is not installed.

    Example:
      >>> model = mw.from_torch(torch.nn.Linear(3, 2), (torch.ones(4, 3),))  # doctest: +SKIP
      >>> mw.grad(lambda params, x: model(params, x).sum())(model.params, x)  # doctest: +SKIP
    """
    return import_module("meshwright.interop.torch").from_torch(module, args, kwargs, dynamic=dynamic, share=share)


def from_jax(f: Any, *args: Any, **kwargs: Any) -> Any:
    """A JAX program as one of ours: run, partitioned, explained, with the function's trees and arguments' names.

    Args:
      f: a function or jitted function, a ``Lowered``, an MLIR module of StableHLO or its text, a
        ``jax.export.Exported`` or its serialized bytes; a named tuple of functions, as optax's transformations are,
        becomes one of functions of ours.
      args: for a function, arguments at whose types it is traced (``jax.ShapeDtypeStruct`` will do); without them it is
        traced when called.
      kwargs: keyword arguments of the same kind.

    Returns:
      a program: ``program(*args)`` gives the function's output with our arrays, ``program.partition(mesh)`` what each
      device runs, also called with the function's arguments, but for static ones. Shardings and unused arguments are
      kept; arrays of ours that are passed for donated arguments are given away, as in JAX (not of an export, nor are
      arrays of JAX's ever); Python functions that it calls are called. Of a text or
      module, whose trees are not known, an :class:`ImportedProgram`. What is made of a function is jitted,
      differentiated, batched and partitioned like ours, within ours too. (After
      ``meshwright.interop.jax.register_arrays()`` JAX's own functions take our arrays, and so do transformations of
      optax; what we trace goes through here.)

    Raises:
      ImportProgramError: a program that cannot be read.
      ArgumentTypeError: none of these.
      MissingExtraError: jax is not installed.

    Example:
      >>> program = mw.from_jax(jax.jit(lambda p, x: p["w"] @ x), {"w": jnp.ones((4, 4))}, jnp.ones(4))
      >>> program.partition(num_devices=2)({"w": jnp.ones((4, 4))}, jnp.ones(4))
      Array([4., 4., 4., 4.], dtype=float32)
    """
    return import_module("meshwright.interop.jax").from_jax(f, *args, **kwargs)


def to_jax(function: Any) -> Any:
    """A function of ours as one of JAX's, which ``jax.jit`` and ``jax.grad`` take; any pytrees of arrays go in and out.

    It is traced once for each type of arguments, and is a StableHLO program to JAX, as its derivatives (of any order,
    in reverse mode) and its batched forms under ``jax.vmap`` are. Arguments that are neither arrays nor numbers are
    static. Forward mode does not look into it: use :func:`meshwright.jvp` before.

    Raises:
      ArgumentTypeError: not a function.
      ImportProgramError: it calls Python functions, by callbacks.
      MissingExtraError: jax is not installed.

    Example:
      >>> f = mw.to_jax(lambda x: mnp.sin(x).sum())
      >>> jax.grad(f)(jnp.zeros(2))
      Array([1., 1.], dtype=float32)
    """
    return import_module("meshwright.interop.jax").to_jax(function)
