"""``jax.ffi``: calls of kernels in other languages from compiled programs."""

from meshwright.api.ffi import ffi_call, include_dir, pycapsule, register_ffi_target, register_ffi_type
from meshwright.core.absent import absent as _absent

__all__ = ["ffi_call", "include_dir", "pycapsule", "register_ffi_target", "register_ffi_type"]

__getattr__ = _absent("ffi")
