"""Positions that only a run knows, in the indices and views of a forward: ``x[i]``, ``cache[:, i] = y``, ``narrow``.

A tensor of one integer is a number to torch, which asks for it. An export gives that number a name, and has views at
it, as long as it is known not to be counted from behind; assignments it does not follow. So positions are made such
first, and an assignment at one is to what the tensor has there, a view.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from meshwright.interop.torch.overrides import overrides, unrecorded
from meshwright.interop.torch.unchecked import bounded, counted, positions

_INTEGERS = torch.int8, torch.int16, torch.int32, torch.int64


def _is_number(x: Any) -> bool:
    is_recorded = isinstance(x, FakeTensor) and x.constant is None and x.ndim == 0
    return isinstance(x, torch.SymInt) or (is_recorded and x.dtype in _INTEGERS)


def _position(x: Any, size: int, length: int = 1) -> Any:
    """The number of where ``length`` elements of ``size`` begin, counted from the front."""
    if not _is_number(x):
        return x
    if isinstance(x, torch.SymInt):
        at = torch.sym_ite(x < 0, x + size, x)
    else:
        at = torch.where(x < 0, x + size, x).item()
    torch._check(at >= 0)
    torch._check(at <= size - length)
    return at


@overrides(torch.select, torch.Tensor.select)
def _select(input: torch.Tensor, dim: Any, index: Any) -> torch.Tensor:
    """Torch's function."""
    dim, index = counted(dim), counted(index)
    return torch.select(input, dim, _position(index, input.shape[dim]))


@overrides(torch.narrow, torch.Tensor.narrow)
def _narrow(input: torch.Tensor, dim: int, start: Any, length: Any) -> torch.Tensor:
    """Torch's function."""
    start, length = counted(start), counted(length)
    return torch.narrow(input, dim, _position(start, input.shape[dim], length), length)


@overrides(torch.Tensor.__setitem__)
def _assigned(self: torch.Tensor, index: Any, value: Any) -> None:
    """To the elements at an index."""
    view, rest = _at_numbers(self, positions(bounded(index)))
    view[rest] = value


def elements(x: torch.Tensor, index: Any) -> torch.Tensor:
    """``x[index]``."""
    view, rest = _at_numbers(x, positions(bounded(index)))
    return view if rest == () else view[rest]


def _at_numbers(x: torch.Tensor, index: Any) -> tuple[torch.Tensor, Any]:
    """What a tensor has at the numbers in an index that only a run knows, a view, and the rest of the index."""
    parts = list(index) if isinstance(index, tuple) else [index]
    widths = list(map(_width, parts))
    if not any(map(_is_number, parts)) or None in widths:
        return x, index
    left = x.ndim - sum(w for w in widths if w is not None)
    view, rest, dim = x, [], 0
    for part, width in zip(parts, widths):
        if _is_number(part):
            view = torch.select(view, dim, _position(part, view.shape[dim]))
        else:
            rest.append(part)
            dim += left if part is Ellipsis else width or 0
    return view, tuple(rest)


def _width(part: Any) -> int | None:
    """How many dimensions a part of an index is about, not counting an ellipsis; None for one that adds a dimension of
    its own, as a truth value does."""
    if part is None or part is Ellipsis:
        return 0
    if isinstance(part, (list, tuple)) and not any(isinstance(p, torch.Tensor) for p in part):
        with unrecorded():
            part = torch.as_tensor(part)
    is_mask = isinstance(part, bool) or getattr(part, "dtype", None) in (torch.bool, torch.uint8)
    return (getattr(part, "ndim", 0) or None) if is_mask else 1
