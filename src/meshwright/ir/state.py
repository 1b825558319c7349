"""Thread-local state: the current trace and the named axes in scope.

Tracing is "stackless", as in recent JAX: the current trace interprets every op. The trace of a transformation has a
parent, which it makes current while it runs a rule.
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
    #: the axes of ``axis_env`` that types track in ``vma``
    checked: Axes = NOWHERE
    #: state of the enclosing ``pmap`` calls
    nest: Any = None
    #: if set, ambiguous shardings over explicit axes are resolved, not errors (:mod:`meshwright.ir.explicit`)
    decided: Any = None
    #: whether ops on concrete values are evaluated while others are recorded
    folding: bool = False


STATE = _State()


class set_trace:
    """``with set_trace(t):`` makes ``t`` the current trace. A class rather than a generator, for speed."""

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
def ensure_compile_time_eval() -> Iterator[None]:
    """In the ``with`` block, ops on concrete values are evaluated even while those on traced ones are recorded.

    Example:
      >>> @mw.jit
      ... def f(x):
      ...     with mw.ensure_compile_time_eval():
      ...         n = int(mnp.arange(4).sum())  # a number already, not a traced value
      ...     return x * n
      >>> f(2.0)
      Array(12., dtype=float32, weak_type=True)
    """
    old, STATE.folding = STATE.folding, True
    try:
        yield
    finally:
        STATE.folding = old


@contextmanager
def extend_axis_env(axes: Mapping[str, int], checked: bool = False) -> Iterator[None]:
    """Bring named axes into scope for collectives; with ``checked``, types track which values vary over them."""
    old = STATE.axis_env, STATE.checked
    STATE.axis_env = {**STATE.axis_env, **axes}
    if checked:
        STATE.checked = STATE.checked.union(axes)
    try:
        yield
    finally:
        STATE.axis_env, STATE.checked = old


@contextmanager
def outside() -> Iterator[None]:
    """No named axes are in scope, and types track none: for what is a program by itself."""
    old = STATE.axis_env, STATE.checked
    STATE.axis_env, STATE.checked = {}, NOWHERE
    try:
        yield
    finally:
        STATE.axis_env, STATE.checked = old


def scope() -> tuple[Any, ...]:
    """A cache key for what is traced with the axes now in scope."""
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
