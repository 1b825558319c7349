"""Conversion of meshes, shardings and arrays between JAX and Meshwright."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from meshwright import random
from meshwright.core import key_types, pytree
from meshwright.core.late import LateModule
from meshwright.errors import ArgumentTypeError, ShardingError
from meshwright.numpy.creation import asarray
from meshwright.runtime.array import Array, from_numpy
from meshwright.runtime.devices import device_count, make_mesh
from meshwright.runtime.dlpack import of_xlas_memory
from meshwright.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec


def from_mesh(mesh: Any) -> AbstractMesh:
    """An abstract mesh with the axis names and sizes of a ``jax.sharding.Mesh`` or ``AbstractMesh``.

    All axes are ``Auto``, since lowered programs of JAX contain the shardings of explicit axes as annotations.
    """
    return AbstractMesh(tuple(mesh.shape.values()), tuple(mesh.shape))


def on_devices(mesh: AbstractMesh) -> Mesh | AbstractMesh:
    """A mesh of our first devices with the axes of ``mesh``, or ``mesh`` itself if there are too few devices."""
    return make_mesh(mesh.axis_sizes, mesh.axis_names) if mesh.size <= device_count() else mesh


def from_sharding(sharding: Any, mesh: Any = None) -> NamedSharding:
    """Convert a ``jax.sharding.NamedSharding``; the result is over ``mesh``, by default an abstract mesh of its axes.

    Raises:
      ShardingError: ``sharding`` is not a ``jax.sharding.NamedSharding``.
    """
    if not isinstance(sharding, jax.sharding.NamedSharding):
        raise ShardingError(f"from_sharding: expected a jax.sharding.NamedSharding, got {sharding!r}")
    return NamedSharding(from_mesh(sharding.mesh) if mesh is None else mesh, PartitionSpec(*sharding.spec))


#: the names of dtypes that XLA cannot share through DLPack
WITHOUT_DLPACK = ("int2", "uint2", "int4", "uint4")


def _is_jaxs(x: Any) -> bool:
    # After ``register_arrays``, ours are instances of ``jax.Array`` too.
    return isinstance(x, jax.Array) and not isinstance(x, Array)


def is_key(x: Any) -> bool:
    """Whether ``x`` is one of JAX's arrays of typed random keys."""
    return _is_jaxs(x) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def from_array(x: Any) -> Any:
    """Convert one of JAX's arrays; memory is shared if it is on one device of the host. Typed keys stay typed keys.

    Raises:
      ArgumentTypeError: it is a tracer, which has no elements yet.
    """
    if isinstance(x, jax.core.Tracer):
        raise ArgumentTypeError(
            f"expected an array, got a tracer of JAX's: {x.aval.str_short()}. Functions that JAX transforms (jax.jit, "
            "grad, vmap) call JAX's functions as they are, without from_jax, and ours by to_jax"
        )
    if is_key(x):
        return random.wrap_key_data(from_array(jax.random.key_data(x)), impl=str(jax.random.key_impl(x)))
    if len(x.sharding.device_set) > 1 or x.dtype.name in WITHOUT_DLPACK:
        ours = from_numpy(np.asarray(x))
    else:
        ours = of_xlas_memory(x)
    return Array(ours.aval.update(weak_type=True), ours.buffer, ours.sharding) if x.weak_type else ours


def from_arrays(tree: Any) -> Any:
    """Convert all of JAX's arrays in a pytree to ours; those on one device of the host share memory with the originals.

    Example:
      >>> mw.interop.jax.from_arrays({"w": jax.numpy.ones(2)})
      {'w': Array([1., 1.], dtype=float32)}
    """
    return pytree.map(lambda x: from_array(x) if _is_jaxs(x) else x, tree)


def words(x: Any) -> Any:
    """An argument in the form that a lowered program takes: one of our arrays; for typed keys, their words."""
    if is_key(x):
        return from_array(jax.random.key_data(x))
    if _is_jaxs(x):
        return from_array(x)
    return random.key_data(x) if hasattr(x, "dtype") and hasattr(x.dtype, "words") else asarray(x)


def to_array(x: Array) -> Any:
    """Convert one of our arrays to JAX's; typed keys stay typed keys.

    Memory is shared if DLPack supports the dtype and JAX would not narrow it (as it does without ``jax_enable_x64``);
    else the array is copied.

    Raises:
      DLPackError: memory is to be shared and the array is on several devices.
    """
    if key_types.is_key(x.dtype):
        return jax.random.wrap_key_data(to_array(random.key_data(x)), impl=str(random.key_impl(x)))
    shared = x.dtype.name not in WITHOUT_DLPACK and jax.dtypes.canonicalize_dtype(x.dtype) == x.dtype
    taken = jax.dlpack.from_dlpack(x) if shared else jax.numpy.asarray(np.asarray(x))
    return _LAX._convert_element_type(taken, weak_type=True) if x.weak_type else taken


def to_arrays(tree: Any) -> Any:
    """Convert all of our arrays in a pytree to JAX's; the inverse of :func:`from_arrays`.

    Memory is shared if DLPack supports the dtype and JAX would not narrow it; else the array is copied.

    Raises:
      DLPackError: an array is on several devices.

    Example:
      >>> mw.interop.jax.to_arrays({"w": mnp.ones(2)})
      {'w': Array([1., 1.], dtype=float32)}
    """
    return pytree.map(lambda x: to_array(x) if isinstance(x, Array) else x, tree)


_LAX: Any = LateModule("jax._src.lax.lax")
