"""Says what to install where JAX is missing; imported before what imports JAX."""

from meshwright.interop.extras import require

require("jax")
