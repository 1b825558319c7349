"""Positions that only a run knows, in the indices and views of a forward: ``x[i]``, ``cache[:, i] = y``, ``narrow``,
``x[:, i : i + 4]``.

A tensor of one integer is a number to torch, which asks for it. An export gives that number a name, and has views at
it, as long as it is known not to be counted from behind; assignments it does not follow. So positions are made such
first, and an assignment at one is to what the tensor has there, a view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch import fx
from torch._C import _functorch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from meshwright.interop.torch.overrides import described, is_written, origins, overrides, unrecorded
from meshwright.interop.torch.unchecked import bounded, counted, positions

_INTEGERS = torch.int8, torch.int16, torch.int32, torch.int64
aten = torch.ops.aten


def _is_number(x: Any) -> bool:
    is_recorded = isinstance(x, FakeTensor) and x.constant is None and x.ndim == 0
    return isinstance(x, torch.SymInt) or (is_recorded and x.dtype in (*_INTEGERS, torch.uint8))


def _is_mapped(x: Any) -> bool:
    """Whether a position is another one for each row that ``vmap`` maps over: what is there is no view."""
    is_one = isinstance(x, torch.Tensor) and x.ndim == 0 and x.dtype in _INTEGERS
    return is_one and _functorch.is_batchedtensor(x)


def _is_one_truth(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.ndim == 0 and x.dtype == torch.bool


def _position(x: Any, size: int, length: int = 1) -> Any:
    """The number of where ``length`` elements of ``size`` begin, counted from the front."""
    return _checked(_as_tensor(x), size, size, length) if _is_number(x) else x


def _as_tensor(x: Any) -> torch.Tensor:
    return torch.scalar_tensor(x, dtype=torch.int64) if isinstance(x, torch.SymInt) else x


def _checked(x: torch.Tensor, more: Any, size: int, length: int) -> Any:
    """``x``, and ``more`` where that is negative, as a number of which torch knows that it is a position; where it is
    none, ``size``."""
    at = torch.where(x < 0, x + more, x)
    at = torch.where(at < 0, size, at).item()
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


# --- indices ------------------------------------------------------------------------------------------------
@overrides(torch.Tensor.__setitem__)
def _assigned(self: torch.Tensor, index: Any, value: Any) -> None:
    """To the elements at an index."""
    view, rest = _at_numbers(self, _looked_up(index))
    view[rest] = value


def elements(x: torch.Tensor, index: Any) -> torch.Tensor:
    """``x[index]``."""
    view, rest = _at_numbers(x, _looked_up(index), _is_mapped)
    return view if rest == () else view[rest]


def _looked_up(index: Any) -> Any:
    """An index with what is known of it, and with truth values for bytes, which torch takes for such."""
    return positions(_with_truths(bounded(index)))


def _with_truths(index: Any) -> Any:
    if type(index) in (tuple, list):
        return type(index)(map(_with_truths, index))
    return index != 0 if isinstance(index, torch.Tensor) and index.dtype == torch.uint8 else index


def by_index(x: torch.Tensor, index: Any) -> torch.Tensor:
    """``x[index]``, no view, with tensors of one integer as any other index."""
    view, rest = _at_numbers(x, index, lambda p: isinstance(p, torch.Tensor) and p.ndim == 0 and p.dtype in _INTEGERS)
    return view if rest == () else view[rest]


def put_by_index(x: torch.Tensor, index: Any, value: Any) -> None:
    """``x[index] = value``, with tensors of one integer as any other index."""
    parts = index if isinstance(index, tuple) else (index,)
    is_picked = [isinstance(p, torch.Tensor) and p.ndim == 0 and p.dtype in _INTEGERS for p in parts]
    others = [p for f, p in zip(is_picked, parts) if not f]
    if not any(is_picked) or not all(type(p) is int or (isinstance(p, slice) and p == slice(None)) for p in others):
        x[index] = value
        return
    places = [p if f else None if isinstance(p, slice) else torch.tensor(p) for f, p in zip(is_picked, parts)]
    aten.index_put_(x, places, torch.as_tensor(value).to(x.dtype))


def _at_numbers(
    x: torch.Tensor, index: Any, is_picked: Callable[[Any], bool] = lambda part: False
) -> tuple[torch.Tensor, Any]:
    """What a tensor has at the numbers in an index that only a run knows, and the rest of the index. It is a view, if
    no part of the index ``is_picked``."""
    parts = list(index) if isinstance(index, tuple) else [index]
    widths = list(map(_width, parts))
    if not any(is_picked(p) or _is_of_a_run(p) for p in parts) or None in widths:
        return x, index
    left = x.ndim - sum(w for w in widths if w is not None)
    view, rest, dim = x, [], 0
    for part, width in zip(parts, widths):
        if is_picked(part):
            view = aten.index(view, [*[None] * dim, part])
        elif _is_number(part):
            view = torch.select(view, dim, _position(part, view.shape[dim]))
        elif _is_one_truth(part):  # of a dimension of its own
            view, dim = view.unsqueeze(dim), dim + 1
            rest.append(part[None])
        else:
            if _is_slice_of_a_run(part):
                view, part = _sliced(view, dim, part), slice(None)
            rest.append(part)
            dim += left if part is Ellipsis else width or 0
    return view, tuple(rest)


def _is_of_a_run(part: Any) -> bool:
    return _is_number(part) or _is_one_truth(part) or _is_slice_of_a_run(part)


def _width(part: Any) -> int | None:
    """How many dimensions a part of an index is about, not counting an ellipsis; None for one that adds a dimension of
    its own, as a truth value of Python's does."""
    if part is None or part is Ellipsis or _is_one_truth(part):
        return 0
    if isinstance(part, (list, tuple)) and not any(isinstance(p, torch.Tensor) for p in part):
        with unrecorded():
            part = torch.as_tensor(part)
    is_mask = isinstance(part, bool) or getattr(part, "dtype", None) in (torch.bool, torch.uint8)
    return (getattr(part, "ndim", 0) or None) if is_mask else 1


# --- slices -------------------------------------------------------------------------------------------------
def _is_slice_of_a_run(part: Any) -> bool:
    return isinstance(part, slice) and any(_is_number(x) for x in (part.start, part.stop, part.step))


def _sliced(x: torch.Tensor, dim: int, part: slice) -> torch.Tensor:
    """``x[start : stop]`` along a dimension. What has a length that is known lies within the tensor: where the position
    is one at which it does not, and torch gives fewer elements, there are none to read or to write."""
    start, stop = (0 if part.start is None else part.start), part.stop
    length = _length(start, stop) if part.step in (None, 1) else None
    size = x.shape[dim]
    # one that all elements have begins at 0 only, which torch would take for granted
    if length is None or not 0 < length < size or not _is_unbacked(start):
        numbers = [n.item() if isinstance(n, torch.Tensor) else n for n in (part.start, stop, part.step)]
        return aten.slice(x, dim, *numbers[:2], 1 if part.step is None else numbers[2])  # type: ignore[no-any-return]
    at = _as_tensor(start)
    more = torch.where(at < -length, size, 2 * size)  # x[-4:0] are no elements, not the last four
    return torch.narrow(x, dim, _checked(at, more, size, length), length)


def _is_unbacked(x: Any) -> bool:
    return bool(free_unbacked_symbols(x)) if isinstance(x, torch.SymInt) else isinstance(x, torch.Tensor)


def _length(start: Any, stop: Any) -> int | None:
    """From a position to another, if that is the same in every run."""
    if stop is None:
        return None
    length = sympy.expand(_formula(stop) - _formula(start))
    return int(length) if length.is_Integer else None


_ARITHMETIC = {aten.add: sympy.Add, aten.sub: lambda x, y: x - y, aten.mul: sympy.Mul, aten.rsub: lambda x, y: y - x}


def _formula(x: Any) -> Any:
    """A number in terms of others; that of a tensor as it has been recorded, if nothing was written to since."""
    if isinstance(x, torch.SymInt):
        return x.node.expr
    if not isinstance(x, torch.Tensor):
        return sympy.Integer(x)
    mode = get_proxy_mode()
    slot = None if mode is None else get_proxy_slot(x, mode.tracer, None)
    if slot is None:
        return sympy.Dummy()
    nodes = origins(slot.proxy.node)
    return sympy.Dummy() if any(is_written(n, nodes) for n in nodes) else _of_node(nodes[-1])


def _of_node(x: Any) -> Any:
    if not isinstance(x, fx.Node):
        return sympy.Integer(x)
    formula = _ARITHMETIC.get(getattr(x.target, "overloadpacket", None))
    if formula is None or x.kwargs or len(x.args) != 2 or not all(isinstance(a, (int, fx.Node)) for a in x.args):
        return sympy.Symbol(described(x))
    return formula(*map(_of_node, x.args))
