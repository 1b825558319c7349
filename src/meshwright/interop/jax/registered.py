"""``register_arrays``: our arrays as arguments of JAX's functions, and JAX's as arguments of ours, of the same memory.

JAX keeps tables of the types that its functions take; that of random keys is in them in the same way.
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
    """JAX's type of an array of ours."""
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
    """What a traced array of ours is to JAX's operators: nothing that they know, so that they leave it to ours."""

    def __init__(self, remedy: str) -> None:
        self.remedy = remedy

    def __repr__(self) -> str:
        return f"<{self.remedy}>"


class _SeenAsArrays:
    """A base that makes ``isinstance(x, jax.Array)`` hold: Python asks ``__class__`` where the type does not answer."""

    __slots__ = ()
    __class__ = property(lambda self: jax.Array)  # type: ignore[assignment]


class _SeenAsUnspecified:
    """A base for our shardings, which say nothing to JAX: they are of devices that it does not know."""

    __slots__ = ()
    __class__ = property(lambda self: type(_SHARDINGS.UNSPECIFIED))  # type: ignore[assignment]
    _is_concrete = False


@cache
def register_arrays() -> None:
    """From now on JAX's functions take our arrays, ours take JAX's, and ``isinstance(x, jax.Array)`` holds for ours.

    Memory is shared by DLPack, nothing is copied. What JAX's functions return are JAX's arrays, what ours return are
    ours; an operator between the two gives JAX's, as its arrays decide. So optax's transformations and chex's
    assertions are used as they are:

      >>> mw.interop.jax.register_arrays()
      >>> loss, grads = mw.value_and_grad(loss_of)(params)
      >>> updates, state = tx.update(grads, state, params)
      >>> params = optax.apply_updates(params, updates)

    A function of JAX's that is called *inside* of one that we trace (``jit``, ``grad``) gets traced arrays, which JAX
    cannot follow: give it through :func:`meshwright.from_jax`, which does this too for transformations of optax.

    Raises:
      MissingExtraError: the installed release of JAX keeps these tables elsewhere.
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
