"""``jax.experimental.compilation_cache``: today's way is ``config.update("compilation_cache_dir", folder)``."""
