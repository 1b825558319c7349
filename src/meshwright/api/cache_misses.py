"""Why a jitted function is compiled once more: what tells a call from the earlier one that is most like it.

``config.update("explain_cache_misses", True)`` logs it at each compilation, with the line of the call.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple

from meshwright.core import source
from meshwright.core.avals import ShapedArray
from meshwright.core.signature import described
from meshwright.core.weak import WeakKeys

_LOGGER = logging.getLogger("meshwright")
_SHOWN = 8  # the most differences that are listed
#: the functions that were compiled and still exist, by their code, which those of one ``lambda`` or ``def`` share
_made_of: WeakKeys[CodeType, WeakKeys[Any, bool]] = WeakKeys()
#: the names of the leaves of a call's arguments, given their structure and the static ones
Names = Callable[[Any, Any], Sequence[str]]


class CallKey(NamedTuple):
    """What the program of a call depends on, as a jitted function's cache of programs keeps it."""

    structure: Any
    static: Any
    mesh: Any
    options: Any
    types: tuple[Any, ...]

    @staticmethod
    def of(key: Sequence[Any]) -> CallKey:
        structure, static, mesh, options, *types = key
        return CallKey(structure, static, mesh, options, tuple(types[1:] if types[:1] == ["decided"] else types))


def explain(fun: Callable[..., Any], key: Sequence[Any], known: Iterable[Sequence[Any]], names: Names) -> None:
    """Log why ``fun`` is compiled for a call with this key, given those that have programs."""
    call, earlier = CallKey.of(key), [CallKey.of(k) for k in known]
    reasons = min((list(_differences(call, k, names)) for k in earlier), key=len) if earlier else [_first(fun)]
    if len(reasons) > _SHOWN:
        reasons[_SHOWN - 1 :] = [f"and {len(reasons) - _SHOWN + 1} more"]
    again = f"compiled again (program {len(earlier) + 1})" if earlier else "compiled"
    _LOGGER.warning("%s is %s at %s: %s", described(fun), again, source.current(), "; ".join(reasons))


def _first(fun: Callable[..., Any]) -> str:
    inner = fun
    while isinstance(inner, functools.partial):
        inner = inner.func
    code = getattr(inner, "__code__", None)
    if code is None:
        return "its first call"
    is_first, alive = _made_of.get(code) is None, _made_of.setdefault(code, WeakKeys())
    was_compiled, alive[fun] = alive.get(fun), True
    if is_first:
        return "its first call"
    if was_compiled:
        return "its programs were cleared"
    return (
        "it is a new function of the same code as others that were compiled; make it and jit it once, outside of what "
        "repeats, and pass what differs as arguments"
    )


def _differences(call: CallKey, earlier: CallKey, names: Names) -> Iterator[str]:
    """What tells a call from an earlier one."""
    had, has = _named(earlier, names), _named(call, names)
    if call.structure != earlier.structure:
        added, removed = [n for n in has if n not in had], [n for n in had if n not in has]
        if added:
            yield f"new arguments: {', '.join(added[:_SHOWN])}"
        if removed:
            yield f"no longer arguments: {', '.join(removed[:_SHOWN])}"
        if not added and not removed:
            yield f"the structure of the arguments: {earlier.structure} → {call.structure}"
        return
    if call.static != earlier.static:
        yield f"static arguments: {_statics(earlier.static)} → {_statics(call.static)}"
    if call.mesh is not earlier.mesh:
        yield f"the current mesh: {earlier.mesh} → {call.mesh}"
    if call.options is not earlier.options:
        yield from call.options.differences(earlier.options)
    for name, before, now in zip(has, earlier.types, call.types):
        if before != now:
            yield f"{name}: {_change(before, now)}"


def _named(call: CallKey, names: Names) -> Sequence[str]:
    try:
        return names(call.structure, call.static)
    except Exception:  # a user's class takes nothing in the place of arrays: a log must not end the call
        return [f"leaf {number}" for number in range(call.structure.num_leaves)]


def _statics(static: Any) -> str:
    if static is None:
        return "none"
    return ", ".join(f"{where}={value!r}" for where, value in (*static.positional, *static.named)) or "none"


def _change(before: Any, now: Any) -> str:
    """The difference of the types of an argument, which have their sharding where it has a fixed place."""
    (aval, place), (new_aval, new_place) = (x if isinstance(x, tuple) else (x, None) for x in (before, now))
    words = []
    if (aval.shape, aval.dtype) != (new_aval.shape, new_aval.dtype):
        words.append(f"{aval.str_short()} → {new_aval.str_short()}")
    if aval.weak_type != new_aval.weak_type:
        words.append(f"{_weakness(aval)} → {_weakness(new_aval)}")
    if place != new_place:
        kinds = {(getattr(s, "mesh", s), getattr(s, "memory_kind", None)) for s in (place, new_place)}
        words.append(" → ".join(_place(s, len(kinds) == 1) for s in (place, new_place)))
    return ", ".join(words) or f"{aval} → {new_aval}"


def _weakness(aval: ShapedArray) -> str:
    return "weakly typed" if aval.weak_type else "strongly typed"


def _place(sharding: Any, on_one_mesh: bool) -> str:
    if sharding is None:
        return "in no fixed place"
    return f"laid out as {sharding.spec}" if on_one_mesh else f"laid out as {sharding}"
