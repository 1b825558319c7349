"""``xmap``: a function of values with *named* axes in addition to their dimensions, which a mesh may split.

``in_axes`` name dimensions, which disappear from shapes inside; collectives (``psum`` over the name) reduce named axes,
and ``out_axes`` turn them into dimensions again. ``axis_resources`` assign mesh axes to them. While the function is
traced, types record which named axes a value has (``aval.vma``, as in ``shard_map``), and conflicts and results are
checked by that. The function is then mapped by ``vmap`` over every named axis; a ``SerialLoop`` becomes a ``scan`` over
chunks of its axis around that.

Follows ``xmap`` in JAX before 0.4.31.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from typing import Any

from meshwright.api.jit import jit
from meshwright.api.serial_loop import check_loops, in_steps, split_resources
from meshwright.core import pytree
from meshwright.core.avals import OnlyTyped, ShapedArray
from meshwright.core.naming import wraps
from meshwright.core.records import dataclass
from meshwright.core.signature import described
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError, MeshError, ShapeError, ShardingError, UnboundAxisError
from meshwright.ir.jaxpr import ClosedJaxpr, all_eqns
from meshwright.ir.state import extend_axis_env
from meshwright.ir.tracing import eval_jaxpr, typeof
from meshwright.ops.shape.rearrange import transpose
from meshwright.ops.sharding.constraint import ShardingConstraint
from meshwright.ops.sharding.untyped import without_axes
from meshwright.runtime.devices import require_backend
from meshwright.sharding import UNCONSTRAINED, AnyMesh, NamedSharding, PartitionSpec, get_mesh
from meshwright.transforms.autodiff import closed_call
from meshwright.transforms.vmap import vmap
from meshwright.transforms.wrapped import name_of, require_callable

Name = Hashable


@dataclass(frozen=True)
class AxesSpec:
    """The named axes of the dimensions of one array, and its ``rank`` if the spec determines it."""

    axes: tuple[tuple[int, Name], ...]
    rank: int | None
    text: str

    @property
    def names(self) -> dict[Name, int]:
        return {name: dim for dim, name in self.axes}


def is_axes_spec(entry: Any) -> bool:
    """Whether an entry gives the axes of one array: a dict with integer keys, or a list of names."""
    if isinstance(entry, dict):
        return all(isinstance(k, int) for k in entry)
    plain = (dict, list, tuple)
    return isinstance(entry, (list, tuple)) and bool(entry) and not any(isinstance(e, plain) for e in entry)


def parse_axes(what: str, entry: Any) -> AxesSpec:
    """Parse ``{0: "batch"}``, ``["batch", None]`` (all dimensions) or ``["batch", ...]`` (the first ones).

    Raises:
      ArgumentTypeError: another form. ArgumentError: a repeated name, or a negative dimension.
    """
    if isinstance(entry, dict) and all(isinstance(k, int) for k in entry):
        pairs, rank = tuple(entry.items()), None
    elif isinstance(entry, (list, tuple)):
        open_end = bool(entry) and entry[-1] is ...
        names = entry[:-1] if open_end else entry
        pairs = tuple((i, name) for i, name in enumerate(names) if name is not None)
        rank = None if open_end else len(names)
    else:
        raise ArgumentTypeError(
            f"xmap {what}: expected {{dimension: name}}, or a list of names (None: no named axis) that may end with "
            f"..., got {entry!r}"
        )
    if len({name for _, name in pairs}) != len(pairs):
        raise ArgumentError(f"xmap {what}: {entry!r} names an axis twice; give every dimension a name of its own")
    if any(dim < 0 for dim, _ in pairs):
        raise ArgumentError(f"xmap {what}: {entry!r} has a negative dimension; count from the front")
    return AxesSpec(pairs, rank, repr(entry))


@dataclass(frozen=True)
class _Xmap:
    """The options of an ``xmap``."""

    in_axes: Any
    out_axes: Any
    axis_sizes: Mapping[Name, int]
    resources: Mapping[Name, tuple[str, ...]]
    steps: Mapping[Name, int]

    def flat(self, what: str, tree: Any, value: Any) -> list[AxesSpec]:
        return [parse_axes(what, e) for e in pytree.broadcast_prefix(tree, value, f"xmap {what}", is_axes_spec)]

    def sizes(self, fun: Any, flat: Sequence[Any], specs: Sequence[AxesSpec], paths: Sequence[str]) -> dict[Name, int]:
        """The size of every named axis.

        Raises:
          ShapeError: conflicting sizes, or an array without the dimension.
        """
        sizes = dict(self.axis_sizes)
        for x, spec, path in zip(flat, specs, paths):
            shape = typeof(x).shape
            if (spec.rank is not None and spec.rank != len(shape)) or any(dim >= len(shape) for dim, _ in spec.axes):
                raise ShapeError(
                    f"xmap of {described(fun)}: argument{path} has shape {shape}, which does not have the dimensions "
                    f"of in_axes {spec.text}; name dimensions that it has"
                )
            for dim, name in spec.axes:
                if sizes.setdefault(name, shape[dim]) != shape[dim]:
                    raise ShapeError(
                        f"xmap of {described(fun)}: axis {name!r} has size {sizes[name]}, but dimension {dim} of "
                        f"argument{path} of shape {shape}, which in_axes {spec.text} makes it, has size {shape[dim]}; "
                        "give arrays of one size, or the axes two names"
                    )
        return sizes


def xmap(
    fun: Callable[..., Any],
    in_axes: Any,
    out_axes: Any,
    *,
    axis_sizes: Mapping[Name, int] | None = None,
    axis_resources: Mapping[Name, Any] | None = None,
    donate_argnums: int | Sequence[int] = (),
    backend: str | None = None,
) -> Any:
    """A jitted ``fun`` on values with named axes. Prefer ``vmap(axis_name=...)`` under ``jit``, or ``shard_map``.

    Args:
      in_axes: for each array, ``{dimension: name}`` or a list of names; a tree prefix of the arguments.
      out_axes: the same for the results; must include all named axes that a result has.
      axis_sizes: sizes of named axes that no argument has.
      axis_resources: the mesh axes (``with mesh:``) that split a named axis: a name or a tuple of names. A
        ``SerialLoop`` among or instead of them computes the axis in steps.

    Raises (when called):
      ShapeError: sizes differ, or the mesh or a loop does not divide them. ShardingError: the same mesh axis splits two
        named axes of one value; names both.
      ArgumentError: a collective over an axis that is a loop.
      UnboundAxisError: an axis that the mesh does not have.

    Example:
      >>> from meshwright.experimental.maps import xmap
      >>> f = xmap(lambda x: lax.psum(x, "batch") / 4, in_axes={0: "batch"}, out_axes={}, axis_resources={"batch": "x"})
      >>> with mw.make_mesh((4,), ("x",)):
      ...     f(mnp.arange(4.0))
      Array(1.5, dtype=float32)
    """
    require_callable(fun, "xmap")
    require_backend(backend, "xmap")
    resources, steps = split_resources(axis_resources or {})
    for name, used in resources.items():
        if len(set(used)) != len(used):
            raise ArgumentError(f"xmap: axis {name!r} is to be split by {used}, one of them twice; name each once")
    spec = _Xmap(in_axes, out_axes, dict(axis_sizes or {}), resources, steps)
    _check_names(spec)

    @wraps(fun)
    def run(*args: Any) -> Any:
        return _run(fun, spec, args)

    return jit(run, donate_argnums=donate_argnums)


def _check_names(spec: _Xmap) -> None:
    """Raise if axes of the results, or with resources, are not defined by ``in_axes`` or ``axis_sizes``.

    Raises:
      ArgumentError: names them.
    """
    leaves = pytree.leaves(pytree.map(lambda e: parse_axes("in_axes", e), spec.in_axes, is_leaf=is_axes_spec))
    known = {name for leaf in leaves for _, name in leaf.axes} | set(spec.axis_sizes)
    outs = pytree.leaves(pytree.map(lambda e: parse_axes("out_axes", e), spec.out_axes, is_leaf=is_axes_spec))
    uses = {"out_axes": {n for leaf in outs for _, n in leaf.axes}, "axis_resources": {*spec.resources, *spec.steps}}
    for what, names in uses.items():
        if names - known:
            missing = ", ".join(sorted(map(repr, names - known)))
            raise ArgumentError(
                f"xmap: {what} has {missing}, which neither in_axes nor axis_sizes brings in; name axes of these"
            )


def _run(fun: Callable[..., Any], spec: _Xmap, args: tuple[Any, ...]) -> Any:
    flat, in_tree = pytree.flatten(args)
    in_axes = tuple(spec.in_axes) if isinstance(spec.in_axes, list) and not is_axes_spec(spec.in_axes) else spec.in_axes
    ins = spec.flat("in_axes", in_axes, args)
    sizes = spec.sizes(fun, flat, ins, pytree.paths(args))
    mesh = _mesh_of(fun, spec.resources, sizes)
    inside = [OnlyTyped(_inside(typeof(x), s)) for x, s in zip(flat, ins)]
    with extend_axis_env(sizes, checked=True):  # type: ignore[arg-type]
        jaxpr, consts, out_tree = closed_call(lambda *xs: fun(*pytree.unflatten(in_tree, xs)), inside, name_of(fun))
    _check_conflicts(fun, jaxpr, spec.resources)
    outs = spec.flat("out_axes", spec.out_axes, pytree.outline(out_tree))
    for aval, out in zip(jaxpr.out_avals, outs):
        _check_result(fun, aval, out, sizes)
    given = [_constrained(x, s, spec.resources, mesh) for x, s in zip(flat, ins)]
    results = _looped(fun, spec, _Body(without_axes(jaxpr), consts, ins, outs), sizes, mesh, given)
    return pytree.unflatten(out_tree, [_constrained(y, s, spec.resources, mesh) for y, s in zip(results, outs)])


def _inside(aval: ShapedArray, spec: AxesSpec) -> ShapedArray:
    shape = tuple(n for dim, n in enumerate(aval.shape) if dim not in dict(spec.axes))
    return aval.update(shape=shape, vma=aval.vma.union(spec.names))  # type: ignore[arg-type]


def _mesh_of(fun: Any, resources: Mapping[Name, tuple[str, ...]], sizes: Mapping[Name, int]) -> AnyMesh | None:
    mesh = get_mesh()
    shape = mesh.shape if mesh is not None else {}
    missing = sorted({a for used in resources.values() for a in used} - set(shape))
    if missing and mesh is None:
        raise MeshError(
            f"xmap of {described(fun)}: axis_resources names the mesh axes {missing}, but no mesh is set; call it "
            "under 'with mesh:'"
        )
    if missing:
        raise UnboundAxisError(
            f"xmap of {described(fun)}: axis_resources names the mesh axes {missing}, the mesh is {mesh}; name "
            "axes of it"
        )
    for name, used in resources.items():
        count = prod(shape[a] for a in used)
        if sizes[name] % count:
            raise ShapeError(
                f"xmap of {described(fun)}: axis {name!r} of size {sizes[name]} is to be split by {', '.join(used)}, "
                f"{count} devices, which do not divide it; pad it, or split it by fewer"
            )
    return mesh if resources else None


def _check_conflicts(fun: Any, jaxpr: ClosedJaxpr, resources: Mapping[Name, tuple[str, ...]]) -> None:
    """Raise if a value has two named axes that the same mesh axis splits.

    Raises:
      ShardingError: names both axes, and the place.
    """
    places = [(f"operands of {e.op.name} at {e.source}", e.invars) for e in all_eqns(jaxpr.jaxpr)]
    places += [("an argument", [v]) for v in jaxpr.jaxpr.invars]
    for where, atoms in reversed(places):
        names: set[Any] = set().union(*(a.aval.vma for a in atoms)) & set(resources)  # type: ignore[arg-type]
        owner: dict[str, Any] = {}
        for name in sorted(names, key=str):
            for axis in resources[name]:
                if axis in owner:
                    raise ShardingError(
                        f"xmap of {described(fun)}: axes {owner[axis]!r} and {name!r} are both split by the mesh axis "
                        f"{axis!r}, but one value has both: {where}; split them by different axes of the mesh"
                    )
                owner[axis] = name


def _check_result(fun: Any, aval: ShapedArray, spec: AxesSpec, sizes: Mapping[Name, int]) -> None:
    more = sorted(map(repr, aval.vma.intersection(sizes) - set(spec.names)))  # type: ignore[arg-type]
    if more:
        raise ArgumentTypeError(
            f"xmap of {described(fun)}: a result has the named axes {', '.join(more)}, which its out_axes {spec.text} "
            "does not have; reduce it over them (lax.psum), or give them a dimension"
        )
    rank = aval.ndim + len(spec.axes)
    if (spec.rank is not None and spec.rank != rank) or any(dim >= rank for dim, _ in spec.axes):
        raise ShapeError(
            f"xmap of {described(fun)}: a result of shape {aval.shape} inside has {counted(rank, 'dimension')} with "
            f"its named axes, which out_axes {spec.text} does not fit; name a dimension of it for each"
        )


def _constrained(x: Any, spec: AxesSpec, resources: Mapping[Name, tuple[str, ...]], mesh: AnyMesh | None) -> Any:
    """``x`` with its named dimensions split by their resources."""
    if mesh is None or not any(name in resources for _, name in spec.axes):
        return x
    entries: list[Any] = [UNCONSTRAINED] * typeof(x).ndim
    for dim, name in spec.axes:
        entries[dim] = resources.get(name, UNCONSTRAINED)
    return ShardingConstraint(NamedSharding(mesh, PartitionSpec(*entries))).bind(x)


@dataclass(frozen=True)
class _Body:
    """The function's jaxpr, and the named axes of its arguments and results."""

    jaxpr: ClosedJaxpr
    consts: Sequence[Any]
    ins: Sequence[AxesSpec]
    outs: Sequence[AxesSpec]

    def mapped(
        self, sizes: Mapping[Name, int], resources: Mapping[Name, tuple[str, ...]], args: Sequence[Any]
    ) -> list[Any]:
        """Evaluate it mapped over all named axes, each a leading dimension of the arrays that have it."""

        def fun(*values: Any) -> list[Any]:
            return eval_jaxpr(self.jaxpr, self.jaxpr.consts, *values)

        names = list(sizes)
        for name in reversed(names):
            axes = (*(None for _ in self.consts), *(0 if name in s.names else None for s in self.ins))
            targets = [0 if name in s.names else None for s in self.outs]
            fun = vmap(fun, axes, targets, axis_name=name, axis_size=sizes[name], spmd_axis_name=resources.get(name))
        results = fun(*self.consts, *(_in_front(x, s, names) for x, s in zip(args, self.ins)))
        return [_in_place(y, s, names) for y, s in zip(results, self.outs)]


def _looped(
    fun: Any, spec: _Xmap, body: _Body, sizes: Mapping[Name, int], mesh: AnyMesh | None, args: Sequence[Any]
) -> Sequence[Any]:
    """Evaluate the function's jaxpr over chunks of the axes that are loops, one after the other."""
    ways = {n: prod(mesh.shape[a] for a in spec.resources.get(n, ())) if mesh else 1 for n in spec.steps}
    check_loops(fun, body.jaxpr, sizes, spec.steps, ways)
    shares = {n: size // spec.steps.get(n, 1) for n, size in sizes.items()}

    def run(*values: Any) -> Sequence[Any]:
        return body.mapped(shares, spec.resources, values)

    for name, steps in spec.steps.items():
        dims = ([s.names.get(name) for s in specs] for specs in (body.ins, body.outs))
        run = in_steps(run, steps, ways[name], *dims)
    return run(*args)


def _in_front(x: Any, spec: AxesSpec, names: Sequence[Any]) -> Any:
    dims = [spec.names[n] for n in names if n in spec.names]
    order = [*dims, *(d for d in range(typeof(x).ndim) if d not in dims)]
    return x if order == sorted(order) else transpose(x, order)


def _in_place(y: Any, spec: AxesSpec, names: Sequence[Any]) -> Any:
    present = [n for n in names if n in spec.names]
    at = {spec.names[n]: i for i, n in enumerate(present)}
    rest = iter(range(len(present), typeof(y).ndim))
    order = [at[d] if d in at else next(rest) for d in range(typeof(y).ndim)]
    return y if order == sorted(order) else transpose(y, order)
