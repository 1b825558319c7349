"""Conversion of JAX's functions, programs, meshes, shardings and arrays to Meshwright's, and of functions back."""

from meshwright.interop.jax import needed as _needed
from meshwright.interop.jax.functions import to_jax
from meshwright.interop.jax.programs import JaxFunction, JaxPartitioned, JaxProgram, from_jax
from meshwright.interop.jax.registered import register_arrays
from meshwright.interop.jax.values import from_arrays, from_mesh, from_sharding, to_arrays

__all__ = [
    "JaxFunction",
    "JaxPartitioned",
    "JaxProgram",
    "from_arrays",
    "from_jax",
    "from_mesh",
    "from_sharding",
    "register_arrays",
    "to_arrays",
    "to_jax",
]
