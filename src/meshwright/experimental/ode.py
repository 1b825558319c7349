"""``jax.experimental.ode``: initial value problems."""

from meshwright.ode import odeint

__all__ = ["odeint"]
