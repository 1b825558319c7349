"""``xla_computation``: the HLO of a function, optionally as one replica or partition of several.

Follows ``jax.xla_computation`` as of JAX 0.4.30; ``in_parts`` and ``out_parts`` are those of ``sharded_jit``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from meshwright.api.jit import jit
from meshwright.api.shape_dtype import ShapeDtypeStruct
from meshwright.api.shardings import is_spec, named, resolve, spread
from meshwright.core import pytree
from meshwright.core.avals import NOWHERE, ShapedArray
from meshwright.core.naming import wraps
from meshwright.core.tracebacks import boundary
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ShardingError
from meshwright.ir.jaxpr import Var
from meshwright.ir.program import Program
from meshwright.ir.state import extend_axis_env
from meshwright.lowering.regions import without_regions
from meshwright.lowering.target import Target
from meshwright.ops.random.keys import words_aval
from meshwright.runtime.devices import require_backend
from meshwright.sharding import AbstractMesh, HloSharding, NamedSharding, named_to_hlo
from meshwright.sharding.tile_assignment import IotaOrder, TileAssignment
from meshwright.spmd.varying import varying
from meshwright.stablehlo.emit import LoweringOptions, lower_to_stablehlo
from meshwright.stablehlo.hlo import to_hlo
from meshwright.transforms.keys import on_words
from meshwright.transforms.wrapped import require_callable

#: with ``tuple_args=None``, functions of more arrays than this take one tuple, since platforms limit parameters
MOST_PARAMETERS = 100


def xla_computation(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int] = (),
    axis_env: Sequence[tuple[str, int]] | None = None,
    in_parts: Any = None,
    out_parts: Any = None,
    backend: str | None = None,
    tuple_args: bool | None = False,
    instantiate_const_outputs: bool | None = None,
    return_shape: bool = False,
    donate_argnums: int | Sequence[int] = (),
) -> Callable[..., Any]:
    """A function that returns the HLO of ``fun`` at the types of its arguments.

    The returned object has ``as_hlo_text()``, ``as_serialized_hlo_module_proto()``, ``as_hlo_dot_graph()``,
    ``program_shape()`` and ``name()``. Its result is a tuple. Prefer ``jit(fun).lower(*args)`` with ``.as_text("hlo")``
    or ``.compiler_ir("hlo")``.

    Args:
      static_argnums: arguments passed as Python values, which must be hashable.
      axis_env: names and sizes of axes that collectives in ``fun`` may name, major to minor. The HLO is then that of
        one replica; the number of replicas is the product of these sizes.
      in_parts: a tree prefix of the arguments: the number of parts per dimension (``(2, 1)``), a sharding, or None for
        a replicated array.
      out_parts: the same for the output.
      backend: must be the current backend.
      tuple_args: whether the program takes one tuple; None: if it takes more than 100 arrays.
      instantiate_const_outputs: has no effect; constant results are always part of the program.
      return_shape: also return the types of the results: a tree with ``shape``, ``dtype`` and ``named_shape``, the axes
        of ``axis_env``, with sizes, over which a result differs between replicas.
      donate_argnums: arguments whose memory the program may reuse for its results.

    Raises (when called):
      ArgumentError: ``axis_env`` names an axis twice or has an invalid size, or the parts do not fit.
      UnboundAxisError: ``fun`` names an unknown axis.
      ArgumentTypeError: ``fun`` is not a function, or an argument is not an array.

    Example:
      >>> c = mw.xla_computation(lambda x: lax.psum(x, "i"), axis_env=[("i", 4), ("j", 2)])(2.0)
      >>> [line.split("replica_groups=")[1][:21] for line in c.as_hlo_text().splitlines() if "all-reduce(" in line]
      ['{{0,2,4,6},{1,3,5,7}}']
    """
    require_callable(fun, "xla_computation")
    require_backend(backend, "xla_computation")
    axes = _checked_axes(axis_env or ())

    @boundary
    @wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with extend_axis_env(axes.shape):
            # A new function object each time, so that an earlier trace is not reused.
            own = wraps(fun)(lambda *a, **k: fun(*a, **k))
            jitted = jit(own, static_argnums=static_argnums, donate_argnums=donate_argnums)
            program = jitted.program_at(*args, **kwargs)
        parts = _parts(program, in_parts, out_parts)
        tupled = len(program.arguments) > MOST_PARAMETERS if tuple_args is None else tuple_args
        computation = to_hlo(_module(program, axes, *parts), tuple_args=tupled, tuple_result=True)
        return (computation, _shapes(program, axes)) if return_shape else computation

    return wrapped


def _checked_axes(axis_env: Sequence[tuple[str, int]]) -> AbstractMesh:
    """The replicas as a mesh of the axes.

    Raises:
      ArgumentError: naming the axis that cannot be.
    """
    seen: dict[str, int] = {}
    for entry in axis_env:
        if not (isinstance(entry, (tuple, list)) and len(entry) == 2 and isinstance(entry[0], str)):
            raise ArgumentError(
                f"xla_computation: axis_env takes pairs of a name and a size, got {entry!r}; write [('i', 4)]"
            )
        name, size = entry
        if name in seen:
            raise ArgumentError(f"xla_computation: axis_env names {name!r} twice; give every axis its own name")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ArgumentError(
                f"xla_computation: axis {name!r} of axis_env has size {size!r}; sizes are positive ints"
            )
        seen[name] = size
    return AbstractMesh(tuple(seen.values()), tuple(seen))


def _module(
    program: Program, axes: AbstractMesh, ins: Sequence[HloSharding | None], outs: Sequence[HloSharding | None]
) -> Any:
    counts = [s.num_devices or 1 for s in (*ins, *outs) if s is not None]
    options = LoweringOptions(
        name=f"xla_computation_{program.name}",
        scope=f"xla_computation({program.name})",
        arg_names=[a.name for a in program.arguments],
        arg_shardings=ins,
        result_shardings=outs,
        donated=program.aliases,
        groups=Target.all_real(axes).grid,
        num_replicas=axes.size,
        num_partitions=max(counts, default=1),
    )
    return lower_to_stablehlo(without_regions(on_words(program.jaxpr)), options)


# --- parts --------------------------------------------------------------------------------------------------
def is_counts(x: Any) -> bool:
    """Whether ``x`` is a number of parts per dimension, such as ``(2, 1)``."""
    entries = isinstance(x, (tuple, list)) and len(x) > 0 and all(e is None or type(e) is int for e in x)
    return entries and any(e is not None for e in x)


def is_part(x: Any) -> bool:
    """Whether ``x`` is a leaf of a tree of parts, other than None."""
    return isinstance(x, HloSharding) or is_counts(x)


def _parts(program: Program, in_parts: Any, out_parts: Any) -> tuple[list[HloSharding | None], ...]:
    """Shardings of arguments and results: from the given parts, else those of the arrays.

    Raises:
      ArgumentError: parts do not fit their arrays, or are for different numbers of devices.
    """
    args, kwargs = pytree.outline(program.in_tree)
    output = pytree.outline(program.out_tree)
    ins = [a.sharding for a in program.arguments]
    if in_parts is not None:
        ins = [*_flat(in_parts, args, "in_parts"), *ins[len(ins) - len(pytree.leaves(kwargs)) :]]
    outs = program.out_shardings if out_parts is None else _flat(out_parts, output, "out_parts")
    sides = (
        [_hlo(s, a.aval, f"in_parts of {a.name}") for s, a in zip(ins, program.arguments)],
        [_hlo(s, a, f"out_parts of result {i}") for i, (s, a) in enumerate(zip(outs, program.jaxpr.out_avals))],
    )
    sizes = sorted({s.num_devices for side in sides for s in side if s is not None and s.num_devices is not None})
    if len(sizes) > 1:
        raise ArgumentError(
            f"xla_computation: in_parts and out_parts are for {' and '.join(map(str, sizes))} devices; cut all arrays "
            "into equally many parts, or leave them whole (None)"
        )
    return sides


def _flat(parts: Any, values: Any, what: str) -> list[Any]:
    return spread(parts, values, f"xla_computation {what}", lambda x: is_part(x) or is_spec(x))


def _hlo(part: Any, aval: ShapedArray, what: str) -> HloSharding | None:
    """One sharding in HLO's form."""
    ndim = words_aval(aval).ndim
    if is_counts(part):
        return _tiles(part, aval, what)
    if isinstance(part, HloSharding):
        part.check(ndim, part.num_devices or 1, what)
        return part
    sharding = named(resolve(part, what))
    return named_to_hlo(sharding, ndim) if isinstance(sharding, NamedSharding) else None


def _tiles(counts: Sequence[int | None], aval: ShapedArray, what: str) -> HloSharding:
    sizes = tuple(1 if n is None else n for n in counts)
    if len(sizes) != aval.ndim or min(sizes) < 1:
        raise ShardingError(
            f"{what}: {tuple(counts)} does not say in how many parts the {counted(aval.ndim, 'dimension')} of {aval} "
            "are cut; give a positive number for each, 1 or None for one that stays whole"
        )
    devices = math.prod(sizes)
    return HloSharding.tiled(TileAssignment(sizes, IotaOrder((devices,), (0,))))


# --- types of results ---------------------------------------------------------------------------------------
def _shapes(program: Program, axes: AbstractMesh) -> Any:
    """The types of the results, with the axes over which each differs between replicas given equal arguments."""
    inner = program.jaxpr.jaxpr
    axes_of = varying(inner, [NOWHERE] * len(inner.invars))
    names = [axes_of.get(v, NOWHERE) if isinstance(v, Var) else NOWHERE for v in inner.outvars]
    shapes = [
        ShapeDtypeStruct(a.shape, a.dtype, named_shape={n: size for n, size in axes.shape.items() if n in over})
        for a, over in zip(program.jaxpr.out_avals, names)
    ]
    return pytree.unflatten(program.out_tree, shapes)
