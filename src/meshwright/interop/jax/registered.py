"""``register_arrays``: our arrays as arguments of JAX's functions and JAX's as arguments of ours, sharing memory.

JAX has tables of the types that its functions accept. Our array type is entered there, in the way that JAX's own type
of random keys is.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NoReturn

import jax

from meshwright.core.key_types import is_key
from meshwright.core.late import LateModule
from meshwright.errors import MissingExtraError, RuleError
from meshwright.interop.jax.values import from_array, to_array
from meshwright.ir.tracing import FOREIGN, ArrayMethods, Tracer
from meshwright.runtime.array import Array
from meshwright.sharding import Sharding

_CORE: Any = LateModule("jax._src.core")
_DTYPES: Any = LateModule("jax._src.dtypes")
_SHARDINGS: Any = LateModule("jax._src.sharding_impls")
_KEYS: Any = LateModule("jax._src.random.prng")
_NEEDED = (
    (_CORE, "pytype_aval_mappings"), (_DTYPES, "register_canonicalize_value_handler"), (_DTYPES, "canonicalize_dtype"),
    (_SHARDINGS, "UNSPECIFIED"), (_KEYS, "PRNGKeyArray"),
)  # fmt: skip


def _type(x: Array) -> Any:
    """JAX's type of one of our arrays."""
    if is_key(x.dtype):
        return jax.typeof(to_array(x))
    return _CORE.ShapedArray(x.shape, _DTYPES.canonicalize_dtype(x.dtype), weak_type=x.weak_type)


def _remedy(x: Tracer) -> str:
    return (
        f"JAX cannot follow an array that Meshwright is tracing, of type {x.aval}: use the function of "
        "meshwright.numpy or meshwright.lax, or meshwright.from_jax(f) in place of JAX's f or a transformation of optax"
    )


def _refuse(x: Tracer) -> NoReturn:
    raise RuleError(_remedy(x))


class _Traced:
    """What JAX's operators get for a tracer: a type unknown to them, so that they return ``NotImplemented``.

    Python then calls the tracer's operator. JAX's other functions show its ``repr``, the remedy, in their errors.
    """

    def __init__(self, remedy: str) -> None:
        self.remedy = remedy

    def __repr__(self) -> str:
        return f"<{self.remedy}>"


class _SeenAsArrays:
    """A base class with which ``isinstance(x, jax.Array)`` is true: ``isinstance`` also looks at ``__class__``."""

    __slots__ = ()
    __class__ = property(lambda self: jax.Array)  # type: ignore[assignment]


class _SeenAsUnspecified:
    """A base class that makes JAX take our shardings as unspecified, as it does not know their devices."""

    __slots__ = ()
    __class__ = property(lambda self: type(_SHARDINGS.UNSPECIFIED))  # type: ignore[assignment]
    _is_concrete = False


@cache
def register_arrays() -> None:
    """Make JAX's functions accept our arrays and ours accept JAX's, and ``isinstance(x, jax.Array)`` true for ours.

    Memory is shared through DLPack. JAX's functions return JAX's arrays, and ours return ours; an operator between one
    of each returns JAX's. So optax's transformations and chex's assertions can be used unchanged:

      >>> mw.interop.jax.register_arrays()
      >>> loss, grads = mw.value_and_grad(loss_of)(params)
      >>> updates, state = tx.update(grads, state, params)
      >>> params = optax.apply_updates(params, updates)

    A function of JAX that is called *inside* of a traced function (``jit``, ``grad``) would get tracers, which JAX
    cannot use. Convert it with :func:`meshwright.from_jax`, which takes optax's transformations too.

    Raises:
      MissingExtraError: the installed release of JAX does not have these tables in the same place.
    """
    missing = [f"{module._name}.{name}" for module, name in _NEEDED if not _has(module, name)]
    if missing:
        raise MissingExtraError(
            f"register_arrays: JAX {jax.__version__} has no {', '.join(missing)}, where releases 0.10 keep the types "
            "that functions take; install 'jax>=0.10.2,<0.11', or convert at the border: "
            "meshwright.interop.jax.from_arrays(tree), meshwright.interop.jax.to_arrays(tree)"
        )
    _CORE.pytype_aval_mappings[Array] = _type
    _CORE.pytype_aval_mappings[Tracer] = _refuse
    _DTYPES.register_canonicalize_value_handler(Array, to_array)
    Array.__jax_array__ = to_array  # type: ignore[attr-defined]
    Tracer.__jax_array__ = lambda self: _Traced(_remedy(self))  # type: ignore[attr-defined]
    for kind, stand_in in ((ArrayMethods, _SeenAsArrays), (Sharding, _SeenAsUnspecified)):
        kind.__bases__ = (stand_in, *kind.__bases__)
    FOREIGN[type(jax.numpy.zeros(()))] = FOREIGN[_KEYS.PRNGKeyArray] = from_array


def _has(module: Any, name: str) -> bool:
    try:
        return hasattr(module, name)
    except ImportError:
        return False
