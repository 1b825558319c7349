"""Jaxpr-to-jaxpr transformations, cached by jaxpr: what ops with inner jaxprs are given.

Each one is "run the jaxpr under the transformation's trace and record", so that no op needs a second rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core.avals import OnlyTyped, ShapedArray
from meshwright.core.dtypes import uint32
from meshwright.core.records import dataclass
from meshwright.core.slots import Slot
from meshwright.core.weak import WeakKeys
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import BatchAxis, Mapped


@dataclass(frozen=True)
class SplitJaxpr:
    """A jaxpr split in two: ``known`` returns its known results and then residuals; ``unknown`` takes the residuals and
    then the unknown operands."""

    known: ClosedJaxpr
    unknown: ClosedJaxpr
    known_out: tuple[bool, ...]


class JaxprTransforms:
    """The transformations that rules of ops with inner jaxprs use. ``transforms.rules`` supplies them."""

    def __init__(self) -> None:
        self._cache: WeakKeys[ClosedJaxpr, dict[Any, Any]] = WeakKeys()
        #: what makes each of them
        self.makers: dict[str, Slot[Callable[..., Any]]] = {
            name: Slot(f"the transformation of jaxprs {name!r}", f"meshwright.transforms.{by}")
            for name, by in {
                **dict.fromkeys(("jvp", "batch", "partial_eval", "transpose"), "rules"),
                **dict.fromkeys(("batched_jvp_rule", "batched_vjp_rules", "batched_linear"), "rules"),
                "jvp_of_batch_rule": "custom_vmap",
            }.items()
        }

    def _cached(self, kind: str, jaxpr: ClosedJaxpr, *key: Any) -> Any:
        entries = self._cache.setdefault(jaxpr, {})
        full = (kind, *key)
        if full not in entries:
            entries[full] = self.makers[kind].value(jaxpr, *key)
        return entries[full]

    def derive(self, make: Callable[..., Any], jaxpr: ClosedJaxpr, *key: Any) -> Any:
        """``make(self, jaxpr, *key)``, made once: for what an op's rule builds of its jaxpr beyond the below."""
        entries = self._cache.setdefault(jaxpr, {})
        full = (make, *key)
        if full not in entries:
            entries[full] = make(self, jaxpr, *key)
        return entries[full]

    def jvp(
        self, jaxpr: ClosedJaxpr, nonzero: tuple[bool, ...], instantiate: tuple[bool, ...] = ()
    ) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
        """Takes primals and the nonzero tangents; returns results and nonzero result tangents, and which those are.

        Result tangents marked in ``instantiate`` count as nonzero whatever they are.
        """
        return self._cached("jvp", jaxpr, nonzero, instantiate)

    def batch(
        self,
        jaxpr: ClosedJaxpr,
        axis: BatchAxis,
        dims: tuple[int | None, ...],
        targets: tuple[int | None, ...] = (),
    ) -> tuple[ClosedJaxpr, tuple[int | None, ...]]:
        """The batched jaxpr and the batch dims of its results; where ``targets`` names a dim, a result has it there."""
        return self._cached("batch", jaxpr, axis, dims, targets)

    def partial_eval(
        self, jaxpr: ClosedJaxpr, known: tuple[bool, ...], unknown_out: tuple[bool, ...] = ()
    ) -> SplitJaxpr:
        """What depends on known operands alone, and the rest. Results marked in ``unknown_out`` belong to the rest."""
        return self._cached("partial_eval", jaxpr, known, unknown_out)

    def transpose(
        self,
        jaxpr: ClosedJaxpr,
        linear: tuple[bool, ...],
        nonzero: tuple[bool, ...],
        instantiate: tuple[bool, ...] = (),
    ) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
        """Takes the non-linear operands and the nonzero cotangents; returns the nonzero cotangents of the linear
        operands, and which those are. Those marked in ``instantiate`` count as nonzero whatever they are."""
        return self._cached("transpose", jaxpr, linear, nonzero, instantiate)

    def batched_jvp_rule(self, rule: Callable[..., Any], mapped: Mapped) -> Callable[..., Any]:
        """A custom derivative rule under ``vmap``."""
        return self.makers["batched_jvp_rule"].value(rule, mapped)

    def jvp_of_batch_rule(self, rule: Callable[..., Any], nonzero: Sequence[bool]) -> Callable[..., Any]:
        """The batching rule of the derivative of a function with a batching rule."""
        return self.makers["jvp_of_batch_rule"].value(rule, nonzero)

    def batched_vjp_rules(
        self, fwd: Callable[..., Any], bwd: Callable[..., Any], mapped: Mapped
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """A forward and a backward rule under ``vmap``."""
        return self.makers["batched_vjp_rules"].value(fwd, bwd, mapped)

    def batched_linear(
        self, fun: Callable[..., Any], mapped: Mapped, residual_dims: Sequence[int | None]
    ) -> Callable[..., Any]:
        """A function of residuals and of values in which it is linear under ``vmap``: its values are ``mapped`` as the
        results of a function of which it computes cotangents."""
        return self.makers["batched_linear"].value(fun, mapped, residual_dims)

    def batched_avals(
        self, avals: Sequence[ShapedArray], axis: BatchAxis, dims: Sequence[int | None]
    ) -> tuple[ShapedArray, ...]:
        """Types with a batch dimension."""
        return tuple(batched_aval(a, axis, d) for a, d in zip(avals, dims, strict=True))


TRANSFORMS = JaxprTransforms()


class Stand(OnlyTyped):
    """A type where a leaf is wanted."""

    __slots__ = ()


def batched_aval(aval: ShapedArray, axis: BatchAxis, dim: int | None) -> ShapedArray:
    """``aval`` with a batch dimension at ``dim``."""
    if dim is None:
        return aval
    batched = aval.with_dim(dim, axis.size).update(vma=aval.vma | axis.vma)
    return batched.update(dtype=uint32) if axis.key is not None and aval.dtype is axis.key else batched
