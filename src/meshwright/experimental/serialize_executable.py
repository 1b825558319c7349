"""``jax.experimental.serialize_executable``: compiled programs as bytes, for other processes on machines like this."""

from meshwright.api.serialized import deserialize_and_load, serialize

__all__ = ["deserialize_and_load", "serialize"]
