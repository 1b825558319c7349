"""Virtual meshes: a per-device program becomes one single-device program by batching it over the mesh axes.

Arrays are in global row-major order. Entering the program, a dimension is cut into tiles by a reshape; the tile number
is a batch dimension that stays beside the rest of the dimension. Collectives over a batched axis are sums and reshapes
(``batch_named``). Nothing waits for anything, so nothing can deadlock, and there can be any number of devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn, Var, all_eqns
from meshwright.ir.op import BatchAxis, Op
from meshwright.ir.passes import dead_code, in_regions
from meshwright.ir.state import STATE, extend_axis_env, set_trace
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr, typeof
from meshwright.ops.collective.collectives import AllGather, AllSlice, Collective, ReduceScatter
from meshwright.ops.control.regions import RegionOp
from meshwright.ops.elementwise.table import copy
from meshwright.ops.shape.rearrange import squeeze
from meshwright.ops.shape.slice_pad import slice_in_dim
from meshwright.ops.sharding.constraint import without_constraints
from meshwright.ops.sharding.manual import GLOBAL_PROGRAM, ShardMap
from meshwright.runtime.simplify import merge_dot_dims
from meshwright.sharding import AbstractMesh, Layout, PartitionSpec
from meshwright.sharding.rule import REDUCTION
from meshwright.spmd.flatten import eqn_rule
from meshwright.spmd.partition.partition import Partition, partition
from meshwright.spmd.reshard.emit import fit_rows
from meshwright.spmd.varying import region_inputs, varying
from meshwright.transforms.batching import BatchTrace


def virtual_program(part: Partition) -> ClosedJaxpr:
    """The program on global arrays that computes what all devices of the mesh compute together."""
    mesh = part.mesh
    units = Units.of(part)
    local = with_units(part.jaxpr, units)
    inputs = [_varying(lo, units) for lo in part.in_layouts]
    local = merge_reductions(local, inputs)
    in_avals = part.source.in_avals
    out_avals = part.source.out_avals

    def fun(*args: Any) -> list[Any]:
        traces = []
        top = STATE.trace
        for name in units.names:
            top = BatchTrace(top, BatchAxis(units.sizes[name], name))
            traces.append(top)
        with extend_axis_env(units.sizes), set_trace(top):
            entered = [enter(x, lo, units, mesh) for x, lo in zip(args, part.in_layouts)]
            outs = eval_jaxpr(local, local.consts, *entered)
            left = [leave(x, lo, a.shape, units) for x, lo, a in zip(outs, part.out_layouts, out_avals)]
        for trace in reversed(traces):
            with set_trace(trace.parent):
                left = [first_of(*trace.unwrap(x)) for x in left]
            trace.alive = False
        return left

    return merge_dot_dims(dead_code(trace_to_jaxpr(fun, in_avals, part.jaxpr.jaxpr.debug_name)))


def _global_program(op: ShardMap) -> ClosedJaxpr:
    """What a ``shard_map`` computes on global arrays; how its region is split over automatic axes does not matter."""
    op = op.with_regions([without_constraints(op.jaxpr)])
    ins = [Var(a) for a in _global_avals(op, op.jaxpr.in_avals, op.in_specs)]
    outs = [Var(a) for a in op.infer(*(v.aval for v in ins))]
    jaxpr = ClosedJaxpr(Jaxpr([], ins, outs, [JaxprEqn(op, ins, outs)], op.name))
    mesh = op.mesh.abstract_mesh
    in_layouts = op.layouts(op.in_specs, [v.aval for v in ins])
    return virtual_program(partition(jaxpr, mesh, in_layouts, op.layouts(op.out_specs, [v.aval for v in outs])))


def _global_avals(op: ShardMap, avals: Sequence[ShapedArray], specs: Sequence[PartitionSpec]) -> list[ShapedArray]:
    layouts = op.layouts(tuple(specs), avals)
    mesh = op.mesh.abstract_mesh
    return [
        a.update(shape=tuple(size * mesh.sizes(axes) for size, axes in zip(a.shape, lo.dims)))
        for a, lo in zip(avals, layouts)
    ]


GLOBAL_PROGRAM.append(_global_program)


# --- which axes are batched ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Units:
    """The axes to batch over: whole mesh axes, or their atoms where the program takes them apart."""

    names: tuple[str, ...]
    sizes: dict[str, int]
    of_atom: dict[str, str]

    @staticmethod
    def of(part: Partition, atoms: bool = False) -> Units:
        """Those of a program; with ``atoms``, every axis is taken apart."""
        mesh = part.mesh
        runs = [mesh.coalesce(axes) for lo in (*part.in_layouts, *part.out_layouts) for axes in lo.dims]
        used = [e.op.axes for e in all_eqns(part.jaxpr.jaxpr) if isinstance(e.op, Collective)]
        named = {axis for axes in used for axis in axes}
        runs += used
        whole = {a for a in mesh.axis_names if not atoms or not mesh.atoms_of(a)}
        for run in runs:
            for name in run:
                if name not in mesh.shape:
                    whole.discard(mesh.axis_of(mesh.atoms_of(name)[0]))
        names: list[str] = []
        of_atom: dict[str, str] = {}
        for axis in mesh.axis_names:
            parts = mesh.atoms_of(axis)
            if axis in whole and (parts or axis in named):
                names.append(axis)
                of_atom.update(dict.fromkeys(parts, axis))
            else:
                names += parts
                of_atom.update({a: a for a in parts})
        return Units(tuple(names), {n: mesh.axis_size(n) for n in names}, of_atom)

    def of_atoms(self, atoms: Sequence[str]) -> tuple[str, ...]:
        """The units that a run of atoms is made of."""
        return tuple(dict.fromkeys(self.of_atom[a] for a in atoms))

    def expand(self, axes: Sequence[str], mesh: AbstractMesh) -> tuple[str, ...]:
        """The units of collective axes."""
        return self.of_atoms(mesh.expand(axes))


def with_units(jaxpr: ClosedJaxpr, units: Units) -> ClosedJaxpr:
    """Collectives over units instead of the axes they name."""

    def unit_axes(op: Collective) -> Collective:
        names: list[str] = []
        for axis in op.axes:
            names += [axis] if axis in units.sizes else [u for u in units.names if _part_of(u, axis)]
        return op.over(names, [units.sizes[n] for n in names])

    def rewrite(inner: ClosedJaxpr) -> ClosedJaxpr:
        eqns = [
            e.replace(op=unit_axes(e.op)) if isinstance(e.op, Collective) else in_regions(e, rewrite)
            for e in inner.eqns
        ]
        return inner.replace(jaxpr=inner.jaxpr.replace(eqns=eqns))

    return rewrite(jaxpr)


def _part_of(unit: str, axis: str) -> bool:
    """Whether a unit (an atom) lies inside an axis or sub-axis."""
    name, pre, size = _parse(unit)
    whole, start, extent = _parse(axis)
    if name != whole:
        return False
    return extent is None or (pre >= start and pre * (size or 1) <= start * extent)


def _parse(axis: str) -> tuple[str, int, int | None]:
    name, sep, rest = axis.rpartition(":(")
    if not sep:
        return axis, 1, None
    pre, _, size = rest.partition(")")
    return name, int(pre), int(size)


# --- entering and leaving -----------------------------------------------------------------------------------
def enter(x: Any, layout: Layout, units: Units, mesh: AbstractMesh) -> Any:
    """This device's part of a global array."""
    for dim, atoms in enumerate(layout.dims):
        if atoms:
            names = units.of_atoms(atoms)
            n = mesh.sizes(atoms)
            rows = -(-typeof(x).shape[dim] // n)
            x = AllSlice(names, tuple(units.sizes[u] for u in names), dim).bind(fit_rows(x, dim, n * rows))
    return x


def leave(x: Any, layout: Layout, shape: Sequence[int], units: Units) -> Any:
    """The global array of all devices' parts."""
    for dim, atoms in enumerate(layout.dims):
        if atoms:
            names = units.of_atoms(atoms)
            x = fit_rows(AllGather(names, tuple(units.sizes[u] for u in names), dim).bind(x), dim, shape[dim])
    return x


def first_of(val: Any, dim: int | None) -> Any:
    """Of a value that is the same on all devices, the first's."""
    return val if dim is None else squeeze(slice_in_dim(val, 0, 1, axis=dim), [dim])


# --- reductions that need no partial sums -------------------------------------------------------------------
def _varying(layout: Layout, units: Units) -> frozenset[str]:
    return frozenset(u for atoms in layout.dims for u in units.of_atoms(atoms))


def merge_reductions(jaxpr: ClosedJaxpr, inputs: Sequence[frozenset[str]]) -> ClosedJaxpr:
    """``psum(op(x, y))`` where ``op`` sums over a factor becomes ``op(all_gather(x), all_gather(y))`` along it.

    True for every op that is itself on local shapes (sums of block products are products of joined blocks), and on a
    virtual mesh the gather is a reshape: a partitioned matrix product becomes the one big product again.
    """
    return _MergeReductions(jaxpr, inputs).run()


class _MergeReductions:
    def __init__(self, jaxpr: ClosedJaxpr, inputs: Sequence[frozenset[str]]) -> None:
        self.closed = jaxpr
        inner = jaxpr.jaxpr
        self.varying = varying(inner, inputs)
        self.made: dict[Var, JaxprEqn] = {}
        self.uses: dict[Var, int] = {}
        for eqn in inner.eqns:
            for atom in eqn.invars:
                if isinstance(atom, Var):
                    self.uses[atom] = self.uses.get(atom, 0) + 1
            for var in eqn.outvars:
                self.made[var] = eqn
        for atom in inner.outvars:
            if isinstance(atom, Var):
                self.uses[atom] = self.uses.get(atom, 0) + 1

    def run(self) -> ClosedJaxpr:
        inner = self.closed.jaxpr
        replaced: dict[int, list[JaxprEqn]] = {}
        for eqn in inner.eqns:
            op = eqn.op
            if isinstance(op, RegionOp):
                replaced[id(eqn)] = [self._regions(eqn, op)]
                continue
            summing = (type(op).name == "psum") or (isinstance(op, ReduceScatter) and op.reduction == "sum")
            if summing and isinstance(eqn.invars[0], Var):
                chain = self._producer(eqn.invars[0], frozenset(op.axes))  # type: ignore[attr-defined]
                if chain is not None:
                    self._merge(eqn, chain, replaced)
        if not replaced:
            return self.closed
        eqns = [new for eqn in inner.eqns for new in replaced.get(id(eqn), [eqn])]
        return self.closed.replace(jaxpr=inner.replace(eqns=eqns))

    def _regions(self, eqn: JaxprEqn, op: RegionOp) -> JaxprEqn:
        """The same inside of regions."""
        inputs = region_inputs(eqn, self.varying)
        return eqn.replace(op=op.with_regions([merge_reductions(r, i) for r, i in zip(op.regions(), inputs)]))

    def _producer(self, var: Var, axes: frozenset[str]) -> list[JaxprEqn] | None:
        """The equations from a summing op to ``var``: that op, then ops through which a sum over ``axes`` may be moved
        (linear in this operand, their others equal along ``axes``), each result used once."""
        chain: list[JaxprEqn] = []
        while True:
            eqn = self.made.get(var)
            if eqn is None or self.uses.get(var) != 1 or eqn.op.multiple_results:
                return None
            chain.append(eqn)
            through = None if isinstance(eqn.op, Collective) else self._linear_operand(eqn, axes)
            if through is None:
                return chain[::-1]
            var = through

    def _linear_operand(self, eqn: JaxprEqn, axes: frozenset[str]) -> Var | None:
        """The one operand that differs along ``axes``, if the op is linear in it alone and does not sum."""
        differing = [
            i for i, a in enumerate(eqn.invars) if isinstance(a, Var) and self.varying.get(a, frozenset()) & axes
        ]
        linear = eqn.op.linear_groups(*(a.aval for a in eqn.invars))
        if len(differing) != 1 or (tuple(differing) not in linear and not eqn.op.moves_only):
            return None
        if any(f.kind == REDUCTION for f in eqn_rule(eqn).factors):
            return None
        found = eqn.invars[differing[0]]
        return found if isinstance(found, Var) else None

    def _merge(self, psum: JaxprEqn, chain: list[JaxprEqn], replaced: dict[int, list[JaxprEqn]]) -> None:
        source = chain[0]
        axes = psum.op.axes  # type: ignore[attr-defined]
        sizes = psum.op.sizes  # type: ignore[attr-defined]
        if isinstance(source.op, Collective) or source.op.holds_jaxprs or id(source) in replaced:
            return
        rule = eqn_rule(source)
        # An op with a ``localize`` of its own may need to know where its blocks stand (a dynamic slice does).
        if rule.reduction != "sum" or type(source.op).localize is not Op.localize:
            return
        for f, factor in enumerate(rule.factors):
            if factor.kind == REDUCTION:
                gathered = self._gather_operands(source, rule, f, axes, sizes)
                if gathered is not None:
                    new_eqns, operands = gathered
                    replaced[id(source)] = [*new_eqns, source.replace(invars=operands)]
                    self._drop_sum(psum, replaced)
                    return

    def _gather_operands(
        self, eqn: JaxprEqn, rule: Any, f: int, axes: tuple[str, ...], sizes: tuple[int, ...]
    ) -> tuple[list[JaxprEqn], list[Any]] | None:
        new_eqns, operands = [], []
        for atom, dims in zip(eqn.invars, rule.operands):
            where = [d for d, fs in enumerate(dims) if fs == (f,)]
            found = self.varying.get(atom, frozenset()) if isinstance(atom, Var) else frozenset()
            varies = found & set(axes)
            if len(where) != 1:
                if varies or any(f in fs for fs in dims):
                    return None
                operands.append(atom)
                continue
            if len(varies) != len(axes):
                return None  # joining equal copies would only multiply the work
            op = AllGather(axes, sizes, where[0])
            out = Var(op.infer(atom.aval))
            new_eqns.append(JaxprEqn(op, [atom], [out], eqn.source))
            operands.append(out)
        out_aval = eqn.op.infer(*(a.aval for a in operands))
        return (new_eqns, operands) if out_aval == eqn.outvars[0].aval else None

    def _drop_sum(self, psum: JaxprEqn, replaced: dict[int, list[JaxprEqn]]) -> None:
        from_, to = psum.invars[0], psum.outvars[0]
        if isinstance(psum.op, ReduceScatter):
            cut = AllSlice(psum.op.axes, psum.op.sizes, psum.op.dimension)
            replaced[id(psum)] = [JaxprEqn(cut, [from_], [to], psum.source)]
        else:
            replaced[id(psum)] = [JaxprEqn(copy, [from_], [to], psum.source)]
