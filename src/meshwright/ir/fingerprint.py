"""Content hashes of programs: programs with equal hashes compute the same.

A program is serialized with ``pickle``, which includes every part of an object, and the bytes are hashed; they are
never loaded. Parts that do not affect the computation are left out on purpose: source lines, notes, cached fields.
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

#: packages whose functions and classes may be identified by name; package versions determine what they do
_KNOWN = {"meshwright", "numpy", "ml_dtypes", "builtins", "operator", "_operator", "math", "functools", "copyreg"}
#: the largest constant, in bytes, that a hashed program may hold
_SMALL = 1 << 16


class _UnknownError(Exception):
    """The program depends on the user's Python code, or holds a constant that is too large to hash on each call."""


def fingerprint(described: Any) -> bytes | None:
    """The SHA-256 hash (32 bytes) of a tree of programs, types, layouts and plain values.

    Equal hashes mean equal trees, also across processes. None if the tree cannot be hashed: it calls Python functions
    of the user, or holds large constants.
    """
    written = io.BytesIO()
    try:
        _Writer(written, protocol=5).dump(described)
    except Exception:  # objects that cannot be pickled may raise anything
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
    """An op reduced to its name and fields; only for Meshwright's registered ops, whose name identifies the class."""
    _check_known(type(op))
    if REGISTRY.get(op.name) is not type(op):
        raise _UnknownError
    return str, (op.name, *_fields(op))


def _fields(obj: Any) -> tuple[Any, ...]:
    """The fields that ``__init__`` takes, without cached ones."""
    return tuple(getattr(obj, f.name) for f in dataclasses.fields(obj) if f.init)


def _check_known(obj: Any) -> None:
    if (getattr(obj, "__module__", None) or "").partition(".")[0] not in _KNOWN:
        raise _UnknownError


def _closed(jaxpr: ClosedJaxpr) -> tuple[Any, ...]:
    """A jaxpr (with calls inlined by the caller, so that derivative rules are not included) and its constants."""
    if any(getattr(c, "nbytes", 0) > _SMALL or not getattr(c, "is_fully_addressable", True) for c in jaxpr.consts):
        raise _UnknownError
    return jaxpr.jaxpr, [np.asarray(c) if hasattr(c, "nbytes") else c for c in jaxpr.consts]


_REDUCED: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    ShapedArray: lambda a: (a.shape, a.dtype, a.weak_type, sorted(a.vma), a.explicit, a.memory),
    Jaxpr: lambda j: (j.debug_name, j.constvars, j.invars, j.eqns, j.outvars),
    ClosedJaxpr: lambda j: _closed(inline_calls(j)),
    JaxprEqn: lambda e: (e.op, e.invars, e.outvars),
}
