"""``jax.image``: images resampled to another size."""

from meshwright.image.resampling import ResizeMethod, resize, scale_and_translate

__all__ = ["ResizeMethod", "resize", "scale_and_translate"]
