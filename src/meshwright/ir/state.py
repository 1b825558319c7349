"""The current trace and the mesh axes in scope, for each thread.

"Stackless" tracing, as in recent JAX: one current trace interprets every op; a transformation's trace keeps its
parent and makes it current while a rule runs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from meshwright.core.avals import NOWHERE, Axes
from meshwright.errors import UnboundAxisError


class _State(threading.local):
    trace: Any = None  # set by ir.tracing
    axis_env: Mapping[str, int] = {}
    #: the axes of ``axis_env`` for which types say whether a value varies over them
    checked: Axes = NOWHERE
    #: what a ``pmap`` knows of those around it
    nest: Any = None
    #: ops whose results could be split over explicit axes in several ways need not ask (:mod:`meshwright.ir.explicit`)
    decided: Any = None


STATE = _State()


class set_trace:
    """``with set_trace(t):`` makes ``t`` the current trace. A class, since it is on every op's path."""

    __slots__ = ("old", "trace")

    def __init__(self, trace: Any) -> None:
        self.trace = trace

    def __enter__(self) -> Any:
        self.old = STATE.trace
        STATE.trace = self.trace
        return self.trace

    def __exit__(self, *exc: object) -> None:
        STATE.trace = self.old


@contextmanager
def extend_axis_env(axes: Mapping[str, int], checked: bool = False) -> Iterator[None]:
    """Bring named axes into scope for collectives; with ``checked``, types say which values vary over them."""
    old = STATE.axis_env, STATE.checked
    STATE.axis_env = {**STATE.axis_env, **axes}
    if checked:
        STATE.checked = STATE.checked.union(axes)
    try:
        yield
    finally:
        STATE.axis_env, STATE.checked = old


def scope() -> tuple[Any, ...]:
    """The axes in scope, as a key for what was traced there."""
    return tuple(STATE.axis_env.items()), STATE.checked, STATE.nest


def axis_size(name: str) -> int:
    """Size of a named axis in scope.

    Raises:
      UnboundAxisError: no ``vmap(axis_name=...)``, ``shard_map`` or mesh brings the axis into scope here.
    """
    try:
        return STATE.axis_env[name]
    except KeyError:
        known = ", ".join(map(repr, STATE.axis_env)) or "none"
        raise UnboundAxisError(
            f"axis name {name!r} is not in scope (in scope: {known}); collectives work inside "
            f"vmap(f, axis_name={name!r}), shard_map over a mesh with that axis, or an axis_env that names it"
        ) from None
