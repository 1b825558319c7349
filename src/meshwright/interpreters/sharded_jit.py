"""``jax.interpreters.sharded_jit``: ``jit`` with numbers of parts as shardings. Now: ``jit`` with a mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from meshwright.api.jit import JitFunction
from meshwright.api.jit_options import JitOptions
from meshwright.api.placement import with_sharding_constraint as constrained
from meshwright.api.pmap import mesh_with
from meshwright.api.shardings import spread
from meshwright.core import pytree
from meshwright.core.words import counted, there_are
from meshwright.errors import ArgumentError
from meshwright.ir.state import STATE
from meshwright.runtime.devices import devices
from meshwright.sharding import NamedSharding, PositionalSharding
from meshwright.sharding import PartitionSpec as AxesSpec
from meshwright.transforms.wrapped import require_callable

__all__ = ["PartitionSpec", "sharded_jit", "with_sharding_constraint"]


class PartitionSpec(tuple[int, ...]):
    """The number of parts of each dimension: ``PartitionSpec(2, 1)``. Specs now name axes of a mesh instead.

    Raises:
      ArgumentError: the numbers are not positive integers.
    """

    __slots__ = ()

    def __new__(cls, *parts: int) -> PartitionSpec:
        if not all(isinstance(n, int) and n > 0 for n in parts):
            raise ArgumentError(
                f"sharded_jit.PartitionSpec{parts}: expected the number of parts of each dimension; specs that name "
                "mesh axes are meshwright.sharding.PartitionSpec, for jit"
            )
        return super().__new__(cls, parts)

    def __repr__(self) -> str:
        return f"PartitionSpec{tuple(self)}"


def _is_parts(x: Any) -> bool:
    return x is None or isinstance(x, PartitionSpec)


def sharded_jit(
    fun: Callable[..., Any],
    in_parts: Any,
    out_parts: Any,
    num_partitions: int | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    donate_argnums: int | Sequence[int] = (),
) -> Any:
    """Older form of ``meshwright.jit``, on the first devices, one for each part.

    Inside of a ``pmap``, each of its indices has that many devices.

    Args:
      in_parts: for each argument a :class:`PartitionSpec`, or None (replicated); a tree prefix.
      out_parts: the same for the results.
      num_partitions: the number of devices, if no spec determines it.

    Raises:
      ArgumentError: specs have different numbers of parts, the number is unknown, or there are too few devices.

    Example:
      >>> from meshwright.interpreters.sharded_jit import PartitionSpec, sharded_jit
      >>> f = sharded_jit(lambda x, y: x @ y, in_parts=(PartitionSpec(2, 1), None), out_parts=PartitionSpec(2, 1))
      >>> f(mnp.ones((4, 3)), mnp.ones((3, 5))).sharding.shape
      (2, 1)
    """
    parts = [p for p in pytree.leaves((in_parts, out_parts), is_leaf=_is_parts) if isinstance(p, PartitionSpec)]
    counts = {prod(p): p for p in parts} | ({num_partitions: num_partitions} if num_partitions else {})
    if len(counts) != 1:
        given = f"different numbers of parts: {', '.join(map(repr, counts.values()))}" if counts else "no parts"
        raise ArgumentError(
            f"sharded_jit: in_parts and out_parts have {given}; all must make one number of them, which num_partitions "
            "may give"
        )
    n = next(iter(counts))

    def shardings(tree: Any) -> Any:
        return pytree.map(lambda p: _sharding(p, n), tree, is_leaf=_is_parts)

    require_callable(fun, "sharded_jit")
    static, donated = ((x,) if isinstance(x, int) else tuple(x) for x in (static_argnums, donate_argnums))
    options = JitOptions(shardings(in_parts), shardings(out_parts), static, donate_argnums=donated)
    jitted = ShardedJitFunction(fun, options)
    jitted.parts = in_parts, out_parts, n
    return jitted


class ShardedJitFunction(JitFunction):
    """A jitted function with the numbers of parts of its arguments and results."""

    parts: tuple[Any, Any, int]

    def __repr__(self) -> str:
        return f"<sharded function {self.name}>"

    def _traced_call(self, args: Any, kwargs: Any) -> Any:
        if STATE.nest is None:
            return super()._traced_call(args, kwargs)
        in_parts, out_parts, count = self.parts
        out = self.fun(*_cut(args, in_parts, count, "in_parts"), **kwargs)
        return _cut(out, out_parts, count, "out_parts")


def _cut(tree: Any, parts: Any, count: int, what: str) -> Any:
    leaves, treedef = pytree.flatten(tree)
    cut = spread(parts, tree, f"sharded_jit {what}", _is_parts)
    return pytree.unflatten(treedef, [_in_pmap(x, p, count) for x, p in zip(leaves, cut)])


#: the axis of the devices of each index of an enclosing pmap
_AXIS = "parts"


def _in_pmap(x: Any, parts: PartitionSpec | None, count: int) -> Any:
    """``x`` split into parts on the devices of an index of the enclosing pmap."""
    mesh = mesh_with(_AXIS, count)
    if mesh is None or parts is None:
        return x
    entries: list[str | None] = []
    before = 1
    for n in parts:
        entries.append(None if n == 1 else _AXIS if n == count else f"{_AXIS}:({before}){n}")
        before *= n
    return constrained(x, NamedSharding(mesh, AxesSpec(*entries)))


def _sharding(parts: PartitionSpec | None, count: int) -> PositionalSharding:
    available = devices()
    if count > len(available):
        raise ArgumentError(
            f"sharded_jit: {counted(count, 'part')}, {there_are(len(available), 'device')}; set "
            "MESHWRIGHT_NUM_DEVICES, or use fewer"
        )
    grid = PositionalSharding(available[:count])
    return grid.replicate() if parts is None else grid.reshape(*parts)


def with_sharding_constraint(x: Any, partitions: PartitionSpec | None) -> Any:
    """Split ``x`` into parts on the first devices; None leaves this to the partitioner.

    Now: ``meshwright.lax.with_sharding_constraint``.

    Raises:
      ArgumentError: there are more parts than devices.
    """
    if partitions is None:
        return x
    count = prod(partitions)
    return constrained(x, _sharding(partitions, count)) if STATE.nest is None else _in_pmap(x, partitions, count)
