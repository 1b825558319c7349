"""``shard_map``: runs a per-device function on all devices of a mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, cast

import numpy as np

from meshwright.api.carried_references import GivenReferences, of_values
from meshwright.api.jit import jit
from meshwright.api.per_device import Ring, part_at, put_together
from meshwright.api.placement import reshard
from meshwright.api.shardings import shown_beside
from meshwright.api.terms import on_terms, stated, sums_of, typed_as
from meshwright.core import pytree
from meshwright.core.avals import OnlyTyped, ShapedArray
from meshwright.core.caches import Recent, on_clear
from meshwright.core.config import config
from meshwright.core.expected import as_tuple
from meshwright.core.identity import made_of
from meshwright.core.key_types import is_key
from meshwright.core.naming import wraps
from meshwright.core.records import dataclass
from meshwright.core.signature import described
from meshwright.core.tracebacks import boundary
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError, MeshError, ShapeError, ShardingError
from meshwright.ir.alike import structure
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, all_eqns
from meshwright.ir.passes import inline_calls
from meshwright.ir.state import STATE, extend_axis_env
from meshwright.ir.tracing import EVAL, Tracer, array_leaves, typeof
from meshwright.ops.collective.named_axis import pcast
from meshwright.ops.sharding.constraint import ShardingConstraint
from meshwright.ops.sharding.manual import ShardMap
from meshwright.runtime.eager import REGION
from meshwright.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, get_mesh, set_mesh
from meshwright.sharding.typed import type_over
from meshwright.transforms.autodiff import closed_call
from meshwright.transforms.wrapped import name_of, require_callable


class _Inferred:
    """The type of the singleton ``INFERRED``."""

    def __repr__(self) -> str:
        return "INFERRED"


#: default of ``in_specs``: take the specs from the types of the arguments
INFERRED = _Inferred()


def _is_spec(x: Any) -> bool:
    return x is None or isinstance(x, PartitionSpec)


def _flat_specs(specs: Any, value: Any, mesh: Mesh | AbstractMesh, what: str) -> list[PartitionSpec]:
    """One spec per leaf of ``value``; None means replicated."""

    def checked(spec: Any) -> PartitionSpec:
        if not _is_spec(spec):
            raise ArgumentTypeError(
                f"{what}: expected PartitionSpecs, as P('x'), got {spec!r} of type {type(spec).__name__}"
            )
        try:
            return NamedSharding(mesh, PartitionSpec() if spec is None else spec).spec
        except ShardingError as error:
            raise type(error)(f"{what}: {error}") from None

    return [checked(spec) for spec in pytree.broadcast_prefix(specs, value, what, _is_spec)]


def shard_map(
    f: Callable[..., Any] | None = None,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    in_specs: Any = INFERRED,
    out_specs: Any,
    axis_names: Any = (),
    check_vma: bool = True,
) -> Any:
    """Run ``f``, written for one device, on all devices of ``mesh``; each gets its part of each argument.

    ``in_specs`` (a tuple with one entry per argument, or a tree prefix) say how arguments are split: along a dimension
    whose entry names axes, each device along these gets one part; along axes that a spec does not name, all get the
    same. Without ``in_specs``, arguments are split as by their explicit axes. ``out_specs`` say how results are
    assembled; along axes that they do not name, results must be equal. Where a spec says ``unreduced={"x"}``, the
    devices along x have terms, of which the value is the sum. Collectives in ``f`` name axes of the mesh.

    With ``check_vma``, the type of every value in ``f`` tracks over which axes it *varies* between devices:
    ``typeof(x).vma``, printed as ``f32[3]{V:x}``. Results that vary over an axis their spec does not name are refused,
    and derivatives inside, through and of ``f`` are right: a parameter shared by devices gets the sum of their
    cotangents. With ``check_vma=False``, results are not checked. A cotangent inside is then that of one device's copy
    of a value, and the cotangent of ``lax.psum`` is summed once more.

    ``mesh`` defaults to the current mesh; inside a ``shard_map`` that is its mesh.

    ``axis_names`` are the *manual* axes of the mesh (default: all that no enclosing ``shard_map`` has made manual),
    which specs and collectives name. The other axes stay automatic: along them ``f`` is a global program, partitioned
    like any jitted function, including sharding constraints.

    Raises (when called):
      MeshError: no mesh is given or set, or it is not that of an enclosing ``shard_map``.
      ShapeError: a dimension is not divisible by the number of parts.
      ShardingError: a result varies over an axis that its spec does not name.
      ArgumentError: specs do not fit the arguments or results, or ``axis_names`` are not axes of the mesh or are manual
        already.

    Example:
      >>> mesh = mw.make_mesh((2,), ("x",))
      >>> total = mw.shard_map(lambda x: lax.psum(x.sum(), "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
      >>> float(total(mnp.arange(8.0)))
      28.0
    """
    if f is None:
        return functools.partial(
            shard_map, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=axis_names, check_vma=check_vma
        )
    require_callable(f, "shard_map")
    where = mesh

    @boundary
    @wraps(f)
    def traced(*args: Any) -> Any:
        mesh = where if where is not None else get_mesh()
        if mesh is None:
            raise MeshError("shard_map: no mesh is given; pass mesh=, or set one with set_mesh")
        if not isinstance(mesh, (Mesh, AbstractMesh)):
            raise ArgumentTypeError(f"shard_map: mesh={mesh!r}; expected a Mesh or an AbstractMesh, see make_mesh")
        _check_nested(mesh, get_mesh())
        manual = _manual_axes(mesh, axis_names)
        region = _Region(f, mesh, manual, in_specs, out_specs, check_vma)
        run = _in_python if config.disable_jit else _call
        given = GivenReferences.among(name_of(f), args, {})
        if given is None:
            return run(region, args)
        within = region.of_values(given)
        return given.call(lambda *args: run(within, args))

    return made_of(traced, f, "shard_map", (mesh, in_specs, out_specs, axis_names, check_vma))


def _check_nested(mesh: Mesh | AbstractMesh, around: Mesh | AbstractMesh | None) -> None:
    """Raise if a region over ``mesh`` lies in one over other axes or devices: those of its names would be ambiguous.

    Raises:
      MeshError: it does.
    """
    if around is None or not around.manual_axes:
        return
    ids = {m.flat_ids for m in (mesh, around) if isinstance(m, Mesh)}
    if mesh.shape_tuple != around.shape_tuple or len(ids) > 1:
        raise MeshError(
            f"shard_map: a region over {shown_beside(mesh, around)} inside of one over {shown_beside(around, mesh)}; "
            "leave mesh= out, and regions over other meshes outside"
        )


def _manual_axes(mesh: Mesh | AbstractMesh, axis_names: Any) -> tuple[str, ...]:
    """The axes that are manual in the region, in mesh order.

    Raises:
      ArgumentError: a name is not an axis of the mesh, or an enclosing region has made it manual.
    """
    names = as_tuple("shard_map: axis_names", "names of the mesh's axes", axis_names)
    outside = [a for a in mesh.axis_names if a in STATE.axis_env]
    unknown = sorted(set(names) - set(mesh.axis_names))
    if unknown or set(names) & set(outside) or (not names and len(outside) == len(mesh.axis_names)):
        given = f"axis_names={sorted(names)}" if names else "no axis_names"
        raise ArgumentError(
            f"shard_map: {given}, the mesh has the axes {list(mesh.axis_names)}"
            + (f", of which {outside} are manual already" if outside else "")
            + "; name axes of the mesh that no enclosing shard_map has"
        )
    return tuple(a for a in mesh.axis_names if (a in names if names else a not in outside))


def _check_manual(specs: Sequence[PartitionSpec], manual: Sequence[str], mesh: Mesh | AbstractMesh, what: str) -> None:
    for spec in specs:
        named = {a for d in range(len(spec)) for a in spec.axes(d)} | spec.unreduced | spec.reduced
        if not named <= set(manual):
            raise ArgumentError(
                f"shard_map: {what} has {spec}, but of the axes of {mesh} only {list(manual)} are manual; specs say "
                "nothing of the others (constrain values with with_sharding_constraint)"
            )


def _check_constraints(jaxpr: ClosedJaxpr, manual: Sequence[str]) -> None:
    for eqn in all_eqns(jaxpr.jaxpr):
        if isinstance(eqn.op, ShardingConstraint):
            spec = eqn.op.sharding.spec
            named = sorted({a for d in range(len(spec)) for a in spec.axes(d)} & set(manual))
            if named:
                raise ShardingError(
                    f"shard_map: the constraint {spec} at {eqn.source} names {', '.join(named)}, manual here; values "
                    "inside are parts along manual axes already: name automatic axes, or constrain outside"
                )


@dataclass(frozen=True)
class _Region:
    """A function, and how its arguments are split and its results assembled along manual axes."""

    f: Callable[..., Any]
    mesh: Mesh | AbstractMesh
    manual: tuple[str, ...]
    in_specs: Any
    out_specs: Any
    check: bool

    def _type(self, x: Any, what: str) -> ShapedArray:
        try:
            return typeof(x)
        except ArgumentTypeError as error:
            raise ArgumentTypeError(f"shard_map of {described(self.f)}: {what} is no array: {error}") from None

    def argument_specs(self, args: Any) -> list[PartitionSpec]:
        given, name = self.in_specs, name_of(self.f)
        for x, path in zip(pytree.leaves(args), pytree.paths(args)):
            self._type(x, f"argument{path}")
        if isinstance(given, tuple) and not _is_spec(given) and len(given) != len(args):
            raise ArgumentError(
                f"shard_map: in_specs has {counted(len(given), 'entry', 'entries')}, {name} got "
                f"{counted(len(args), 'argument')}; give one entry for each positional argument, or one for all"
            )
        if given is INFERRED:
            return [self._inferred(x, path) for x, path in zip(pytree.leaves(args), pytree.paths(args))]
        specs = _flat_specs(list(given) if isinstance(given, list) else given, args, self.mesh, "shard_map in_specs")
        _check_manual(specs, self.manual, self.mesh, "in_specs")
        self._check_sums(specs, "in_specs")
        return specs

    def _inferred(self, x: Any, path: str) -> PartitionSpec:
        """The spec of an argument over the manual axes, from its explicit axes.

        Raises:
          ArgumentError: a manual axis is automatic outside, so the type does not say how it splits the argument.
        """
        free = [a for a in self.mesh.abstract_mesh.of_type(AxisType.Auto) if a in self.manual]
        if free:
            raise ArgumentError(
                f"shard_map: in_specs is left out, but {', '.join(free)} is automatic, and the type of argument{path}, "
                f"{typeof(x)}, does not say how it is split over it; give in_specs"
            )
        return typed_spec(typeof(x), self.manual)

    def _check_sums(self, specs: Sequence[PartitionSpec], what: str) -> None:
        found = next((spec for spec in specs if spec.unreduced), None)
        if found is not None and not self.check:
            raise ArgumentError(
                f"shard_map: {what} has {found}; what is done with sums that are still to be made is checked by types: "
                "leave check_vma=False out, or make the sum first"
            )

    def on_parts(self, in_tree: Any, specs: Sequence[PartitionSpec]) -> Callable[..., Any]:
        """The function of flat parts, which checks that its results are arrays; of sums it gets and returns wholes."""

        def run(*parts: Any) -> Any:
            # the cotangents of what is reduced are terms of each device, as if it varied
            typed = (pcast(x, tuple(sorted(s.reduced)), to="reduced") if s.reduced else x for x, s in zip(parts, specs))
            outs = self.f(*pytree.unflatten(in_tree, typed))
            array_leaves(outs, lambda path: f"shard_map of {described(self.f)}: output{path} is no array")
            return outs

        wanted = pytree.leaves(self.out_specs, is_leaf=_is_spec)
        if any(spec is not None and spec.unreduced for spec in (*specs, *wanted)):
            return on_terms(run, name_of(self.f), [sums_of(s) for s in specs], self._specs_of)
        return run

    def _specs_of(self, outs: Any) -> list[PartitionSpec]:
        return _flat_specs(self.out_specs, outs, self.mesh, "shard_map out_specs")

    def of_values(self, given: GivenReferences) -> _Region:
        """The region of values in place of references, which also returns their final values."""
        specs, places = self.argument_specs(given.args), given.key[1]
        return replace(self, f=of_values(self.f, places), out_specs=([specs[i] for i in places], self.out_specs))

    def result_specs(self, outs: Any, avals: Sequence[ShapedArray]) -> list[PartitionSpec]:
        specs = self._specs_of(outs)
        _check_manual(specs, self.manual, self.mesh, "out_specs")
        self._check_sums(specs, "out_specs")
        for aval, spec, path in zip(avals, specs, pytree.paths(outs)):
            if len(spec) > aval.ndim:
                raise too_long("out_specs", spec, f"output{path}", aval)
        return specs


def _call(region: _Region, args: Any) -> Any:
    f, mesh, manual, check = region.f, region.mesh, region.manual, region.check
    flat, in_tree = pytree.flatten(args)
    specs = region.argument_specs(args)
    parts = [_part(x, s, mesh, p, check, manual) for x, s, p in zip(flat, specs, pytree.paths(args))]
    scope = extend_axis_env({a: mesh.shape[a] for a in manual}, check)
    with set_mesh(inside_of(mesh, manual)), scope:
        jaxpr, consts, out_tree = closed_call(region.on_parts(in_tree, specs), parts, name_of(f))
    _check_constraints(jaxpr, manual)
    outs = pytree.outline(out_tree)
    out_specs = region.result_specs(outs, jaxpr.out_avals)
    names = () if len(manual) == len(mesh.axis_names) else manual
    whole = [PartitionSpec()] * len(consts)
    stated_specs = (*whole, *map(stated, specs)), tuple(map(stated, out_specs))
    op = ShardMap(stated_specs[0], jaxpr, mesh, stated_specs[1], names, check)
    if check:
        _check_results(f, op, pytree.paths(outs), out_specs)
        op = op.with_cast_results()
    run = _program(op) if STATE.trace is EVAL else op.bind
    return pytree.unflatten(out_tree, _typed_sums(run(*consts, *flat), out_specs, mesh))


def _typed_sums(outs: Sequence[Any], specs: Sequence[PartitionSpec], mesh: Mesh | AbstractMesh) -> list[Any]:
    return [typed_as(x, s, mesh) if s.unreduced or s.reduced else x for x, s in zip(outs, specs)]


def _in_python(region: _Region, args: Any) -> Any:
    """The call under ``disable_jit``: device by device; automatic axes are treated as one device."""
    f, mesh = region.f, region.mesh
    flat, in_tree = pytree.flatten(args)
    specs = region.argument_specs(args)
    for x, s, p in zip(flat, specs, pytree.paths(args)):
        _part(x, s, mesh, p, manual=region.manual)
    flat = [x if typeof(x).explicit is None else reshard(x, NamedSharding(mesh, PartitionSpec())) for x in flat]
    sizes = {a: mesh.shape[a] for a in region.manual}
    on_parts = region.on_parts(in_tree, specs)

    def at(place: dict[str, int]) -> Callable[[], Any]:
        def run() -> Any:
            with set_mesh(inside_of(mesh, region.manual)):
                return on_parts(*(part_at(x, s, sizes, place) for x, s in zip(flat, specs)))

        return run

    places = [dict(zip(sizes, position)) for position in np.ndindex(*sizes.values())]
    outs = Ring(f"shard_map of {described(f)}", sizes).run([at(place) for place in places])
    out_specs = region.result_specs(outs[0], [typeof(x) for x in pytree.leaves(outs[0])])
    columns = list(zip(*(pytree.leaves(out) for out in outs)))
    if region.check:
        for values, spec, path in zip(columns, out_specs, pytree.paths(outs[0])):
            _check_same(f, values, spec, sizes, path)
    whole = [typed_as(put_together(values, s, sizes), s, mesh) for values, s in zip(columns, out_specs)]
    return pytree.unflatten(pytree.structure(outs[0]), whole)


def _check_same(
    f: Callable[..., Any], values: Sequence[Any], spec: PartitionSpec, sizes: Mapping[str, int], path: str
) -> None:
    """Raise if a result with a concrete value differs along an axis that its spec does not name."""
    if any(isinstance(x, Tracer) or is_key(typeof(x).dtype) for x in values):
        return
    grid = np.stack([np.asarray(x) for x in values]).reshape(*sizes.values(), *typeof(values[0]).shape)
    named = {a for d in range(len(spec)) for a in spec.axes(d)}
    for d, axis in enumerate(sizes):
        first = np.broadcast_to(grid.take([0], d), grid.shape)
        if axis not in named and not np.array_equal(grid, first, equal_nan=grid.dtype.kind in "fc"):
            raise ShardingError(
                f"shard_map of {described(f)}: output{path} differs between devices along {axis}, which {spec} does "
                "not name; name it in out_specs, make the values the same (lax.psum, pmean), or pass check_vma=False"
            )


#: compiled programs of regions that were called with arrays
_programs: Recent[Any, Any] = Recent(256)
on_clear(_programs.clear)


def _program(op: ShardMap) -> Any:
    """The jitted region. It is traced at each call, since values it closes over may have changed; equal traces share
    one compiled program."""
    op = op.with_regions([inline_calls(op.jaxpr)])
    key = structure(op.jaxpr), replace(op, jaxpr=_NO_JAXPR)
    return _programs.get(key) or _programs.setdefault(key, jit(lambda *operands: op.bind(*operands)))


_NO_JAXPR = ClosedJaxpr(Jaxpr([], [], [], []))
REGION.fill(lambda op, arrays: _program(cast(ShardMap, op))(*arrays))


def _check_results(f: Callable[..., Any], op: ShardMap, paths: Sequence[str], specs: Sequence[PartitionSpec]) -> None:
    """Raise if a result varies over an axis that its spec does not name."""
    wrong: list[str] = []
    over: set[str] = set()
    for spec, aval, path in zip(specs, op.jaxpr.out_avals, paths):
        more = aval.vma.intersection(op.manual) - op.named(spec)
        if more:
            over.update(more)
            wrong.append(
                f"output{path} of type {aval} varies over {', '.join(sorted(more))}, which {spec} does not name"
            )
    if wrong:
        axes = ", ".join(a for a in op.manual if a in over)
        raise ShardingError(
            f"shard_map of {described(f)}: where a spec of out_specs does not name an axis, the devices along it must "
            f"hold the same, and this is not known: {'; '.join(wrong)}. Name the axes in out_specs to have the parts "
            f"put together, make them the same (lax.psum, pmean, pmax or all_gather(to='invarying') over {axes}), or "
            "pass check_vma=False if you know that they are"
        )


def too_long(which: str, spec: PartitionSpec, what: str, aval: Any) -> ArgumentError:
    """The error for a spec with more entries than its value has dimensions."""
    remedy = f"give at most {aval.ndim}" if aval.ndim else "a scalar takes P(), or make it an array with x[None]"
    return ArgumentError(
        f"shard_map: {which} has {spec}, {counted(len(spec), 'entry', 'entries')}, for {what} of type {aval}, which "
        f"has {counted(aval.ndim, 'dimension')}; {remedy}"
    )


def _part(
    x: Any, spec: PartitionSpec, mesh: Mesh | AbstractMesh, path: str, check: bool = False, manual: Sequence[str] = ()
) -> OnlyTyped:
    """The type of a device's part; with ``check``, it varies over the axes that split it."""
    aval = typeof(x)
    if len(spec) > aval.ndim:
        raise too_long("in_specs", spec, f"argument{path}", aval)
    shape = []
    for d, size in enumerate(aval.shape):
        axes = spec.axes(d)
        n = prod(mesh.shape[a] for a in axes)
        if size % n:
            raise ShapeError(
                f"shard_map: dimension {d} of argument{path} of type {aval} has size {size}, which is not divisible by "
                f"{n}, the number of devices along {', '.join(axes)}; pad it, or let jit with shardings do so"
            )
        shape.append(size // n)
    named = {a for d in range(len(spec)) for a in spec.axes(d)} if check else ()
    rest = None if aval.explicit is None else _rest_of_type(aval, spec, mesh, path, manual)
    return OnlyTyped(aval.update(shape=tuple(shape), vma=aval.vma.union(named), explicit=rest))


def _rest_of_type(
    aval: ShapedArray, spec: PartitionSpec, mesh: Mesh | AbstractMesh, path: str, manual: Sequence[str]
) -> Any:
    """How axes that stay explicit in a region split an argument.

    Raises:
      ArgumentError: its type and its spec disagree about the manual axes.
    """
    mine = typed_spec(aval, manual)
    if any(mine.axes(d) != spec.axes(d) for d in range(aval.ndim)):
        raise ArgumentError(
            f"shard_map: in_specs has {spec} for argument{path}, whose type {aval} says {mine}; leave in_specs out, to "
            "have arguments cut as their types say, or reshard the argument"
        )
    if mine.unreduced != spec.unreduced:
        raise ArgumentError(
            f"shard_map: in_specs has {spec} for argument{path}, whose type {aval} says {mine}: make the sum with "
            "reshard, or say unreduced= in the spec"
        )
    entries = [tuple(a for a in aval.explicit.spec.axes(d) if a not in manual) for d in range(aval.ndim)]
    return type_over(inside_of(mesh, manual).abstract_mesh, entries)


def typed_spec(aval: ShapedArray, axes: Sequence[str]) -> PartitionSpec:
    """How a type splits its value over ``axes``."""
    spec = PartitionSpec() if aval.explicit is None else aval.explicit.spec
    dims = (tuple(a for a in spec.axes(d) if a in axes) for d in range(aval.ndim))
    return PartitionSpec(*dims, unreduced=spec.unreduced.intersection(axes), reduced=spec.reduced.intersection(axes))


def inside_of(mesh: Mesh | AbstractMesh, manual: Sequence[str]) -> Mesh | AbstractMesh:
    """The mesh inside the region."""
    return mesh.update_axis_types(dict.fromkeys(manual, AxisType.Manual))
