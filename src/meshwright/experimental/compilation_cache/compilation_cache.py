"""Older interface of the compilation cache. Now: ``config.update("compilation_cache_dir", folder)``."""

from __future__ import annotations

import os

from meshwright.core.config import config
from meshwright.runtime.pjrt import disk_cache

__all__ = ["initialize_cache", "is_initialized", "reset_cache", "set_cache_dir"]


def set_cache_dir(path: str | os.PathLike[str]) -> None:
    """Set the folder for compiled programs, which other processes can use too."""
    config.update("compilation_cache_dir", path)


#: the name of ``set_cache_dir`` until 2023
initialize_cache = set_cache_dir


def reset_cache() -> None:
    """Forget the cached facts about this process's programs and machine that are part of the cache's keys.

    Nothing else is in memory: the options for the cache are read at every compilation.
    """
    disk_cache.forget()


def is_initialized() -> bool:
    """Whether the cache is in use."""
    return config.compilation_cache_dir is not None
