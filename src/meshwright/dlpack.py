"""``jax.dlpack``: shares arrays with other libraries without a copy."""

from meshwright.numpy import from_dlpack
from meshwright.runtime.pjrt.dlpack import has_dlpack_type as is_supported_dtype

__all__ = ["from_dlpack", "is_supported_dtype"]
