"""``jax.experimental.compute_on``: the place where a part of a program is computed, as far as it is supported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from meshwright.core.absent import absent as _absent
from meshwright.core.config import config
from meshwright.core.expected import refused
from meshwright.errors import ArgumentError

__all__ = ["compute_on"]


def compute_on(compute_type: str) -> AbstractContextManager[None]:
    """Compute a ``with`` block, or a decorated function, on the given place.

    It may be ``"device"``, the default, or ``"device_host"``, the host of the device, if that is the device (on CPUs).

    Raises:
      ArgumentTypeError: the place is not a string.
      ArgumentError: computing on another place is not supported.

    Example:
      >>> from meshwright.experimental.compute_on import compute_on
      >>> with compute_on("device_host"):
      ...     (mnp.arange(3) * 2).tolist()
      [0, 2, 4]
    """
    if not isinstance(compute_type, str):
        raise refused("compute_on: compute_type", "text", compute_type)
    if compute_type != "device" and (compute_type != "device_host" or config.platform != "cpu"):
        raise ArgumentError(
            f"compute_on: programs for {config.platform} are computed on their devices alone, got {compute_type!r}; "
            "leave it out, or move values with device_put and memory.Space.Host"
        )
    return _nothing_to_do()


@contextmanager
def _nothing_to_do() -> Iterator[None]:
    yield


__getattr__ = _absent("experimental.compute_on")
