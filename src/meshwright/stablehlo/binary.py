"""Binary programs, read in a process of their own.

XLA's readers of bytecode and protos trust what they read: damaged input can end the process. So they run in a child
that imports nothing but ``jaxlib``; what it hands back XLA has written itself, and is well-formed. The price is the
start of a Python interpreter, about a quarter of a second a program.
"""

from __future__ import annotations

import signal
import subprocess
import sys

from meshwright.errors import ImportProgramError

_REFUSED = 3
_CHILD = f"""
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from jaxlib import _hlo, _jax
data = sys.stdin.buffer.read()
try:
    if sys.argv[1] == "bytecode":
        out = _jax.mlir.mhlo_to_stablehlo(data)
    else:
        out = _jax.mlir.xla_computation_to_mlir_module(_hlo.XlaComputation(data))
except Exception as error:
    sys.stdout.buffer.write(str(error).encode(errors="replace"))
    sys.stdout.flush()
    os._exit({_REFUSED})
sys.stdout.buffer.write(out if isinstance(out, bytes) else out.encode())
"""


def from_bytecode(data: bytes, file: str) -> bytes:
    """StableHLO of this release, as bytecode, from bytecode or a portable artifact.

    Raises:
      ImportProgramError: it cannot be read.
    """
    return _converted("bytecode", data, f"{file}: the bytecode cannot be read")


def from_proto(data: bytes, file: str) -> bytes:
    """StableHLO from a serialized ``HloModuleProto``.

    Raises:
      ImportProgramError: it cannot be read.
    """
    known = "HLO text, serialized HloModuleProto, StableHLO text, bytecode or portable artifact"
    return _converted("proto", data, f"{file}: not a program in a known form ({known})")


def _converted(form: str, data: bytes, refusal: str) -> bytes:
    done = subprocess.run([sys.executable, "-c", _CHILD, form], input=data, capture_output=True)
    if done.returncode == 0:
        return done.stdout
    if done.returncode == _REFUSED:
        raise ImportProgramError(f"{refusal}: {done.stdout.decode(errors='replace')}")
    if done.returncode < 0:
        how = f"XLA's reader ended with {signal.Signals(-done.returncode).name}; the file is damaged"
        raise ImportProgramError(f"{refusal}: {how}")
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    raise ImportProgramError(f"{refusal}: the process that reads it failed: {lines[-1] if lines else 'no message'}")
