"""Abstract values: what is known of an array before it exists.

``ShapedArray`` is interned: equal avals are the same object, so that equality is identity and hashing costs nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshwright.core.dtypes import short_name

Shape = tuple[int, ...]


class ShapedArray:
    """Shape, dtype and *weak type* (a Python scalar's promotion behaviour) of an array."""

    __slots__ = ("__weakref__", "dtype", "shape", "weak_type")
    _interned: dict[tuple[Shape, np.dtype, bool], ShapedArray] = {}

    shape: Shape
    dtype: np.dtype
    weak_type: bool

    def __new__(cls, shape: Shape, dtype: np.dtype, weak_type: bool = False) -> ShapedArray:
        key = (shape, dtype, weak_type)
        found = cls._interned.get(key)
        if found is None:
            found = object.__new__(cls)
            set_ = object.__setattr__
            set_(found, "shape", tuple(int(d) for d in shape))
            set_(found, "dtype", np.dtype(dtype))
            set_(found, "weak_type", bool(weak_type))
            found = cls._interned.setdefault((found.shape, found.dtype, found.weak_type), found)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("ShapedArray is immutable; use .update(...)")

    def __reduce__(self) -> Any:
        return ShapedArray, (self.shape, self.dtype, self.weak_type)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def update(
        self, shape: Shape | None = None, dtype: np.dtype | None = None, weak_type: bool | None = None
    ) -> ShapedArray:
        """This aval with some members replaced."""
        return ShapedArray(
            self.shape if shape is None else shape,
            self.dtype if dtype is None else dtype,
            self.weak_type if weak_type is None else weak_type,
        )

    def strong(self) -> ShapedArray:
        """This aval without weak type."""
        return ShapedArray(self.shape, self.dtype) if self.weak_type else self

    def __str__(self) -> str:
        return f"{short_name(self.dtype)}[{','.join(map(str, self.shape))}]"

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        return f"ShapedArray({self}{weak})"
