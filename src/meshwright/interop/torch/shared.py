"""Functions that return what they are given, or views of it, of which the schemas of their ops say nothing: an export
would take their results for values of their own, which do not see later writes."""

from __future__ import annotations

from typing import Any

import torch

from meshwright.interop.torch.overrides import overrides


@overrides(torch.nn.functional.dropout)
def functional_dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Torch's function, which outside of training returns its operand."""
    drops = training and p != 0
    return torch.nn.functional.dropout(input, p, training, inplace) if drops or not 0 <= p <= 1 else input


@overrides(torch.dropout)
def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Torch's function, which outside of training returns its operand."""
    return torch.dropout(input, p, train) if (train and p != 0) or not 0 <= p <= 1 else input


@overrides(torch.broadcast_tensors)
def broadcast_tensors(*tensors: Any) -> tuple[torch.Tensor, ...]:
    """Torch's function."""
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    return tuple(t.expand(shape) for t in tensors)


@overrides(torch.meshgrid)
def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[torch.Tensor, ...]:
    """Torch's function: each operand along a dimension of its own."""
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else tensors
    plain = all(isinstance(t, torch.Tensor) and t.ndim < 2 for t in given) and len({t.dtype for t in given}) == 1
    if not plain or indexing not in (None, "ij", "xy"):
        return torch.meshgrid(*tensors, indexing=indexing)  # which says what is wrong
    order = list(range(len(given)))
    if indexing == "xy" and len(given) > 1:
        order[:2] = 1, 0
    shape = [given[i].numel() for i in order]
    lone = [[-1 if j == i else 1 for j in order] for i in range(len(given))]
    return tuple(t.reshape(own).expand(shape) for t, own in zip(given, lone))


@overrides(torch.einsum)
def einsum(*args: Any) -> torch.Tensor:
    """Torch's function; of one operand in ops, as it may only have its dimensions in another order."""
    operands = args[1:] if len(args) == 2 and isinstance(args[0], str) else ()
    if operands and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    if len(operands) != 1:
        return torch.einsum(*args)
    return torch.ops.aten.einsum.default.decompose(args[0], list(operands))
