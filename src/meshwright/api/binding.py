"""Binding a program's shardings to a mesh: device counts and meshes of the program's own become axes of that mesh.

Annotations become sharding constraints, manual regions become ``shard_map``, and collectives over device groups become
collectives over axes. Inside a manual region, annotations concern only the automatic axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.core import dtypes, source
from meshwright.errors import ImportProgramError, MeshwrightError, ShardingError
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.passes import inline_calls
from meshwright.ir.rewrite import in_regions, renamed, replaced, resolve
from meshwright.ir.tracing import trace_to_jaxpr
from meshwright.ops.collective.all_reduce import AllReduce
from meshwright.ops.collective.base import AxisIndex, axis_index_of
from meshwright.ops.collective.exchange import Ppermute
from meshwright.ops.composite import Composite
from meshwright.ops.control.call import Jit
from meshwright.ops.elementwise.table import convert, copy, zeros_like
from meshwright.ops.imported.device_collective import DeviceNumber, DeviceOp, entry_at_position, in_groups
from meshwright.ops.imported.manual_computation import ManualComputation
from meshwright.ops.imported.sharding_annotation import Annotation, ShardingAnnotation
from meshwright.ops.sharding.constraint import Leeway, ShardingConstraint
from meshwright.ops.sharding.manual import ShardMap
from meshwright.ops.sharding.propagation_marks import ShardingGroup
from meshwright.sharding import (
    AnyMesh,
    HloSharding,
    Layout,
    NamedSharding,
    PartitionSpec,
    hlo_to_layout,
    manual_axes,
)
from meshwright.sharding.device_groups import ManualGrid, device_order
from meshwright.sharding.hlo_convert import sdy_to_hlo
from meshwright.sharding.kinds import in_own_order
from meshwright.sharding.sdy import SdyDimension, SdySharding


# --- one sharding -------------------------------------------------------------------------------------------
def constraint_on(
    sharding: Annotation, unspecified: Sequence[int], ndim: int, mesh: AnyMesh, manual: Sequence[str] = ()
) -> ShardingConstraint | None:
    """The constraint that an annotation puts on a value of ``ndim`` dimensions; None if all axes are manual.

    ``manual`` are the axes that are manual at the value.

    Raises:
      ShardingError: no axes of the mesh express the sharding.
      ImportProgramError: a manual axis splits the value, or an axis is manual only here.
    """
    if isinstance(sharding, SdySharding) and not _has_axes_of(mesh, sharding):
        sharding = sdy_to_hlo(sharding)
    if isinstance(sharding, SdySharding):
        axes = {a for d in sharding.dimensions for a in d.axes}
        _check_automatic(sharding, mesh.abstract_mesh.expand(axes), mesh, manual)
        leeway = Leeway(
            tuple(d for d, dimension in enumerate(sharding.dimensions) if dimension.axes and not dimension.is_closed),
            tuple(d.priority for d in sharding.dimensions) if any(d.priority for d in sharding.dimensions) else (),
            tuple(a for a in sharding.replicated if a not in manual),
            sharding.unreduced,
        )
        return ShardingConstraint(NamedSharding(mesh, sharding.spec()), leeway)
    if sharding.kind == "maximal":
        return ShardingConstraint(NamedSharding(mesh, PartitionSpec()))  # on one device there: replicated here
    order = device_order(mesh).tolist()
    outside = set(manual_axes(sharding, mesh.abstract_mesh, order)).difference(mesh.abstract_mesh.expand(manual))
    if (outside and sharding.kind != "manual") or (sharding.kind == "manual" and not manual):
        raise ImportProgramError(
            f"sharding {sharding} is manual, but the value is in no region that is manual along "
            f"{', '.join(sorted(outside)) or 'any axis'}; bring it into one with SPMDFullToShardShape"
        )
    if sharding.kind == "manual":
        return None
    try:
        layout = hlo_to_layout(sharding, ndim, mesh.abstract_mesh, order)
    except ShardingError:  # its own device order: within a program, devices are in the mesh's order
        layout = in_own_order(sharding, ndim, mesh).layout(ndim)
    _check_automatic(sharding, layout.split_axes, mesh, manual)
    named = NamedSharding.from_layout(mesh, Layout(layout.dims))
    return ShardingConstraint(named, Leeway(tuple(unspecified), unreduced=mesh.abstract_mesh.coalesce(layout.partial)))


def _check_automatic(sharding: Annotation, atoms: Sequence[str], mesh: AnyMesh, manual: Sequence[str]) -> None:
    both = set(atoms).intersection(mesh.abstract_mesh.expand(manual))
    if both:
        axes = ", ".join(mesh.abstract_mesh.coalesce(mesh.abstract_mesh.in_mesh_order(both)))
        raise ImportProgramError(
            f"sharding {sharding} splits by {axes}, which is manual there; inside a manual region values are parts "
            "along manual axes already, and only the other axes can split them"
        )


def is_plain(sharding: Annotation) -> bool:
    """Whether the annotation fixes how the value is split and says nothing else."""
    if isinstance(sharding, SdySharding):
        return sharding.is_plain
    return sharding.kind != "unreduced" and "unreduced" not in sharding.subgroups


def on_mesh(sharding: Annotation, ndim: int, mesh: AnyMesh, what: str) -> NamedSharding:
    """The sharding of a parameter or result over a mesh.

    Raises:
      ShardingError: no axes of the mesh express it.
      ImportProgramError: the value is manual.
    """
    try:
        constraint = constraint_on(sharding, (), ndim, mesh)
    except ImportProgramError as error:
        raise ImportProgramError(f"{what}: {error}") from None
    if constraint is None:
        raise ImportProgramError(f"{what} is manual ({sharding}); parameters and results are whole")
    if isinstance(sharding, SdySharding) and not _has_axes_of(mesh, sharding):
        sharding = sdy_to_hlo(sharding)
    if isinstance(sharding, HloSharding) and sharding.tiles is not None and not _on_its_devices(sharding, ndim, mesh):
        return in_own_order(sharding, ndim, mesh)
    return constraint.sharding


def _has_axes_of(mesh: AnyMesh, sharding: SdySharding) -> bool:
    """Whether a sharding uses axes and devices of ``mesh``."""
    ids = sharding.device_ids or tuple(range(sharding.mesh.size))
    same_devices = mesh.size != len(ids) or tuple(device_order(mesh).tolist()) == ids
    return same_devices and _has_names_of(mesh, sharding)


def _has_names_of(mesh: AnyMesh, sharding: SdySharding) -> bool:
    """Whether a sharding uses axes of ``mesh``, of whatever devices."""
    same_sizes = all(mesh.shape.get(a) == n for a, n in sharding.mesh.shape.items())
    return same_sizes and sharding.mesh.orders == mesh.abstract_mesh.orders


def _numbers_by_name(mesh: AnyMesh, sharding: SdySharding) -> tuple[int, ...]:
    """The device number in a program at each position of ``mesh``, which has the axes of the program's mesh, that of
    ``sharding``, in any order. Empty: the numbers are those of ``mesh``."""
    own = sharding.mesh
    if own.size != mesh.size:
        return ()
    ids = np.array(sharding.device_ids or range(own.size)).reshape(own.axis_sizes)
    names = [a for a in mesh.axis_names if a in own.axis_names]  # any others have one position
    numbers = ids.transpose([own.axis_names.index(a) for a in names]).ravel()
    return () if np.array_equal(numbers, device_order(mesh)) else tuple(numbers.tolist())


def _along(axis: str, mesh: AnyMesh, sharding: SdySharding) -> tuple[str, ...]:
    """The atoms of ``mesh`` that the devices along an axis of the mesh of ``sharding`` lie along, by their numbers."""
    split = SdySharding(sharding.mesh, (SdyDimension((axis,)),), device_ids=sharding.device_ids)
    return hlo_to_layout(sdy_to_hlo(split), 1, mesh.abstract_mesh, device_order(mesh).tolist()).dims[0]


def _on_its_devices(sharding: HloSharding, ndim: int, mesh: AnyMesh) -> bool:
    """Whether the sharding, with its device order, can be expressed by axes of ``mesh``."""
    try:
        hlo_to_layout(sharding, ndim, mesh.abstract_mesh, device_order(mesh).tolist())
    except ShardingError:
        return False
    return True


def _as_hlo(shardings: Sequence[Annotation | None]) -> tuple[Annotation | None, ...]:
    """Shardings by numbers of devices."""
    return tuple(sdy_to_hlo(s) if isinstance(s, SdySharding) else s for s in shardings)


# --- a program ----------------------------------------------------------------------------------------------
def bind_to_mesh(jaxpr: ClosedJaxpr, mesh: AnyMesh, name: str) -> ClosedJaxpr:
    """Inline the calls of a program and express its shardings over the axes of ``mesh``.

    Raises:
      ImportProgramError: a sharding, region or device group has no meaning on this mesh; says where.
      ShardingError: no axes of the mesh express a sharding.
    """
    return inline_calls(_Binder(mesh, name).jaxpr(jaxpr, ()))


def partitioned_elsewhere(jaxpr: ClosedJaxpr, mesh: AnyMesh, name: str) -> ClosedJaxpr:
    """The per-device program made by another partitioner, with its collectives over the axes of ``mesh``.

    Raises:
      ImportProgramError: a device group has no meaning on this mesh; says where.
    """
    return inline_calls(_Binder(mesh, name).jaxpr(inline_calls(jaxpr), tuple(mesh.axis_names)))


class _Binder:
    def __init__(self, mesh: AnyMesh, name: str) -> None:
        self.mesh = mesh
        self.name = name
        self.grids: dict[tuple[tuple[str, ...], tuple[int, ...]], ManualGrid] = {}
        #: the device numbers in the current region, unless they are those of the mesh
        self.numbers: tuple[int, ...] = ()

    def jaxpr(self, jaxpr: ClosedJaxpr, manual: tuple[str, ...]) -> ClosedJaxpr:
        return replaced(jaxpr, lambda eqn: self.equation(eqn, manual))

    def equation(self, eqn: JaxprEqn, manual: tuple[str, ...]) -> JaxprEqn | None:
        """The equation on the mesh; None for an annotation that has no effect there."""
        op = eqn.op
        if isinstance(op, ShardingAnnotation):
            with self.located(eqn):
                constraint = constraint_on(op.sharding, op.unspecified, eqn.outvars[0].aval.ndim, self.mesh, manual)
            return None if constraint is None else eqn.replace(op=constraint)
        if isinstance(op, ManualComputation):
            return self.region(eqn, op, manual)
        if isinstance(op, DeviceOp):
            with self.located(eqn):
                return self.device_op(eqn, op, manual)
        return in_regions(eqn, lambda body: self.jaxpr(body, manual))

    @contextmanager
    def located(self, eqn: JaxprEqn) -> Iterator[None]:
        """Add the equation to the message of errors raised inside."""
        try:
            yield
        except MeshwrightError as error:
            kind = ShardingError if isinstance(error, ShardingError) else ImportProgramError
            raise kind(f"{self.name!r}, {eqn.op.name} at {eqn.source}: {error}") from error

    # --- manual regions -------------------------------------------------------------------------------------
    def region(self, eqn: JaxprEqn, op: ManualComputation, manual: tuple[str, ...]) -> JaxprEqn:
        with self.located(eqn):
            # Where the mesh has the axes of a region, names mean these. Otherwise all is by numbers of devices.
            named = [s for s in (*op.in_shardings, *op.out_shardings) if isinstance(s, SdySharding)]
            by_name = all(_has_names_of(self.mesh, s) for s in named)
            mine = self.axes_of(op, manual, None if by_name else named[0])
            if not by_name:
                op = replace(op, in_shardings=_as_hlo(op.in_shardings), out_shardings=_as_hlo(op.out_shardings))
            numbers = _numbers_by_name(self.mesh, named[0]) if named and by_name else ()
            sides = (op.in_shardings, eqn.invars), (op.out_shardings, eqn.outvars)
            ins, outs = (tuple(self.cut(s, a, mine) for s, a in zip(*side)) for side in sides)
        outside, self.numbers = self.numbers, numbers
        body = self.jaxpr(op.jaxpr, self.in_mesh_order((*manual, *mine)))
        self.numbers = outside
        if not mine:
            return eqn.replace(op=Jit(op.name, body, inline=True))
        shard_map = ShardMap(ins, body, self.mesh, outs, mine if len(mine) < len(self.mesh.axis_names) else ())
        with self.located(eqn):
            results = shard_map.infer(*(a.aval for a in eqn.invars))
            for got, want in zip(results, eqn.outvars):
                if got.shape != want.aval.shape:
                    raise ImportProgramError(f"the parts of a result make up {got}, it is declared {want.aval}")
        return eqn.replace(op=shard_map)

    def in_mesh_order(self, axes: Sequence[str]) -> tuple[str, ...]:
        return tuple(a for a in self.mesh.axis_names if a in axes)

    def axes_of(self, op: ManualComputation, manual: tuple[str, ...], numbered: SdySharding | None) -> tuple[str, ...]:
        """The axes that are manual in a region. Its axes are those of the mesh of ``numbered``, if there is one."""
        mesh = self.mesh.abstract_mesh
        if isinstance(op.manual, HloSharding):
            atoms = set(manual_axes(op.manual, mesh, device_order(self.mesh).tolist()))
        elif numbered is not None:
            atoms = {a for axis in op.manual for a in _along(axis, self.mesh, numbered)}
        else:
            atoms = set(mesh.expand(op.manual))
        axes = self.in_mesh_order([mesh.axis_of(a) for a in atoms])
        parts = sorted(set(mesh.expand(axes)) - atoms)
        if parts:
            raise ImportProgramError(
                f"the region is manual along a part of {', '.join(axes)} only (not along {', '.join(parts)}); "
                f"use a mesh that has this part as an axis of its own instead of {self.mesh}"
            )
        return tuple(a for a in axes if a not in manual)

    def cut(self, sharding: Annotation | None, value: Atom, mine: tuple[str, ...]) -> PartitionSpec:
        """How the axes ``mine`` split a value into parts."""
        if sharding is None:
            return PartitionSpec()
        mesh, ndim = self.mesh.abstract_mesh, value.aval.ndim
        if isinstance(sharding, SdySharding):
            dims = tuple(mesh.expand(d.axes) for d in sharding.dimensions)
        else:
            dims = hlo_to_layout(sharding, ndim, mesh, device_order(self.mesh).tolist()).dims
        atoms = set(mesh.expand(mine))
        entries = []
        for d, axes in enumerate(dims):
            own = tuple(a for a in axes if a in atoms)
            if own != axes[: len(own)]:
                raise ImportProgramError(
                    f"sharding {sharding} splits dimension {d} of {value.aval} by other axes before those that are "
                    "manual; parts of a region must be blocks: put the manual axes first"
                )
            entries.append(mesh.coalesce(own))
            parts = [a for a in entries[-1] if a not in mesh.axis_names]
            if parts:
                raise ImportProgramError(
                    f"the region splits dimension {d} of {value.aval} along a part of an axis only "
                    f"({', '.join(parts)}); use a mesh that has this part as an axis of its own instead of {self.mesh}"
                )
        return PartitionSpec(*entries)

    # --- collectives ----------------------------------------------------------------------------------------
    def device_op(self, eqn: JaxprEqn, op: DeviceOp, manual: tuple[str, ...]) -> JaxprEqn:
        if not manual and self.mesh.size > 1:
            raise ImportProgramError("stands in no manual region")
        grid = self.grids.setdefault((manual, self.numbers), ManualGrid(self.mesh, manual, self.numbers))
        fun = self.number(grid) if isinstance(op, DeviceNumber) else self.collective(op, grid)
        with source.at(eqn.source):
            jaxpr = trace_to_jaxpr(fun, [a.aval for a in eqn.invars], op.name)
        return eqn.replace(op=Jit(op.name, jaxpr, inline=True))

    def number(self, grid: ManualGrid) -> Callable[..., list[Any]]:
        """The number of the device at this position; along automatic axes, that of the first device."""
        sizes = grid.grid.axis_sizes
        return lambda: [convert(entry_at_position(grid.manual, sizes, grid.devices[0]), dtypes.uint32)]

    def collective(self, op: Any, grid: ManualGrid) -> Callable[..., list[Any]]:
        collective = op.collective
        mesh = self.mesh.abstract_mesh

        def sizes(axes: Sequence[str]) -> tuple[int, ...]:
            return tuple(mesh.axis_size(a) for a in axes)

        if isinstance(collective, Ppermute):
            axes, perm = grid.permutation(collective.perm)
            if not axes:
                return (lambda x: [x]) if perm else (lambda x: [zeros_like(x)])
            return lambda x: [Ppermute(axes, sizes(axes), perm).bind(x)]
        groups = grid.groups(op.groups)
        if isinstance(collective, AllReduce):  # the order within groups does not matter
            groups = tuple(tuple(sorted(g)) for g in groups)
        group_axes = grid.axes_of(groups)
        if group_axes is None:
            return lambda *xs: [in_groups(collective, groups, grid.manual, sizes(grid.manual), *xs)]
        if isinstance(collective, AxisIndex):
            return lambda: [axis_index_of(group_axes, sizes(group_axes))]
        here = collective.over(group_axes, sizes(group_axes))
        if not group_axes:
            return here.expand if isinstance(here, Composite) else lambda x: [x]
        return lambda *xs: [here.bind(*xs)]


# --- annotations --------------------------------------------------------------------------------------------
def annotate_ends(
    jaxpr: ClosedJaxpr, ins: Sequence[Annotation | None], outs: Sequence[Annotation | None]
) -> ClosedJaxpr:
    """``jaxpr`` with annotation equations for parameters and results whose annotations say more than how they are
    split."""
    inner = jaxpr.jaxpr
    before: list[JaxprEqn] = []
    marked = {v: _marked(v, s, before) for v, s in zip(inner.invars, ins)}
    names = {v: new for v, new in marked.items() if new is not v}
    after: list[JaxprEqn] = []
    results = [_marked(resolve(names, a), s, after) for a, s in zip(inner.outvars, outs)]
    if not before and not after:
        return jaxpr
    eqns = [renamed(e, names) for e in inner.eqns]
    return jaxpr.replace(jaxpr=inner.replace(eqns=[*before, *eqns, *after], outvars=results))


def _marked(atom: Any, sharding: Annotation | None, eqns: list[JaxprEqn]) -> Any:
    ops: list[Any] = []
    group = sharding.group if isinstance(sharding, HloSharding) else ""
    if sharding is not None and not is_plain(sharding):
        ops.append(ShardingAnnotation(sharding))
    if group:
        kind, _, number = group.partition(" ")
        ops.append(ShardingGroup(number, kind == "shard_as"))
    for op in ops:
        out = Var(atom.aval)
        eqns.append(JaxprEqn(op, [atom], [out]))
        atom = out
    return atom


def without_annotations(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """``jaxpr`` with annotations replaced by identities, also in its regions."""

    def free(eqn: JaxprEqn) -> JaxprEqn:
        return eqn.replace(op=copy) if isinstance(eqn.op, ShardingAnnotation) else in_regions(eqn, without_annotations)

    return replaced(jaxpr, free)
