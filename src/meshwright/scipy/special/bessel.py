"""Modified Bessel functions of orders 0 and 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.numpy.filters import i0
from meshwright.ops.special.bessel import BesselI, bessel_i0e, bessel_i1e
from meshwright.scipy.elementwise import elementwise


def _row(name: str, f: Callable[[Any], Any], what: str, at_zero: float) -> Callable[..., Any]:
    def function(x: Any) -> Any:
        return f(x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The modified Bessel function of order {what}.\n\n>>> {name}(0.0).item()\n{at_zero}\n"
    return elementwise(function)


i0e = _row("i0e", bessel_i0e, "0, times ``exp(-|x|)``", 1.0)
i1 = _row("i1", BesselI(1), "1", 0.0)
i1e = _row("i1e", bessel_i1e, "1, times ``exp(-|x|)``", 0.0)

__all__ = ["i0", "i0e", "i1", "i1e"]
