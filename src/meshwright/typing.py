"""Names for annotations."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from meshwright.runtime.array import Array

#: what functions of arrays take for an array
ArrayLike: TypeAlias = Array | np.ndarray | np.generic | bool | int | float | complex
#: what stands for a dtype: ``"float32"``, ``np.float32``, ``mnp.bfloat16``, ``float``
DTypeLike: TypeAlias = str | type[Any] | np.dtype

__all__ = ["Array", "ArrayLike", "DTypeLike"]
