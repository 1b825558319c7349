"""``jax.experimental.shard_map``: ``shard_map`` with its older arguments. Now: ``meshwright.shard_map``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from meshwright.api.shard_map import shard_map as today
from meshwright.errors import ArgumentError
from meshwright.sharding import AbstractMesh, Mesh, get_mesh

__all__ = ["shard_map"]


def shard_map(
    f: Callable[..., Any],
    mesh: Mesh | AbstractMesh | None,
    in_specs: Any,
    out_specs: Any,
    check_rep: bool = True,
    auto: Iterable[str] = frozenset(),
) -> Callable[..., Any]:
    """Older form of ``meshwright.shard_map``: ``check_rep`` is now ``check_vma``, and ``auto`` the axes not in
    ``axis_names``.

    Raises:
      ArgumentError: ``auto`` names an axis that the mesh does not have, or leaves no manual axis; or an error of
        ``meshwright.shard_map``.

    Example:
      >>> from meshwright.experimental.shard_map import shard_map
      >>> mesh = mw.make_mesh((2,), ("x",))
      >>> total = shard_map(lambda x: lax.psum(x.sum(), "x"), mesh, in_specs=P("x"), out_specs=P(), check_rep=False)
      >>> float(total(mnp.arange(4.0)))
      6.0
    """
    manual = _others(mesh if mesh is not None else get_mesh(), set(auto)) if auto else ()
    return today(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=manual, check_vma=check_rep)


def _others(mesh: Mesh | AbstractMesh | None, auto: set[str]) -> set[str]:
    names = () if mesh is None else mesh.axis_names
    if not auto < set(names):
        raise ArgumentError(
            f"shard_map: auto={sorted(auto)}, the mesh has the axes {list(names)}; name some of these, and leave one"
        )
    return set(names) - auto
