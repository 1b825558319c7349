"""Python's numbers that only a run knows: what ``item()`` reads of a tensor, and what is computed of it.

They are weakly typed scalars here, which are promoted as torch promotes Python's numbers. Dynamo makes such of floats
that change from call to call, as a learning rate does. An index that is a tensor (``x[i]``) is such a number to torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from meshwright import numpy as mnp
from meshwright.core.avals import Typed
from meshwright.errors import ConcretizationTypeError, RuleError
from meshwright.interop.torch.dtypes import array_dtype
from meshwright.interop.torch.promotion import cast
from meshwright.interop.torch.registry import register
from meshwright.ops.elementwise.table import convert

#: functions of torch's numbers beside the operators of Python's
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.sym_max: mnp.maximum,
    torch.sym_min: mnp.minimum,
    torch.sym_float: lambda x: x,
    torch.sym_not: mnp.logical_not,
    torch.sym_ite: mnp.where,
    **{
        getattr(torch, f"_sym_{name}"): getattr(mnp, name)
        for name in ("sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "log2")
        if hasattr(torch, f"_sym_{name}")
    },
}


@register("aten._local_scalar_dense", "aten.item")
def number(self: Any) -> Any:
    """The number in an array of one."""
    return convert(self.reshape(()), self.dtype, weak_type=True)


def is_number(value: Any) -> bool:
    """Whether a node's value, as torch traced it, is such a number."""
    is_read = isinstance(value, torch.SymInt) and bool(free_unbacked_symbols(value))
    return is_read or isinstance(value, torch.SymFloat)


def of_numbers(target: Any, args: Sequence[Any]) -> Any:
    """What a function of numbers computes; of Python's, if all are known.

    Raises:
      RuleError: it has none for numbers that only a run knows.
    """
    if not any(isinstance(a, Typed) for a in args):
        return target(*args)
    function = _FUNCTIONS.get(target) or getattr(operator, getattr(target, "__name__", ""), None)
    if function is None:
        raise RuleError(f"{getattr(target, '__name__', target)} of a number that only a run knows is not there")
    return function(*args)


def typed(out: Any, value: Any) -> Any:
    """The result of an op that was given such a number, of the types that torch has for it: an operand of integers has
    become a float of the default width there."""
    if isinstance(value, torch.Tensor):
        return cast(out, array_dtype(value.dtype))
    return tuple(map(typed, out, value)) if isinstance(value, (tuple, list)) else out


def remedy(node: fx.Node, error: Exception) -> str:
    """What to do where a rule needs the number itself."""
    numbers = any(is_number(n.meta.get("val")) for n in node.all_input_nodes)
    if not numbers or not isinstance(error, ConcretizationTypeError):
        return ""
    return (
        "; it is given a number that only a run knows (an item(), or a float that changes from call to call): pass a "
        "tensor there, or let torch.compile compile for each value: torch._dynamo.config.specialize_float = True"
    )
