"""``jax.experimental.serialize_executable``: compiled programs as bytes, for processes on machines of the same kind."""

from meshwright.api.serialized import deserialize_and_load, serialize

__all__ = ["deserialize_and_load", "serialize"]
