"""Programs and weights from elsewhere: ``interop.torch``, ``interop.jax``, ``interop.safetensors``.

Each needs a library that Meshwright itself does not, and is imported when first asked for.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

_PARTS = ("torch", "jax", "safetensors")


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"meshwright.interop.{name}")
    raise AttributeError(f"meshwright.interop has no {name!r}; there are {', '.join(_PARTS)}")


def __dir__() -> list[str]:
    return [*globals(), *_PARTS]


def from_torch(
    module: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *, dynamic: Any = None,
    share: bool | None = None,
) -> Any:  # fmt: skip
    """A PyTorch module as a pure function of its parameters, which is differentiated, batched and partitioned.

    ``model = from_torch(module, (x,))`` has trees ``model.params`` and ``model.buffers`` under torch's names;
    ``model(model.params, x)`` is the module's output, and ``model.apply(params, buffers, x, key=key)`` a pair of it and
    the new buffers. A module in train mode normalizes by the batch, and draws its dropout from ``key``. Modules on the
    meta device give types for parameters, with which ``jit(model).lower(...)`` partitions without any memory.

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
      RuleError: an op that is not known here, with its line; ``autograd.Function``.
      ArgumentTypeError: not a module, or arguments that are no tensors.
      MissingExtraError: torch is not installed.
    """
    return import_module("meshwright.interop.torch").from_torch(module, args, kwargs, dynamic=dynamic, share=share)
