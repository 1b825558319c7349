"""``auto_axes`` and ``explicit_axes``: functions inside which axes of the mesh have another type. Names as in JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from meshwright.api.jit import jit
from meshwright.api.placement import reshard
from meshwright.core import pytree
from meshwright.core.naming import wraps
from meshwright.errors import ArgumentError, ArgumentTypeError, MeshError
from meshwright.ir.state import STATE
from meshwright.ir.tracing import EVAL, typeof
from meshwright.ops.sharding.mesh_cast import MeshCast
from meshwright.sharding import AnyMesh, AxisType, get_mesh, mesh_of_type, set_mesh
from meshwright.transforms.wrapped import require_callable

Axes = str | Sequence[str] | None


def auto_axes(
    f: Callable[..., Any] | None = None, *, axes: Axes = None, axis_sizes: Any = None, out_sharding: Any = None
) -> Any:
    """``f`` with ``axes`` of the mesh (default: all explicit ones) automatic inside: types do not mention them, and the
    partitioner chooses. ``out_sharding``, a tree prefix of the results, gives their sharding; it may also be passed in
    the call. Without ``f``, returns a decorator.

    Raises (when called):
      ArgumentTypeError: no ``out_sharding``. MeshError: there is no mesh. ArgumentError: unknown axes.

    Example:
      >>> mesh = mw.make_mesh((2, 4), ("x", "y"), axis_types=mw.sharding.AxisType.Explicit)
      >>> with mw.set_mesh(mesh):
      ...     x = mw.device_put(mnp.ones((8, 16)), P("x", "y"))
      ...     z = mw.sharding.auto_axes(lambda x: x @ x.T, out_sharding=P("x", "y"))(x)
      >>> mw.typeof(x), mw.typeof(z)
      (ShapedArray(float32[8@x,16@y]), ShapedArray(float32[8@x,8@y]))
    """
    if f is None:
        return functools.partial(auto_axes, axes=axes, out_sharding=out_sharding)
    require_callable(f, "auto_axes")

    def inside(args: Any, kwargs: Any, mesh: AnyMesh, names: tuple[str, ...], out: Any) -> Any:
        inner = mesh.update_axis_types(dict.fromkeys(names, AxisType.Auto))
        cast = MeshCast(inner.abstract_mesh)
        args, kwargs = pytree.map(cast.bind, (args, kwargs))
        with set_mesh(inner):
            outs = f(*args, **kwargs)
        with set_mesh(mesh):
            return reshard(outs, out)

    why = "along the axes that are explicit again outside, results need one"
    return _with_axes("auto_axes", f, _one_program(inside), axes, AxisType.Explicit, "out_sharding", out_sharding, why)


def explicit_axes(
    f: Callable[..., Any] | None = None, *, axes: Axes = None, axis_sizes: Any = None, in_sharding: Any = None
) -> Any:
    """``f`` with ``axes`` of the mesh (default: all automatic ones) explicit inside: types say how they split values.
    ``in_sharding``, a tree prefix of the positional arguments (a tuple), gives the arguments' shardings; it may also be
    passed in the call. Without ``f``, returns a decorator.

    Raises (when called):
      ArgumentTypeError: no ``in_sharding``. MeshError: there is no mesh. ArgumentError: unknown axes.

    Example:
      >>> with mw.set_mesh(mw.make_mesh((2, 4), ("x", "y"))):
      ...     seen = []
      ...     f = mw.sharding.explicit_axes(lambda x: seen.append(mw.typeof(x)) or 2 * x, in_sharding=(P("x", "y"),))
      ...     y = mw.jit(f)(mnp.ones((8, 16)))
      >>> seen, mw.typeof(y)
      ([ShapedArray(float32[8@x,16@y])], ShapedArray(float32[8,16]))
    """
    if f is None:
        return functools.partial(explicit_axes, axes=axes, in_sharding=in_sharding)
    require_callable(f, "explicit_axes")

    def inside(args: Any, kwargs: Any, mesh: AnyMesh, names: tuple[str, ...], in_sharding: Any) -> Any:
        inner = mesh.update_axis_types(dict.fromkeys(names, AxisType.Explicit))
        with set_mesh(inner):
            outs = f(*reshard(args, in_sharding), **kwargs)
        return pytree.map(MeshCast(mesh.abstract_mesh).bind, outs)

    why = "types in the function say how its arguments are split"
    return _with_axes("explicit_axes", f, _one_program(inside), axes, AxisType.Auto, "in_sharding", in_sharding, why)


def _with_axes(
    name: str, f: Callable[..., Any], call: Callable[..., Any], axes: Axes, kind: AxisType, keyword: str, given: Any,
    why: str,
) -> Callable[..., Any]:  # fmt: skip
    """Wrap ``call``, which gets the mesh, the axes to change, and the sharding: ``given``, or the one passed in the
    call.

    Raises (when called):
      ArgumentTypeError: there is no sharding.
    """

    @wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        called = kwargs.pop(keyword, None)
        sharding = called if called is not None else given
        if sharding is None:
            raise ArgumentTypeError(f"{name}: {keyword} is missing; {why}")
        mesh = _mesh(name, (args, kwargs))
        return call(args, kwargs, mesh, _names(name, axes, mesh, kind), _Prefix(sharding))

    return wrapped


def _one_program(inside: Callable[..., Any]) -> Callable[..., Any]:
    """``inside``, recorded inline while tracing, and run as one program otherwise."""

    def hashed(args: Any, kwargs: Any, mesh: Any, names: Any, sharding: _Prefix) -> Any:
        return inside(args, kwargs, mesh, names, sharding.tree)

    program = jit(hashed, static_argnums=(2, 3, 4))
    return lambda *args: (program if STATE.trace is EVAL else hashed)(*args)


class _Prefix:
    """A tree of specs as a static argument: equal trees are equal."""

    __slots__ = ("_key", "tree")

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        leaves, treedef = pytree.flatten(tree)
        self._key = tuple(leaves), treedef

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Prefix) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _mesh(what: str, args: Any) -> AnyMesh:
    """The current mesh, or the one in the types of the arguments.

    Raises:
      MeshError: there is no mesh.
    """
    mesh = get_mesh()
    types = (typeof(x).explicit for x in pytree.leaves(args))
    chosen = mesh if mesh is not None else next((mesh_of_type(t.mesh) for t in types if t is not None), None)
    if chosen is None:
        raise MeshError(f"{what}: there is no mesh whose axes could be of another type; set one with set_mesh")
    return chosen


def _names(what: str, axes: Axes, mesh: AnyMesh, kind: AxisType) -> tuple[str, ...]:
    names = (axes,) if isinstance(axes, str) else tuple(axes) if axes is not None else mesh.abstract_mesh.of_type(kind)
    unknown = [a for a in names if a not in mesh.axis_names]
    if unknown:
        raise ArgumentError(f"{what}: axes={names} names {unknown[0]!r}; the mesh is {mesh}")
    return names
