"""``pmap``: a function mapped over an axis, one device per index.

It is a jitted ``shard_map`` over a mesh with one axis, or several if a mapped function calls ``pmap`` again. A first
trace finds the number of devices needed; the function is then traced again over the mesh of all of them. With jit
disabled, Python runs the function device by device.

Follows ``jax.pmap`` as it was before it became a thin wrapper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from math import prod
from typing import Any

import numpy as np

from meshwright.api.arguments import both_ways
from meshwright.api.jit import JitFunction
from meshwright.api.jit_options import JitOptions
from meshwright.api.per_device import Ring
from meshwright.api.shape_dtype import ShapeDtypeStruct
from meshwright.api.shardings import placed
from meshwright.core import pytree
from meshwright.core.avals import NOWHERE, Typed
from meshwright.core.config import config
from meshwright.core.expected import as_numbers, as_tuple, from_front
from meshwright.core.identity import made_of
from meshwright.core.naming import wraps
from meshwright.core.records import dataclass
from meshwright.core.signature import described
from meshwright.core.words import counted, there_are
from meshwright.errors import ArgumentError, ArgumentTypeError, MeshError
from meshwright.ir.jaxpr import ClosedJaxpr, Var
from meshwright.ir.program import Program
from meshwright.ir.state import STATE, extend_axis_env
from meshwright.ir.tracing import typeof
from meshwright.ops.shape.rearrange import expand_dims, squeeze
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim
from meshwright.ops.sharding.manual import ShardMap
from meshwright.runtime.devices import devices as all_devices
from meshwright.runtime.devices import require_backend
from meshwright.sharding import Mesh, PartitionSpec
from meshwright.spmd.varying import varying
from meshwright.transforms.autodiff import closed_call
from meshwright.transforms.vmap import MappedCall, flat_axes, vmap
from meshwright.transforms.wrapped import name_of, require_callable


@dataclass(eq=False)
class _Nest:
    """The pmaps around the function being traced: their axes, outermost first, and ``mesh`` once it is known.

    It is part of the key of traces, by identity, so that an inner pmap is traced again for counting and for the final
    mesh.
    """

    axes: dict[str, int]
    mesh: Mesh | None = None
    #: for each level below, the axis with the most devices
    inner: dict[int, tuple[str, int]] = field(default_factory=dict)


def mesh_with(name: str, size: int) -> Mesh | None:
    """Request an axis of devices inside the enclosing pmaps, and return the mesh that has it; None outside a pmap, and
    while the mesh is not known yet."""
    nest = STATE.nest
    if nest is None or (nest.mesh is not None and nest.mesh.shape.get(name) == size):
        return None if nest is None else nest.mesh
    if size > nest.inner.get(len(nest.axes), ("", 0))[1]:
        nest.inner[len(nest.axes)] = name, size
    return None


@contextmanager
def _inside(nest: _Nest) -> Iterator[None]:
    before, STATE.nest = STATE.nest, nest
    try:
        yield
    finally:
        STATE.nest = before


@dataclass(frozen=True)
class _Pmap:
    """The arguments of a call of ``pmap``."""

    fun: Callable[..., Any]
    axis_name: str | None
    in_axes: Any
    out_axes: Any
    static: tuple[int, ...]
    devices: tuple[Any, ...] | None
    axis_size: int | None
    check_vma: bool

    @property
    def name(self) -> str:
        """The axis name: the user's, or one that is not in scope."""
        if self.axis_name is not None:
            return self.axis_name
        return next(n for n in ("pmap", *(f"pmap{i}" for i in range(1, 99))) if n not in STATE.axis_env)


def pmap(
    fun: Callable[..., Any],
    axis_name: str | None = None,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static_broadcasted_argnums: int | Sequence[int] = (),
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Sequence[int] = (),
    check_vma: bool = True,
) -> Any:
    """Map ``fun`` over an axis of its arguments, one device per index. Prefer ``shard_map``.

    Results are split along the axis by a ``NamedSharding``. Nested maps of sizes a and b take a × b devices. With
    ``disable_jit``, Python runs ``fun`` device by device.

    Args:
      in_axes: for each positional argument the axis that is mapped, None for one passed whole to all devices; a tree
        prefix. Keyword arguments are mapped over axis 0.
      out_axes: the position of the axis in the results; None for results that are equal on all devices (see
        ``check_vma``).
      static_broadcasted_argnums: positional arguments that are passed as Python values.
      donate_argnums: positional arguments whose memory is donated.
      devices: one per index of the axis; None: the first ones.
      axis_size: the size of the axis, needed if no argument is mapped.
      check_vma: require results with ``out_axes=None`` to be known to be equal on all devices; False: take the first
        device's.

    Raises (when called; for ``donate_argnums``, at once):
      ArgumentError: an invalid axis or argument number, too few devices, or a result with ``out_axes=None`` that
        differs.
      ShapeError: mapped axes of different sizes; names each argument.

    Example:
      >>> mw.pmap(lambda x: x / lax.psum(x, "i"), axis_name="i")(mnp.arange(1.0, 5.0))
      Array([0.1, 0.2, 0.3, 0.4], dtype=float32)
    """
    require_callable(fun, "pmap")
    if devices is not None and backend is not None:
        raise ArgumentError("pmap: devices and backend exclude each other; give one of them")
    require_backend(backend, "pmap")
    numbers = as_numbers("pmap: static_broadcasted_argnums", static_broadcasted_argnums)
    donated, _ = both_ways(fun, as_numbers("pmap: donate_argnums", donate_argnums), (), "donate", "pmap")
    axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    spec = _Pmap(fun, axis_name, axes, out_axes, numbers, _checked(devices), axis_size, check_vma)

    @wraps(fun)
    def run(*args: Any, **kwargs: Any) -> Any:
        return _run(spec, args, kwargs)

    made_of(run, fun, "pmap", axis_name, in_axes, out_axes, numbers, devices, axis_size, check_vma)
    mapped = PmapFunction(run, JitOptions(static_argnums=numbers, donate_argnums=donated))
    mapped.__wrapped__ = fun  # type: ignore[attr-defined]
    return mapped


class PmapFunction(JitFunction):
    """A ``pmap``: a jitted function that accepts arguments placed anywhere, since it chooses its own devices."""

    _numbered = "pmap: static_broadcasted_argnums", "pmap: donate_argnums"

    def __repr__(self) -> str:
        return f"<pmapped function {self.name}>"

    def own_program(self, args: Any, kwargs: Any, static: Any) -> Program:
        try:
            return placed(super().own_program(args, kwargs, static))
        except MeshError:
            args, kwargs = pytree.map(_unplaced, (args, kwargs))
            return super().own_program(args, kwargs, static)


def _unplaced(x: Any) -> Any:
    return ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type) if isinstance(x, Typed) else x


def _checked(devices: Sequence[Any] | None) -> tuple[Any, ...] | None:
    if devices is None:
        return None
    given, known = as_tuple("pmap: devices", "a sequence of devices", devices), all_devices()
    if not given:
        raise ArgumentError("pmap: devices is empty; give one for each index of the axis, or None for the first ones")
    unknown = [d for d in given if d not in known]
    if unknown or len(set(given)) < len(given):
        why = "a device is in it twice; name each once"
        if unknown:
            why = f"{unknown[0]!r} is none of devices(); take them from there"
        raise ArgumentError(f"pmap: devices={list(given)}: {why}")
    return given


# --- calls --------------------------------------------------------------------------------------------------
@dataclass
class _Call:
    """A call: the flat arrays to map, and the function of flat arrays."""

    spec: _Pmap
    name: str
    flat: list[Any]
    axes: list[int | None]
    size: int
    fun: Callable[..., Any]

    def part(self, x: Any, axis: int | None, index: int) -> Any:
        """One index of an argument along its mapped axis."""
        return x if axis is None else squeeze(slice_in_dim(x, index, index + 1, axis=axis), (axis,))

    def targets(self, out: Any) -> list[int | None]:
        """The position of the mapped axis in each result.

        Raises:
          ArgumentError: ``out_axes`` does not fit.
        """
        out_axes = flat_axes(self.spec.out_axes, out, "pmap out_axes")
        return [_target(self.spec.fun, y, t, p) for y, t, p in zip(pytree.leaves(out), out_axes, pytree.paths(out))]


def _run(spec: _Pmap, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = _bound(spec, args, kwargs)
    nest = STATE.nest
    if nest is not None and spec.devices is not None:
        raise ArgumentError(
            f"pmap of {described(spec.fun)}: devices= inside of another pmap; only the outermost one chooses "
            "devices: leave it out here"
        )
    if config.disable_jit:
        return _in_python(call)
    if nest is not None:
        return _nested(call, nest)
    if STATE.axis_env:
        return _vmapped(call)
    return _outermost(call)


def _bound(spec: _Pmap, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    static = from_front("pmap: static_broadcasted_argnums", spec.static, len(args), described(spec.fun))
    dynamic = tuple(a for i, a in enumerate(args) if i not in static)
    in_axes = spec.in_axes
    if isinstance(in_axes, tuple):
        if len(in_axes) == len(args):
            in_axes = tuple(a for i, a in enumerate(in_axes) if i not in static)
        if len(in_axes) != len(dynamic):
            raise ArgumentError(
                f"pmap of {described(spec.fun)}: in_axes has {counted(len(spec.in_axes), 'entry', 'entries')}, it was "
                f"called with {counted(len(args), 'positional argument')}; give one entry an argument, or a single int"
            )
    flat, tree = pytree.flatten((dynamic, kwargs))
    if not flat and spec.axis_size is None:
        raise ArgumentError(f"pmap of {described(spec.fun)}: called without arrays; give at least one, or axis_size")
    mapped = MappedCall("pmap", spec.fun, dynamic, kwargs)
    axes = [*flat_axes(in_axes, dynamic, "pmap in_axes"), *([0] * len(pytree.leaves(kwargs)))]
    for i, x in enumerate(flat):
        mapped.check(i, x)
    normal_axes = [mapped.axis(x, a, i) for i, (x, a) in enumerate(zip(flat, axes))]
    size = mapped.size(flat, normal_axes, spec.axis_size)

    def fun(*values: Any) -> Any:
        positional, named = pytree.unflatten(tree, values)
        given = iter(positional)
        return spec.fun(*(a if i in static else next(given) for i, a in enumerate(args)), **named)

    return _Call(spec, spec.name, flat, normal_axes, size, fun)


def _target(fun: Callable[..., Any], y: Any, target: int | None, path: str) -> int | None:
    try:
        ndim = typeof(y).ndim + 1
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"pmap of {described(fun)}: result{path} is no array: {error}") from None
    if target is not None and not -ndim <= target < ndim:
        raise ArgumentError(
            f"pmap of {described(fun)}: out_axes names axis {target} of result{path}, which has {ndim} dimensions with "
            f"the mapped one; name one of {-ndim} to {ndim - 1}"
        )
    return None if target is None else target % ndim


# --- the mesh -----------------------------------------------------------------------------------------------
def _available(call: _Call, needed: int, why: str, at_least: bool = False) -> list[Any]:
    """The devices of a pmap; with ``at_least`` there may be more, for pmaps inside it.

    Raises:
      ArgumentError: ``devices`` has another number of devices, or there are too few.
    """
    given = call.spec.devices
    if not call.size:
        raise ArgumentError(f"pmap of {described(call.spec.fun)}: {why}, which no device would have; give rows to map")
    if given is not None and (len(given) < needed or (len(given) > needed and not at_least)):
        raise ArgumentError(
            f"pmap of {described(call.spec.fun)}: {why}, devices= has {len(given)}; give as many devices"
        )
    available = list(given or all_devices())
    if needed > len(available):
        raise ArgumentError(
            f"pmap of {described(call.spec.fun)}: {why}, {there_are(len(available), 'device')}; set "
            f"MESHWRIGHT_NUM_DEVICES={needed}, or use vmap"
        )
    return available[:needed]


def _outermost(call: _Call) -> Any:
    sizes, why = {call.name: call.size}, f"the mapped axis has size {call.size}"
    mesh = _mesh(call, sizes, why, at_least=True)
    with _inside(nest := _Nest(sizes, mesh)):
        traced = _traced(call)
    if not nest.inner:
        _available(call, call.size, why)
    else:
        several = {**sizes, **dict(nest.inner[level] for level in sorted(nest.inner))}
        product = " × ".join(map(str, several.values()))
        mesh = _mesh(call, several, f"with the pmaps inside it takes {product} = {prod(several.values())} devices")
        with _inside(_Nest(sizes, mesh)):
            traced = _traced(call)
    return _bind(call, traced, mesh)


def _mesh(call: _Call, sizes: dict[str, int], why: str, at_least: bool = False) -> Mesh:
    devices = np.array(_available(call, prod(sizes.values()), why, at_least), object)
    return Mesh(devices.reshape(tuple(sizes.values())), tuple(sizes))


def _nested(call: _Call, nest: _Nest) -> Any:
    """A pmap inside another: along an axis of the mesh of all devices, if it is known and has one of this name and
    size."""
    level = len(nest.axes)
    if nest.mesh is not None and nest.mesh.shape.get(call.name) == call.size and call.name not in nest.axes:
        with _inside(_Nest({**nest.axes, call.name: call.size}, nest.mesh)):
            return _bind(call, _traced(call), nest.mesh)
    if call.size > nest.inner.get(level, ("", 0))[1]:
        nest.inner[level] = call.name, call.size
    below = _Nest({**nest.axes, call.name: call.size}, None, nest.inner)
    with _inside(below):
        return _vmapped(call)


def _vmapped(call: _Call) -> Any:
    mapped = vmap(call.fun, tuple(call.axes), call.spec.out_axes, axis_name=call.name, axis_size=call.size)
    return mapped(*call.flat)


# --- traced -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Traced:
    jaxpr: ClosedJaxpr
    consts: Sequence[Any]
    out_tree: Any
    targets: Sequence[int | None]


def _traced(call: _Call) -> _Traced:
    """The per-device function, whose arguments have a mapped axis of size 1."""
    targets: list[int | None] = []

    def local(*parts: Any) -> Any:
        out = call.fun(*(x if a is None else squeeze(x, [a]) for x, a in zip(parts, call.axes)))
        leaves, out_tree = pytree.flatten(out)
        targets[:] = call.targets(out)
        return pytree.unflatten(out_tree, [y if t is None else expand_dims(y, [t]) for y, t in zip(leaves, targets)])

    parts = [_Part(x, a) for x, a in zip(call.flat, call.axes)]
    with extend_axis_env({call.name: call.size}):
        jaxpr, consts, out_tree = closed_call(local, parts, name_of(call.spec.fun))
    if call.spec.check_vma and None in targets:
        _check_equal(call, jaxpr, len(consts), targets, out_tree)
    return _Traced(jaxpr, consts, out_tree, targets)


class _Part(Typed):
    """The type of a device's part of an argument."""

    __slots__ = ("aval",)

    def __init__(self, x: Any, axis: int | None) -> None:
        aval = typeof(x)
        self.aval = aval if axis is None else aval.update(shape=(*aval.shape[:axis], 1, *aval.shape[axis + 1 :]))


def _check_equal(call: _Call, jaxpr: ClosedJaxpr, consts: int, targets: Sequence[int | None], out_tree: Any) -> None:
    """Raise if a result with ``out_axes=None`` may differ between devices.

    Raises:
      ArgumentError: names each such result.
    """
    own = frozenset((call.name,))
    inputs = [NOWHERE] * consts + [NOWHERE if a is None else own for a in call.axes]
    axes_of = varying(jaxpr.jaxpr, inputs)
    paths = pytree.paths(pytree.outline(out_tree))
    outs = zip(jaxpr.jaxpr.outvars, targets, paths)
    wrong = [p for v, t, p in outs if t is None and isinstance(v, Var) and call.name in axes_of.get(v, ())]
    if wrong:
        raise ArgumentError(
            f"pmap of {described(call.spec.fun)}: out_axes is None for {', '.join(f'result{p}' for p in wrong)}, "
            f"which may differ along the mapped axis; make it equal (lax.pmean, psum over {call.name!r}), give it an "
            "axis, or pass check_vma=False for what the first device has"
        )


def _bind(call: _Call, traced: _Traced, mesh: Mesh) -> Any:
    def spec(axis: int | None) -> PartitionSpec:
        return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, call.name)

    in_specs = (*([PartitionSpec()] * len(traced.consts)), *map(spec, call.axes))
    names = () if len(mesh.axis_names) == 1 else (call.name,)
    op = ShardMap(in_specs, traced.jaxpr, mesh, tuple(map(spec, traced.targets)), names)
    return pytree.unflatten(traced.out_tree, op.bind(*traced.consts, *call.flat))


# --- by Python ----------------------------------------------------------------------------------------------
def _in_python(call: _Call) -> Any:
    _available(call, call.size, f"the mapped axis has size {call.size}")
    nest = _Nest({call.name: call.size})

    def of(index: int) -> Callable[[], Any]:
        def run() -> Any:
            with _inside(nest):
                return call.fun(*(call.part(x, a, index) for x, a in zip(call.flat, call.axes)))

        return run

    ring = Ring(f"pmap of {described(call.spec.fun)}", {call.name: call.size})
    outs = ring.run([of(i) for i in range(call.size)])
    targets = call.targets(outs[0])
    leaves = zip(*(pytree.leaves(out) for out in outs))
    whole = [
        ys[0] if t is None else concatenate([expand_dims(y, (t,)) for y in ys], t) for ys, t in zip(leaves, targets)
    ]
    return pytree.unflatten(pytree.structure(outs[0]), whole)
