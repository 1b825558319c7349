"""The rules shared by elementwise ops, and the creation of ops without parameters from table rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold
from typing import Any, ClassVar, TypeVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.key_types import is_key
from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ArgumentTypeError, DTypeError, MeshwrightError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Kernels
from meshwright.ir.op import REGISTRY, BatchAxis, Builder, Constant, Dual, Op, Tangent, Unknown, Zero, by_name
from meshwright.ir.reading import READERS
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise import gpu
from meshwright.ops.elementwise.docs import docstring, in_order, public_name, signature
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, match_shape, stretched
from meshwright.ops.shape.rearrange import above, move_dim
from meshwright.sharding.rule import ShardingRule, pointwise_rule

T = TypeVar("T")

#: predicates for accepted dtypes, by the letters in table rows
_KINDS: dict[str, Callable[[np.dtype], bool]] = {
    "b": dtypes.is_bool, "i": dtypes.is_signed, "u": dtypes.is_unsigned, "f": dtypes.is_float, "c": dtypes.is_complex,
    "k": is_key,
}  # fmt: skip
_WORDS = {"b": "bool", "i": "signed integer", "u": "unsigned integer", "f": "float", "c": "complex", "k": "random key"}
_INEXACT = frozenset("fc")

#: the partial derivative of an elementwise op with respect to an operand
Partial = Callable[..., Any] | Constant | Unknown


def with_arrays(rule: Callable[[Sequence[Any]], T], primals: Sequence[Any]) -> T:
    """``rule(primals)``, with Python numbers converted to arrays if Python's arithmetic on them raises: division by 0,
    or overflow."""
    try:
        return rule(primals)
    except (ZeroDivisionError, OverflowError) as error:
        refused = isinstance(error, MeshwrightError)  # raised by us: an integer too large for a dtype, for example
        if refused or not any(isinstance(x, (int, float, complex)) for x in primals):
            raise
        return rule([_array(x) if isinstance(x, (int, float, complex)) else x for x in primals])


def _array(number: complex) -> Any:
    aval = typeof(number)
    return REGISTRY["convert_element_type"](aval.dtype, aval.weak_type).bind(number)  # type: ignore[call-arg]


@dataclass(frozen=True)
class Elementwise(Op):
    """Base class of ops on corresponding elements.

    ``partials[i](t, y, *xs)`` is the tangent of the result for tangent ``t`` of operand ``i``. Each operand that may be
    a float or complex number has a partial, even if that is :data:`CONSTANT` or :class:`Unknown`. The result is weakly
    typed if all operands are, unless the op decides (``may_be_weak``).
    """

    hlo: ClassVar[str] = ""
    accepts: ClassVar[tuple[str, ...]] = ()
    partials: ClassVar[tuple[Partial, ...]] = ()
    may_be_weak: ClassVar[bool] = True

    def __hash__(self) -> int:
        return hash(type(self))  # dataclasses without fields would otherwise all have the same hash

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "partials" in cls.__dict__:
            cls.constant_in = frozenset(i for i, p in enumerate(cls.partials) if isinstance(p, Constant))
            cls.unknown_in = {i: p for i, p in enumerate(cls.partials) if isinstance(p, Unknown)}
        if cls.jvp is Elementwise.jvp and _INEXACT.intersection("".join(cls.accepts)):
            assert len(cls.partials) == len(cls.accepts), f"{cls.name}: expected a partial for each operand"

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Rows can be called like functions: ``mul(x, y)`` binds. In arrays of equal rank, dimensions of size 1
        broadcast."""
        operands = in_order(self.name, self.accepts, args, named) if named else args
        return self.bind(*(stretched(operands) if len(operands) > 1 else operands))

    @property
    def arity(self) -> int:
        return len(self.accepts)

    def result_dtype(self, *operand_dtypes: np.dtype) -> np.dtype:
        """The dtype of the result; by default that of the first operand."""
        return operand_dtypes[0]

    def kernels(self, *avals: ShapedArray) -> Kernels:
        return Kernels(operations=gpu.operations(self.name, avals[0].dtype) * max(a.size for a in avals))

    def check_dtypes(self, *operand_dtypes: np.dtype) -> None:
        """Raise unless each operand's dtype is accepted and all are equal."""
        for position, (dtype, kinds) in enumerate(zip(operand_dtypes, self.accepts)):
            if not any(_KINDS[k](dtype) for k in kinds):
                expected = ", ".join(_WORDS[k] for k in kinds)
                raise DTypeError(
                    f"{self.name}: operand {position} has dtype {dtype}, expected {expected}; convert it with .astype"
                )
        if len(set(operand_dtypes)) > 1:
            raise DTypeError(
                f"{self.name}: operands have different dtypes {', '.join(map(str, operand_dtypes))}; the functions "
                "of meshwright.numpy promote, ops do not: convert one with .astype"
            )

    def infer(self, *avals: ShapedArray) -> ShapedArray:
        if len(avals) != len(self.accepts):
            raise ArgumentTypeError(f"{self.name}: expected {counted(len(self.accepts), 'operand')}, got {len(avals)}")
        self.check_dtypes(*(a.dtype for a in avals))
        shapes = {a.shape for a in avals if a.shape}
        if len(shapes) > 1:
            raise ShapeError(
                f"{self.name}: operand shapes {' and '.join(str(a.shape) for a in avals)} differ; the functions of "
                "meshwright.numpy broadcast, ops take equal shapes or scalars"
            )
        weak = self.may_be_weak and all(a.weak_type for a in avals)
        return ShapedArray(shapes.pop() if shapes else (), self.result_dtype(*(a.dtype for a in avals)), weak)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        return with_arrays(lambda xs: self._pushed(xs, tangents), primals)

    def _pushed(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        y = self.bind(*primals)
        parts = [
            match_shape(partial(t, y, *primals), typeof(y))  # type: ignore[operator]
            for partial, t in zip(self.partials, tangents)
            if not isinstance(t, Zero)
        ]
        return y, fold(by_name("add").bind, parts)

    def batch(
        self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]
    ) -> tuple[ArrayLike, int | None]:
        ranks = [typeof(x).ndim - (d is not None) for x, d in zip(args, dims)]
        rank = max(ranks)
        # The first full-rank batched operand determines the place of the batch dimension.
        place = next((d for d, r in zip(dims, ranks) if d is not None and r == rank), 0)
        shape = None
        for x, d, r in zip(args, dims, ranks):
            if r == rank and rank:
                logical = [s for i, s in enumerate(typeof(x).shape) if i != d]
                shape = (*logical[:place], axis.size, *logical[place:])
        shape = shape or (axis.size,)
        return self.bind(*(_align(x, d, r, rank, place, shape) for x, d, r in zip(args, dims, ranks))), place

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        shape = max((a.shape for a in avals), key=len)
        return pointwise_rule([a.ndim for a in avals], shape)

    def attributes(self, b: Builder) -> dict[str, Any]:
        """Attributes of the StableHLO op."""
        return {}

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        out = b.out_avals[0]
        full = [
            b.broadcast(x, a.update(shape=out.shape), ()) if a.shape != out.shape else x
            for x, a in zip(operands, b.in_avals)
        ]
        return b.op(self.hlo, full, b.out_avals, **self.attributes(b))[0]


def complex_of_parts(a: np.dtype, b: np.dtype) -> np.dtype:
    """The dtype of complex numbers with parts of these dtypes."""
    if dtypes.bit_width(a) < 32:
        raise DTypeError(f"complex: expected parts of dtype float32 or float64, got {a}; convert them with .astype")
    return dtypes.complex_of(a)


def _align(x: Any, dim: int | None, rank: int, full: int, place: int, shape: tuple[int, ...]) -> Any:
    """An operand with its batch dimension at ``place``; unbatched scalars are unchanged."""
    if rank == full:
        if dim is not None:
            return move_dim(x, dim, place)
        if rank == 0:
            return x
        return broadcast_in_dim(x, shape, [above(d, place) for d in range(rank)])
    return x if dim is None else broadcast_in_dim(x, shape, (place,))


# --- rows ---------------------------------------------------------------------------------------------------
def row(
    name: str,
    hlo: str,
    accepts: str,
    *partials: Partial,
    linear: tuple[tuple[int, ...], ...] = (),
    transpose: Callable[..., Any] | None = None,
    result: Callable[..., np.dtype] | None = None,
    attributes: Callable[[Builder], dict[str, Any]] | None = None,
) -> Elementwise:
    """Create an elementwise op without parameters. ``accepts`` has a word of kind letters for each operand."""
    members: dict[str, Any] = {
        "name": name,
        "hlo": hlo,
        "accepts": tuple(accepts.split()),
        "partials": partials,
        "linear_in": linear,
        "__module__": "meshwright.ops.elementwise.table",
        "__reduce__": lambda self: (by_name, (name,)),
        "__doc__": docstring(name, accepts.split()),
        "__name__": public_name(name),
        "__signature__": signature(name, accepts.split()),
    }
    if transpose is not None:
        members["transpose"] = lambda self, ct, *xs: transpose(ct, *xs)
    if result is not None:
        members["result_dtype"] = lambda self, *ds: result(*ds)
    if attributes is not None:
        members["attributes"] = lambda self, b: attributes(b)
    cls: type[Elementwise] = type(name.title().replace("_", ""), (Elementwise,), members)  # no fields, so no dataclass
    op = cls()
    if hlo:
        READERS.setdefault(hlo, lambda r: op.bind(*r.operands))
    return op
