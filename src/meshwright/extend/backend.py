"""``jax.extend.backend``: backends, which compile programs and hold arrays (see :mod:`meshwright.lib.xla_bridge`)."""

from meshwright.core.absent import absent as _absent
from meshwright.core.late import late_attributes as _late_attributes
from meshwright.runtime.devices import default_device as get_default_device

__all__ = ["backends", "get_backend", "get_default_device"]  # noqa: F822

__getattr__, __dir__ = _late_attributes(
    __name__,
    dict.fromkeys(("backends", "get_backend"), "meshwright.lib.xla_bridge"),
    missing=_absent("extend.backend"),
)
