"""Type aliases for annotations."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from meshwright.runtime.array import Array

#: values that functions accept as arrays
ArrayLike: TypeAlias = Array | np.ndarray | np.generic | bool | int | float | complex
#: values accepted as dtypes: ``"float32"``, ``np.float32``, ``mnp.bfloat16``, ``float``
DTypeLike: TypeAlias = str | type[Any] | np.dtype

__all__ = ["Array", "ArrayLike", "DTypeLike"]
