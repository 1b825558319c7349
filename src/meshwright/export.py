"""``jax.export``: programs as bytes for other processes and versions."""

from meshwright.api.export import Exported, deserialize, export

__all__ = ["Exported", "deserialize", "export"]
