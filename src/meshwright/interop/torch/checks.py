"""Whether arrays fit what a module was exported for: shapes, with those that may vary, and dtypes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from meshwright.core import dtypes
from meshwright.core.avals import Typed
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from meshwright.interop.torch import trees
from meshwright.interop.torch.dtypes import array_dtype
from meshwright.interop.torch.promotion import cast
from meshwright.interop.torch.tensors import instead
from meshwright.ir.tracing import typeof
from meshwright.numpy.creation import asarray


class Sizes:
    """The sizes that a program's symbols have in one call."""

    def __init__(self, ranges: Mapping[Any, Any]) -> None:
        self.ranges = ranges
        self.values: dict[Any, int] = {}

    def fits(self, expected: Any, size: int) -> bool:
        """Whether a dimension of ``size`` is what the export assumed."""
        if isinstance(expected, int):
            return expected == size
        expression = expected.node.expr
        if expression.is_Symbol and expression not in self.values:
            limits = self.ranges.get(expression)
            self.values[expression] = size
            return limits is None or limits.lower <= size <= limits.upper
        known = expression.subs(self.values)
        return not known.is_number or int(known) == size

    def shown(self, shape: Sequence[Any]) -> str:
        """A shape with the names of dimensions that may vary, and how far these may."""

        def dimension(size: Any) -> str:
            limits = None if isinstance(size, int) else self.ranges.get(size.node.expr)
            if limits is None or not limits.upper.is_Integer:
                return str(size)
            return f"{size} ({limits.lower} to {limits.upper})"

        return "(" + ", ".join(map(dimension, shape)) + ("," if len(shape) == 1 else "") + ")"


def fitted(x: Any, meta: torch.Tensor, name: str, sizes: Sizes) -> Any:
    """``x`` as an array of the type that the graph's input has; integers of another width are converted.

    Raises:
      ShapeError, DTypeError, ArgumentTypeError: it does not fit; says what to do.
    """
    try:
        x = x if isinstance(x, Typed) else asarray(x)
    except (ArgumentTypeError, TypeError) as error:
        raise ArgumentTypeError(f"argument {name}: {error}") from None
    aval = typeof(x)
    shape = tuple(meta.shape)
    if len(shape) != aval.ndim or not all(sizes.fits(w, s) for w, s in zip(shape, aval.shape)):
        raise ShapeError(
            f"argument {name} has shape {aval.shape}, the module was exported for {sizes.shown(shape)}; convert it for "
            "that shape, or let the dimension vary: from_torch(..., dynamic=...)"
        )
    dtype = array_dtype(meta.dtype)
    if aval.dtype == dtype:
        return x
    if dtypes.is_integer(aval.dtype) and dtypes.is_integer(dtype):
        return cast(x, dtype)
    raise DTypeError(
        f"argument {name} has dtype {aval.dtype}, the module was exported for {dtype}; convert the argument, or the "
        "module for arguments of that dtype"
    )


def refuse_misfits(of: str, what: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise for parameters or buffers of other types than the module had when it was converted.

    Raises:
      ShapeError, DTypeError, ArgumentTypeError: those that do not fit, what was expected of each and what came.
    """
    shapes, dtyped = [], []
    for name, wanted in expected.items():
        x = given[name]
        try:
            aval = typeof(x if isinstance(x, Typed) else asarray(x))
        except (ArgumentTypeError, TypeError) as error:
            raise ArgumentTypeError(f"{of}: {what} {name}: {error}") from None
        line = f"  {name}: expected {wanted.dtype}{list(wanted.shape)}, got {aval.dtype}{list(aval.shape)}"
        if aval.shape != tuple(wanted.shape):
            shapes.append(line)
        elif aval.dtype != wanted.dtype and not (dtypes.is_integer(aval.dtype) and dtypes.is_integer(wanted.dtype)):
            dtyped.append(line)
    wrong = shapes + dtyped
    if wrong:
        more = [f"  and {len(wrong) - 12} more"] if len(wrong) > 12 else []
        listed = "\n".join(wrong[:12] + more)
        raise (ShapeError if shapes else DTypeError)(
            f"{of}: {what} of other types than those that the module was converted with:\n{listed}\n"
            "Convert the arrays, or the module with parameters of these types (module.to(dtype))"
        )


def refuse_arguments(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise for example arguments that the module's ``forward`` does not take.

    Raises:
      ArgumentError: too many, too few, or of unknown names.
    """
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(
            f"from_torch: example arguments do not fit {type(module).__name__}.forward{signature}: {error}; got "
            f"{counted(len(args), 'argument')}{', and ' + ', '.join(kwargs) if kwargs else ''}. Give one tensor for "
            "each: from_torch(module, (x, y), {'mask': mask})"
        ) from None


def refuse_unknown_tensors(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
    """Raise for example arguments, parameters and buffers that no array stands for, for weights that torch packs, and
    for modules that run in several of torch's processes.

    Raises:
      ArgumentTypeError: a sparse, quantized or distributed tensor, packed weights, a module that communicates.
      DTypeError: a dtype that arrays do not have.
    """
    for name, part in module.named_modules():
        wraps = type(part).__name__ in ("DistributedDataParallel", "FullyShardedDataParallel")
        if wraps and type(part).__module__.startswith("torch."):
            raise ArgumentTypeError(
                f"from_torch: {name or 'the module'} is a {type(part).__name__}, which communicates between torch's "
                "processes; convert what is in it (.module), and say by shardings what devices share (fully_sharded, "
                "tp_shardings)"
            )
        if any(isinstance(value, torch.ScriptObject) for value in vars(part).values()):
            raise ArgumentTypeError(
                f"from_torch: {name or 'the module'} ({type(part).__module__}.{type(part).__name__}) has weights that "
                "torch has packed for its own kernels (quantize_dynamic, convert); convert the module as it was before "
                "it was quantized, or keep integers and their scales in the module and multiply them there"
            )
    leaves = list(zip(trees.paths(args, kwargs, trees.parameter_names(module)), trees.flatten((args, kwargs))[0]))
    held = [*module.named_parameters(), *module.named_buffers()]
    for what, name, x in [*(("argument", *pair) for pair in leaves), *(("parameter", *pair) for pair in held)]:
        if not isinstance(x, torch.Tensor):
            continue
        if (other := instead(x)) is not None:
            raise ArgumentTypeError(
                f"from_torch: {what} {name} of {type(module).__name__} is {other[0]}, which no array is; use {other[1]}"
            )
        try:
            array_dtype(x.dtype)
        except DTypeError as error:
            raise DTypeError(f"from_torch: {what} {name} of {type(module).__name__}: {error}") from None
