"""``jax.experimental.hijax``: primitives whose rules are methods of a class.

Types here are those of arrays. Classes of other types can be defined and registered, so that modules with them can be
imported; a value of such a type is refused where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from meshwright.api.references import AbstractRef
from meshwright.core.absent import absent as _absent
from meshwright.core.avals import AbstractValue, ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import RuleError
from meshwright.experimental.hijax_vjp import VJPHiPrimitive
from meshwright.ir.op import Linear, Zero
from meshwright.ops.elementwise.table import materialize as _materialize
from meshwright.ops.primitive import JVPS, LOWERINGS, TRANSPOSES, Primitive, PrimitiveCall

__all__ = [
    "AbstractRef", "AbstractValue", "AvalMutableQDD", "AvalQDD", "HiPrimitive", "HiType", "MutableHiType",
    "ShapedArray", "VJPHiPrimitive", "Zero", "aval_method", "aval_property", "control_flow_allowed_effects",
    "instantiate_zeros", "is_undefined_primal", "register_hitype",
]  # fmt: skip

__getattr__ = _absent("experimental.hijax")


def instantiate_zeros(tangent: Any) -> Any:
    """The array of zeros of a :class:`Zero`; anything else is returned as it is."""
    return _materialize(tangent) if isinstance(tangent, Zero) else tangent


def is_undefined_primal(x: Any) -> bool:
    """Whether a transpose rule must return the cotangent of this operand."""
    return isinstance(x, Linear)


@dataclass(frozen=True)
class _Method:
    """A lowering by ``to_lojax``."""

    primitive: HiPrimitive

    def expand(self, call: PrimitiveCall, operands: Sequence[Any], outs: Sequence[ShapedArray]) -> Sequence[Any]:
        results = self.primitive.to_lojax(*operands, **call.params)
        return list(results) if self.primitive.multiple_results else [results]


class HiPrimitive(Primitive):
    """A primitive of arrays with its rules as methods, which subclasses override.

    Raises (when applied):
      RuleError: ``abstract_eval`` or ``to_lojax`` is missing, or a result is no array.

    Example:
      >>> from meshwright.experimental.hijax import HiPrimitive
      >>> class Double(HiPrimitive):
      ...     def abstract_eval(self, x):
      ...         return x, set()
      ...     def to_lojax(self, x):
      ...         return 2 * x
      ...     def jvp(self, primals, tangents):
      ...         return self.bind(*primals), 2 * tangents[0]
      >>> double = Double("double")
      >>> mw.jit(mw.grad(double.bind))(3.0)
      Array(2., dtype=float32, weak_type=True)
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        own = type(self)
        if own.jvp is not HiPrimitive.jvp:
            JVPS[self] = self.jvp
        if own.transpose is not HiPrimitive.transpose:
            TRANSPOSES[self] = self.transpose
        LOWERINGS[self] = {None: _Method(self)}
        rule = self.abstract_eval
        self.def_abstract_eval(lambda *avals, **params: self._types(rule(*avals, **params)))

    def _types(self, given: Any) -> Any:
        """The types of the results, from those and the effects."""
        outs, effects = given if isinstance(given, tuple) and len(given) == 2 else (given, ())
        listed = outs if self.multiple_results else [outs]
        if effects or not all(isinstance(a, ShapedArray) for a in listed):
            raise RuleError(
                f"{self.name}: expected a primitive of arrays without effects, got results of types {outs} and effects "
                f"{effects or '{}'}; make values of other types pytrees (register_pytree_node), and keep what changes "
                "in new_ref"
            )
        return outs

    def abstract_eval(self, *avals: Any, **params: Any) -> Any:
        """The types of the results, and the set of effects, which must be empty."""
        raise RuleError(f"{self.name}: define {type(self).__name__}.abstract_eval, which gives the types of results")

    def to_lojax(self, *args: Any, **params: Any) -> Any:
        """The results, computed with functions of arrays."""
        raise RuleError(f"{self.name}: define {type(self).__name__}.to_lojax, which computes the results")

    def jvp(self, primals: Any, tangents: Any, **params: Any) -> Any:
        """The results and their tangents."""
        raise RuleError(f"{self.name}: define {type(self).__name__}.jvp, which gives the results and their tangents")

    def transpose(self, *args: Any, **params: Any) -> Any:
        """The cotangents of the operands, for a primitive that is linear in some of them."""
        raise RuleError(f"{self.name}: define {type(self).__name__}.transpose, which gives the operands' cotangents")


class HiType(AbstractValue):
    """Base of types of values that are not arrays."""

    is_high, has_qdd = True, False


class MutableHiType(AbstractValue):
    """Base of types of values that change."""

    is_high, has_qdd = True, True


@dataclass(frozen=True)
class AvalQDD:
    """A type with the state of a value that changes."""

    aval: Any
    qdd: Any


@dataclass(frozen=True)
class AvalMutableQDD:
    """A type with the present state of a value that changes."""

    aval: Any
    mutable_qdd: Any


def register_hitype(value_type: type, typeof: Callable[[Any], Any]) -> None:
    """Has no effect: values of the class are refused where they are used, as types are those of arrays."""


def aval_method(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function in a class of types as a method of their values. Returned as it is: there are no such values."""
    return fun


class aval_property(property):
    """A property of the values of a type."""


class _Effects:
    """The classes of effects that loops and branches may have."""

    def add_type(self, effect: type) -> None:
        """Has no effect: types do not contain effects, and those there are keep their order in loops."""

    def contains(self, effect: type) -> NoReturn:
        raise RuleError(f"control_flow_allowed_effects: {effect!r} is not typed; effects are those of callbacks")


control_flow_allowed_effects = _Effects()
