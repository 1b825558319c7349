"""Small collectives of one kind combined: flattened, joined, sent as one, cut apart again.

Starting a collective costs microseconds whatever it carries, so that a hundred gradients of biases are better sent
together (the gradient buckets of Li et al. 2020, "PyTorch Distributed"). All-reduces and all-gathers over the same axes
and of the same type wait for each other until the first of their results is needed or ``limit`` bytes are together.

This pays on devices that are apart. On a virtual mesh collectives cost nothing and copies do, so the pass is off unless
it is asked for (``partition(combine_bytes=...)``).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.core import source
from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.passes import in_regions
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.ops.collective import AllGather, AllReduce, Collective
from meshwright.ops.shape import move_dim, reshape
from meshwright.ops.slice_pad import concatenate, slice_in_dim
from meshwright.spmd.passes.rewrite import merged_note


def combine_collectives(jaxpr: ClosedJaxpr, limit: int) -> ClosedJaxpr:
    """With all-reduces and all-gathers in buckets of at most ``limit`` bytes."""
    inner = jaxpr.jaxpr
    buckets = _Buckets(limit)
    for old in inner.eqns:
        eqn = in_regions(old, lambda region: combine_collectives(region, limit)) if old.op.holds_jaxprs else old
        buckets.release(a for a in eqn.invars if isinstance(a, Var))
        buckets.add(eqn)
    buckets.release_all()
    return jaxpr.replace(jaxpr=inner.replace(eqns=buckets.eqns)) if buckets.combined else jaxpr


@dataclass
class _Buckets:
    """Equations in order, and collectives that wait for others to go with them."""

    limit: int
    eqns: list[JaxprEqn] = field(default_factory=list)
    waiting: dict[Hashable, list[JaxprEqn]] = field(default_factory=dict)
    combined: bool = False
    _bucket_of: dict[Var, Hashable] = field(default_factory=dict)

    def add(self, eqn: JaxprEqn) -> None:
        key = _key(eqn)
        size = eqn.invars[0].aval.nbytes if eqn.invars else 0
        if key is None or size > self.limit:
            self.eqns.append(eqn)
            return
        if sum(e.invars[0].aval.nbytes for e in self.waiting.get(key, ())) + size > self.limit:
            self._send(key)
        self.waiting.setdefault(key, []).append(eqn)
        self._bucket_of[eqn.outvars[0]] = key

    def release(self, needed: Any) -> None:
        """Send the buckets that these values are in."""
        for key in {self._bucket_of[v] for v in needed if v in self._bucket_of}:
            self._send(key)

    def release_all(self) -> None:
        for key in list(self.waiting):
            self._send(key)

    def _send(self, key: Hashable) -> None:
        bucket = self.waiting.pop(key, [])
        for eqn in bucket:
            del self._bucket_of[eqn.outvars[0]]
        # A region's equations may have changed without any bucket of two.
        self.combined |= len(bucket) > 1
        self.eqns += _together(bucket) if len(bucket) > 1 else bucket


def _key(eqn: JaxprEqn) -> Hashable:
    """What collectives must have in common to go together; None for equations that go alone."""
    op = eqn.op
    if isinstance(op, (AllReduce, AllGather)):
        return type(op), op.axes, eqn.invars[0].aval.dtype
    return None


def _together(bucket: Sequence[JaxprEqn]) -> list[JaxprEqn]:
    """The equations that do what the bucket's do with one collective."""
    ops: list[Any] = [e.op for e in bucket]
    carry = _reduced if isinstance(ops[0], AllReduce) else _gathered
    with source.at(bucket[0].source):
        made = trace_to_jaxpr(lambda *xs: carry(ops, xs), [e.invars[0].aval for e in bucket])
    note = merged_note(bucket)
    names: dict[Var, Atom] = dict(zip(made.jaxpr.invars, (e.invars[0] for e in bucket)))
    names.update((inner, e.outvars[0]) for inner, e in zip(made.jaxpr.outvars, bucket))  # type: ignore[misc]
    return [
        e.replace(
            invars=[names.get(a, a) if isinstance(a, Var) else a for a in e.invars],
            outvars=[names.get(v, v) for v in e.outvars],
            note=note if isinstance(e.op, Collective) else None,
        )
        for e in made.eqns
    ]


def _flat(xs: Sequence[Any]) -> Any:
    return concatenate([reshape(x, (typeof(x).size,)) for x in xs], 0)


def _apart(x: Any, sizes: Sequence[int], dim: int) -> list[Any]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [slice_in_dim(x, end - size, end, dim=dim) for end, size in zip(ends, sizes)]


def _reduced(ops: Sequence[AllReduce], xs: Sequence[Any]) -> list[Any]:
    avals: list[ShapedArray] = [typeof(x) for x in xs]
    parts = _apart(ops[0].bind(_flat(xs)), [a.size for a in avals], 0)
    return [reshape(part, a.shape) for part, a in zip(parts, avals)]


def _gathered(ops: Sequence[AllGather], xs: Sequence[Any]) -> list[Any]:
    avals: list[ShapedArray] = [typeof(x) for x in xs]
    group = math.prod(ops[0].sizes)
    joined = AllGather(ops[0].axes, ops[0].sizes, 0).bind(_flat(xs))
    parts = _apart(reshape(joined, (group, sum(a.size for a in avals))), [a.size for a in avals], 1)
    found = []
    for op, part, a in zip(ops, parts, avals):
        d = op.dimension
        tiles = move_dim(reshape(part, (group, *a.shape)), 0, d)
        found.append(reshape(tiles, (*a.shape[:d], group * a.shape[d], *a.shape[d + 1 :])))
    return found
