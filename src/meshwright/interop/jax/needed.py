"""Raises an error that says what to install if JAX is missing; imported before the modules that import JAX."""

from meshwright.interop.extras import require

require("jax")
