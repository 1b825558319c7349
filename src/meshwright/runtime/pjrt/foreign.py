"""User-defined kernels that XLA calls by name (FFI). Those for CPUs are registered at once, others with their plugin.

``jaxlib`` has one registry per process, so kernels registered by other libraries are available too.
"""

from __future__ import annotations

import ctypes
from importlib.resources import files
from typing import Any

from jaxlib import xla_client as xc

#: what XLA looks for in a capsule
_CAPSULE = b"xla._CUSTOM_CALL_TARGET"


def register_target(name: str, kernel: Any, platform: str, api_version: int, traits: int) -> None:
    """Let programs for ``platform`` call ``kernel``, a capsule or one for each stage, as ``name``."""
    xc.register_custom_call_target(name, kernel, platform, api_version, xc.CustomCallTargetTraits(traits))


def register_type(name: str, registration: Any, platform: str) -> None:
    """Make the type of what kernels keep between their calls known."""
    xc.register_custom_type(name, registration, platform=platform)


def capsule(function: Any) -> Any:
    """The address of a function of a library that is loaded, as XLA takes it."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return make(ctypes.cast(function, ctypes.c_void_p), _CAPSULE, None)


def include_dir() -> str:
    """Where the headers of XLA's interface for kernels (``xla/ffi/api/ffi.h``) are."""
    return str(files("jaxlib") / "include")
