"""How exactly products are to be computed: the words for it, and JAX's enumeration of them.

On CPU all of them give the same; StableHLO carries what is asked for to platforms where it matters.
"""

from __future__ import annotations

import enum
from typing import Any

#: names of precisions, and what they mean for products on every platform
PRECISIONS = {
    "default": "default", "fastest": "default", "bfloat16": "default",
    "high": "high", "bfloat16_3x": "high", "tensorfloat32": "high",
    "highest": "highest", "float32": "highest",
}  # fmt: skip


class Precision(enum.Enum):
    """The precision of matrix products and convolutions on platforms that have several; also found by its names.

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


#: what functions take as ``precision``: one for both operands, or a pair
PrecisionLike = None | str | Precision | tuple[str, str] | tuple[Precision, Precision] | Any
