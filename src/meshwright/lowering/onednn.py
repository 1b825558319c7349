"""Convolutions by oneDNN, on x86 CPUs.

XLA's runtime for x86 processors supports custom calls of oneDNN's convolutions, but its compiler does not generate
them. PyTorch uses the same library. Here, forward-style float32 convolutions become such calls, but not kernel
gradients (whose windows have the size of the image) or convolutions with a dilated operand. A call takes the operand
with features last, and a kernel in any dimension order. For 291 random convolutions of at least a million
multiply-adds, in one to three dimensions, with any strides, dilations, padding and dimension orders, the calls take .67
of the time of XLA's own kernels in the geometric mean. They take at most twice as long (with few outputs), and the
ratio falls with size. A training step of ResNet-18 takes as long as PyTorch's; without the calls it took 1.2 times as
long.

oneDNN skips padding instead of multiplying with zeros: with an infinite kernel element, XLA's own kernels return NaN.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from meshwright.core.config import config
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, all_eqns
from meshwright.ir.passes import Pass, inline_calls
from meshwright.ir.rewrite import replaced_in_all
from meshwright.ir.tracing import typeof
from meshwright.lowering.convolutions import is_product
from meshwright.lowering.narrow_bits import called
from meshwright.ops.imported.opaque import Opaque
from meshwright.ops.products.conv_op import ConvGeneralDilated
from meshwright.ops.shape.rearrange import transpose
from meshwright.ops.window.geometry import WindowDim

_TARGET = ("call_target_name", '"__onednn$convolution"')
#: maximum number of positions in a window; for thousands (kernel gradients), oneDNN has only a reference kernel
_MOST = 64
#: number of multiply-adds below which a call is not faster
_LARGE = 1 << 20
_SPATIAL = (1, 2, 3)


def by_onednn(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with convolutions replaced by oneDNN calls where that is faster."""
    after = replaced_in_all(jaxpr, lambda _: _call)
    return jaxpr if after is jaxpr else inline_calls(after)


def _is_there() -> bool:
    """Whether programs may use the calls: x86-64 Linux, and no compilation cache, since XLA cannot serialize them."""
    where = sys.platform, platform.machine(), config.platform
    is_kept = config.compilation_cache_dir and config.enable_compilation_cache
    return where == ("linux", "x86_64", "cpu") and not is_kept


def _call(eqn: JaxprEqn) -> list[JaxprEqn]:
    op = eqn.op
    if not isinstance(op, ConvGeneralDilated) or op.groups > 1 or len(op.window_strides) not in _SPATIAL:
        return []
    (x, y), (out,) = (a.aval for a in eqn.invars), (v.aval for v in eqn.outvars)
    _, rspec, ospec = op.dimension_numbers
    windows, rows = op.windows(y.shape), [out.shape[d] for d in ospec[2:]]
    is_large = 0 not in x.shape and _multiply_adds(y.shape, out.shape, y.shape[rspec[0]]) > _LARGE
    is_float32 = {x.dtype, y.dtype, out.dtype} == {np.dtype(np.float32)}
    if not is_large or not is_float32 or prod(w.size for w in windows) > _MOST or not all(map(_slides, windows, rows)):
        return []
    if is_product(op, x.shape, y.shape):
        return []
    return [called(partial(_convolution, op), eqn.invars, eqn.outvars, eqn.source)]


def _multiply_adds(kernel: Iterable[int], result: Iterable[int], outputs: int) -> int:
    return prod(kernel) * prod(result) // max(outputs, 1)


def _slides(window: WindowDim, rows: int) -> bool:
    """Whether a window of an operand as it is slides over more rows than it has, with padding that it reaches over."""
    padded = 0 <= min(window.low, window.high) <= max(window.low, window.high) < window.extent
    return window.base_dilation == 1 and padded and window.size <= rows


def _convolution(op: ConvGeneralDilated, x: Any, y: Any) -> list[Any]:
    (lspec, rspec, ospec), out = op.dimension_numbers, op.infer(typeof(x), typeof(y))
    last = (ospec[0], *ospec[2:], ospec[1])
    result = out.update(shape=tuple(out.shape[d] for d in last))
    written = json.dumps({"onednn_conv_config": _config(op.windows(typeof(y).shape), rspec)}).replace('"', "\\22")
    call = Opaque("stablehlo.custom_call", (_TARGET, ("backend_config", f'"{written}"')), (), (result,))
    (value,) = call.bind(transpose(x, (lspec[0], *lspec[2:], lspec[1])), y)
    return [transpose(value, sorted(range(out.ndim), key=last.__getitem__))]


def _config(windows: tuple[WindowDim, ...], kernel: tuple[int, ...]) -> dict[str, Any]:
    """XLA's ``OneDnnConvolutionConfig`` (``onednn_config.proto``) as JSON, in which 64-bit integers are strings."""
    n = len(kernel)
    data = {"batch_dim": "0", "feature_dim": str(n - 1), "spatial_dims": _texts(range(1, n - 1))}
    taken = {"output_feature_dim": str(kernel[0]), "input_feature_dim": str(kernel[1])}
    return {
        "dims": str(n),
        "input": {"data": data},
        "kernel": {"filter": {**taken, "spatial_dims": _texts(kernel[2:])}},
        "output": {"data": data},
        "window": {
            "pad_left": _texts(w.low for w in windows),
            "pad_right": _texts(w.high for w in windows),
            "strides": _texts(w.stride for w in windows),
            "window_dilations": _texts(w.window_dilation for w in windows),
        },
        "feature_groups": "1",
    }


def _texts(numbers: Iterable[int]) -> list[str]:
    return [str(n) for n in numbers]


def uncounted_flops(jaxpr: ClosedJaxpr) -> float:
    """The floating-point operations of the calls, including those with padding.

    XLA's cost analysis does not count custom calls: it reports -1 for each, which the ``+ 1`` corrects.
    """
    calls = (e for e in all_eqns(jaxpr.jaxpr) if isinstance(e.op, Opaque) and _TARGET in e.op.attributes)
    of = ((e.invars[1].aval.shape, e.outvars[0].aval.shape) for e in calls)
    return sum(2.0 * _multiply_adds(kernel, result, result[-1]) + 1 for kernel, result in of)


ONEDNN = Pass(
    "convolutions by oneDNN",
    lambda j: by_onednn(j) if _is_there() else j,
    "On x86 CPUs, large float32 convolutions become oneDNN calls.",
)
