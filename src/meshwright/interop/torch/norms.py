"""Norms that write to their statistics within one op, of which torch's export says nothing."""

from __future__ import annotations

from typing import Any

import torch

from meshwright.interop.torch.overrides import overrides


@overrides(torch.nn.functional.instance_norm)
def functional_instance_norm(
    input: torch.Tensor, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> torch.Tensor:  # fmt: skip
    """Torch's function."""
    if use_input_stats:
        torch.nn.functional._verify_spatial_size(input.size())
    return instance_norm(input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, False)


@overrides(torch.instance_norm)
def instance_norm(
    input: torch.Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, use_input_stats: bool,
    momentum: float, eps: float, cudnn_enabled: bool,
) -> torch.Tensor:  # fmt: skip
    """Torch's function. The running statistics move towards the mean over the batch of those of each instance."""
    given = running_mean, running_var
    if use_input_stats:
        with torch.no_grad():
            space = tuple(range(2, input.ndim))
            for running, reduce in zip(given, (torch.mean, torch.var)):
                if running is not None:
                    new = reduce(input.to(running.dtype), space).mean(0)
                    running.copy_((1 - momentum) * running + momentum * new)
        given = None, None
    return torch.instance_norm(input, weight, bias, *given, use_input_stats, momentum, eps, cudnn_enabled)
