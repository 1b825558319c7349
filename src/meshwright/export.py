"""``jax.export``: serialized programs for other processes and versions."""

from meshwright.api.export import (
    Exported,
    default_export_platform,
    deserialize,
    export,
    maximum_supported_calling_convention_version,
    minimum_supported_calling_convention_version,
)
from meshwright.core.absent import absent as _absent

__all__ = [
    "Exported", "default_export_platform", "deserialize", "export", "maximum_supported_calling_convention_version",
    "minimum_supported_calling_convention_version",
]  # fmt: skip

__getattr__ = _absent("export")
