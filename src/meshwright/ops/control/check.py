"""``check``: an assertion about traced values. ``meshwright.checkify`` turns failures into values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from meshwright.core import pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import CheckError, RuleError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Op
from meshwright.ir.passes import Pass
from meshwright.ir.rewrite import in_regions, replaced
from meshwright.ops.indexing.dynamic_slice import dynamic_index_in_dim
from meshwright.ops.reduce.reductions import argmin, reduce_and


@dataclass(frozen=True)
class Check(Op):
    """Asserts that the first operand is True; the last operands are the leaves of the arguments of ``message``, whose
    ``structure`` is that of ``(args, kwargs)`` (None: all are positional arrays).

    Operands between them are the positions, along the ``mapped`` axes of ``vmap``, of the first entry that fails. With
    ``debug``, the check has an effect only under ``checkify``.
    """

    message: str
    structure: pytree.PyTreeDef | None = None
    mapped: int = 0
    debug: bool = False
    name: ClassVar[str] = "check"
    multiple_results: ClassVar[bool] = True
    has_effects: ClassVar[bool] = True
    in_python: ClassVar[bool] = True

    def text(self, values: Sequence[Any], index: Sequence[Any] = ()) -> str:
        """The message with its arguments; ``index`` is the entry's position along additional axes.

        What the user wrote comes first, as in JAX, where programs may look for it: the position along axes that were
        mapped inside of the checked function follows. ``index`` precedes, since then there is a line for each entry.
        """
        place, values = values[: self.mapped], values[self.mapped :]
        args, kwargs = (values, {}) if self.structure is None else pytree.unflatten(self.structure, list(values))
        text = self.message.format(*args, **kwargs)
        before = f"at mapped index {', '.join(map(str, index))}: " if index else ""
        return before + text + (f" (at mapped index {', '.join(map(str, place))})" if place else "")

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        return ()

    def perform(self, holds: Any, *values: Any) -> list[Any]:
        """Raise if the condition is false."""
        if not self.debug and not np.asarray(holds).all():
            raise CheckError(self.text([np.asarray(v) for v in values]))
        return []

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        if axis.size == 0:
            return [], []
        holds, dim = args[0], dims[0]
        at = np.int32(0) if dim is None else argmin(holds, dim)
        picked = [
            x if d is None else dynamic_index_in_dim(x, at, d, keepdims=False) for x, d in zip(args[1:], dims[1:])
        ]
        op = replace(self, mapped=self.mapped + 1)
        return op.bind(holds if dim is None else reduce_and(holds, (dim,)), at, *picked), []

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        if self.debug:
            return []
        raise RuleError(
            f"check ({self.message!r}): a compiled program cannot raise; wrap the function, checkify.checkify(f), and "
            "look at the error that it then returns"
        )


def without_debug_checks(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """``jaxpr`` without debug checks, which are dropped if they have not been handled by ``checkify``."""

    def rule(eqn: JaxprEqn) -> JaxprEqn | list[JaxprEqn]:
        dropped = isinstance(eqn.op, Check) and eqn.op.debug
        return [] if dropped else in_regions(eqn, without_debug_checks)

    return replaced(jaxpr, rule)


NO_DEBUG_CHECKS = Pass("no debug checks", without_debug_checks, "Debug checks outside of checkify are removed.")
