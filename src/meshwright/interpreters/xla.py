"""``jax.interpreters.xla``: arrays by the name that they had until 2022. Today's: ``meshwright.Array``."""

from meshwright.core.absent import absent as _absent
from meshwright.runtime.array import Array

__all__ = ["DeviceArray"]

#: today: ``meshwright.Array``
DeviceArray = Array

__getattr__ = _absent("interpreters.xla")
