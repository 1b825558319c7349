"""``jax.interpreters.sharded_jit``: ``jit`` with numbers of parts for shardings. Today's way: ``jit`` with a mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from meshwright.api.jit import jit
from meshwright.api.placement import with_sharding_constraint as constrained
from meshwright.core import pytree
from meshwright.errors import ArgumentError
from meshwright.runtime.devices import devices
from meshwright.sharding import PositionalSharding

__all__ = ["PartitionSpec", "sharded_jit", "with_sharding_constraint"]


class PartitionSpec(tuple[int, ...]):
    """In how many parts each dimension is cut: ``PartitionSpec(2, 1)``. Today's spec names axes of a mesh instead.

    Raises:
      ArgumentError: something else than positive numbers.
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
    """``meshwright.jit``, which is today's way, on the first devices, as many as there are parts.

    Args:
      in_parts: for each argument a :class:`PartitionSpec` or None (whole on every device); a tree prefix.
      out_parts: the same for the results.
      num_partitions: the number of devices, where no spec says it.

    Raises:
      ArgumentError: specs of different numbers of parts, none at all, or more parts than devices.

    Example:
      >>> from meshwright.interpreters.sharded_jit import PartitionSpec, sharded_jit
      >>> f = sharded_jit(lambda x, y: x @ y, in_parts=(PartitionSpec(2, 1), None), out_parts=PartitionSpec(2, 1))
      >>> f(mnp.ones((4, 3)), mnp.ones((3, 5))).sharding.shape
      (2, 1)
    """
    parts = [p for p in pytree.leaves((in_parts, out_parts), is_leaf=_is_parts) if isinstance(p, PartitionSpec)]
    counts = {prod(p): p for p in parts} | ({num_partitions: num_partitions} if num_partitions else {})
    if len(counts) != 1:
        found = f"different numbers of parts: {', '.join(map(repr, counts.values()))}" if counts else "no parts"
        raise ArgumentError(
            f"sharded_jit: in_parts and out_parts have {found}; all must make one number of them, which num_partitions "
            "may give"
        )
    n = next(iter(counts))

    def shardings(tree: Any) -> Any:
        return pytree.map(lambda p: _sharding(p, n), tree, is_leaf=_is_parts)

    return jit(
        fun, in_shardings=shardings(in_parts), out_shardings=shardings(out_parts), static_argnums=static_argnums,
        donate_argnums=donate_argnums,
    )  # fmt: skip


def _sharding(parts: PartitionSpec | None, count: int) -> PositionalSharding:
    available = devices()
    if count > len(available):
        raise ArgumentError(
            f"sharded_jit: {count} parts, there are {len(available)} devices; set MESHWRIGHT_NUM_DEVICES, or use fewer"
        )
    grid = PositionalSharding(available[:count])
    return grid.replicate() if parts is None else grid.reshape(*parts)


def with_sharding_constraint(x: Any, partitions: PartitionSpec | None) -> Any:
    """``x`` in so many parts, on the first devices; None leaves it to the partitioner. Today's way:
    ``meshwright.lax.with_sharding_constraint``.

    Raises:
      ArgumentError: more parts than devices.
    """
    return x if partitions is None else constrained(x, _sharding(partitions, prod(partitions)))
