"""``jax.extend.core.primitives``: the primitives of ops, under JAX's names."""

from meshwright.core.absent import absent as _absent
from meshwright.lax.primitives import OpPrimitive as _OpPrimitive
from meshwright.lax.primitives import named as _named
from meshwright.lax.primitives import names as _names

_missing = _absent("extend.core.primitives")


def __getattr__(name: str) -> _OpPrimitive:
    return _named(name) or _missing(name)


def __dir__() -> list[str]:
    return _names()
