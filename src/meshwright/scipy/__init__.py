"""The functions of ``jax.scipy``, for arrays and tracers. Submodules are imported on first use."""

from meshwright.core.absent import absent as _absent
from meshwright.core.late import late_attributes as _late_attributes
from meshwright.core.late import submodules as _submodules

_NAMES = (
    "cluster", "fft", "integrate", "interpolate", "linalg", "ndimage", "optimize", "signal", "sparse", "special",
    "stats",
)  # fmt: skip
__getattr__, __dir__ = _late_attributes(__name__, {}, _submodules(__name__, *_NAMES), _absent("scipy"))
