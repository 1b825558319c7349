"""``clamp``: limits values to a range."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as fold
from typing import Any, ClassVar

from meshwright.core import dtypes
from meshwright.core.records import dataclass
from meshwright.ir.contract import ArrayLike
from meshwright.ir.op import Dual, Tangent, Zero
from meshwright.ir.reading import Reader, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.elementwise.table import add, and_, gt, lt, max_, min_, scalar_like, select
from meshwright.ops.shape.broadcast_reduce import match_shape


@dataclass(frozen=True)
class Clamp(Elementwise):
    """``min(max(x, low), high)``."""

    name: ClassVar[str] = "clamp"
    hlo: ClassVar[str] = "stablehlo.clamp"
    accepts: ClassVar[tuple[str, ...]] = ("biuf", "biuf", "biuf")

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        low, x, high = primals
        y = self.bind(*primals)
        zero = scalar_like(0, y)
        parts = []
        inside = and_(gt(x, low), lt(x, high))
        for t, taken in zip(tangents, (and_(gt(low, x), lt(low, high)), inside, lt(high, max_(low, x)))):
            if not isinstance(t, Zero):
                parts.append(match_shape(select(match_shape(taken, typeof(y).update(dtype=dtypes.bool_)),
                                                match_shape(t, typeof(y)), zero), typeof(y)))  # fmt: skip
        return y, fold(add, parts)


def clamp(min: Any, x: Any, max: Any) -> Any:
    """Clamp ``x`` to the range from ``min`` to ``max``, which are scalars or have its shape; ``max`` wins if ``min`` is
    larger.

    Complex numbers are ordered by real, then by imaginary part.

    Raises:
      ShapeError, DTypeError: the operands do not fit each other.

    Example:
      >>> lax.clamp(0, jnp.array([-5, 3, 9]), 7).tolist()
      [0, 3, 7]
    """
    if dtypes.is_complex(typeof(x).dtype):
        low, high = (match_shape(v, typeof(x)) for v in (min, max))
        return min_(max_(x, low), high)
    return Clamp().bind(min, x, max)


@reads("stablehlo.clamp")
def _read_clamp(r: Reader) -> Any:
    return Clamp().bind(*r.operands)
