"""``jax.dtypes``: what there is to say about dtypes."""

from meshwright.core.dtypes import bfloat16, float0
from meshwright.core.dtypes import canonical as canonicalize_dtype
from meshwright.numpy import finfo, iinfo, issubdtype, result_type

__all__ = ["bfloat16", "canonicalize_dtype", "finfo", "float0", "iinfo", "issubdtype", "result_type"]
