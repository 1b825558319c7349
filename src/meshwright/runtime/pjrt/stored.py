"""Serialization of single-device executables."""

from __future__ import annotations

from typing import Any

from jaxlib import _jax

from meshwright.errors import CompileError
from meshwright.runtime.pjrt import compiler, disk_cache
from meshwright.runtime.pjrt.client import client, first_local, real_devices


def machine() -> str:
    """The compiler and the machine that it compiles for. Code runs wherever this string is the same."""
    return disk_cache.machine(client())


def calls_lapack(loaded: Any) -> bool:
    """Whether an executable calls SciPy's LAPACK, which must be registered before it is loaded."""
    return any(compiler.calls_lapack(module.to_string()) for module in loaded.hlo_modules())


def deserialized(code: bytes, with_lapack: bool) -> Any:
    """Load an executable that XLA serialized.

    Raises:
      CompileError: XLA cannot load it.
    """
    if with_lapack:
        compiler.load_lapack()
    devices = _jax.DeviceList((real_devices()[first_local()],))
    try:
        return client().deserialize_executable(code, devices, compiler.compile_options(1, 1))
    except Exception as error:  # XLA's own errors, of a type that is not public
        raise CompileError(f"XLA could not load a serialized program: {error}") from None
