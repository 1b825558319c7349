"""Commutative monoids: a binary op that combines elements in any order, and its identity.

Reductions, windows, cumulative ops, scatters and all-reduces are families with one class per supported monoid. The
classes of a family differ only in the monoid and the derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.records import dataclass
from meshwright.errors import DTypeError, PartitionError
from meshwright.ir.contract import Region
from meshwright.ir.op import Builder, Op
from meshwright.ir.tracing import Tracer, typeof
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.elementwise.table import add, and_, max_, min_, mul, or_, reducer, xor

F = TypeVar("F", bound=Op)


@dataclass(frozen=True, repr=False)
class Monoid:
    """A commutative, associative binary op with its identity."""

    #: the kind of partial results that it combines: ``"sum"``
    kind: str
    combine: Elementwise
    #: the identity for a dtype
    identity: Callable[[np.dtype], np.ndarray]

    @property
    def name(self) -> str:
        """The name of the binary op: ``"add"``."""
        return self.combine.name

    def region(self, b: Builder, dtype: np.dtype) -> Region:
        """The region of a StableHLO op that combines two scalars of ``dtype``."""
        return reducer(b, self.combine.hlo, dtype)

    def started(self, init: Any, out: Any) -> Any:
        """``out``, which was accumulated from the identity, as if accumulated from ``init``."""
        identity = self.identity(typeof(out).dtype)
        same = not isinstance(init, Tracer) and bool(np.asarray(init).astype(identity.dtype) == identity)
        return out if same else self.combine(out, init)

    def __repr__(self) -> str:
        return f"Monoid({self.kind})"


def _zero(dtype: np.dtype) -> np.ndarray:
    if not dtypes.has_zero(dtype):
        raise DTypeError(
            f"{dtype} has no 0, which devices need in place of what others have; convert the array to float32 before "
            "it is summed, sliced, joined or indexed along a split dimension, or do not split that"
        )
    return np.zeros((), dtype)


def _negative_zero(dtype: np.dtype) -> np.ndarray:
    return np.asarray(np.negative(_zero(dtype))) if dtypes.is_inexact(dtype) else _zero(dtype)


def _one(dtype: np.dtype) -> np.ndarray:
    return np.ones((), dtype)


def _all_bits(dtype: np.dtype) -> np.ndarray:
    return np.invert(np.zeros((), dtype))


SUM = Monoid("sum", add, _zero)
#: a sum in which some terms are empty: these are -0, the identity that even preserves the sign of a zero
MASKED = Monoid("masked", add, _negative_zero)
PROD = Monoid("prod", mul, _one)
MAX = Monoid("max", max_, dtypes.min_value)
MIN = Monoid("min", min_, dtypes.max_value)
AND = Monoid("and", and_, _all_bits)
OR = Monoid("or", or_, _zero)
#: not supported by any collective, so there are no partial results of this kind
XOR = Monoid("xor", xor, _zero)


def member(family: type[F], monoid: Monoid, class_name: str, name: str, doc: str) -> type[F]:
    """Create the class of a family of ops for ``monoid``: an op called ``name``, defined in the family's module."""
    members = {"monoid": monoid, "name": name, "__doc__": doc, "__module__": family.__module__}
    return dataclass(frozen=True)(type(class_name, (family,), members))


MONOIDS = {m.name: m for m in (SUM, PROD, MAX, MIN, AND, OR, XOR)}
_KINDS = {m.kind: m for m in (*MONOIDS.values(), MASKED)}


def picked_kind(dtype: np.dtype) -> str:
    """The kind of partial result if one device has the selected element, and the others have none."""
    return "or" if dtypes.is_bool(dtype) else "masked"


def nothing(dtype: np.dtype) -> np.ndarray:
    """The value on devices without the selected element: the identity of :func:`picked_kind`."""
    return monoid_of(picked_kind(dtype)).identity(dtype)


def monoid_of(kind: str) -> Monoid:
    """The monoid that combines partial results of a kind: ``"sum"``, ``"max"``, ...

    Raises:
      PartitionError: an unknown kind.
    """
    if kind not in _KINDS:
        raise PartitionError(f"unknown reduction {kind!r}; expected one of {', '.join(_KINDS)}")
    return _KINDS[kind]
