"""JAX's tables of the Python types that are taken as arrays, to which libraries add types of their own.

JAX has two: one says what type an array of such a value has, the other turns the value into an array. Here the second
alone decides; the type is that of the array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import numpy as np

from meshwright.errors import ArgumentTypeError
from meshwright.ir.tracing import FOREIGN, typeof
from meshwright.runtime.array import Array, from_numpy
from meshwright.runtime.values import as_array

Handler = Callable[[Any], Any]
_OURS = (np.ndarray, np.generic, bool, int, float, complex)


def _converted(x: Any) -> Any:
    """The array of a value, which may be a wrapper that NumPy knows how to read."""
    return as_array(x) if isinstance(x, Array) else from_numpy(np.asarray(x))


class _PythonTypes(MutableMapping[type, Handler]):
    """Functions by type: that of a type which was entered, or ``usual`` for what is an array or number anyway."""

    def __init__(self, usual: Handler) -> None:
        self._usual = usual
        self._entered: dict[type, Handler] = {}

    def __getitem__(self, kind: type) -> Handler:
        if kind in self._entered:
            return self._entered[kind]
        if isinstance(kind, type) and issubclass(kind, (*_OURS, Array)):
            return self._usual
        raise KeyError(kind)

    def __setitem__(self, kind: type, handler: Handler) -> None:
        if not isinstance(kind, type) or not callable(handler):
            raise ArgumentTypeError(f"expected a function for a class, got {handler!r} for {kind!r}")
        self._entered[kind] = handler

    def __delitem__(self, kind: type) -> None:
        del self._entered[kind]

    def __iter__(self) -> Iterator[type]:
        return iter({*self._entered, *_OURS, Array})

    def __len__(self) -> int:
        return len({*self._entered, *_OURS, Array})


class _Conversions(_PythonTypes):
    """What is entered here is taken as an array by every function from then on."""

    def __setitem__(self, kind: type, handler: Handler) -> None:
        super().__setitem__(kind, handler)
        FOREIGN[kind] = lambda x: as_array(handler(x))

    def __delitem__(self, kind: type) -> None:
        super().__delitem__(kind)
        del FOREIGN[kind]


#: ``jax.interpreters.xla.canonicalize_dtype_handlers``: by type, a function that gives an array, of NumPy or ours
canonicalize_dtype_handlers: MutableMapping[type, Handler] = _Conversions(_converted)
#: ``jax.core.pytype_aval_mappings``: by type, a function that gives the type of an array of such a value; a type that
#: is in this table alone is not taken
pytype_aval_mappings: MutableMapping[type, Handler] = _PythonTypes(lambda x: typeof(_converted(x)))


def valid_jaxtype(x: Any) -> bool:
    """Whether functions take ``x`` as an array: it has the type of one, or is a number or a tracer."""
    try:
        typeof(x)
    except ArgumentTypeError:
        return False
    return True
