"""Norms that write to their statistics within one op, of which torch's export says nothing, or whose factor is a number
that Python asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

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


@contextmanager
def cumulative_averages(module: torch.nn.Module) -> Iterator[None]:
    """Within, a module's batch norms without a momentum count batches in tensors: torch's ask for a number."""
    parts = [
        m
        for m in module.modules()
        if isinstance(m, _BatchNorm) and type(m).forward is _BatchNorm.forward and m.momentum is None
        if m.training and m.track_running_stats
    ]
    try:
        for part in parts:
            part.forward = MethodType(_cumulative, part)
        yield
    finally:
        for part in parts:
            del part.forward


def _cumulative(norm: Any, input: torch.Tensor) -> torch.Tensor:
    """Batch norm whose running statistics are the means of those of all batches."""
    norm._check_input_dim(input)
    with torch.no_grad():
        norm.num_batches_tracked.add_(1)
        space = [d for d in range(input.ndim) if d != 1]
        for running, reduce in ((norm.running_mean, torch.mean), (norm.running_var, torch.var)):
            new = reduce(input.to(running.dtype), space)
            running.copy_(running + (new - running) / norm.num_batches_tracked)
    return torch.nn.functional.batch_norm(input, None, None, norm.weight, norm.bias, True, 0.0, norm.eps)
