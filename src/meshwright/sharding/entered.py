"""The meshes of the ``with`` blocks around. Each thread or task has its own."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

#: outermost first; ``set_mesh`` replaces the last one
STACK: ContextVar[tuple[Any, ...]] = ContextVar("meshwright_current_mesh", default=())


def enter(mesh: Any) -> None:
    """Make ``mesh`` the current one until :func:`leave`."""
    STACK.set((*STACK.get(), mesh))


def leave() -> None:
    """Make the mesh before the last :func:`enter` the current one again."""
    STACK.set(STACK.get()[:-1])
