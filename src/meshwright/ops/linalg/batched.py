"""Ops that solve one small problem for each index of their leading dimensions: FFTs and linear algebra.

The last dimensions of each operand and result, its *core*, belong to the problem and are not split, except columns (or
rows) of right-hand sides, each of which is a problem of its own. The leading ones are the same for all operands and
results and may be split; a dimension added by ``vmap`` or a virtual mesh is an additional leading dimension.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ShapeError
from meshwright.ir.contract import ArrayLike, Kernels, Localizer
from meshwright.ir.op import BatchAxis, BatchedResults, Op
from meshwright.ir.tracing import typeof
from meshwright.ops.linalg import chains
from meshwright.ops.linalg.matrices import eye
from meshwright.ops.scalar_body import along
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.sharding.rule import ShardingRule, make_rule


@dataclass(frozen=True)
class Batched(Op):
    """Base class. :meth:`core_ranks` is the number of core dimensions of each operand."""

    #: whether LAPACK solves the problems on CPUs; its kernels share them out among threads
    by_lapack: ClassVar[bool] = False
    #: whether XLA's kernels for CPUs take and give arrays row by row only
    only_by_rows: ClassVar[bool] = False

    def core_ranks(self) -> tuple[int, ...]:
        """The rank of the core of each operand; by default one matrix."""
        return (2,)

    def free_dims(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """The operands with right-hand sides, and the results with solutions, each with the dimension that numbers
        these, counted from the end (-1 or -2)."""
        return {}, {}

    def lead(self, *avals: ShapedArray) -> tuple[int, ...]:
        """The leading sizes, which must be equal for all operands.

        Raises:
          ShapeError: the rank of an operand is too low, or leading sizes differ.
        """
        ranks = self.core_ranks()
        leads = [a.shape[: a.ndim - r] for a, r in zip(avals, ranks, strict=True)]
        for i, (a, r) in enumerate(zip(avals, ranks)):
            if a.ndim < r or leads[i] != leads[0]:
                raise ShapeError(
                    f"{self.name}: operand {i} is {a}; expected the leading sizes {leads[0]} of the first operand and "
                    f"{counted(r, 'dimension')} after them; broadcast or reshape it"
                )
        return leads[0]

    def flops(self, *cores: tuple[int, ...]) -> int:
        """Operations for one problem with operands of these sizes; by default one per element."""
        return max(map(math.prod, cores))

    @property
    def algorithm(self) -> str:
        """The key of its kernels in :data:`~meshwright.ops.linalg.chains.CHAINS`."""
        return self.name

    def kernels(self, *avals: ShapedArray) -> Kernels:
        lead = self.lead(*avals)
        chain = chains.CHAINS.get(self.algorithm)
        cores = (a.shape[len(lead) :] for a in avals)
        return Kernels() if chain is None else Kernels(max(1, chain(math.prod(lead), *cores)))

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        which = next(i for i, d in enumerate(dims) if d is not None)
        leading = typeof(args[which]).ndim - 1 - self.core_ranks()[which]
        place = min(dims[which], leading)  # type: ignore[type-var]
        outs = self.bind(*(along(x, d, place, axis.size) for x, d in zip(args, dims)))  # type: ignore[arg-type]
        return outs, [place] * len(outs) if self.multiple_results else place

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        lead = self.lead(*avals)
        names = [f"b{d}" for d in range(len(lead))]
        outs = self.infer(*avals)
        values = (*avals, *(outs if self.multiple_results else (outs,)))
        dims: list[list[str | None]] = [[*names, *[None] * (a.ndim - len(lead))] for a in values]
        sizes = dict(zip(names, lead))
        operands, results = self.free_dims()
        for i, d in (*operands.items(), *((len(avals) + i, d) for i, d in results.items())):
            sizes["free"], dims[i][d] = values[i].shape[d], "free"
        return make_rule(dims[: len(avals)], dims[len(avals) :], sizes, points=self.points(*avals))

    def points(self, *avals: ShapedArray) -> int:
        """Operations for all problems."""
        lead = self.lead(*avals)
        return math.prod(lead) * self.flops(*(a.shape[len(lead) :] for a in avals))


@dataclass(frozen=True)
class Factorization(Batched):
    """Base class of ops whose algorithm may fail, or not terminate, on garbage: problems in padding are replaced by the
    factorization of an identity matrix."""

    by_lapack: ClassVar[bool] = True

    def localize(self, ctx: Localizer, *operands: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        return self.bind(*(self._masked(ctx, i, x) for i, x in enumerate(operands)))

    def _masked(self, ctx: Localizer, operand: int, x: Any) -> Any:
        aval, rank = typeof(x), self.core_ranks()[operand]
        uneven = [d for d in range(aval.ndim - rank) if ctx.is_split(operand, d) and ctx.is_uneven(operand, d)]
        if uneven:
            fill = harmless(aval, rank)
            for d in uneven:
                x = ctx.mask(x, operand, d, fill)
        return x


def harmless(aval: ShapedArray, rank: int) -> Any:
    """Identity matrices, or zeros instead of vectors."""
    if rank != 2:
        return np.zeros((), aval.dtype)
    unit = eye(aval.shape[-2], aval.shape[-1], aval.dtype)
    return broadcast_in_dim(unit, aval.shape, (aval.ndim - 2, aval.ndim - 1))
