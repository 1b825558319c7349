"""A program as bytes in which everything stands that it computes: what has the same bytes is the same program.

The bytes are those of Python's pickles, in which no part of an object can be left out; they are hashed, never read.
What is left out by intent does not shape what is computed: source lines, notes, and what objects keep to spare work.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import pickle
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn
from meshwright.ir.op import REGISTRY, Op
from meshwright.ir.passes import inline_calls

#: packages whose functions and classes are known by their names: what they do, the versions tell
_KNOWN = {"meshwright", "numpy", "ml_dtypes", "builtins", "operator", "_operator", "math", "functools", "copyreg"}
#: bytes of a constant that a program may hold
_SMALL = 1 << 16


class _UnknownError(Exception):
    """Something that Python code of the user's decides, or that is too large to be looked at each time."""


def fingerprint(described: Any) -> bytes | None:
    """The hash (32 bytes) of a tree of programs, types, layouts and plain values: equal hashes are of equal trees, also
    in other processes. None if it cannot be told: it calls the user's Python functions, or holds large constants."""
    written = io.BytesIO()
    try:
        _Writer(written, protocol=5).dump(described)
    except Exception:  # what objects raise that cannot be pickled, they decide
        return None
    return hashlib.sha256(written.getbuffer()).digest()


class _Writer(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if (reduce := _REDUCED.get(kind)) is not None:
            return kind, reduce(obj)
        if isinstance(obj, Op):
            return _op(obj)
        if isinstance(obj, (type, FunctionType, BuiltinFunctionType, np.ufunc)):
            _check_known(obj)
        elif dataclasses.is_dataclass(kind):
            return kind, _fields(obj)
        return NotImplemented


def _op(op: Op) -> tuple[Any, ...]:
    """An op's name stands for its class, if it is ours."""
    _check_known(type(op))
    if REGISTRY.get(op.name) is not type(op):
        raise _UnknownError
    return str, (op.name, *_fields(op))


def _fields(obj: Any) -> tuple[Any, ...]:
    """What it is made of, without what it has found out about itself."""
    return tuple(getattr(obj, f.name) for f in dataclasses.fields(obj) if f.init)


def _check_known(obj: Any) -> None:
    if (getattr(obj, "__module__", None) or "").partition(".")[0] not in _KNOWN:
        raise _UnknownError


def _closed(jaxpr: ClosedJaxpr) -> tuple[Any, ...]:
    """A program with its constants. Calls are written out: rules for derivatives are not what it computes."""
    if any(getattr(c, "nbytes", 0) > _SMALL or not getattr(c, "is_fully_addressable", True) for c in jaxpr.consts):
        raise _UnknownError
    return jaxpr.jaxpr, [np.asarray(c) if hasattr(c, "nbytes") else c for c in jaxpr.consts]


_REDUCED: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    ShapedArray: lambda a: (a.shape, a.dtype, a.weak_type, sorted(a.vma), a.explicit, a.memory),
    Jaxpr: lambda j: (j.debug_name, j.constvars, j.invars, j.eqns, j.outvars),
    ClosedJaxpr: lambda j: _closed(inline_calls(j)),
    JaxprEqn: lambda e: (e.op, e.invars, e.outvars),
}
