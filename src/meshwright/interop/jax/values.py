"""JAX's meshes, shardings and arrays as ours."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from meshwright import random
from meshwright.core import pytree
from meshwright.errors import ShardingError
from meshwright.numpy.creation import asarray
from meshwright.runtime.array import from_dlpack, from_numpy
from meshwright.sharding import AbstractMesh, NamedSharding, PartitionSpec


def from_mesh(mesh: Any) -> AbstractMesh:
    """The axes of a ``jax.sharding.Mesh`` or ``AbstractMesh``, without its devices; all ``Auto``, since programs of JAX
    come with what its types decided as annotations."""
    return AbstractMesh(tuple(mesh.shape.values()), tuple(mesh.shape))


def from_sharding(sharding: Any, mesh: Any = None) -> NamedSharding:
    """A ``jax.sharding.NamedSharding`` as ours, over ``mesh`` or the axes of its own.

    Raises:
      ShardingError: a sharding without a mesh.
    """
    if not isinstance(sharding, jax.sharding.NamedSharding):
        raise ShardingError(f"from_sharding: expected a jax.sharding.NamedSharding, got {sharding!r}")
    return NamedSharding(from_mesh(sharding.mesh) if mesh is None else mesh, PartitionSpec(*sharding.spec))


def is_key(x: Any) -> bool:
    """Whether ``x`` is an array of JAX's typed random keys."""
    return isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def from_array(x: Any) -> Any:
    """An array of JAX as ours: of the same memory if it is on one device of the host, typed keys as typed keys."""
    if is_key(x):
        return random.wrap_key_data(from_array(jax.random.key_data(x)), impl=str(jax.random.key_impl(x)))
    if len(x.sharding.device_set) == 1:
        return from_dlpack(x)
    return from_numpy(np.asarray(x))


def from_arrays(tree: Any) -> Any:
    """``tree`` with our arrays in place of JAX's.

    Example:
      >>> mw.interop.jax.from_arrays({"w": jax.numpy.ones(2)})
      {'w': Array([1., 1.], dtype=float32)}
    """
    return pytree.map(lambda x: from_array(x) if isinstance(x, jax.Array) else x, tree)


def words(x: Any) -> Any:
    """What a program takes for an argument: an array, of a key its words."""
    if is_key(x):
        return from_array(jax.random.key_data(x))
    if isinstance(x, jax.Array):
        return from_array(x)
    return random.key_data(x) if hasattr(x, "dtype") and hasattr(x.dtype, "words") else asarray(x)
