"""``check``: an assertion about traced values. ``meshwright.checkify`` makes a value of what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import CheckError, RuleError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Op
from meshwright.ops.reduce.reductions import reduce_and
from meshwright.ops.shape.rearrange import move_dim


@dataclass(frozen=True)
class Check(Op):
    """The first operand must be True; the others are the arguments of ``message``, by ``names`` (None: by position)."""

    message: str
    names: tuple[str | None, ...] = ()
    name: ClassVar[str] = "check"
    multiple_results: ClassVar[bool] = True
    has_effects: ClassVar[bool] = True
    in_python: ClassVar[bool] = True

    def text(self, values: Sequence[Any]) -> str:
        """The message with its arguments."""
        positional = [v for n, v in zip(self.names, values) if n is None]
        named = {n: v for n, v in zip(self.names, values) if n is not None}
        return self.message.format(*positional, **named)

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        return ()

    def perform(self, holds: Any, *values: Any) -> list[Any]:
        """Raise if it does not hold."""
        if not np.asarray(holds).all():
            raise CheckError(self.text([np.asarray(v) for v in values]))
        return []

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        holds = args[0] if dims[0] is None else reduce_and(args[0], (dims[0],))
        values = [x if d is None else move_dim(x, d, 0) for x, d in zip(args[1:], dims[1:])]
        return self.bind(holds, *values), []

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        raise RuleError(
            f"check ({self.message!r}): a compiled program cannot raise; wrap the function, checkify.checkify(f), and "
            "look at the error that it then returns"
        )
