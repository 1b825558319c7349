"""Resizing of images: for every resized dimension, a product with a matrix of weights.

The weights of the pixels around a position are given by a kernel: a triangle (linear), a cubic (Keys 1981, "Cubic
convolution interpolation for digital image processing") or a windowed sinc (Lanczos; Duchon 1979, "Lanczos filtering in
one and two dimensions"). If an image becomes smaller, the kernel is widened, so that no pixel is skipped.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import meshwright.numpy as mnp
from meshwright.core import dtypes
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.promotion import promotes_freely

Kernel = Callable[[Any], Any]


class ResizeMethod(enum.Enum):
    """The method of interpolation between pixels. Functions also accept its name (``"linear"``)."""

    NEAREST = "nearest"
    LINEAR = "linear"
    CUBIC = "cubic"
    LANCZOS3 = "lanczos3"
    LANCZOS5 = "lanczos5"

    @staticmethod
    def from_string(name: str) -> ResizeMethod:
        """The method of a name, including ``bilinear``, ``trilinear``, ``triangle``, ``bicubic`` and ``tricubic``.

        Raises:
          ArgumentError: there is no such method.

        Example:
          >>> mw.image.ResizeMethod.from_string("bicubic")
          <ResizeMethod.CUBIC: 'cubic'>
        """
        known = {m.value: m for m in ResizeMethod}
        known |= dict.fromkeys(("bilinear", "trilinear", "triangle"), ResizeMethod.LINEAR)
        known |= dict.fromkeys(("bicubic", "tricubic"), ResizeMethod.CUBIC)
        if name not in known:
            raise ArgumentError(f"ResizeMethod: unknown method {name!r}; the methods are {', '.join(known)}")
        return known[name]


def _triangle(x: Any) -> Any:
    return mnp.maximum(0, 1 - mnp.abs(x))


def _cubic(x: Any) -> Any:
    """Keys' cubic kernel, with slope -1/2 at distance 1."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return mnp.where(x < 1, near, mnp.where(x < 2, far, 0))


def _lanczos(radius: int) -> Kernel:
    return lambda x: mnp.where(x < radius, mnp.sinc(x) * mnp.sinc(x / radius), 0)


_KERNELS: dict[ResizeMethod, Kernel] = {
    ResizeMethod.LINEAR: _triangle,
    ResizeMethod.CUBIC: _cubic,
    ResizeMethod.LANCZOS3: _lanczos(3),
    ResizeMethod.LANCZOS5: _lanczos(5),
}


def _weights(size: int, new: int, scale: Any, shift: Any, kernel: Kernel, antialias: bool, dtype: np.dtype) -> Any:
    """The weights ``[size, new]`` of each pixel of the image for each pixel of the result."""
    inverse = 1 / mnp.asarray(scale, dtype)
    width = mnp.maximum(inverse, 1) if antialias else mnp.ones((), dtype)
    at = (mnp.arange(new, dtype=dtype) + 0.5) * inverse - mnp.asarray(shift, dtype) * inverse - 0.5
    weights = kernel(mnp.abs(at - mnp.arange(size, dtype=dtype)[:, None]) / width)
    total = mnp.sum(weights, 0, keepdims=True)
    some = mnp.abs(total) > 1000 * float(np.finfo(np.float32).eps)
    weights = mnp.where(some, weights / mnp.where(some, total, 1), 0)
    inside = (at >= -0.5) & (at <= size - 0.5)
    return mnp.where(inside, weights, 0)


def _image(name: str, image: Any, shape: Sequence[int]) -> tuple[Any, tuple[int, ...]]:
    x, new = mnp.asarray(image), tuple(int(s) for s in shape)
    if len(new) != x.ndim:
        raise ShapeError(
            f"{name}: shape {new} must have the {counted(x.ndim, 'dimension')} of the image of shape {x.shape}"
        )
    if min(new, default=0) < 0:
        raise ShapeError(f"{name}: sizes must not be negative, got {new}")
    return x, new


def resize(
    image: Any, shape: Sequence[int], method: str | ResizeMethod, antialias: bool = True, precision: Any = "highest"
) -> Any:
    """Resize ``image`` to ``shape``.

    Args:
      image: an array of any rank. Dimensions whose size does not change (batch, channels) are not resampled.
      shape: the new shape, of the same rank.
      method: ``"nearest"``, ``"linear"``, ``"cubic"``, ``"lanczos3"`` or ``"lanczos5"``.
      antialias: widen the kernel if the image becomes smaller; has no effect for ``"nearest"``.
      precision: the precision of the matrix products.

    Returns:
      an array of ``shape``; integers become floats, except with ``"nearest"``.

    Raises:
      ShapeError: ``shape`` has another rank than the image.
      ArgumentError: the method is unknown.

    Example:
      >>> mw.image.resize(jnp.array([[0.0, 2.0]]), (1, 4), "linear").tolist()
      [[0.0, 0.5, 1.5, 2.0]]
    """
    x, new = _image("resize", image, shape)
    method = ResizeMethod.from_string(method) if isinstance(method, str) else method
    dims = [d for d in range(x.ndim) if x.shape[d] != new[d]]
    if method is ResizeMethod.NEAREST:
        for d in dims:
            rows = np.floor((np.arange(new[d]) + 0.5) * x.shape[d] / new[d]).astype(np.int32)
            x = mnp.take(x, rows, axis=d)
        return x
    if any(x.shape[d] == 0 for d in dims):
        raise ShapeError(f"resize: an image without pixels, of shape {x.shape}, cannot have shape {new}")
    scale = [new[d] / x.shape[d] for d in dims]
    return _resampled(x, new, dims, scale, [0.0] * len(dims), _KERNELS[method], antialias, precision)


def scale_and_translate(
    image: Any,
    shape: Sequence[int],
    spatial_dims: Sequence[int],
    scale: Any,
    translation: Any,
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: Any = "highest",
) -> Any:
    """Scale ``image`` about its corner and translate it.

    Position ``x`` (pixel centres are at half-integers) is mapped to ``x * scale + translation``. Outside of the image,
    the values are 0. ``scale`` and ``translation`` may be traced and differentiated.

    Args:
      image: an array of any rank.
      shape: the shape of the result, of the same rank; dimensions not in ``spatial_dims`` keep their sizes.
      spatial_dims: the ``k`` dimensions that are resampled.
      scale, translation: arrays of shape ``(k,)``.
      method, antialias, precision: as in :func:`resize`, except for the method ``"nearest"``.

    Raises:
      ShapeError: ``shape`` or ``spatial_dims`` does not fit the image.
      ArgumentError: the method is unknown, or ``"nearest"``.

    Example:
      >>> mw.image.scale_and_translate(jnp.array([1.0, 2.0]), (3,), (0,), jnp.array([1.0]), jnp.array([1.0]), "linear")
      Array([0., 1., 2.], dtype=float32)
    """
    x, new = _image("scale_and_translate", image, shape)
    method = ResizeMethod.from_string(method) if isinstance(method, str) else method
    if method is ResizeMethod.NEAREST:
        raise ArgumentError("scale_and_translate: 'nearest' is no kernel and has no derivative; use 'linear'")
    if any(not -x.ndim <= d < x.ndim for d in spatial_dims):
        raise ShapeError(f"scale_and_translate: spatial_dims {tuple(spatial_dims)} are not all in shape {x.shape}")
    dims = [d % x.ndim for d in spatial_dims]
    kept = [d for d in range(x.ndim) if d not in dims and x.shape[d] != new[d]]
    if kept:
        raise ShapeError(
            f"scale_and_translate: shape {new} changes dimensions {kept} of {x.shape}, which are not in spatial_dims"
        )
    scale, translation = mnp.asarray(scale), mnp.asarray(translation)
    if scale.shape != (len(dims),) or translation.shape != (len(dims),):
        raise ShapeError(
            f"scale_and_translate: scale {scale.shape} and translation {translation.shape} must have shape "
            f"{(len(dims),)}: one number for each of spatial_dims"
        )
    return _resampled(x, new, dims, list(scale), list(translation), _KERNELS[method], antialias, precision)


@promotes_freely()
def _resampled(
    x: Any,
    new: Sequence[int],
    dims: Sequence[int],
    scale: Sequence[Any],
    shift: Sequence[Any],
    kernel: Kernel,
    antialias: bool,
    precision: Any,
) -> Any:
    dtype = dtypes.inexact(typeof(x).dtype)
    x = x.astype(dtype)
    for d, a, b in zip(dims, scale, shift):
        weights = _weights(x.shape[d], new[d], a, b, kernel, antialias, mnp.result_type(dtype, np.float32))
        moved = mnp.tensordot(x, weights.astype(dtype), axes=((d,), (0,)), precision=precision)
        x = mnp.moveaxis(moved, -1, d)
    return x
