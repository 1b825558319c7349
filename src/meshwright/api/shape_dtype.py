"""``ShapeDtypeStruct``: the type of an array, without the array."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.api.shardings import resolve
from meshwright.core.avals import ShapedArray, Typed
from meshwright.core.dimensions import is_symbolic
from meshwright.core.dtypes import as_dtype, canonical, keeps_wide, narrowed, requested
from meshwright.core.expected import as_integers, refused
from meshwright.errors import ArgumentTypeError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.sharding import NamedSharding, PartitionSpec, Sharding, mesh_of_type, typed_by


class ShapeDtypeStruct(Typed):
    """The type of an array: stands for an array wherever only its type matters.

    ``dtype`` is the one that was asked for. Where it has 64 bits and ``enable_x64`` is off, functions take the struct
    for one of 32 bits, as they take NumPy arrays.
    """

    __slots__ = ("_asked", "_narrow", "named_shape", "sharding")

    def __new__(cls, shape: Any = (), *_: Any, **__: Any) -> ShapeDtypeStruct:
        symbolic = cls is ShapeDtypeStruct and isinstance(shape, (tuple, list)) and any(map(is_symbolic, shape))
        return object.__new__(SymbolicStruct if symbolic else cls)

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any,
        named_shape: Mapping[str, int] | None = None,
        *,
        sharding: Sharding | PartitionSpec | None = None,
        weak_type: bool = False,
    ) -> None:
        """``sharding`` may be a spec over the current mesh."""
        sizes = as_integers("ShapeDtypeStruct: shape", shape)
        if dtype is None:  # NumPy would silently use its default
            raise refused("ShapeDtypeStruct: dtype", "a dtype", dtype)
        if any(size < 0 for size in sizes):
            raise ShapeError(f"ShapeDtypeStruct: shape {sizes} has a negative size; expected sizes from 0 on")
        if isinstance(sharding, PartitionSpec):
            sharding = resolve(sharding, "ShapeDtypeStruct: sharding")
        if not isinstance(sharding, Sharding | None):
            raise refused("ShapeDtypeStruct: sharding", "a Sharding or None", sharding)
        asked = as_dtype(dtype)
        self._asked = typed_by(ShapedArray(sizes, asked, weak_type), sharding)
        #: the type for which it is taken unless ``enable_x64`` is on
        self._narrow = typed_by(ShapedArray(sizes, narrowed(asked), weak_type), sharding)
        #: the named axes over which the value differs, with their sizes; set by ``xla_computation``
        self.named_shape = dict(named_shape or {})
        self.sharding = sharding

    @property  # type: ignore[override]
    def aval(self) -> ShapedArray:
        """The type that functions take it for."""
        return self._asked if keeps_wide() else self._narrow

    @property
    def dtype(self) -> Any:
        return self._asked.dtype

    @staticmethod
    def of(aval: ShapedArray, wanted: Sharding | None = None) -> ShapeDtypeStruct:
        """The struct with all properties of a type, including how explicit axes split it."""
        typed = aval.explicit
        sharding = wanted if typed is None else NamedSharding(mesh_of_type(typed.mesh), typed.spec)
        return ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=sharding)

    @staticmethod
    def like(x: Any) -> ShapeDtypeStruct:
        """The struct of the type of an array or number, with the sharding of an array that was placed somewhere.

        >>> ShapeDtypeStruct.like(2.0)
        ShapeDtypeStruct(shape=(), dtype=float32, weak_type=True)
        """
        return ShapeDtypeStruct.of(typeof(x), x.sharding if getattr(x, "committed", False) else None)

    def update(self, **changes: Any) -> ShapeDtypeStruct:
        """A copy with another ``shape``, ``dtype``, ``sharding`` or ``weak_type``.

        Raises:
          ArgumentTypeError: an unknown property.
        """
        now = {n: getattr(self, n) for n in ("shape", "dtype", "named_shape", "sharding", "weak_type")}
        unknown = sorted(changes.keys() - now.keys())
        if unknown:
            raise ArgumentTypeError(f"ShapeDtypeStruct.update: no property {unknown[0]!r}; there are {', '.join(now)}")
        return ShapeDtypeStruct(**{**now, **changes})

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentTypeError(f"len() of {self!r}, which has no dimensions; its size is 1")
        return int(self.shape[0])

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Refused: a type is not an array.

        Raises:
          ArgumentTypeError: always.
        """
        raise ArgumentTypeError(
            f"{self!r} is the type of an array and has no values; pass an array, or trace with the type, as in "
            "jit(f).lower(...) and eval_shape"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapeDtypeStruct) and (self._asked, self.named_shape, self.sharding) == (
            other._asked, other.named_shape, other.sharding,
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self._asked, self.sharding))

    def __repr__(self) -> str:
        where = f", sharding={self.sharding!r}" if self.sharding is not None else ""
        weak = ", weak_type=True" if self.weak_type else ""
        named = f", named_shape={self.named_shape}" if self.named_shape else ""
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype.name}{named}{where}{weak})"


#: that of ``__init__``, not of ``__new__``
ShapeDtypeStruct.__signature__ = inspect.signature(functools.partial(ShapeDtypeStruct.__init__, None))  # type: ignore


class SymbolicStruct(ShapeDtypeStruct):
    """The type of an argument of an exported program, with symbolic sizes; of no use elsewhere."""

    __slots__ = ("symbolic_dtype", "symbolic_shape")

    def __init__(self, shape: Sequence[Any], dtype: Any, *, sharding: None = None, weak_type: bool = False) -> None:
        if sharding is not None:
            raise ArgumentTypeError(
                f"ShapeDtypeStruct: symbolic shapes have no sharding, got {sharding!r}; export for each shape"
            )
        self.symbolic_shape, self.symbolic_dtype = tuple(shape), requested(dtype, "ShapeDtypeStruct")
        self.sharding, self.named_shape = None, {}

    @property  # type: ignore[override]
    def aval(self) -> ShapedArray:
        raise ArgumentTypeError(f"{self!r}: symbolic shapes are for export(jit(f))(...) alone; give numbers here")

    @property
    def shape(self) -> Any:
        return self.symbolic_shape

    @property
    def dtype(self) -> Any:
        return self.symbolic_dtype

    @property
    def ndim(self) -> int:
        return len(self.symbolic_shape)

    @property
    def weak_type(self) -> bool:
        return False

    def at(self, sizes: Mapping[str, int]) -> ShapeDtypeStruct:
        """The type for sizes of the variables."""
        shape = [d.evaluate(sizes) if is_symbolic(d) else d for d in self.symbolic_shape]
        return ShapeDtypeStruct(shape, self.symbolic_dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymbolicStruct) and (self.shape, self.dtype) == (other.shape, other.dtype)

    def __hash__(self) -> int:
        return hash((self.symbolic_shape, self.symbolic_dtype))


def _as_sharding(x: Any) -> Sharding | None:
    return x if isinstance(x, Sharding) else None


def shape_of(x: Any) -> ShapedArray:
    """The aval of anything with ``shape`` and ``dtype``, or of a number."""
    if isinstance(x, Typed):
        return x.aval
    if hasattr(x, "shape") and hasattr(x, "dtype") and not hasattr(x, "__array__"):
        return typed_by(ShapedArray(tuple(x.shape), canonical(x.dtype)), _as_sharding(getattr(x, "sharding", None)))
    return typeof(x)
