"""Abstract values: the properties of an array that are known before it exists.

``ShapedArray`` is interned: equal avals are the same object, so equality is identity and hashing is cheap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshwright.core.dtypes import as_dtype, canonical, float0, is_inexact, short_name
from meshwright.core.key_types import is_key
from meshwright.core.memory_space import Space
from meshwright.core.slots import Slot
from meshwright.errors import ShapeError

_BOOL = np.dtype(bool)
#: sizes in bytes are 64-bit integers, here and in XLA
_MOST_BYTES = 2**63 - 1

Shape = tuple[int, ...]
#: names of axes
Axes = frozenset[str]
NOWHERE: Axes = frozenset()

#: creates the sharding of a type without one
WHOLE: Slot[Callable[[int], Any]] = Slot("the sharding of whole values", "meshwright.sharding.typed")
#: the part of a sharding that belongs to the type of a value with so many dimensions
SPLIT: Slot[Callable[[Any, int], Any]] = Slot("the explicit part of a sharding", "meshwright.sharding.typed")


def axes_text(axes: Sequence[str]) -> str:
    """``x``, or ``(x,y)`` for several axes."""
    return axes[0] if len(axes) == 1 else f"({','.join(axes)})"


class ManualAxisType(NamedTuple):
    """What is known of a value along mesh axes: over which it may differ between devices, over which it is a sum that
    is still to be made, and over which its derivative is one."""

    varying: Axes = NOWHERE
    unreduced: Axes = NOWHERE
    reduced: Axes = NOWHERE


class AbstractValue:
    """Base of types of values: :class:`ShapedArray`, and those that extensions define."""

    __slots__ = ()


class ShapedArray(AbstractValue):
    """Shape, dtype and *weak type* (the promotion behaviour of a Python scalar) of an array.

    Inside a ``shard_map``, it is the type of a device's part, and ``vma`` are the manual axes over which the value
    *varies*: along the others all devices are known to hold the same value (empty outside, and if this is not checked).

    ``explicit`` tells how the *explicit* axes of a mesh split the value, a
    :class:`meshwright.sharding.typed.TypeSharding`, or None. ``memory`` is the kind of memory it is in, if that is not
    the device's own. It may be given by a ``sharding``, whose explicit axes it then has.
    """

    __slots__ = ("__weakref__", "dtype", "explicit", "memory", "nbytes", "shape", "size", "vma", "weak_type")
    _interned: dict[tuple[Shape, np.dtype, bool, Axes, Any, str | None], ShapedArray] = {}

    shape: Shape
    dtype: np.dtype
    weak_type: bool
    vma: Axes
    explicit: Any
    memory: str | None
    #: the number of elements, and of bytes
    size: int
    nbytes: int

    def __new__(
        cls,
        shape: Shape,
        dtype: np.dtype,
        weak_type: bool = False,
        vma: Iterable[str] = NOWHERE,
        explicit: Any = None,
        memory: str | None = None,
        *,
        sharding: Any = None,
    ) -> ShapedArray:
        if sharding is not None:
            explicit = SPLIT.value(sharding, len(shape))
        if type(vma) is not frozenset:
            vma = frozenset(vma)
        if weak_type and dtype == _BOOL:
            weak_type = False  # no other dtype takes precedence over a weak bool
        aval = cls._interned.get((shape, dtype, weak_type, vma, explicit, memory))
        if aval is None:
            aval = object.__new__(cls)
            set_ = object.__setattr__
            set_(aval, "shape", tuple(int(d) for d in shape))
            set_(aval, "dtype", dtype if is_key(dtype) else np.dtype(dtype))
            set_(aval, "weak_type", bool(weak_type))
            set_(aval, "vma", vma)
            set_(aval, "explicit", explicit)
            set_(aval, "memory", memory)
            set_(aval, "size", math.prod(aval.shape))
            set_(aval, "nbytes", aval.size * aval.dtype.itemsize)
            if aval.nbytes > _MOST_BYTES:
                raise ShapeError(f"{aval} has {aval.nbytes} bytes; expected at most {_MOST_BYTES}, which 64 bits count")
            key = aval.shape, aval.dtype, aval.weak_type, vma, explicit, memory
            aval = cls._interned.setdefault(key, aval)
        return aval

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("ShapedArray is immutable; use .update(...)")

    def __reduce__(self) -> Any:
        return ShapedArray, (self.shape, self.dtype, self.weak_type, self.vma, self.explicit, self.memory)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def sharding(self) -> Any:
        """How explicit axes of a mesh split the value."""
        return WHOLE.value(self.ndim) if self.explicit is None else self.explicit

    @property
    def manual_axis_type(self) -> ManualAxisType:
        """Along which axes devices hold different values, or terms of a sum (``vma``, and marks of explicit axes)."""
        split = self.explicit
        return ManualAxisType(self.vma, *(() if split is None else (split.unreduced, split.reduced)))

    mat = manual_axis_type

    def update(
        self,
        shape: Shape | None = None,
        dtype: np.dtype | None = None,
        weak_type: bool | None = None,
        vma: Axes | None = None,
        explicit: Any = ...,
        memory: str | None = "same",
    ) -> ShapedArray:
        """This aval with some properties replaced. A new shape drops ``explicit``, unless that is given too."""
        if explicit is ...:
            explicit = self.explicit if shape is None or shape == self.shape else None
        return ShapedArray(
            self.shape if shape is None else shape,
            self.dtype if dtype is None else dtype,
            self.weak_type if weak_type is None else weak_type,
            self.vma if vma is None else vma,
            explicit,
            self.memory if memory == "same" else memory,
        )

    def with_dim(self, dim: int, size: int, axes: tuple[str, ...] = ()) -> ShapedArray:
        """The type with an additional dimension at ``dim``, split by explicit ``axes``."""
        shape = (*self.shape[:dim], size, *self.shape[dim:])
        return self.update(shape=shape, explicit=self.explicit and self.explicit.with_dim(dim, axes))

    def without_dim(self, dim: int) -> ShapedArray:
        """The type without dimension ``dim``."""
        shape = self.shape[:dim] + self.shape[dim + 1 :]
        return self.update(shape=shape, explicit=self.explicit and self.explicit.without_dim(dim))

    def cotangent(self) -> ShapedArray:
        """The type of cotangents, in which unreduced and reduced axes are swapped."""
        return self if self.explicit is None else self.update(explicit=self.explicit.cotangent())

    def to_tangent_aval(self) -> ShapedArray:
        """The type of tangents."""
        return self if is_inexact(self.dtype) else self.update(dtype=float0)

    at_least_vspace = to_tangent_aval

    def to_ct_aval(self) -> ShapedArray:
        """The type of cotangents of values with this type."""
        return self.to_tangent_aval().cotangent()

    to_cotangent_aval = to_ct_aval

    def strong(self) -> ShapedArray:
        """This aval without weak type."""
        return self.update(weak_type=False) if self.weak_type else self

    strip_weak_type = strong

    def update_weak_type(self, weak_type: bool) -> ShapedArray:
        """This aval with or without weak type."""
        return self.update(weak_type=weak_type)

    @property
    def memory_space(self) -> Space:
        """The device's memory, or its host's."""
        return Space.Host if self.memory else Space.Device

    def str_short(self, short_dtypes: bool = False) -> str:
        """The type as text: ``float32[8@x,4]``, or ``f32[8@x,4]`` with ``short_dtypes``."""
        text = str(self)
        return text if short_dtypes else self.dtype.name + text[len(short_name(self.dtype)) :]

    def __str__(self) -> str:
        split = self.explicit
        dims = map(str, self.shape) if split is None else split.dims_text(self.shape)
        marks = [("V", self.vma)] if split is None else [("V", self.vma), ("U", split.unreduced), ("R", split.reduced)]
        notes = ",".join(f"{letter}:{axes_text(sorted(axes))}" for letter, axes in marks if axes)
        where = "<host>" if self.memory else ""
        return f"{short_name(self.dtype)}{where}[{','.join(dims)}]" + (f"{{{notes}}}" if notes else "")

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        return f"ShapedArray({self.str_short()}{weak})"


class Typed:
    """Base class of objects with a type; shape and dtype are those of ``aval``."""

    __slots__ = ()
    aval: ShapedArray

    @property
    def shape(self) -> Shape:
        return self.aval.shape

    @property
    def dtype(self) -> np.dtype:
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        return len(self.aval.shape)

    @property
    def size(self) -> int:
        return self.aval.size

    @property
    def weak_type(self) -> bool:
        return self.aval.weak_type


class OnlyTyped(Typed):
    """Base class of objects that have only a type."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray) -> None:
        self.aval = aval

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.aval})"


def as_typed(x: Any) -> Any:
    """``x``; or, where it is an object that has a shape and a dtype but no elements, one with that type."""
    is_value = isinstance(x, (Typed, type)) or hasattr(x, "__array__")
    if is_value or not (hasattr(x, "shape") and hasattr(x, "dtype")):
        return x
    return OnlyTyped(ShapedArray(tuple(x.shape), canonical(as_dtype(x.dtype))))
