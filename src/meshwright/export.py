"""``jax.export``: serialized programs for other processes and versions."""

from meshwright.api.export import (
    DisabledSafetyCheck,
    Exported,
    default_export_platform,
    deserialize,
    export,
    maximum_supported_calling_convention_version,
    minimum_supported_calling_convention_version,
)
from meshwright.api.symbolic import is_symbolic_dim, symbolic_args_specs, symbolic_shape
from meshwright.api.trees_as_json import register_namedtuple_serialization, register_pytree_node_serialization
from meshwright.core.absent import absent as _absent
from meshwright.core.dimensions import SymbolicScope

__all__ = [
    "DisabledSafetyCheck", "Exported", "SymbolicScope", "default_export_platform", "deserialize", "export",
    "is_symbolic_dim", "maximum_supported_calling_convention_version", "minimum_supported_calling_convention_version",
    "register_namedtuple_serialization", "register_pytree_node_serialization", "symbolic_args_specs", "symbolic_shape",
]  # fmt: skip

__getattr__ = _absent("export")
