"""Modified Bessel functions of orders 0 and 1."""

from __future__ import annotations

from typing import Any

from meshwright.numpy.filters import i0
from meshwright.ops.special.bessel import bessel_i0e, bessel_i1e, unscaled_bessel
from meshwright.scipy.elementwise import elementwise


@elementwise
def i0e(x: Any) -> Any:
    """The modified Bessel function of order 0, times ``exp(-|x|)``.

    >>> i0e(0.0).item()
    1.0
    """
    return bessel_i0e(x)


@elementwise
def i1(x: Any) -> Any:
    """The modified Bessel function of order 1.

    >>> i1(0.0).item()
    0.0
    """
    return unscaled_bessel(1, x)


@elementwise
def i1e(x: Any) -> Any:
    """The modified Bessel function of order 1, times ``exp(-|x|)``.

    >>> i1e(0.0).item()
    0.0
    """
    return bessel_i1e(x)


__all__ = ["i0", "i0e", "i1", "i1e"]
