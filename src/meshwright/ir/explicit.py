"""Sharding inference for types over explicit mesh axes, by each op's sharding rule.

Mesh axes are propagated along the factors of the rule from operands to results. The result is ambiguous if two operands
shard a factor differently, if one axis would shard two dimensions, or if a contracted dimension is sharded. The op then
raises and lists the possible shardings. Where the sharding is already decided (by ``out_sharding=``, or because a
transformation evaluates a typed program again), the first possibility is taken instead.

Unreduced axes (partial sums) pass through ops that are linear in the operand, :attr:`Op.linear_in`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import ClassVar, Protocol

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ShardingTypeError
from meshwright.ir.state import STATE
from meshwright.sharding.abstract_mesh import AbstractMesh
from meshwright.sharding.rule import REDUCTION, REPLICATED, WINDOW, DimFactors, ShardingRule
from meshwright.sharding.spec import PartitionSpec
from meshwright.sharding.typed import TypeSharding, check_divisible, type_over

Axes = tuple[str, ...]


class Typed(Protocol):
    """The attributes of an op that this module uses."""

    name: ClassVar[str]
    computes: ClassVar[bool]
    moved: ClassVar[Callable[..., np.ndarray] | None]
    takes_whole_rows: ClassVar[bool]

    @property
    def moves_only(self) -> bool: ...

    def typing_rule(self, *avals: ShapedArray) -> ShardingRule: ...

    def linear_groups(self, *avals: ShapedArray) -> tuple[tuple[int, ...], ...]: ...


@dataclass
class Decided:
    """Marks that ambiguities are resolved silently. ``summed`` collects the axes of contracted sharded dimensions."""

    summed: set[str] = field(default_factory=set)


@contextmanager
def decided() -> Iterator[Decided]:
    """In the block, ops with ambiguous result shardings take the first possibility instead of raising."""
    before = STATE.decided
    STATE.decided = here = Decided()
    try:
        yield here
    finally:
        STATE.decided = before


#: for evaluating a traced program again: ambiguities were resolved when it was traced
AGAIN = Decided()


def is_explicit(avals: Sequence[ShapedArray]) -> bool:
    """Whether any type has an explicit sharding or a memory kind."""
    return any(a.explicit is not None or a.memory is not None for a in avals)


def common_memory(avals: Sequence[ShapedArray]) -> str | None:
    """The memory kind of the results: the common one of all operands, where scalars without one do not count.

    None (device memory) if operands are in different memories.
    """
    kinds = {a.memory for a in avals if a.ndim or a.memory}
    return kinds.pop() if len(kinds) == 1 else None


def result_types(op: Typed, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray]) -> list[TypeSharding | None]:
    """The explicit shardings in the types of an op's results.

    Raises:
      ShardingTypeError: the operands have different meshes, or the result sharding is ambiguous or impossible.
    """
    given = [a.explicit for a in avals if a.explicit is not None]
    if not given:
        return [None] * len(outs)
    mesh: AbstractMesh = given[0].mesh
    other = next((s.mesh for s in given if s.mesh != mesh), None)
    if other is not None:
        raise ShardingTypeError(
            f"{op.name}: operands {_texts(avals)} have types over {mesh} and {other}; bring them to one with "
            "device_put, or pass them as arguments into auto_axes or explicit_axes"
        )
    plain = [a.update(explicit=None, memory=None) for a in avals]
    spread = _Spread(op, avals, outs, mesh, op.typing_rule(*plain))
    return [spread.result(i) for i in range(len(outs))]


def _texts(avals: Sequence[ShapedArray]) -> str:
    return ", ".join(map(str, avals))


class _Spread:
    """Propagation for one application of an op: the mesh axes of each factor of its rule, and the result shardings."""

    def __init__(
        self,
        op: Typed,
        avals: Sequence[ShapedArray],
        outs: Sequence[ShapedArray],
        mesh: AbstractMesh,
        rule: ShardingRule,
    ) -> None:
        self.op, self.avals, self.outs, self.mesh, self.rule = op, avals, outs, mesh, rule
        self.unreduced = self._unreduced()
        self.axes: list[Axes] = [()] * len(rule.factors)
        for aval, dims in zip(avals, rule.operands):
            for dim, factors in enumerate(dims):
                for f, axes in self._split(aval, dim, factors):
                    if op.takes_whole_rows and rule.factors[f].kind == WINDOW and STATE.decided is None:
                        self._refuse_parts(aval, dim)
                    self._join(f, axes)
        self._check_sums()

    # --- operands -------------------------------------------------------------------------------------------
    def _split(self, aval: ShapedArray, dim: int, factors: DimFactors) -> Iterator[tuple[int, Axes]]:
        """The mesh axes of a dimension distributed over its factors, major to minor."""
        axes = aval.explicit.spec.axes(dim) if aval.explicit is not None else ()
        for f in factors:
            taken, left = [], self.rule.factors[f].size
            while axes and left > 1 and (left % self.mesh.axis_size(axes[0]) == 0 or len(factors) == 1):
                left //= self.mesh.axis_size(axes[0])
                taken.append(axes[0])
                axes = axes[1:]
            if taken and self.rule.factors[f].kind == REPLICATED:
                axes = (*taken, *axes)
                break
            if taken:
                yield f, tuple(taken)
            if left > 1:
                break
        if axes:
            self._ambiguous(
                f"dimension {dim} of {aval} cannot stay split over {', '.join(axes)}", _choices(self._bare(), ())
            )

    def _refuse_parts(self, aval: ShapedArray, dim: int) -> None:
        assert aval.explicit is not None
        split = [aval.explicit.spec.axes(d) for d in range(aval.ndim)]
        whole = PartitionSpec(*(axes if d != dim else () for d, axes in enumerate(split)))
        raise ShardingTypeError(
            f"{self.op.name}: of operands {_texts(self.avals)} dimension {dim} is split over {_names(split[dim])}, and "
            f"each element of the result is of the whole of it; bring it together first: reshard(x, {whole})"
        )

    def _join(self, f: int, axes: Axes) -> None:
        """Shard a factor over ``axes``; ambiguous if another operand shards it differently."""
        mine = self.axes[f]
        if mine and mine != axes:
            both = [self._with(f, a) for a in (mine, axes)]
            self._ambiguous(
                f"operands {_texts(self.avals)} split the same dimension over {_names(mine)} and {_names(axes)}",
                both,
            )
        self.axes[f] = mine or axes

    def _check_sums(self) -> None:
        """Check sharded reduction factors.

        They are ambiguous in contractions of several sharded operands (the result may be sharded or unreduced instead)
        and in ops that only pick elements. A plain reduction sums over all devices.
        """
        over = [f for f, factor in enumerate(self.rule.factors) if factor.kind == REDUCTION and self.axes[f]]
        for f in over:
            held = [o for o, _ in self.rule.operand_dims(f) if self._gives(o, f)]
            picks = self.op.moves_only or self.op.moved is not None or not self.op.computes
            if len(held) > 1 or picks:
                axes = self.axes[f]
                if STATE.decided is not None:
                    STATE.decided.summed.update(axes)
                what = "picks along" if picks else "sums over"
                self._ambiguous(
                    f"operands {_texts(self.avals)}: it {what} a dimension that is split over {_names(axes)}, and the "
                    "result may be whole along them or split",
                    _choices(self._bare(), () if picks else axes, self.outs[0], self.mesh),
                )
            self.axes[f] = ()

    def _gives(self, operand: int, f: int) -> bool:
        explicit = self.avals[operand].explicit
        dims = enumerate(self.rule.operands[operand])
        return explicit is not None and any(f in fs and explicit.spec.axes(d) for d, fs in dims)

    # --- results --------------------------------------------------------------------------------------------
    def result(self, number: int) -> TypeSharding | None:
        """The explicit sharding of result ``number``."""
        out = self.outs[number]
        dims = [self._joined(out, d, fs) for d, fs in enumerate(self.rule.results[number])]
        used: dict[str, int] = {}
        for d, axes in enumerate(dims):
            again = next((a for a in axes if a in used), None)
            if again is not None:
                ways = [[() if i == dropped else x for i, x in enumerate(dims)] for dropped in (d, used[again])]
                self._ambiguous(
                    f"operands {_texts(self.avals)} would split dimensions {used[again]} and {d} of the result "
                    f"{out} both over {again}",
                    [PartitionSpec(*w) for w in ways],
                )
                dims[d] = ()
            used.update(dict.fromkeys(dims[d], d))
        reduced = self._reduced().difference(used)
        sharding = type_over(self.mesh, dims, self.unreduced.difference(used), reduced)
        if sharding is not None:
            check_divisible(out.shape, sharding, f"{self.op.name}: operands {_texts(self.avals)}, the result")
        return sharding

    def _joined(self, out: ShapedArray, dim: int, factors: DimFactors) -> Axes:
        """The mesh axes of a result dimension: those of its factors, concatenated.

        A factor may be sharded only if all more major ones are. The tiles of the dimension then differ from those of
        the factors if a major factor is not fully sharded, so rows move between devices, as in JAX.
        """
        joined: Axes = ()
        majors_split = True
        for f in factors:
            axes, size = self.axes[f], self.rule.factors[f].size
            if axes and not majors_split:
                self._ambiguous(
                    f"operands {_texts(self.avals)}: tiles over {_names(axes)} are no blocks of dimension {dim} of the "
                    f"result {out}",
                    _choices(self._bare(), (), out, self.mesh),
                )
                return joined
            majors_split = majors_split and (bool(axes) or size == 1)
            joined += axes
        return joined

    # --- sums -----------------------------------------------------------------------------------------------
    def _unreduced(self) -> frozenset[str]:
        """The axes over which the results are unreduced (partial sums)."""
        sums = [_sums(a) for a in self.avals]
        over = frozenset[str]().union(*sums)
        if not over:
            return over
        with_sums = {i for i, s in enumerate(sums) if s}
        for group in self.op.linear_groups(*(a.update(explicit=None) for a in self.avals)):
            others = [a for i, a in enumerate(self.avals) if i not in group]
            if with_sums <= set(group) and all(sums[i] == over for i in group):
                if all(over <= _reduced(a) for a in others):
                    return over
        if STATE.decided is not None:
            return frozenset()
        raise ShardingTypeError(
            f"{self.op.name}: of operands {_texts(self.avals)} some are sums still to be made over "
            f"{_names(sorted(over))}; terms pass only through what is linear in them, beside terms over the same axes "
            "(sums) or values that are reduced over them (products): make the sum first, reshard(x, P(...)) without "
            "unreduced"
        )

    def _reduced(self) -> frozenset[str]:
        """The axes over which the results are reduced: those common to all operands of rank 1 or more."""
        arrays = [_reduced(a) for a in self.avals if a.ndim]
        return frozenset.intersection(*arrays) if arrays else frozenset()

    # --- choices --------------------------------------------------------------------------------------------
    def _ambiguous(self, why: str, choices: Sequence[PartitionSpec]) -> None:
        """Raise, unless ambiguities are resolved silently."""
        if STATE.decided is not None:
            return
        listed = ", ".join(map(repr, dict.fromkeys(choices)))
        raise ShardingTypeError(
            f"{self.op.name}: {why}. Say which it is: out_sharding= of the function, one of {listed}; or bring an "
            "operand to another sharding with reshard first"
        )

    def _bare(self) -> list[Axes]:
        """The axes of the first result's dimensions as known so far, each axis used once, for suggestions."""
        kept = [f.kind not in (REDUCTION, REPLICATED) for f in self.rule.factors]
        dims = [tuple(a for f in fs if kept[f] for a in self.axes[f]) for fs in self.rule.results[0]]
        used: set[str] = set()
        bare = []
        for axes in dims:
            bare.append(() if used.intersection(axes) else axes)
            used.update(axes)
        return bare

    def _with(self, f: int, axes: Axes) -> PartitionSpec:
        dims = self._bare()
        for d, fs in enumerate(self.rule.results[0]):
            dims[d] = axes if f in fs else tuple(a for a in dims[d] if a not in axes)
        return PartitionSpec(*dims)


def _sums(aval: ShapedArray) -> frozenset[str]:
    return aval.explicit.unreduced if aval.explicit is not None else frozenset()


def _reduced(aval: ShapedArray) -> frozenset[str]:
    return aval.explicit.reduced if aval.explicit is not None else frozenset()


def _names(axes: Sequence[str]) -> str:
    return ", ".join(axes)


def _choices(
    dims: Sequence[Axes], summed: Axes, out: ShapedArray | None = None, mesh: AbstractMesh | None = None
) -> list[PartitionSpec]:
    """The possible shardings of a result with these dimensions and a sum over the axes ``summed``.

    It may be replicated along ``summed``, sharded along them in one dimension, or unreduced over them.
    """
    choices = [PartitionSpec(*dims)]
    if any(a in axes for a in summed for axes in dims):  # the result is already sharded along them
        return choices
    for d, mine in enumerate(dims if summed else ()):
        more = (*mine, *summed)
        if out is not None and mesh is not None and out.shape[d] % mesh.sizes(more) == 0:
            choices.append(PartitionSpec(*dims[:d], more, *dims[d + 1 :]))
    if summed:
        choices.append(PartitionSpec(*dims, unreduced=summed))
    return choices
