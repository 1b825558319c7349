"""The current mesh, to which a ``PartitionSpec`` in place of a sharding refers. Each thread or task has its own.

``with mesh:`` makes a mesh current for a block, ``set_mesh`` from now on.
"""

from __future__ import annotations

from typing import Any

from meshwright.errors import MeshError
from meshwright.sharding.abstract_mesh import AbstractMesh, BaseMesh
from meshwright.sharding.entered import STACK
from meshwright.sharding.mesh import AnyMesh


class _MeshSetting:
    """The result of ``set_mesh``: as a context manager, it restores the previous mesh on exit."""

    def __init__(self, mesh: AnyMesh | None, before: tuple[AnyMesh | None, ...]) -> None:
        self.mesh = mesh
        self._before = before

    def __enter__(self) -> AnyMesh | None:
        return self.mesh

    def __exit__(self, *exception: object) -> None:
        STACK.set(self._before)


def set_mesh(mesh: AnyMesh | None) -> _MeshSetting:
    """Make ``mesh`` the current mesh, from now on or, as ``with set_mesh(mesh):``, for a block.

    The current mesh is the one to which a ``PartitionSpec`` in place of a sharding refers. None means no mesh.

    Raises:
      MeshError: ``mesh`` is not a mesh.

    Example:
      >>> with mw.set_mesh(mw.make_mesh((4,), ("x",))):
      ...     y = mw.jit(lambda x: 2 * x, in_shardings=(P("x"),), out_shardings=P("x"))(mnp.arange(8))
      >>> y.sharding
      NamedSharding(mesh=Mesh('x': 4, axis_types=(Auto,)), spec=P('x',), memory_kind=device)
    """
    require_mesh(mesh, "set_mesh")
    before = STACK.get()
    STACK.set((*before[:-1], mesh))
    return _MeshSetting(mesh, before)


def require_mesh(mesh: Any, what: str) -> None:
    """Raise ``MeshError`` unless ``mesh`` is a mesh or None."""
    if mesh is not None and not isinstance(mesh, BaseMesh):
        name = type(mesh).__name__
        raise MeshError(f"{what}: expected a Mesh, an AbstractMesh or None, got {name}; make one with make_mesh")


def get_mesh() -> AnyMesh | None:
    """The current mesh: that of the innermost ``with mesh:`` or of the last ``set_mesh``; None if there is none.

    Example:
      >>> with mw.make_mesh((2, 4), ("x", "y")):
      ...     mw.get_mesh()
      Mesh(axis_sizes=(2, 4), axis_names=('x', 'y'), axis_types=(Auto, Auto))
    """
    stack = STACK.get()
    return stack[-1] if stack else None


def get_abstract_mesh() -> AbstractMesh:
    """The current mesh without its devices; a mesh without axes if there is none.

    Example:
      >>> with mw.make_mesh((2, 4), ("x", "y")):
      ...     mw.sharding.get_abstract_mesh()
      AbstractMesh('x': 2, 'y': 4, axis_types=(Auto, Auto))
      >>> mw.sharding.get_abstract_mesh().empty
      True
    """
    mesh = get_mesh()
    return AbstractMesh((), ()) if mesh is None else mesh.abstract_mesh
