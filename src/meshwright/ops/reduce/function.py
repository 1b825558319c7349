"""Reduction bodies from users' functions of two scalars, or of two trees of scalars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.core import dtypes, pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.passes import dead_code, inline_calls
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.ops.elementwise.monoid import MONOIDS
from meshwright.ops.elementwise.table import convert
from meshwright.ops.scalar_body import one_shape


@dataclass(frozen=True)
class ReductionFunction:
    """Arrays of one shape, an initial value for each, and the function of scalars that reduces them."""

    arrays: list[Any]
    inits: list[Any]
    body: ClosedJaxpr
    tree: Any
    #: whether all operands, and so the results, are weakly typed
    weak: bool

    def results(self, outs: list[Any]) -> Any:
        """The results in the operands' tree."""
        return pytree.unflatten(self.tree, [convert(x, typeof(x).dtype, self.weak) for x in outs])

    @property
    def op_name(self) -> str:
        """The name of the op if the body is one op on the elements of one array; otherwise empty."""
        jaxpr = self.body.jaxpr
        eqns, args = jaxpr.eqns, list(jaxpr.invars)
        if len(args) != 2 or len(eqns) != 1 or jaxpr.outvars != list(eqns[0].outvars):
            return ""
        return eqns[0].op.name if list(eqns[0].invars) in (args, args[::-1]) else ""


def _becomes(aval: ShapedArray, dtype: np.dtype) -> bool:
    """Whether a scalar has the dtype, or is a weakly typed number that can be converted to it."""
    return aval.dtype == dtype or (aval.weak_type and dtypes.kind_of(aval.dtype) <= dtypes.kind_of(dtype))


def _started(value: Any, name: str, dtype: np.dtype) -> Any:
    """``value``; if it is the identity of the op ``name`` but for its type (0.0 in a sum of integers), the identity."""
    monoid = MONOIDS.get(name)
    if monoid is None or not isinstance(value, (int, float, np.number, np.ndarray)) or np.shape(value) != ():
        return value
    own = typeof(value)
    # also the least or largest of a wider type, which would wrap around
    is_least = name in ("max", "min") and dtypes.is_integer(own.dtype) and value == monoid.identity(own.dtype)
    if _becomes(own, dtype) and not is_least:
        return value
    identity = monoid.identity(dtype)
    endless = {"max": -np.inf, "min": np.inf}.get(name)
    return identity if is_least or value == identity or value == endless else value


def reduction_function(
    name: str, operands: Any, init_values: Any, computation: Callable[[Any, Any], Any]
) -> ReductionFunction:
    """Trace ``computation(a, b)``, a function of two trees of scalars, structured like ``operands``.

    Raises:
      ArgumentTypeError: ``computation`` is not callable.
      ArgumentError: ``operands`` and ``init_values`` have different tree structures, or there are no operands.
      ShapeError: an initial value is not a scalar, or the operands have different shapes.
      DTypeError: an initial value or a result of ``computation`` has another dtype than its operand.
    """
    if not callable(computation):
        raise ArgumentTypeError(f"{name}: computation {computation!r} is no function of two scalars")
    arrays, tree = pytree.flatten(operands)
    inits, init_tree = pytree.flatten(init_values)
    if tree != init_tree or not arrays:
        raise ArgumentError(f"{name}: operands {tree} and init_values {init_tree} must have one structure, not empty")
    avals = [typeof(x) for x in arrays]
    one_shape(name, avals)

    def flat(*scalars: Any) -> list[Any]:
        n = len(arrays)
        sides = (pytree.unflatten(tree, side) for side in (scalars[:n], scalars[n:]))
        leaves, out = pytree.flatten(computation(*sides))
        if out != tree or any(typeof(x).shape for x in leaves):
            got = ", ".join(str(typeof(x)) for x in leaves)
            raise ArgumentError(f"{name}: computation must return scalars in the structure {tree}, got {out} of {got}")
        for x, a in zip(leaves, avals):
            if not _becomes(typeof(x), a.dtype):
                raise DTypeError(
                    f"{name}: computation returns {typeof(x).dtype} where it takes {a.dtype}; convert it or the operand"
                )
        return [convert(x, a.dtype) for x, a in zip(leaves, avals)]

    scalars = [ShapedArray((), a.dtype) for a in avals]
    body = dead_code(inline_calls(trace_to_jaxpr(flat, [*scalars, *scalars])))
    weak = all(typeof(x).weak_type for x in (*arrays, *inits))
    asked = ReductionFunction(arrays, inits, body, tree, weak)
    inits = [_started(x, asked.op_name, a.dtype) for x, a in zip(inits, avals)]
    for value, aval in zip(inits, avals):
        init = typeof(value)
        if init.shape != ():
            raise ShapeError(f"{name}: init_values must be scalars, got {init}")
        if not _becomes(init, aval.dtype):
            raise DTypeError(f"{name}: init_value has dtype {init.dtype}, the operand {aval.dtype}; convert one")
    return replace(asked, inits=[convert(x, a.dtype) for x, a in zip(inits, avals)])
