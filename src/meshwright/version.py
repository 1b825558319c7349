"""``jax.version``: the version of this package."""

from meshwright.core.version import __version__

__all__ = ["__version__", "__version_info__"]

#: the version as a tuple of integers, which can be compared
__version_info__ = tuple(map(int, __version__.split(".")[:3]))
