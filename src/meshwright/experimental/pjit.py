"""``jax.experimental.pjit``: ``jit`` with shardings as specs over the mesh of ``with mesh:``. Now: ``jit``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.api.jit import jit
from meshwright.api.placement import with_sharding_constraint as constrained
from meshwright.api.shardings import UNSPECIFIED, is_spec
from meshwright.core import pytree
from meshwright.errors import ArgumentError
from meshwright.sharding import AUTO, PartitionSpec

__all__ = ["AUTO", "FROM_GDA", "UNSPECIFIED", "PartitionSpec", "pjit", "with_sharding_constraint"]

#: in place of a spec: the sharding that the argument has
FROM_GDA = UNSPECIFIED


def pjit(
    fun: Callable[..., Any] | None = None, in_axis_resources: Any = UNSPECIFIED,
    out_axis_resources: Any = UNSPECIFIED, static_argnums: Any = None, static_argnames: Any = None,
    donate_argnums: Any = None, *, in_shardings: Any = UNSPECIFIED, out_shardings: Any = UNSPECIFIED, **options: Any,
) -> Any:  # fmt: skip
    """Older form of ``meshwright.jit``, with ``in_axis_resources`` and ``out_axis_resources`` for shardings.

    These are tree prefixes of specs over the current mesh, in which None means ``PartitionSpec()``, replicated.
    Arguments with another sharding than in ``in_axis_resources`` are moved, with a warning; with ``in_shardings``, they
    are refused.

    Raises:
      ArgumentError: both the older and the newer argument are given for arguments, or for results.

    Example:
      >>> from meshwright.experimental.pjit import pjit
      >>> f = pjit(lambda x: 2 * x, in_axis_resources=P("x"), out_axis_resources=None)
      >>> with mw.make_mesh((4,), ("x",)):
      ...     f(mnp.arange(4)).sharding.spec
      P()
    """
    ins = _shardings("in", in_axis_resources, in_shardings)
    outs = _shardings("out", out_axis_resources, out_shardings)
    jitted = jit(
        fun, in_shardings=ins, out_shardings=outs, static_argnums=static_argnums, static_argnames=static_argnames,
        donate_argnums=donate_argnums, **options,
    )  # fmt: skip
    if in_axis_resources is UNSPECIFIED:
        return jitted
    return jitted.moving() if fun is not None else lambda f: jitted(f).moving()


def _shardings(side: str, resources: Any, shardings: Any) -> Any:
    if resources is UNSPECIFIED:
        return shardings
    if shardings is not UNSPECIFIED:
        raise ArgumentError(f"pjit: {side}_axis_resources and {side}_shardings are two names of one argument; give one")
    return pytree.map(_whole, resources, is_leaf=is_spec)


def _whole(spec: Any) -> Any:
    return PartitionSpec() if spec is None else spec


def with_sharding_constraint(x: Any, axis_resources: Any) -> Any:
    """Older form of ``meshwright.lax.with_sharding_constraint``, in which None means ``PartitionSpec()``.

    Raises:
      ShardingError, MeshError: as for ``meshwright.lax.with_sharding_constraint``.
    """
    return constrained(x, pytree.map(_whole, axis_resources, is_leaf=is_spec))
