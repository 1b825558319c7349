"""``shard_map``: a region of the program that is a per-device program.

The op holds the per-device jaxpr, whose collectives name mesh axes, and the specs by which global operands are split.
The partitioner reshards the operands to these layouts and inlines the equations.

With ``check_vma``, types in the jaxpr tell over which manual axes each value varies (:mod:`meshwright.ir.varying`); an
operand or result varies over the axes that its spec names. The transpose is then the transpose of the jaxpr, with in
and out specs swapped. Without, the transpose is JAX's for that case: cotangents of results replicated on several
devices are divided among them, and those of replicated operands are summed.

Some axes of the mesh may be *manual* and the others *automatic*. The jaxpr is then written for one position along the
manual axes, and is itself partitioned over the others (``sdy.manual_computation`` of Shardy, ``shard_map`` with
``axis_names`` of JAX). Its values have the shapes at such a position.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, ClassVar

from meshwright.core.avals import Axes, ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ShapeError, ShardingError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, Var
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Dual, Linear, Op, Tangent, Zero
from meshwright.ir.passes import dead_code
from meshwright.ir.state import extend_axis_env
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr, typeof
from meshwright.ir.varying import axes_of, cast
from meshwright.ops.collective.all_reduce import Psum, PVary
from meshwright.ops.collective.inside import collectives_in
from meshwright.ops.control.regions import RegionOp, Run, arranged, merge, omit, pick, split
from meshwright.ops.control.retype import cast_each, in_axes, joined, out_axes, retyped
from meshwright.ops.elementwise.table import div, scalar_like
from meshwright.ops.imported.manual_computation import ManualRegion
from meshwright.ops.shape.rearrange import expand_dims, squeeze
from meshwright.ops.sharding.constraint import ShardingConstraint
from meshwright.sharding import (
    UNCONSTRAINED,
    AbstractMesh,
    AxisType,
    Layout,
    Mesh,
    NamedSharding,
    PartitionSpec,
    TypeSharding,
)
from meshwright.sharding.sdy import SdySharding
from meshwright.sharding.typed import type_over

Specs = tuple[PartitionSpec, ...]


@dataclass(frozen=True)
class ShardMap(RegionOp):
    """Runs ``jaxpr`` on every device of ``mesh``, on parts of the operands."""

    in_specs: Specs
    jaxpr: ClosedJaxpr
    mesh: Mesh | AbstractMesh
    out_specs: Specs
    #: the manual axes; empty means all
    axis_names: tuple[str, ...] = ()
    #: whether types tell which values vary over which manual axes
    check_vma: bool = False
    name: ClassVar[str] = "shard_map"
    is_manual: ClassVar[bool] = True

    @property
    def params(self) -> dict[str, Any]:
        first = "check_vma", "in_specs", "jaxpr", "mesh", "out_specs"
        return {n: getattr(self, n) for n in (*first, *(("axis_names",) if self.axis_names else ()))}

    @property
    def own_axes(self) -> Sequence[str]:
        return tuple(self.manual)

    @property
    def manual(self) -> dict[str, int]:
        """The manual axes and their sizes."""
        sizes = self.mesh.shape
        return {a: sizes[a] for a in self.axis_names or sizes}

    def stated_shardings(self) -> Sequence[NamedSharding]:
        return [NamedSharding(self.mesh, spec) for spec in self.out_specs]

    @property
    def devices(self) -> int:
        return prod(self.manual.values())

    @property
    def automatic(self) -> tuple[str, ...]:
        """The axes over which the partitioner splits the region."""
        return tuple(a for a in self.mesh.axis_names if self.axis_names and a not in self.axis_names)

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        for i, (aval, spec, want) in enumerate(zip(avals, self.in_specs, self.jaxpr.in_avals, strict=True)):
            local = self._scaled(aval, spec, lambda size, n: size // n)
            if (local.shape, local.dtype) != (want.shape, want.dtype):
                raise ShapeError(f"shard_map: operand {i} is {aval}, whose part under {spec} is not {want}")
        self._check_varying("operand", self.in_specs, self.jaxpr.in_avals)
        self._check_varying("result", self.out_specs, self.jaxpr.out_avals)
        wholes = (self._scaled(a, s, lambda size, n: size * n) for a, s in zip(self.jaxpr.out_avals, self.out_specs))
        outs = zip(wholes, self.jaxpr.out_avals, self.out_specs)
        return tuple(a.update(vma=a.vma.difference(self.manual), explicit=self._typed(i, s)) for a, i, s in outs)

    def _typed(self, inside: ShapedArray, spec: PartitionSpec) -> TypeSharding | None:
        """How explicit axes split a result: manual ones according to its spec, others according to its type inside."""
        explicit = self.mesh.abstract_mesh.of_type(AxisType.Explicit)
        if not explicit:
            return None
        mine = PartitionSpec() if inside.explicit is None else inside.explicit.spec
        entries = [(*(a for a in spec.axes(d) if a in explicit), *mine.axes(d)) for d in range(inside.ndim)]
        return type_over(self.mesh.abstract_mesh, entries)

    def _check_varying(self, what: str, specs: Specs, avals: Sequence[ShapedArray]) -> None:
        for i, (spec, aval) in enumerate(zip(specs, avals)):
            if aval.vma.intersection(self.manual) != self.named(spec):
                raise ShardingError(f"shard_map: {what} {i} is {aval} inside, which is not what {spec} says")

    def named(self, spec: PartitionSpec) -> Axes:
        """The axes over which a value with this spec varies; empty if that is not checked."""
        return frozenset(a for d in range(len(spec)) for a in spec.axes(d)) if self.check_vma else frozenset()

    def _scaled(self, aval: ShapedArray, spec: PartitionSpec, scale: Callable[[int, int], int]) -> ShapedArray:
        sizes = self.mesh.shape
        shape = tuple(scale(size, prod(sizes[a] for a in spec.axes(d))) for d, size in enumerate(aval.shape))
        return aval.update(shape=shape)

    def layouts(self, specs: Specs, avals: Sequence[ShapedArray]) -> list[Layout]:
        """The layouts for specs."""
        return [Layout.from_spec(s, a.ndim, self.mesh.abstract_mesh) for s, a in zip(specs, avals)]

    def regions(self) -> tuple[ClosedJaxpr, ...]:
        return (self.jaxpr,)

    def with_regions(self, regions: Sequence[ClosedJaxpr]) -> ShardMap:
        return dataclasses.replace(self, jaxpr=regions[0])

    def _over(
        self, jaxpr: ClosedJaxpr, in_specs: Sequence[PartitionSpec], out_specs: Sequence[PartitionSpec]
    ) -> ShardMap:
        return dataclasses.replace(self, in_specs=tuple(in_specs), jaxpr=jaxpr, out_specs=tuple(out_specs))

    def scope(self) -> Any:
        """The context in which the region's jaxpr is traced."""
        return extend_axis_env(self.manual, self.check_vma)

    def with_cast_results(self) -> ShardMap:
        """This op with results cast to vary over all axes that their specs name."""
        outs = joined(out_axes(self.jaxpr), map(self.named, self.out_specs))
        with self.scope():
            return self.with_regions([retyped(self.jaxpr, in_axes(self.jaxpr), outs)])

    def aligned(self, args: Sequence[Any]) -> tuple[Op, Sequence[Any]]:
        """In a region: along axes that are manual around it, operands vary inside as they do outside."""
        with self.scope():
            jaxpr = retyped(self.jaxpr, list(map(axes_of, args)))
        return self.with_regions([jaxpr]), cast_each(args, [a.difference(self.manual) for a in in_axes(jaxpr)])

    threads: ClassVar[bool] = True

    def threaded(
        self, args: Sequence[Any], state: list[Any], run: Run, join: Callable[[Sequence[Any]], list[Any]]
    ) -> tuple[list[Any], list[Any]]:
        n = len(state)

        def fun(*values: Any) -> list[Any]:
            outs, after = run(self.jaxpr, values[n:], list(values[:n]))
            return [*outs, *(expand_dims(x, (0,)) for x in after)]

        types = [typeof(x).strong() for x in state]
        with self.scope():
            jaxpr = trace_to_jaxpr(fun, [*types, *self.jaxpr.in_avals], self.jaxpr.jaxpr.debug_name)
        one, each = PartitionSpec(), PartitionSpec(tuple(self.manual))
        op = self._over(jaxpr, [*[one] * n, *self.in_specs], [*self.out_specs, *[each] * n]).with_cast_results()
        outs = op.bind(*state, *args)
        return list(outs[: len(outs) - n]), join(outs[len(outs) - n :])

    # --- derivatives ----------------------------------------------------------------------------------------
    def jvp_call(self, t: Any, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        nonzero = tuple(not isinstance(x, Zero) for x in tangents)
        with self.scope():
            jaxpr, nonzero_out = t.jvp(self.jaxpr, nonzero)
        op = self._over(
            jaxpr,
            [*self.in_specs, *pick(self.in_specs, nonzero)],
            [*self.out_specs, *pick(self.out_specs, nonzero_out)],
        )
        outs = op.bind(*primals, *pick(tangents, nonzero))
        n = len(nonzero_out)
        zeros = [Zero(x.aval) for x in omit(outs[:n], nonzero_out)]
        return outs[:n], merge(nonzero_out, outs[n:], zeros)

    def partial_eval_call(self, t: Any, known: Sequence[bool], args: Sequence[Any], tape: Any) -> Any:
        with self.scope():
            parts = t.derive(_split, self.jaxpr, tuple(known), tuple(self.manual), self.check_vma)
        stacked = [PartitionSpec(axes) if axes else PartitionSpec() for axes in parts.kept]
        known_specs = pick(self.in_specs, known)
        given = pick(args, known)
        out_specs = [*pick(self.out_specs, parts.known_out), *stacked]
        outs = self._over(parts.known, known_specs, out_specs).bind(*given) if out_specs else []
        n = sum(parts.known_out)
        recorded: Sequence[Any] = ()
        if not all(parts.known_out):
            forwarded = [given[i] for i in parts.forwarded]
            in_specs = [*stacked, *(known_specs[i] for i in parts.forwarded), *omit(self.in_specs, known)]
            op = self._over(parts.unknown, in_specs, omit(self.out_specs, parts.known_out))
            recorded = tape.record(op, [*outs[n:], *forwarded, *omit(args, known)])
        return merge(parts.known_out, outs[:n], recorded)

    def transpose_call(self, t: Any, cts: Sequence[Any], *args: Any) -> Cotangents:
        linear = tuple(isinstance(x, Linear) for x in args)
        nonzero = tuple(not isinstance(c, Zero) for c in cts)
        sizes = tuple(self.manual.items())
        with self.scope():
            if self.check_vma:
                jaxpr, has_ct = t.transpose(self.jaxpr, linear, nonzero)
            else:
                jaxpr, has_ct = t.derive(_transposed, self.jaxpr, linear, nonzero, self.in_specs, self.out_specs, sizes)
        specs = pick(self.in_specs, linear)
        op = self._over(jaxpr, [*omit(self.in_specs, linear), *pick(self.out_specs, nonzero)], pick(specs, has_ct))
        outs = iter(op.bind(*omit(args, linear), *pick(cts, nonzero)) if any(has_ct) else ())
        flags = iter(has_ct)
        return [(next(outs) if next(flags) else Zero(x.aval)) if lin else None for x, lin in zip(args, linear)]

    # --- batching -------------------------------------------------------------------------------------------
    def batch_call(self, t: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> BatchedResults:
        shape = self.mesh.abstract_mesh.shape
        if any(name not in shape for name in axis.spmd) or axis.size % prod(shape[n] for n in axis.spmd):
            raise ShardingError(
                f"vmap: spmd_axis_name={axis.spmd} must name axes of the mesh of its shard_map, {self.mesh}, and "
                f"these must divide the mapped size {axis.size}"
            )
        sizes = self.manual
        manual = tuple(n for n in axis.spmd if n in sizes)
        self._check_free(manual)
        rest = tuple(n for n in axis.spmd if n not in sizes)
        size = axis.size // prod(sizes[n] for n in manual)
        vma = axis.vma.union(manual) if self.check_vma else axis.vma
        local = dataclasses.replace(axis, size=size, spmd=rest, vma=vma)
        with self.scope():
            jaxpr, out_dims = t.batch(self.jaxpr, local, tuple(dims))
        in_specs = [_with_dim(s, d, manual) for s, d in zip(self.in_specs, dims)]
        out_specs = [_with_dim(s, d, manual) for s, d in zip(self.out_specs, out_dims)]
        if rest:
            args = [x if d is None else self._constrained(x, d, rest) for x, d in zip(args, dims)]
        return self._over(jaxpr, in_specs, out_specs).bind(*args), list(out_dims)

    def _check_free(self, axes: Sequence[str]) -> None:
        """Raise if the region itself uses axes that should split a mapped dimension.

        Raises:
          ShardingError: a spec names one, or a collective, which would combine entries of the mapped dimension.
        """
        named = {a for spec in (*self.in_specs, *self.out_specs) for d in range(len(spec)) for a in spec.axes(d)}
        used = named.union(*(op.axes for op in collectives_in(self.jaxpr.jaxpr))).intersection(axes)
        if used:
            names = ", ".join(sorted(used))
            raise ShardingError(
                f"vmap: spmd_axis_name={tuple(axes)} is to split the mapped axis, but the shard_map uses {names} "
                "itself, in its specs or for collectives; split by another axis of the mesh, or leave it out"
            )

    def _constrained(self, x: Any, dim: int, axes: tuple[str, ...]) -> Any:
        """``x`` with dimension ``dim`` split by automatic axes, the others left to the partitioner."""
        entries: list[Any] = [UNCONSTRAINED] * typeof(x).ndim
        entries[dim] = axes
        return ShardingConstraint(NamedSharding(self.mesh, PartitionSpec(*entries))).bind(x)

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        ins, outs = self._stated(self.in_specs, b.in_avals), self._stated(self.out_specs, b.out_avals)
        region = ManualRegion("shmap_body", self.jaxpr, ins, outs, tuple(self.manual))
        return b.annotations.region(region, operands)

    def _stated(self, specs: Specs, avals: Sequence[ShapedArray]) -> list[SdySharding]:
        """What a module says of operands or results; automatic axes may split them further."""
        shardings = (SdySharding.of(NamedSharding(self.mesh, s), a.ndim) for s, a in zip(specs, avals))
        return [s.opened() if self.automatic else s for s in shardings]


def _with_dim(spec: PartitionSpec, dim: int | None, axes: tuple[str, ...]) -> PartitionSpec:
    """``spec`` with an additional dimension at ``dim``, split by ``axes``."""
    if dim is None or (dim >= len(spec) and not axes):
        return spec
    full = (*spec, *[None] * max(0, dim - len(spec)))
    return PartitionSpec(*full[:dim], axes or None, *full[dim:])


@dataclass(frozen=True)
class _Parts:
    """A body split in two. ``known`` returns known results and residuals; ``unknown`` takes these, the ``forwarded``
    known operands unchanged, and the unknown operands. ``kept`` are the axes over which each residual varies; if there
    are any, it has a leading dimension of 1, one index per device along them."""

    known: ClosedJaxpr
    unknown: ClosedJaxpr
    known_out: tuple[bool, ...]
    kept: tuple[tuple[str, ...], ...]
    forwarded: tuple[int, ...]


def _split(t: Any, jaxpr: ClosedJaxpr, known: tuple[bool, ...], manual: tuple[str, ...], checked: bool) -> _Parts:
    parts = t.partial_eval(jaxpr, known)
    n = sum(parts.known_out)
    inner = parts.known.jaxpr
    residual_outs = inner.outvars[n:]
    sources = _before_casts(inner, residual_outs)
    residuals = list(dict.fromkeys(sources))
    first_part = dead_code(arranged(parts.known, inner.invars, [*inner.outvars[:n], *residuals]))
    is_input = [a in inner.invars for a in residuals]
    forwarded = tuple(inner.invars.index(a) for a in pick(residuals, is_input))
    kept = omit(residuals, is_input)
    axes = [tuple(a for a in manual if a in x.aval.vma or not checked) for x in kept]

    def first(*args: Any) -> list[Any]:
        outs = eval_jaxpr(first_part, first_part.consts, *args)
        stacked = zip(omit(outs[n:], is_input), axes)
        return [*outs[:n], *(expand_dims(x, [0]) if spread else x for x, spread in stacked)]

    def second(*args: Any) -> list[Any]:
        stacked, given, rest = split(args, len(kept), len(forwarded))
        values = merge(is_input, given, [squeeze(x, [0]) if spread else x for x, spread in zip(stacked, axes)])
        have = dict(zip(residuals, values))
        back = [cast(have[source], a.aval.vma) for source, a in zip(sources, residual_outs)]
        return eval_jaxpr(parts.unknown, parts.unknown.consts, *back, *rest)

    known_jaxpr = trace_to_jaxpr(first, parts.known.in_avals, jaxpr.jaxpr.debug_name)
    avals = [*known_jaxpr.out_avals[n:], *(a.aval for a in pick(residuals, is_input)), *omit(jaxpr.in_avals, known)]
    unknown = trace_to_jaxpr(second, avals, jaxpr.jaxpr.debug_name)
    return _Parts(known_jaxpr, unknown, parts.known_out, tuple(axes), forwarded)


def _before_casts(jaxpr: Jaxpr, atoms: Sequence[Atom]) -> list[Atom]:
    """For values that are casts, the values before the cast, which are stored once instead of per device."""
    casts = {e.outvars[0]: e.invars[0] for e in jaxpr.eqns if isinstance(e.op, PVary)}
    sources = []
    for atom in atoms:
        while isinstance(atom, Var) and atom in casts:
            atom = casts[atom]
        sources.append(atom)
    return sources


def _transposed(
    t: Any,
    jaxpr: ClosedJaxpr,
    linear: tuple[bool, ...],
    nonzero: tuple[bool, ...],
    in_specs: Specs,
    out_specs: Specs,
    sizes: tuple[tuple[str, int], ...],
) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    back, nonzero_out = t.transpose(jaxpr, linear, nonzero)
    n = len(linear) - sum(linear)
    ct_specs = pick(out_specs, nonzero)
    specs = pick(pick(in_specs, linear), nonzero_out)

    def fun(*args: Any) -> list[Any]:
        cts = [_shared(ct, _absent(spec, sizes)) for ct, spec in zip(args[n:], ct_specs)]
        outs = eval_jaxpr(back, back.consts, *args[:n], *cts)
        return [_summed(ct, _absent(spec, sizes)) for ct, spec in zip(outs, specs)]

    return trace_to_jaxpr(fun, back.in_avals, jaxpr.jaxpr.debug_name), nonzero_out


def _absent(spec: PartitionSpec, sizes: tuple[tuple[str, int], ...]) -> list[tuple[str, int]]:
    """The axes that a spec does not name: devices along them have equal parts."""
    named = {a for d in range(len(spec)) for a in spec.axes(d)}
    return [(a, n) for a, n in sizes if a not in named]


def _shared(ct: Any, axes: Sequence[tuple[str, int]]) -> Any:
    count = prod(n for _, n in axes)
    return div(ct, scalar_like(count, ct)) if count > 1 else ct


def _summed(ct: Any, axes: Sequence[tuple[str, int]]) -> Any:
    return Psum(tuple(a for a, _ in axes), tuple(n for _, n in axes)).bind(ct) if axes else ct
