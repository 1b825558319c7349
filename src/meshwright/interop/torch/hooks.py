"""Hooks on gradients: autograd calls them, and no derivative of ours does.

Those that a forward registers are refused, in what ``torch.compile`` captures too; of those that modules and parameters
have already, which may only look on, a warning tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.nn.modules import module as shared

from meshwright.core.source import warn
from meshwright.errors import DerivativeWarning, RuleError
from meshwright.interop.torch.overrides import overrides
from meshwright.interop.torch.sources import described


@overrides(torch.Tensor.register_hook)
def refuse_hook(tensor: torch.Tensor, hook: Any) -> NoReturn:
    """Raise for a hook on a tensor of the graph that is being recorded, with the line that the tensor is of."""
    slot = get_proxy_slot(tensor, get_proxy_mode().tracer, None)
    line = "an argument" if slot is None else described(slot.proxy.node)
    raise RuleError(
        f"a hook is registered on the gradient of a tensor (register_hook), that of {line}: derivatives here would not "
        "call it; write what it does as the backward of a torch.autograd.Function"
    )


def warn_of_hooks(module: torch.nn.Module) -> None:
    """Name the hooks on gradients that a module has, if it has any."""
    found = list(_hooked(module))
    if found:
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        warn(
            f"from_torch: {type(module).__name__} has hooks on gradients, which derivatives here do not call: of "
            f"{', '.join(found[:5])}{more}; apply what they do to the gradients, or remove them",
            DerivativeWarning,
        )


def _hooked(module: torch.nn.Module) -> Iterator[str]:
    """What has hooks on gradients: parameters, modules, or all modules."""
    if shared._global_backward_hooks or shared._global_backward_pre_hooks:
        yield "all modules"
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            yield f"the module {name or type(part).__name__}"
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            yield f"the parameter {name}"
