"""What turned the cache of compiled programs on. Today's way: ``config.update("compilation_cache_dir", folder)``."""

from __future__ import annotations

import os

from meshwright.core.config import config
from meshwright.runtime.pjrt import disk_cache

__all__ = ["initialize_cache", "is_initialized", "reset_cache", "set_cache_dir"]


def set_cache_dir(path: str | os.PathLike[str]) -> None:
    """Keep compiled programs in this folder, for other processes too."""
    config.update("compilation_cache_dir", path)


#: its name until 2023
initialize_cache = set_cache_dir


def reset_cache() -> None:
    """Begin anew: what was found out of this process's programs and machine, which names what is kept, is forgotten.
    Nothing else is in memory: whether and where programs are kept is what the options say, at every compilation."""
    disk_cache.forget()


def is_initialized() -> bool:
    """Whether compiled programs are kept."""
    return config.compilation_cache_dir is not None
