"""Algorithms of matrix products: the types to which operands are converted and in which sums are accumulated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, SupportsIndex

import numpy as np

from meshwright.core import dtypes
from meshwright.core.expected import as_integer
from meshwright.core.precision import DotAlgorithmPreset
from meshwright.core.records import dataclass
from meshwright.errors import DTypeError


@dataclass(frozen=True)
class Algorithm:
    """The types of a matrix product, by StableHLO's names; ``f8`` is any 8-bit float.

    ``name`` is JAX's name, or lists the fields.
    """

    name: str
    lhs: str
    rhs: str
    accumulation: str
    #: the number of parts into which each operand is split, and the number of products of parts
    components: tuple[int, int] = (1, 1)
    products: int = 1
    imprecise: bool = False
    #: dtypes in which operands can be stored; others are converted to the first. None: any
    operands: tuple[tuple[np.dtype, ...], tuple[np.dtype, ...]] | None = None
    #: dtypes in which results can be stored; others are computed in the first. None: any
    results: tuple[np.dtype, ...] | None = None

    def __repr__(self) -> str:
        return self.name

    @property
    def of_bytes(self) -> bool:
        """Whether it is for 8-bit floats."""
        return "f8" in (self.lhs, self.rhs)

    def takes(self, *operands: np.dtype) -> bool:
        """Whether it supports operands of these dtypes: real floats, for some algorithms only 8-bit ones."""
        return all(dtypes.is_float(d) and (not self.of_bytes or dtypes.bit_width(d) == 8) for d in operands)

    def in_memory(self, dtype: np.dtype, operand: int) -> np.dtype:
        """The dtype to which an operand of ``dtype`` is converted: its own, if that is supported."""
        types = (dtype,) if self.operands is None else self.operands[operand]
        return dtype if dtype in types else types[0]

    def as_made(self, dtype: np.dtype) -> np.dtype:
        """The dtype in which a result is computed before it is converted to ``dtype``."""
        return dtype if self.results is None or dtype in self.results else self.results[0]

    @property
    def key(self) -> tuple[Any, ...]:
        """The fields in StableHLO's attribute."""
        return self.lhs, self.rhs, self.accumulation, self.components, self.products, self.imprecise


def _preset(name: str) -> Algorithm:
    """The algorithm of a name, which lists the types of lhs, rhs and accumulation, then modifiers."""
    lhs, rhs, accumulation, *more = name.removeprefix("ANY_").replace("_ANY_F8", "_F8").lower().split("_")
    imprecise, splits = "fast" in more, [int(m[1:]) for m in more if m[0] == "x"]
    if lhs == "f8":
        sums = "f32" if accumulation == "any" else accumulation
        return Algorithm(name, lhs, rhs, sums, (1, 1), 1, imprecise)
    wide = dtypes.float32 if lhs == "tf32" or splits else _STORED[lhs]
    both = (wide, dtypes.float32) if wide == dtypes.bfloat16 else (wide,)
    results = (_STORED[accumulation],) if accumulation == lhs else (_STORED[accumulation], wide)
    return Algorithm(name, lhs, rhs, accumulation, (1, 1), max([1, *splits]), False, (both, both), results)


_STORED = {"bf16": dtypes.bfloat16, "f16": dtypes.float16, "f32": dtypes.float32, "f64": dtypes.float64}
#: by JAX's names
PRESETS = {p.name: _preset(p.name) for p in DotAlgorithmPreset if p is not DotAlgorithmPreset.DEFAULT}


def algorithm_of(*key: Any) -> Algorithm:
    """The algorithm with these fields of StableHLO's attribute, without restrictions on stored dtypes."""
    known = next((p.name for p in PRESETS.values() if p.key == key), None)
    return Algorithm(known or f"DotAlgorithm({', '.join(map(str, key))})", *key)


@dataclass(frozen=True)
class DotAlgorithm:
    """An algorithm of matrix products, given by the dtypes to which operands are rounded and in which sums are
    accumulated.

    The counts are those of the parts into which operands are split, and of the products of parts.
    ``allow_imprecise_accumulation``: some steps may accumulate in a narrower type.

    Raises:
      DTypeError: a dtype is not a float.

    Example:
      >>> half = lax.DotAlgorithm("float16", "float16", "float16")
      >>> lax.dot(jnp.ones(3), jnp.ones(3), precision=half)
      Array(3., dtype=float32)
    """

    lhs_precision_type: Any
    rhs_precision_type: Any
    accumulation_type: Any
    lhs_component_count: SupportsIndex = 1
    rhs_component_count: SupportsIndex = 1
    num_primitive_operations: SupportsIndex = 1
    allow_imprecise_accumulation: bool = False

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm by type names, in which operands and results are stored in exactly these types."""
        given = [dtypes.as_dtype(t) for t in (self.lhs_precision_type, self.rhs_precision_type, self.accumulation_type)]
        if wrong := [d for d in given if not dtypes.is_float(d)]:
            raise DTypeError(f"DotAlgorithm: {wrong[0]} is no float; matrix products are made in floats")
        counts = self.lhs_component_count, self.rhs_component_count, self.num_primitive_operations
        left, right, products = (as_integer("DotAlgorithm: a count", n, 1) for n in counts)
        lhs, rhs, sums = map(stablehlo_float, given)
        made = algorithm_of(lhs, rhs, sums, (left, right), products, bool(self.allow_imprecise_accumulation))
        return replace(made, operands=((given[0],), (given[1],)), results=(given[2],))


def stablehlo_float(dtype: np.dtype) -> str:
    """StableHLO's name of a float dtype, such as ``f8E4M3FN``."""
    bits, _, form = dtype.name.removeprefix("float").partition("_")
    return "bf16" if dtype == dtypes.bfloat16 else f"f{bits}{form.upper()}"
