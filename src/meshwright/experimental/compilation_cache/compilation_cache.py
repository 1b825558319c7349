"""What turned the cache of compiled programs on. Today's way: ``config.update("compilation_cache_dir", folder)``."""

from __future__ import annotations

import os

from meshwright.core.config import config

__all__ = ["initialize_cache", "is_initialized", "set_cache_dir"]


def set_cache_dir(path: str | os.PathLike[str]) -> None:
    """Keep compiled programs in this folder, for other processes too."""
    config.update("compilation_cache_dir", path)


#: its name until 2023
initialize_cache = set_cache_dir


def is_initialized() -> bool:
    """Whether compiled programs are kept."""
    return config.compilation_cache_dir is not None
