"""Abstract values: what is known of an array before it exists.

``ShapedArray`` is interned: equal avals are the same object, so that equality is identity and hashing costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from meshwright.core.dtypes import short_name
from meshwright.core.key_types import is_key

_BOOL = np.dtype(bool)

Shape = tuple[int, ...]
#: names of axes
Axes = frozenset[str]
NOWHERE: Axes = frozenset()


class ShapedArray:
    """Shape, dtype and *weak type* (a Python scalar's promotion behaviour) of an array.

    Inside of a ``shard_map`` it is the type of a device's part, and ``vma`` are the manual axes over which the value
    *varies*: along the others all devices are known to hold the same (empty outside, and where nothing is checked).
    """

    __slots__ = ("__weakref__", "dtype", "shape", "vma", "weak_type")
    _interned: dict[tuple[Shape, np.dtype, bool, Axes], ShapedArray] = {}

    shape: Shape
    dtype: np.dtype
    weak_type: bool
    vma: Axes

    def __new__(
        cls, shape: Shape, dtype: np.dtype, weak_type: bool = False, vma: Iterable[str] = NOWHERE
    ) -> ShapedArray:
        if type(vma) is not frozenset:
            vma = frozenset(vma)
        if weak_type and dtype == _BOOL:
            weak_type = False  # there is no other dtype that a bool would give way to
        found = cls._interned.get((shape, dtype, weak_type, vma))
        if found is None:
            found = object.__new__(cls)
            set_ = object.__setattr__
            set_(found, "shape", tuple(int(d) for d in shape))
            set_(found, "dtype", dtype if is_key(dtype) else np.dtype(dtype))
            set_(found, "weak_type", bool(weak_type))
            set_(found, "vma", vma)
            found = cls._interned.setdefault((found.shape, found.dtype, found.weak_type, vma), found)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("ShapedArray is immutable; use .update(...)")

    def __reduce__(self) -> Any:
        return ShapedArray, (self.shape, self.dtype, self.weak_type, self.vma)

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
        self,
        shape: Shape | None = None,
        dtype: np.dtype | None = None,
        weak_type: bool | None = None,
        vma: Axes | None = None,
    ) -> ShapedArray:
        """This aval with some members replaced."""
        return ShapedArray(
            self.shape if shape is None else shape,
            self.dtype if dtype is None else dtype,
            self.weak_type if weak_type is None else weak_type,
            self.vma if vma is None else vma,
        )

    def strong(self) -> ShapedArray:
        """This aval without weak type."""
        return ShapedArray(self.shape, self.dtype, False, self.vma) if self.weak_type else self

    def __str__(self) -> str:
        axes = sorted(self.vma)
        where = "" if not axes else f"{{V:{axes[0]}}}" if len(axes) == 1 else f"{{V:({','.join(axes)})}}"
        return f"{short_name(self.dtype)}[{','.join(map(str, self.shape))}]{where}"

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        return f"ShapedArray({self}{weak})"
