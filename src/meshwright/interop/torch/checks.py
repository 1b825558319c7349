"""Whether arrays fit what a module was exported for: shapes, with those that may vary, and dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from meshwright.core import dtypes
from meshwright.core.avals import Typed
from meshwright.errors import ArgumentTypeError, DTypeError, ShapeError
from meshwright.interop.torch import trees
from meshwright.interop.torch.dtypes import array_dtype
from meshwright.interop.torch.ops.elementwise import cast
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


def refuse_unknown_tensors(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
    """Raise for example arguments, parameters and buffers that no array stands for.

    Raises:
      ArgumentTypeError: a sparse or quantized tensor. DTypeError: a dtype that arrays do not have.
    """
    leaves = list(zip(trees.paths(args, kwargs, trees.parameter_names(module)), trees.flatten((args, kwargs))[0]))
    held = [*module.named_parameters(), *module.named_buffers()]
    for what, name, x in [*(("argument", *pair) for pair in leaves), *(("parameter", *pair) for pair in held)]:
        if not isinstance(x, torch.Tensor):
            continue
        if x.is_quantized or x.layout != torch.strided:
            kind = f"quantized ({x.dtype})" if x.is_quantized else f"of layout {x.layout}"
            raise ArgumentTypeError(
                f"from_torch: {what} {name} of {type(module).__name__} is {kind}, which no array is; use "
                f"{'dequantize' if x.is_quantized else 'to_dense'}()"
            )
        try:
            array_dtype(x.dtype)
        except DTypeError as error:
            raise DTypeError(f"from_torch: {what} {name} of {type(module).__name__}: {error}") from None
