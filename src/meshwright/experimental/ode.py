"""``jax.experimental.ode``: initial value problems."""

from meshwright.core.absent import absent as _absent
from meshwright.ode import odeint

__all__ = ["odeint"]

__getattr__ = _absent("experimental.ode")
