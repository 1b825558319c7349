"""Turns users' sharding arguments into one sharding (or None) per leaf, all on one mesh or device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, TypeGuard, TypeVar, cast

from meshwright.core import pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.sentinel import Sentinel
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError, MeshError, NoMeshError, ShardingError
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, all_eqns
from meshwright.ir.passes import inline_calls, is_inlined
from meshwright.ir.program import Argument, Program
from meshwright.ir.rewrite import in_regions, replaced
from meshwright.ir.tracing import FOREIGN
from meshwright.ops.sharding.constraint import ShardingConstraint
from meshwright.ops.sharding.manual import ShardMap
from meshwright.ops.sharding.region_axes import Pieces, region_over
from meshwright.sharding import (
    AbstractMesh,
    AnyMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    common_mesh,
    get_mesh,
    over,
    said_by,
)
from meshwright.sharding.auto import AutoSharding
from meshwright.sharding.format import Format
from meshwright.sharding.kinds import LogicalDevice, Places, reordered
from meshwright.sharding.refinement import Refinement, common_refinement

_S = TypeVar("_S")

#: the location of an array: a mesh, or one device
Place = Mesh | AbstractMesh | Any


class _Unspecified(Sentinel):
    """The type of the singleton ``UNSPECIFIED``."""

    variable: ClassVar[str] = "UNSPECIFIED"


#: instead of a sharding: keep the argument's, or let the partitioner choose; the same as None
UNSPECIFIED = _Unspecified()


def is_spec(x: Any) -> bool:
    """Whether ``x`` is a leaf of a tree of shardings: a sharding, a spec, None or UNSPECIFIED."""
    return x is None or x is UNSPECIFIED or isinstance(x, (Sharding, PartitionSpec, AutoSharding, Format))


def without_auto(x: Any) -> Any:
    """The sharding, or None if it is to be chosen."""
    return None if isinstance(x, AutoSharding) else x


def flat_shardings(tree: Any, value: Any, what: str) -> list[Any]:
    """One sharding per leaf of ``value``, from a tree prefix of shardings.

    Raises:
      ArgumentError: ``tree`` does not fit ``value``.
      ArgumentTypeError: a leaf is not a sharding.
      NoMeshError: a bare PartitionSpec without a current mesh.
    """
    if tree is None or tree is UNSPECIFIED:
        return [None] * len(pytree.leaves(value))
    return [resolve(entry, what) for entry in spread(tree, value, what, is_spec)]


def spread(tree: Any, value: Any, what: str, is_leaf: Callable[[Any], bool]) -> list[Any]:
    """One entry per leaf of ``value``, from a tree prefix of entries.

    Raises:
      ArgumentError: ``tree`` does not fit ``value``.
    """
    return pytree.broadcast_prefix(tree, value, what, is_leaf)


def argument_shardings(tree: Any, args: Sequence[Any], kwargs: Any, name: str) -> list[Any]:
    """One sharding per leaf of a call's arguments; keyword arguments have none.

    Raises:
      ArgumentError: a wrong number of entries, or an entry is not a tree prefix of its argument.
    """
    if isinstance(tree, list):
        tree = tuple(tree)
    if type(tree) is tuple and len(tree) != len(args):
        by_name = f" and {len(kwargs)} by keyword, which take no shardings" if kwargs else ""
        raise ArgumentError(
            f"jit in_shardings has {counted(len(tree), 'entry', 'entries')}, {name} was called with "
            f"{counted(len(args), 'positional argument')}{by_name}; give one entry an argument (None leaves the choice "
            "to the partitioner), or a single sharding for all"
        )
    positional = flat_shardings(tree, tuple(args), "jit in_shardings")
    return [*positional, *([None] * len(pytree.leaves(kwargs)))]


def resolve(entry: Any, what: str) -> Any:
    """The sharding (or ``AUTO``) for one entry written by the user."""
    if entry is None or entry is UNSPECIFIED:
        return None
    if isinstance(entry, Format):
        return resolve(entry.placed(what), what)
    if isinstance(entry, (Sharding, AutoSharding)):
        return with_devices(said_by(entry), get_mesh())
    if isinstance(entry, PartitionSpec):
        mesh = get_mesh()
        if mesh is None:
            raise NoMeshError(
                f"{what}: {entry} names mesh axes but no mesh is set; use NamedSharding(mesh, {entry}), or "
                "set one with meshwright.set_mesh(mesh) or 'with mesh:'"
            )
        try:
            return NamedSharding(mesh, entry)
        except ShardingError as error:
            raise type(error)(f"{what}: {error}") from None
    raise ArgumentTypeError(
        f"{what}: expected a Sharding, a PartitionSpec or None, got {entry!r} of type {type(entry).__name__}"
    )


def has_no_devices(sharding: Any) -> TypeGuard[NamedSharding]:
    """Whether the mesh of a sharding has no devices."""
    return isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, AbstractMesh)


def with_devices(sharding: _S, mesh: Any) -> _S:
    """``sharding``, over ``mesh`` instead of an abstract mesh if they differ in their devices alone."""
    if has_no_devices(sharding) and isinstance(mesh, Mesh) and mesh.abstract_mesh == sharding.mesh:
        return cast(_S, sharding.update(mesh=mesh))
    return sharding


def check_fit(
    shardings: Sequence[Sharding | None], avals: Sequence[ShapedArray], names: Sequence[str], what: str
) -> None:
    """Raise if a sharding has more entries than its array has dimensions."""
    for sharding, aval, name in zip(shardings, avals, names):
        if sharding is not None:
            sharding.check_compatible(aval.shape, f"{what}{name}")


def named(sharding: Any) -> Any:
    """Other kinds of shardings converted to named ones."""
    return sharding.to_named() if isinstance(sharding, Sharding) else sharding


def committed_to(x: Any) -> Sharding | None:
    """The sharding of a committed array; None for other values."""
    if type(x) in FOREIGN:
        return None
    return named(said_by(getattr(x, "sharding", None))) if getattr(x, "committed", True) else None


def placed(program: Program) -> Program:
    """The program with the mesh or device of its shardings as its place.

    Raises:
      MeshError: its shardings are on several meshes or devices.
    """
    if program.place is not None:
        return program
    given = [(program.called.of("output", i), s) for i, s in enumerate(program.out_shardings)]
    given = [*_of_arguments(program.arguments), *given, *inner_shardings(program.jaxpr)]
    place = common_place(given, program.name)
    if place is None:  # arguments that are unused need not be there, but may tell the place
        place = common_place(_of_arguments(program.all_arguments), program.name)
    if not isinstance(place, (Mesh, AbstractMesh)):
        return replace(program, place=place)
    # Collectives in a region name the axes of its mesh; shardings over other meshes can be expressed over it.
    regions = [e.op.mesh for e in all_eqns(program.jaxpr.jaxpr) if isinstance(e.op, ShardMap)]
    mesh = next((m for m in regions if isinstance(m, type(place))), place)
    mesh = place if is_on_other_machine(_untyped(mesh), _untyped(place)) else mesh
    refined = _refined([mesh, *regions])
    mesh = _seen_outside(program, mesh if refined is None else refined.mesh)
    return replace(
        program,
        jaxpr=jaxpr_over(program.jaxpr, mesh, pieces={} if refined is None else refined.pieces),
        arguments=tuple(replace(a, sharding=_end_over(a.sharding, mesh)) for a in program.arguments),
        out_shardings=tuple(
            _of_type(a, mesh) if s is None else _end_over(s, mesh)
            for a, s in zip(program.out_avals, program.out_shardings)
        ),
        place=mesh,
    )


def _refined(meshes: Sequence[AnyMesh]) -> Refinement | None:
    """The mesh for regions over several meshes; None if they are all over one, or there is no such mesh."""
    several: list[AnyMesh] = []
    for mesh in map(_untyped, meshes):
        if not any(_same(mesh, other) or is_on_other_machine(mesh, other) for other in several):
            several.append(mesh)
    explicit = any(AxisType.Explicit in mesh.axis_types for mesh in meshes)  # types of values name their axes
    return None if len(several) < 2 or explicit else common_refinement(several)


def _of_arguments(arguments: Sequence[Argument]) -> list[tuple[str, Sharding | None]]:
    return [(f"argument {a.name}", a.sharding) for a in arguments]


def _seen_outside(program: Program, mesh: AnyMesh) -> AnyMesh:
    """The mesh with the axis types at the call of the program: those of arguments, else of results, else of the current
    mesh. Inside, ``auto_axes`` and the like may change them."""
    around: list[Any] = [getattr(named(a.sharding), "mesh", None) for a in program.all_arguments]
    around += [a.explicit and a.explicit.mesh for a in program.out_avals]
    around += [get_mesh()]
    outer = next((m for m in around if m is not None and m.axis_names == mesh.axis_names), mesh)
    return mesh.update_axis_types(dict(zip(outer.axis_names, outer.axis_types)))


def _of_type(aval: ShapedArray, mesh: AnyMesh) -> NamedSharding | None:
    """The sharding of a result according to its type; None if an axis is automatic, so that the partitioner chooses."""
    if aval.explicit is not None:
        mesh = mesh.update_axis_types(dict(zip(aval.explicit.mesh.axis_names, aval.explicit.mesh.axis_types)))
    if any(t is not AxisType.Explicit for t in mesh.axis_types):
        return None
    spec = PartitionSpec(*[None] * aval.ndim) if aval.explicit is None else aval.explicit.spec
    return NamedSharding(mesh, spec)


# --- one place ----------------------------------------------------------------------------------------------
def place_of(sharding: Sharding) -> Place:
    """The mesh or the device of a sharding."""
    resolved = named(sharding)
    return resolved.mesh if isinstance(resolved, NamedSharding) else resolved.device  # type: ignore[union-attr]


def common_place(placed: Iterable[tuple[str, Sharding | None]], what: str) -> Place | None:
    """The one mesh or device of shardings, or None; each sharding comes with the user's name of its array.

    Raises:
      MeshError: they are on different meshes or devices.
    """
    first: tuple[str, Place] | None = None
    for name, sharding in placed:
        if sharding is None:
            continue
        place = place_of(sharding)
        joined = place if first is None else _join(first[1], place)
        if first is not None and joined is None:
            one, other = shown_beside(first[1], place), shown_beside(place, first[1])
            raise MeshError(
                f"{what}: {first[0]} is on {one} and {name} on {other}; arrays and shardings of different meshes or "
                "devices cannot be used together: move the arrays to one of them with device_put"
            )
        first = (name if first is None or joined is not first[1] else first[0], joined)
    return first[1] if first is not None else None


def shown_beside(place: Place, other: Place) -> str:
    """A place as text, with its devices if ``other`` is a mesh of the same axes."""
    if not isinstance(place, Mesh):
        return repr(place)
    axes = other.shape_tuple if isinstance(other, (Mesh, AbstractMesh)) else None
    return str(place) if axes != place.shape_tuple else f"{place} of devices {', '.join(map(str, place.flat_ids))}"


def _join(a: Place, b: Place) -> Place | None:
    """The place if both are the same, preferring a mesh with devices; None if they differ."""
    if a is b or a == b:
        return a
    if isinstance(a, (Mesh, AbstractMesh)) and isinstance(b, type(a)) and _untyped(a) == _untyped(b):
        return max(a, b, key=lambda mesh: mesh.axis_types.count(AxisType.Explicit))
    meshes = [p for p in (a, b) if isinstance(p, (Mesh, AbstractMesh))]
    if len(meshes) == 2 and (known := _with_the_machine(*meshes)) is not None:
        return known
    if len(meshes) == 2:
        if AbstractMesh in (type(a), type(b)):
            return next((m for m in meshes if isinstance(m, Mesh)), None) if _alike(a, b) else None
        return common_mesh(meshes)
    if len(meshes) == 1 and isinstance(meshes[0], Mesh) and meshes[0].size == 1:
        device = b if meshes[0] is a else a
        return meshes[0] if meshes[0].devices.flat[0] == device else None
    return None


def _with_the_machine(a: AnyMesh, b: AnyMesh) -> AnyMesh | None:
    """Of meshes that are the same but for a machine that one of them does not name, the other one."""
    with_it, without = (a, b) if b.abstract_mesh.machine is None else (b, a)
    if without.abstract_mesh.machine is not None or not is_on_other_machine(_untyped(with_it), _untyped(without)):
        return None
    same_devices = not isinstance(without, Mesh) or (isinstance(with_it, Mesh) and with_it.flat_ids == without.flat_ids)
    return with_it if same_devices else None


def _alike(a: Any, b: Any) -> bool:
    return _untyped(a.abstract_mesh) == _untyped(b.abstract_mesh)


def _untyped(mesh: Any) -> Any:
    """The mesh with all axes automatic, as partitioning ignores the types of axes."""
    return mesh.update_axis_types(dict.fromkeys(mesh.axis_names, AxisType.Auto))


def over_mesh(sharding: Any, mesh: AnyMesh) -> Any:
    """The sharding over the axes of ``mesh``, with its tiles on the same devices. If these axes cannot express it
    because it orders devices differently, its tiles are in the order of ``mesh`` (see :func:`places_of`)."""
    resolved = named(sharding)
    if not isinstance(resolved, NamedSharding) or _same(resolved.mesh, mesh):
        return resolved
    return over(resolved, mesh) or (reordered(resolved, mesh) or (resolved,))[0]


def _end_over(sharding: Any, mesh: AnyMesh) -> Any:
    """The sharding of an argument or result over ``mesh``, keeping its own order of devices if it has one."""
    return sharding if places_of(sharding, mesh) is not None else over_mesh(sharding, mesh)


def places_of(sharding: Any, mesh: AnyMesh) -> Places | None:
    """For each position of ``mesh``, the position whose tile its device holds under ``sharding``; None if they are the
    same."""
    resolved = named(sharding)
    if not isinstance(resolved, NamedSharding) or _same(resolved.mesh, mesh) or over(resolved, mesh) is not None:
        return None
    moved = reordered(resolved, mesh)
    return None if moved is None else moved[1]


def orders_of(program: Program, mesh: AnyMesh) -> tuple[dict[int, Places], dict[int, Places]]:
    """The orders of devices of arguments and of results whose shardings differ in that from ``mesh``."""
    sides = [a.sharding for a in program.arguments], program.out_shardings
    ins, outs = ({i: p for i, s in enumerate(side) if (p := places_of(s, mesh))} for side in sides)
    return ins, outs


def refuse_orders(name: str, orders: Iterable[Any]) -> None:
    """Raise if a program for real devices has values in other device orders than its mesh: they are not reordered
    there.

    Raises:
      MeshError: there are such values.
    """
    if any(orders):
        raise MeshError(
            f"{name!r}: arrays of one program order real devices differently; bring them to one mesh with device_put"
        )


def _same(a: AnyMesh, b: AnyMesh) -> bool:
    """Whether meshes have the same axes and, if both have devices, the same devices."""
    a, b = _untyped(a), _untyped(b)
    if isinstance(a, Mesh) and isinstance(b, Mesh):
        return a == b
    numbered = [m.flat_ids for m in (a, b) if isinstance(m, Mesh) and isinstance(m.devices.flat[0], LogicalDevice)]
    return a.abstract_mesh == b.abstract_mesh and all(ids == tuple(range(a.size)) for ids in numbered)


def is_on_other_machine(a: AnyMesh, b: AnyMesh) -> bool:
    """Whether meshes are the same but for the machine that they are on."""
    a, b = a.abstract_mesh, b.abstract_mesh
    return a != b and a.on(None) == b.on(None)


def program_on(program: Program, mesh: AnyMesh, over_it: Callable[[Any, AnyMesh], Any] = over_mesh) -> Program:
    """A program over the same axes on another machine, whose shardings are over ``mesh`` then, as ``over_it`` says."""

    def moved(arguments: Sequence[Argument]) -> tuple[Argument, ...]:
        return tuple(replace(a, sharding=over_it(a.sharding, mesh)) for a in arguments)

    return replace(
        program, jaxpr=jaxpr_over(program.jaxpr, mesh, over_it), arguments=moved(program.arguments), place=mesh,
        out_shardings=tuple(over_it(s, mesh) for s in program.out_shardings),
        given=None if program.given is None else moved(program.given),
    )  # fmt: skip


def jaxpr_over(
    jaxpr: ClosedJaxpr,
    mesh: AnyMesh,
    over_it: Callable[[Any, AnyMesh], Any] = over_mesh,
    pieces: Mapping[AnyMesh, Pieces] = MappingProxyType({}),
) -> ClosedJaxpr:
    """A program with its constraints over ``mesh``, if some are over other meshes; its manual regions, too, if
    ``pieces`` says which axes of ``mesh`` theirs are.

    Raises:
      MeshError: a manual region over another mesh has collectives that name axes ``mesh`` does not have.
    """
    if all(_same(mesh, stated.mesh) for _, stated in _stated(jaxpr)):
        return jaxpr

    def moved(eqn: JaxprEqn) -> JaxprEqn:
        op = eqn.op
        if isinstance(op, ShardMap):
            if is_on_other_machine(_untyped(op.mesh), _untyped(mesh)):  # regions in regions type some axes as manual
                typed = mesh.update_axis_types(dict(zip(mesh.axis_names, op.mesh.axis_types)))
                return eqn.replace(op=replace(op, mesh=typed, jaxpr=jaxpr_over(op.jaxpr, mesh)))
            if _same(op.mesh, mesh):
                return eqn
            own = next((axes for other, axes in pieces.items() if _same(op.mesh, other)), None)
            if own is None:
                raise MeshError(
                    f"a shard_map over {shown_beside(op.mesh, mesh)} at {eqn.source}, in a program over "
                    f"{shown_beside(mesh, op.mesh)}, whose axes cut the devices otherwise; use one mesh for both"
                )
            return eqn.replace(op=region_over(op, mesh, own, over_it))
        if isinstance(op, ShardingConstraint):
            return eqn.replace(op=replace(op, sharding=over_it(op.sharding, mesh)))
        return in_regions(eqn, lambda region: jaxpr_over(region, mesh, over_it, pieces))

    return replaced(inline_calls(jaxpr, is_inlined), moved)


def inner_shardings(jaxpr: ClosedJaxpr) -> Iterator[tuple[str, Sharding | None]]:
    """The shardings inside a program: of constraints, manual regions and closed-over arrays."""
    for value in jaxpr.consts:
        if hasattr(value, "committed"):
            yield f"a closed-over array of type {value.aval}", committed_to(value)
    yield from _stated(jaxpr)


def _stated(jaxpr: ClosedJaxpr) -> Iterator[tuple[str, NamedSharding]]:
    # A region states its mesh even if it has no results.
    for eqn in all_eqns(jaxpr.jaxpr):
        if isinstance(eqn.op, ShardingConstraint):
            yield f"a sharding constraint at {eqn.source}", eqn.op.sharding
        elif isinstance(eqn.op, ShardMap):
            yield f"a shard_map at {eqn.source}", NamedSharding(eqn.op.mesh, PartitionSpec())
