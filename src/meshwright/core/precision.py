"""The precision of products: names, JAX's enumeration of them, and algorithms.

On CPU all give the same result; StableHLO passes the request on to platforms where it matters. An algorithm determines
the types of operands and accumulation on every platform that supports it.
"""

from __future__ import annotations

import enum
from typing import Any

#: names of precisions, and the equivalent on every platform
PRECISIONS = {
    "default": "default", "fastest": "default", "bfloat16": "default",
    "high": "high", "bfloat16_3x": "high", "tensorfloat32": "high",
    "highest": "highest", "float32": "highest",
}  # fmt: skip


class Precision(enum.Enum):
    """The precision of matrix products and convolutions on platforms that support several; also found by its names.

    Example:
      >>> lax.Precision("float32"), lax.Precision(None)
      (Precision.HIGHEST, Precision.DEFAULT)
      >>> lax.dot(jnp.ones(3), jnp.ones(3), precision=lax.Precision.HIGHEST).item()
      3.0
    """

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2

    @classmethod
    def _missing_(cls, value: object) -> Precision | None:
        word = "default" if value is None else PRECISIONS.get(str(value).lower())
        return None if word is None else cls[word.upper()]

    def __repr__(self) -> str:
        return f"Precision.{self.name}"

    def __str__(self) -> str:
        return self.name


class DotAlgorithmPreset(enum.Enum):
    """Algorithms of matrix products supported by some platform; also found by their names.

    ``LHS_RHS_SUMS`` gives the types of operands and accumulation, ``X3`` the number of products of parts of the
    operands. CPUs support ``F16_F16_F16``, ``BF16_BF16_F32`` (also ``X3`` and ``X6``), ``F32_F32_F32`` and
    ``F64_F64_F64``.

    Example:
      >>> x = jnp.full((1, 2), 1 + 2.0**-12)
      >>> lax.dot(x, x.T, precision=lax.DotAlgorithmPreset.F16_F16_F16).item()
      2.0
      >>> lax.dot(x, x.T, precision="F32_F32_F32").item() > 2
      True
    """

    DEFAULT = 0
    ANY_F8_ANY_F8_F32 = 1
    ANY_F8_ANY_F8_F32_FAST_ACCUM = 2
    ANY_F8_ANY_F8_ANY = 3
    ANY_F8_ANY_F8_ANY_FAST_ACCUM = 4
    F16_F16_F16 = 5
    F16_F16_F32 = 6
    BF16_BF16_BF16 = 7
    BF16_BF16_F32 = 8
    BF16_BF16_F32_X3 = 9
    BF16_BF16_F32_X6 = 10
    BF16_BF16_F32_X9 = 11
    TF32_TF32_F32 = 12
    TF32_TF32_F32_X3 = 13
    F32_F32_F32 = 14
    F64_F64_F64 = 15

    def __repr__(self) -> str:
        return f"DotAlgorithmPreset.{self.name}"

    def __str__(self) -> str:
        return self.name


#: accepted forms of ``precision``: one for both operands, or a pair; for matrix products also an algorithm
PrecisionLike = None | str | Precision | DotAlgorithmPreset | tuple[Any, Any] | Any
