"""``jax.version``: which version this is."""

from meshwright.core.version import __version__

__all__ = ["__version__", "__version_info__"]

#: as numbers, which compare as versions do
__version_info__ = tuple(map(int, __version__.split(".")[:3]))
