"""Least squares, covariances and a loss, which torch's export cannot follow: what torch checks first, or how large a
result is, depends on values there."""

from __future__ import annotations

import math
from typing import Any

import torch

from meshwright.errors import ArgumentError
from meshwright.interop.torch.overrides import overrides

#: the drivers of LAPACK that give residuals, the rank and singular values; torch's default is gelsy
_RESIDUALS, _SINGULAR = ("gels", "gelsd", "gelss"), ("gelsd", "gelss")


@overrides(torch.linalg.lstsq)
def lstsq(A: torch.Tensor, B: torch.Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """The solution of least norm, by the pseudoinverse. Where torch has no residuals since a matrix lacks full rank,
    they are NaN."""
    is_vector = B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1])
    columns = B.unsqueeze(-1) if is_vector else B
    m, n = A.shape[-2:]
    rcond = torch.finfo(A.dtype).eps * max(m, n) if rcond is None else rcond
    solution = torch.linalg.pinv(A, rtol=rcond) @ columns
    values = torch.linalg.svdvals(A.detach())
    rank = (values > rcond * values[..., :1]).sum(-1)
    residuals, nothing = values.new_zeros(0), values.new_zeros(0)
    if driver in _RESIDUALS and m > n:
        squares = (columns - A @ solution).abs().square().sum(-2)
        residuals = squares if driver == "gels" else torch.where((rank == n).all(), squares, torch.nan)
    parts = residuals, rank.new_zeros(0) if driver == "gels" else rank, values if driver in _SINGULAR else nothing
    return torch.return_types.linalg_lstsq((solution.squeeze(-1) if is_vector else solution, *parts))


@overrides(torch.cov, torch.Tensor.cov)
def cov(
    input: torch.Tensor, *, correction: float = 1, fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Torch's function, without its checks that weights are not negative."""
    x = input.reshape(1, -1) if input.ndim < 2 else input
    x = x if x.is_floating_point() or x.is_complex() else x.to(torch.get_default_dtype())
    given = [w for w in (fweights, aweights) if w is not None]
    weights = given[0] * given[1] if len(given) == 2 else given[0] if given else x.real.new_ones(x.shape[1])
    total = weights.sum()
    correction = correction if aweights is None else correction * (weights * aweights).sum() / total
    off = x - (x * weights).sum(1, keepdim=True) / total
    return ((off * weights) @ off.mH / (total - correction).clamp(min=0)).squeeze()


@overrides(torch.corrcoef, torch.Tensor.corrcoef)
def corrcoef(input: torch.Tensor) -> torch.Tensor:
    """Torch's function: of what :func:`cov` gives."""
    c = cov(input)
    if c.ndim == 0:
        return c / c
    size = c.diagonal().real.sqrt()
    c = c / size[:, None] / size
    return torch.complex(c.real.clip(-1, 1), c.imag.clip(-1, 1)) if c.is_complex() else c.clip(-1, 1)


@overrides(torch.nn.functional.gaussian_nll_loss)
def gaussian_nll_loss(
    input: torch.Tensor, target: torch.Tensor, var: torch.Tensor | float, full: bool = False, eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:  # fmt: skip
    """Torch's function; where a variance is negative, for which torch raises an error, it is NaN."""
    if reduction not in ("none", "mean", "sum"):
        raise ArgumentError(f"gaussian_nll_loss: expected reduction none, mean or sum, got {reduction!r}")
    if not isinstance(var, torch.Tensor):
        if var < 0:
            raise ArgumentError(f"gaussian_nll_loss: expected a variance that is not negative, got {var}")
        var = var * torch.ones_like(input)
    if var.shape == input.shape[:-1] and var.shape != input.shape:
        var = var.unsqueeze(-1)
    wider = [] if var.ndim != input.ndim else [i for i, (n, m) in enumerate(zip(input.shape, var.shape)) if n != m]
    if var.ndim != input.ndim or len(wider) > 1 or any(var.shape[i] != 1 for i in wider):
        raise ArgumentError(
            f"gaussian_nll_loss: expected var of the shape of input, {tuple(input.shape)}, without its last dimension, "
            f"or with one of size 1, got {tuple(var.shape)}"
        )
    var = var.clone()
    with torch.no_grad():
        var.copy_(torch.where(var < 0, torch.nan, var.clamp(min=eps)))
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    loss = loss + 0.5 * math.log(2 * math.pi) if full else loss
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss
