"""Identifies small scalar functions by evaluating them on probe values.

Comparators of sorts and reducers of (value, index) pairs are written in many ways. A function made only of comparisons,
selects and boolean logic on its arguments and constants depends only on the relative order of these. Two such functions
are equal if they agree on probes that take every order relative to each other and to the constants. All combinations
are evaluated at once with NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.rewrite import Interpreter

#: the largest number of arguments that are probed in all combinations
MOST_ARGUMENTS = 6


def _select(which: Any, on_false: Any, on_true: Any) -> Any:
    return np.where(which, on_true, on_false)


_OPS: dict[str, Callable[..., Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not, "select_n": _select,
    "copy": np.copy,
}  # fmt: skip
_LOGIC = ("and", "or", "xor", "not")


def probes(dtype: np.dtype) -> np.ndarray:
    """Values of a dtype at, below and above every value that a comparator may treat specially."""
    if dtypes.is_bool(dtype):
        return np.array([False, True])
    if dtypes.is_integer(dtype):
        info = ml_dtypes.iinfo(dtype)
        return np.array([v for v in (info.min, -2, -1, 0, 1, 2, info.max) if v >= info.min], dtype)
    return np.array([-np.inf, -2, -1, -0.0, 0, 1, 2, np.inf, np.nan]).astype(dtype)


def grid(kinds: Sequence[np.dtype]) -> list[np.ndarray]:
    """All combinations of probes, as one flat array per dtype in ``kinds``."""
    return [a.reshape(-1) for a in np.meshgrid(*map(probes, kinds), indexing="ij")]


def total_order_key(x: np.ndarray) -> np.ndarray:
    """Integers that are ordered like the floats ``x`` in the total order (IEEE 754, 5.10)."""
    bits = x.dtype.itemsize * 8
    signed = x.view(f"int{bits}")
    return np.where(signed < 0, signed ^ np.array(2 ** (bits - 1) - 1, signed.dtype), signed)


def used(jaxpr: ClosedJaxpr) -> set[int]:
    """The positions of the parameters that a jaxpr uses."""
    atoms = {a for e in jaxpr.eqns for a in e.invars if isinstance(a, Var)}
    atoms |= {a for a in jaxpr.jaxpr.outvars if isinstance(a, Var)}
    return {i for i, v in enumerate(jaxpr.jaxpr.invars) if v in atoms}


def run(jaxpr: ClosedJaxpr, args: Sequence[Any], compare_total: Callable[[JaxprEqn], str]) -> list[Any] | None:
    """The results for NumPy arguments; None if the jaxpr does more than compare and select.

    ``compare_total`` returns the direction (an op name) of an equation that compares by total order, else "".
    """
    inner = jaxpr.jaxpr
    if inner.constvars or any(not _is_special(a.val) for e in inner.eqns for a in e.invars if isinstance(a, Literal)):
        return None
    try:
        with np.errstate(invalid="ignore"):
            return _Trial(compare_total).run(jaxpr, args)
    except _DoesMoreError:
        return None


class _DoesMoreError(Exception):
    """A jaxpr does more than compare and select."""


class _Trial(Interpreter[Any]):
    def __init__(self, compare_total: Callable[[JaxprEqn], str]) -> None:
        self.compare_total = compare_total

    def constant(self, value: Any, aval: ShapedArray) -> Any:
        return np.asarray(value, aval.dtype)

    def equation(self, eqn: JaxprEqn, args: list[Any]) -> Sequence[Any]:
        direction = self.compare_total(eqn)
        name, values = (direction, [total_order_key(v) for v in args]) if direction else (eqn.op.name, args)
        rule = _OPS.get(name)
        if rule is None or (name in _LOGIC and any(v.dtype != np.bool_ for v in values)):
            raise _DoesMoreError
        return [rule(*values)]


def _is_special(value: Any) -> bool:
    """Whether the probes cover the neighborhood of a constant: zero, one, an infinity, NaN or a bool."""
    number = np.asarray(value)
    return number.dtype == np.bool_ or bool(number != number) or float(number) in (0.0, 1.0, np.inf, -np.inf)
