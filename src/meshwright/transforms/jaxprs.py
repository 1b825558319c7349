"""Jaxpr-to-jaxpr transformations for the rules of ops with inner jaxprs, cached by jaxpr.

Each evaluates the jaxpr under the transformation's trace and records the result as a new jaxpr, so that an op needs
only one rule per transformation.
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
    """A jaxpr split by partial evaluation.

    ``known`` returns the known results followed by the residuals; ``unknown`` takes the residuals followed by the
    unknown operands.
    """

    known: ClosedJaxpr
    unknown: ClosedJaxpr
    known_out: tuple[bool, ...]


class JaxprTransforms:
    """The transformations for rules of ops with inner jaxprs; implemented by ``transforms.rules``, ``custom_vmap``."""

    def __init__(self) -> None:
        self._cache: WeakKeys[ClosedJaxpr, dict[Any, Any]] = WeakKeys()
        #: the implementation of each transformation, by name
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
        """``make(self, jaxpr, *key)``, cached: for what an op's rule derives from its jaxpr in another way."""
        entries = self._cache.setdefault(jaxpr, {})
        full = (make, *key)
        if full not in entries:
            entries[full] = make(self, jaxpr, *key)
        return entries[full]

    def jvp(
        self, jaxpr: ClosedJaxpr, nonzero: tuple[bool, ...], instantiate: tuple[bool, ...] = ()
    ) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
        """The JVP jaxpr, and which result tangents are nonzero.

        The jaxpr takes the primals and the tangents marked in ``nonzero``; it returns the results and their nonzero
        tangents. Zero result tangents marked in ``instantiate`` are materialized and count as nonzero.
        """
        return self._cached("jvp", jaxpr, nonzero, instantiate)

    def batch(
        self,
        jaxpr: ClosedJaxpr,
        axis: BatchAxis,
        dims: tuple[int | None, ...],
        targets: tuple[int | None, ...] = (),
    ) -> tuple[ClosedJaxpr, tuple[int | None, ...]]:
        """The batched jaxpr and the batch dimensions of its results.

        Where ``targets`` gives a position for a result, its batch dimension is moved there.
        """
        return self._cached("batch", jaxpr, axis, dims, targets)

    def partial_eval(
        self, jaxpr: ClosedJaxpr, known: tuple[bool, ...], unknown_out: tuple[bool, ...] = ()
    ) -> SplitJaxpr:
        """The jaxpr split into what depends on known operands alone, and the rest.

        Results marked in ``unknown_out`` are always part of the rest.
        """
        return self._cached("partial_eval", jaxpr, known, unknown_out)

    def transpose(
        self,
        jaxpr: ClosedJaxpr,
        linear: tuple[bool, ...],
        nonzero: tuple[bool, ...],
        instantiate: tuple[bool, ...] = (),
    ) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
        """The transposed jaxpr, and which cotangents of the linear operands are nonzero.

        The jaxpr takes the non-linear operands and the nonzero result cotangents; it returns the nonzero cotangents of
        the linear operands. Zero ones marked in ``instantiate`` are materialized and count as nonzero.
        """
        return self._cached("transpose", jaxpr, linear, nonzero, instantiate)

    def batched_jvp_rule(self, rule: Callable[..., Any], mapped: Mapped) -> Callable[..., Any]:
        """The batched form of a custom JVP rule."""
        return self.makers["batched_jvp_rule"].value(rule, mapped)

    def jvp_of_batch_rule(self, rule: Callable[..., Any], nonzero: Sequence[bool]) -> Callable[..., Any]:
        """The batching rule of the JVP of a ``custom_vmap`` function, derived from its batching ``rule``."""
        return self.makers["jvp_of_batch_rule"].value(rule, nonzero)

    def batched_vjp_rules(
        self, fwd: Callable[..., Any], bwd: Callable[..., Any], mapped: Mapped
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The batched forms of a ``custom_vjp`` forward and backward rule."""
        return self.makers["batched_vjp_rules"].value(fwd, bwd, mapped)

    def batched_linear(
        self, fun: Callable[..., Any], mapped: Mapped, residual_dims: Sequence[int | None]
    ) -> Callable[..., Any]:
        """The batched form of ``fun(residuals, cotangents)``, linear in the cotangents.

        ``mapped`` describes the batching of the function whose cotangents ``fun`` computes.
        """
        return self.makers["batched_linear"].value(fun, mapped, residual_dims)

    def batched_avals(
        self, avals: Sequence[ShapedArray], axis: BatchAxis, dims: Sequence[int | None]
    ) -> tuple[ShapedArray, ...]:
        """``avals`` with a batch dimension inserted at ``dims``."""
        return tuple(batched_aval(a, axis, d) for a, d in zip(avals, dims, strict=True))


TRANSFORMS = JaxprTransforms()


class Stand(OnlyTyped):
    """A placeholder leaf that has a type but no value, for tracing."""

    __slots__ = ()


def batched_aval(aval: ShapedArray, axis: BatchAxis, dim: int | None) -> ShapedArray:
    """``aval`` with a batch dimension at ``dim``, or unchanged if ``dim`` is None."""
    if dim is None:
        return aval
    batched = aval.with_dim(dim, axis.size).update(vma=aval.vma | axis.vma)
    return batched.update(dtype=uint32) if axis.key is not None and aval.dtype is axis.key else batched
