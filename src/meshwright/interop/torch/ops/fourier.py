"""Discrete Fourier transforms, over any dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright import numpy as mnp
from meshwright.interop.torch.ops.creation import dtype_of
from meshwright.interop.torch.registry import register

#: torch's numbers for what a transform is divided by: nothing, the root of the number of elements, that number
_DIVIDED = {0: "backward", 1: "ortho", 2: "forward"}
#: the same for NumPy's inverse transforms, which divide by the number of elements unless they are told otherwise
_INVERSE = {0: "forward", 1: "ortho", 2: "backward"}


@register("aten._fft_c2c")
def complex_to_complex(self: Any, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    """Of complex numbers; backwards with the other sign in the exponent."""
    if forward:
        return mnp.fft.fftn(self, axes=dim, norm=_DIVIDED[normalization])
    return mnp.fft.ifftn(self, axes=dim, norm=_INVERSE[normalization])


@register("aten._fft_r2c")
def real_to_complex(self: Any, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    """Of real numbers; ``onesided`` leaves out of the last dimension what is conjugate to the rest."""
    transform = mnp.fft.rfftn if onesided else mnp.fft.fftn
    return transform(self, axes=dim, norm=_DIVIDED[normalization])


@register("aten._fft_c2r")
def complex_to_real(self: Any, dim: Sequence[int], normalization: int, last_dim_size: int) -> Any:
    """Real numbers of one side of their transform, whose last dimension had ``last_dim_size`` elements."""
    sizes = [self.shape[d] for d in dim[:-1]] + [last_dim_size]
    return mnp.fft.irfftn(self, s=sizes, axes=dim, norm=_INVERSE[normalization])


def _frequencies(function: Callable[..., np.ndarray]) -> Callable[..., Any]:
    return lambda n, d=1.0, dtype=None: mnp.asarray(function(n, d).astype(dtype_of(0.0, dtype)))


register("aten.fft_fftfreq")(_frequencies(np.fft.fftfreq))
register("aten.fft_rfftfreq")(_frequencies(np.fft.rfftfreq))
