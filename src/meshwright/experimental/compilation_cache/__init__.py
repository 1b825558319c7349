"""``jax.experimental.compilation_cache``. Now: ``config.update("compilation_cache_dir", folder)``."""

from meshwright.core.late import late_attributes, submodules

__getattr__, __dir__ = late_attributes(__name__, {}, submodules(__name__, "compilation_cache"))
