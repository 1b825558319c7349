"""Executables of one device as bytes, and back."""

from __future__ import annotations

from typing import Any

from jaxlib import _jax
from jaxlib.cpu import _lapack

from meshwright.errors import CompileError
from meshwright.runtime.pjrt import disk_cache
from meshwright.runtime.pjrt.client import client, compile_options, first_local, real_devices


def machine() -> str:
    """What compiles here, and for what: code that it made runs where this is the same."""
    return disk_cache.machine(client())


def calls_lapack(loaded: Any) -> bool:
    """Whether an executable calls SciPy's LAPACK, which is to be found before it is loaded."""
    return any("lapack_" in module.to_string() for module in loaded.hlo_modules())


def deserialized(code: bytes, with_lapack: bool) -> Any:
    """An executable as XLA serialized it.

    Raises:
      CompileError: XLA cannot load it.
    """
    if with_lapack:
        _lapack.initialize()
    devices = _jax.DeviceList((real_devices()[first_local()],))
    try:
        return client().deserialize_executable(code, devices, compile_options(1, 1))
    except Exception as error:  # XLA's own errors, of a type that is not public
        raise CompileError(f"XLA could not load a serialized program: {error}") from None
