"""User-defined kernels that XLA calls by name (FFI). Those for CPUs are registered at once, others with their plugin.

``jaxlib`` has one registry per process, so kernels registered by other libraries are available too.
"""

from __future__ import annotations

import ctypes
from importlib.resources import files
from typing import Any

from jaxlib import xla_client as xc

#: the capsule name that XLA expects
_CAPSULE = b"xla._CUSTOM_CALL_TARGET"


def register_target(name: str, kernel: Any, platform: str, api_version: int, traits: int) -> None:
    """Register ``kernel``, a capsule or one per stage, so that programs for ``platform`` can call it as ``name``."""
    xc.register_custom_call_target(name, kernel, platform, api_version, xc.CustomCallTargetTraits(traits))


def register_type(name: str, registration: Any, platform: str) -> None:
    """Register the type of the state that kernels keep between calls."""
    xc.register_custom_type(name, registration, platform=platform)


def capsule(function: Any) -> Any:
    """The address of a function of a loaded library as a capsule for XLA."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return make(ctypes.cast(function, ctypes.c_void_p), _CAPSULE, None)


def include_dir() -> str:
    """The folder with the headers of XLA's FFI (``xla/ffi/api/ffi.h``)."""
    return str(files("jaxlib") / "include")
