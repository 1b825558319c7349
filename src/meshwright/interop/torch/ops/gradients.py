"""Ops that are derivatives of others, which torch has taken (``torch.func.grad``): they are what our rules make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.interop.torch import registry
from meshwright.interop.torch.ops.convolution import convolution
from meshwright.interop.torch.registry import register
from meshwright.interop.torch.tensors import conjugated
from meshwright.transforms.autodiff import vjp


def _pulled_back(f: Callable[..., Any], grad_output: Any, *inputs: Any) -> Any:
    """The gradients, as torch has them, of the inputs of ``f``."""
    _, pulled = vjp(f, *inputs)
    return conjugated(pulled(conjugated(grad_output)))


@register("aten.convolution_backward")
def convolution_backward(
    grad_output: Any, input: Any, weight: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, output_mask: Sequence[bool],
) -> Any:  # fmt: skip
    rest = stride, padding, dilation, transposed, output_padding, groups
    by_input, by_weight = _pulled_back(lambda x, w: convolution(x, w, None, *rest), grad_output, input, weight)
    dims = (0, *range(2, grad_output.ndim))
    given = by_input, by_weight, grad_output.sum(dims) if output_mask[2] else None
    return tuple(g if wanted else None for g, wanted in zip(given, output_mask))


def _register(n: int) -> None:
    @register(f"aten.avg_pool{n}d_backward")
    def avg_pool_backward(
        grad_output: Any, self: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
        count_include_pad: bool, divisor_override: int | None,
    ) -> Any:  # fmt: skip
        rest = kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
        return _pulled_back(lambda x: _rule(f"aten.avg_pool{n}d")(x, *rest), grad_output, self)[0]

    @register(f"aten._adaptive_avg_pool{n}d_backward")
    def adaptive_avg_pool_backward(grad_output: Any, self: Any) -> Any:
        size = grad_output.shape[-n:]
        return _pulled_back(lambda x: _rule(f"aten._adaptive_avg_pool{n}d")(x, size), grad_output, self)[0]


def _rule(name: str) -> Callable[..., Any]:
    rule = registry.find(name)
    assert rule is not None, name
    return rule.function


for _n in (2, 3):
    _register(_n)
