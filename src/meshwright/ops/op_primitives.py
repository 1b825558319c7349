"""Ops as primitives: what interpreters of jaxprs compare, and bind again.

An op is a dataclass, whose fields are the parameters of its equations; the primitive of an equation is the op's class
with JAX's name, ``bind`` and ``multiple_results``. There is one object for each, so ``eqn.primitive is lax.exp_p``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

from meshwright.errors import ArgumentTypeError
from meshwright.ir.jaxpr import PRIMITIVE_OF
from meshwright.ir.op import REGISTRY, Op
from meshwright.ops.primitive import Primitive

#: JAX's names of ops that have another one here
JAX_NAMES = {
    "betainc": "regularized_incomplete_beta", "checkpoint": "remat2", "linear_solve": "custom_linear_solve",
    **{f"scatter_{kind}": f"scatter-{kind}" for kind in ("add", "max", "min", "mul", "sub")},
}  # fmt: skip
_OURS = {theirs: ours for ours, theirs in JAX_NAMES.items()}
#: names of fields that parameters call otherwise
_FIELDS = {"fun_name": "name", "label": "name", "jaxpr": "call_jaxpr"}
#: by JAX's name: a function of the operands and of JAX's parameters, where these are not the op's
FUNCTIONS: dict[str, Callable[..., Any]] = {}
#: primitives without an op that have several results
_SEVERAL = frozenset({"approx_top_k", "call", "closed_call", "split", "unstack"})


class OpPrimitive(Primitive):
    """A class of ops as a primitive. Its rules are the op's methods; tables of rules do not contain it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._op_class: type[Op] | None = REGISTRY.get(_OURS.get(name, name))
        self.call_primitive = name in ("call", "closed_call")
        several = name in _SEVERAL if self._op_class is None else self._op_class.multiple_results
        self.multiple_results = several if isinstance(several, bool) else True

    def bind(self, *args: Any, **params: Any) -> Any:
        """Apply it to arrays, tracers or numbers, with the parameters of an equation or JAX's.

        Raises:
          ArgumentTypeError: there are no such parameters.
        """
        function = FUNCTIONS.get(self.name)
        if function is not None and (self._op_class is None or "sizes" not in params):  # of ops along mesh axes alone
            return function(*args, **params)
        op = self._op(params)
        if op is not None:
            return op.bind(*args)
        known = ", ".join(self._names()) or "none"
        raise ArgumentTypeError(f"{self.name}_p.bind: expected parameters {known}, got {', '.join(params) or 'none'}")

    def _names(self) -> dict[str, str]:
        """The op's fields by the names that parameters have."""
        return {} if self._op_class is None else {f.name: f.name for f in fields(self._op_class)}

    def _op(self, params: dict[str, Any]) -> Op | None:
        """The op with these parameters; None if they are not its."""
        if self._op_class is None:
            return None
        names, left = self._names(), dict(params)
        found = {n: left.pop(k) for n in names for k in (n, _FIELDS.get(n)) if k in left}
        if any(value is not None for value in left.values()):
            return None
        try:
            return self._op_class(**found)
        except (TypeError, ArgumentTypeError):
            return None


@cache
def primitive_named(name: str) -> OpPrimitive:
    """The primitive of the ops with JAX's name ``name``."""
    return OpPrimitive(name)


@PRIMITIVE_OF.fill
def primitive_of(op: Op) -> Primitive:
    """The primitive of an op."""
    return primitive_named(JAX_NAMES.get(op.name, op.name))
