"""Programs and weights of other libraries: ``interop.torch``, ``interop.jax``, ``interop.safetensors``.

Each module needs an optional library and is imported on first use.
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
    """Convert a PyTorch module to a pure function of its parameters, to be differentiated, batched and partitioned.

    Let ``model = from_torch(module, (x,))``. Then ``model.params`` and ``model.buffers`` are pytrees with torch's
    names, ``model(model.params, x)`` is the module's output, and ``model.apply(params, buffers, x, key=key)`` returns
    the output and the updated buffers. A module in training mode normalizes with batch statistics and draws dropout
    masks from ``key``. A module on the meta device has types in place of parameters, which is enough for
    ``jit(model).lower(...)`` and partitioning. Gradients of complex parameters follow JAX's convention: they are the
    conjugates of torch's.

    Args:
      module: any ``torch.nn.Module``. The mode (train or eval) that it has when converted is fixed.
      args: example arguments, torch tensors or arrays. The program is traced for their shapes and dtypes, and with
        gradients enabled. A module that asks whether a tensor has a gradient (``x.requires_grad``) is told what it is
        told with these arguments; where that is no, derivatives by what the tensor comes from are refused.
      kwargs: example keyword arguments.
      dynamic: dimensions whose sizes may vary: True for all, or torch.export's ``dynamic_shapes``, in which strings
        name dimensions too: ``({0: "batch"},)``.
      share: whether parameters share memory with the module's, so that in-place updates by torch are visible. By
        default they do unless the module is in training mode. Buffers that the module writes to are always copied.

    Raises:
      ImportProgramError: torch cannot export the module, because shapes or control flow depend on values.
      RuleError: an op has no conversion rule (the error names its line), or the backward of an ``autograd.Function``
        cannot be traced.
      ArgumentTypeError: ``module`` is not a module, or an argument is not a tensor or array.
      MissingExtraError: torch is not installed.

    Example:
      >>> model = mw.from_torch(torch.nn.Linear(3, 2), (torch.ones(4, 3),))  # doctest: +SKIP
      >>> mw.grad(lambda params, x: model(params, x).sum())(model.params, x)  # doctest: +SKIP
    """
    return import_module("meshwright.interop.torch").from_torch(module, args, kwargs, dynamic=dynamic, share=share)


def from_jax(f: Any, *args: Any, **kwargs: Any) -> Any:
    """Convert a JAX function or program to one that Meshwright runs, partitions and explains.

    The function's pytrees, argument names, shardings and unused arguments are kept, and its Python callbacks are
    called. A converted function can be jitted, differentiated, batched and partitioned like any other, also inside of
    functions that Meshwright traces. To pass arrays to JAX's functions outside of a trace, see
    ``meshwright.interop.jax.register_arrays()``.

    Args:
      f: a function or jitted function, a ``Lowered``, an MLIR module of StableHLO or its text, a
        ``jax.export.Exported`` or its serialized bytes. A named tuple of functions, such as a gradient transformation
        of optax, becomes one of converted functions.
      args: for a function, arguments for whose types it is traced (``jax.ShapeDtypeStruct`` is enough). Without any it
        is traced when called.
      kwargs: keyword arguments of the same kind.

    Returns:
      a program. ``program(*args)`` is the function's output with Meshwright's arrays; ``program.partition(mesh)`` is
      the per-device program. Both are called with the function's arguments except static ones. Donated arguments are
      donated if they are Meshwright's arrays; those of JAX, and those of an exported program, are not. A text or module
      has no pytrees, and gives an :class:`ImportedProgram`.

    Raises:
      ImportProgramError: the program cannot be read.
      ArgumentTypeError: ``f`` is none of the above.
      MissingExtraError: jax is not installed.

    Example:
      >>> program = mw.from_jax(jax.jit(lambda p, x: p["w"] @ x), {"w": jnp.ones((4, 4))}, jnp.ones(4))
      >>> program.partition(num_devices=2)({"w": jnp.ones((4, 4))}, jnp.ones(4))
      Array([4., 4., 4., 4.], dtype=float32)
    """
    return import_module("meshwright.interop.jax").from_jax(f, *args, **kwargs)


def to_jax(function: Any) -> Any:
    """Convert a function that Meshwright traces to one that ``jax.jit``, ``jax.grad`` and ``jax.vmap`` can transform.

    It takes and returns pytrees of arrays. It is traced once for each combination of argument types, and JAX sees a
    StableHLO program. Its derivatives (reverse mode, of any order) and its batched form under ``jax.vmap`` are such
    programs too. Arguments that are neither arrays nor numbers are static. JAX's forward mode is not supported: apply
    :func:`meshwright.jvp` before converting.

    Raises:
      ArgumentTypeError: ``function`` is not callable.
      ImportProgramError: the function has Python callbacks.
      MissingExtraError: jax is not installed.

    Example:
      >>> f = mw.to_jax(lambda x: mnp.sin(x).sum())
      >>> jax.grad(f)(jnp.zeros(2))
      Array([1., 1.], dtype=float32)
    """
    return import_module("meshwright.interop.jax").to_jax(function)
