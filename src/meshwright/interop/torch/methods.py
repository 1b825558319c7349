"""Methods of torch's classes that its export cannot follow, replaced while a module is exported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._export.non_strict_utils import _NonStrictTorchFunctionHandler
from torch._functorch import vmap
from torch.nn.attention.bias import CausalBias
from torch.nn.modules.adaptive import AdaptiveLogSoftmaxWithLoss, _ASMoutput

from meshwright.interop.torch.overrides import unrecorded

Method = Callable[..., Any]
_TABLE: dict[tuple[Any, str], Method] = {}


def _stands_for(owner: Any, name: str) -> Callable[[Method], Method]:
    def add(method: Method) -> Method:
        _TABLE[owner, name] = method
        return method

    return add


@contextmanager
def replaced(functions: Mapping[tuple[Any, str], Method]) -> Iterator[None]:
    """Within, these are the functions of modules, of classes and of objects, where this thread calls them."""
    thread = threading.get_ident()
    before = {(owner, name): vars(owner).get(name) for owner, name in functions}

    def here(function: Method, otherwise: Method) -> Method:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            return (function if threading.get_ident() == thread else otherwise)(*args, **kwargs)

        return called

    try:
        for (owner, name), function in functions.items():
            setattr(owner, name, here(function, getattr(owner, name)))
        yield
    finally:
        for (owner, name), own in before.items():
            if own is None:  # inherited
                delattr(owner, name)
            else:
                setattr(owner, name, own)


def replaced_methods() -> AbstractContextManager[None]:
    """Within, the methods of this file are those of torch's classes."""
    return replaced(_TABLE)


_before_export = _NonStrictTorchFunctionHandler._override


@_stands_for(_NonStrictTorchFunctionHandler, "_override")
def _elements_as_they_are(self: Any, function: Any, args: Any, kwargs: Any) -> Any:
    """Indices are ours to look at (``positions.py``): torch's would take bytes for positions, and asks for each number
    by itself."""
    if function is Tensor.__getitem__:
        return function, args, kwargs
    return _before_export(self, function, args, kwargs)


@_stands_for(CausalBias, "__new__")
def _made_outside(cls: Any, *_: Any, **__: Any) -> Any:
    """A causal mask, which only holds sizes: torch cannot make a tensor of another class while it records."""
    with unrecorded():
        return torch.Tensor.__new__(cls)


_TO = torch.nn.Module.to


@_stands_for(torch.nn.Module, "to")
def _already_there(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """The module as it is, if its tensors have the type and the place: torch would exchange them for others."""
    device, dtype, _, order = torch._C._nn._parse_to(*args, **kwargs)
    held = (*self.parameters(), *self.buffers())
    numbers = [x for x in held if x.is_floating_point() or x.is_complex()]
    is_there = order is None and all(device is None or x.device == device for x in held)
    return self if is_there and all(dtype is None or x.dtype == dtype for x in numbers) else _TO(self, *args, **kwargs)


_FORWARD = AdaptiveLogSoftmaxWithLoss.forward


@_stands_for(AdaptiveLogSoftmaxWithLoss, "forward")
def _of_all_classes(self: AdaptiveLogSoftmaxWithLoss, input_: Tensor, target_: Tensor) -> Any:
    """From the probabilities of all classes, in place of those of the clusters that the targets are in.

    What torch refuses where it sees it, targets that are no classes, gives NaN.
    """
    batched = target_.dim() == 1
    if target_.dim() > 1 or input_.dim() != target_.dim() + 1 or (batched and len(input_) != len(target_)):
        return _FORWARD(self, input_, target_)  # which says what is wrong
    rows, target = (input_, target_) if batched else (input_.unsqueeze(0), target_.unsqueeze(0))
    known = (target >= 0) & (target < self.n_classes)
    chosen = self.log_prob(rows).gather(1, torch.where(known, target, 0).unsqueeze(1)).squeeze(1)
    output = torch.where(known, chosen, torch.nan)
    loss = (-output).mean()
    return _ASMoutput(output if batched else output.squeeze(0), loss)


@_stands_for(AdaptiveLogSoftmaxWithLoss, "predict")
def _likeliest_of_all(self: AdaptiveLogSoftmaxWithLoss, input: Tensor) -> Tensor:
    return self.log_prob(input).argmax(dim=1)


_REMOVE_BATCH_DIM = vmap._remove_batch_dim


@_stands_for(vmap, "_remove_batch_dim")
def _moved_afterwards(self: Tensor, level: int, batch_size: int, out_dim: int) -> Tensor:
    """A batch as a dimension in front, and then where it goes: torch's function moves it by an op of its own, of whose
    result the export has seen nothing."""
    out = _REMOVE_BATCH_DIM(self, level, batch_size, 0)
    return out if out_dim == 0 else out.movedim(0, out_dim)
