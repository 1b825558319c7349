"""Compiled programs as bytes, for other processes on similar machines, which load them without compiling.

The bytes are a header that identifies the machine, a hash, and a pickle of the compiled stage, properties of the
executable, and the executable as serialized by XLA. They are code: loading them runs what their author chose.

The interface follows ``jax.experimental.serialize_executable``.
"""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import numpy as np

from meshwright.api.compiled import Compiled
from meshwright.core.expected import refused
from meshwright.core.static import only_default
from meshwright.errors import ArgumentError, ImportProgramError
from meshwright.runtime.array import from_numpy
from meshwright.runtime.executable import Executable
from meshwright.runtime.pjrt import stored
from meshwright.runtime.values import buffer_of

_MAGIC = b"meshwright compiled 1\n"
#: attributes of an executable that are stored unchanged
_FACTS = ("name", "out_avals", "out_shardings", "out_committed", "donated", "forwarded", "uncounted_flops")


def serialize(compiled: Compiled) -> tuple[bytes, Any, Any]:
    """Serialize a compiled program; returns the bytes and the structures of its arguments and results.

    Raises:
      ArgumentTypeError: not a compiled program. ArgumentError: it has callbacks, or runs on several real devices.

    Example:
      >>> from meshwright.experimental.serialize_executable import deserialize_and_load, serialize
      >>> double = mw.jit(lambda x: 2 * x).lower(mnp.arange(3)).compile()
      >>> deserialize_and_load(*serialize(double))(mnp.arange(3)).tolist()
      [0, 2, 4]
    """
    if not isinstance(compiled, Compiled):
        raise refused("serialize", "what .lower(...).compile() gives", compiled)
    executable = compiled.executable
    for why, is_so in (("calls Python", executable.waits), ("runs on several real devices", executable.is_spread)):
        if is_so:
            raise ArgumentError(f"serialize: {executable.name!r} {why}, and cannot be loaded elsewhere; use export")
    code = None if executable.loaded is None else executable.loaded.serialize()
    calls_lapack = code is not None and stored.calls_lapack(executable.loaded)
    facts = {name: getattr(executable, name) for name in _FACTS}
    constants = [np.asarray(c) for c in executable.keep or ()]
    try:
        content = pickle.dumps((compiled.stage, compiled._in_shardings, facts, constants, code, calls_lapack))
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise ArgumentError(f"serialize: {executable.name!r} holds what cannot be pickled: {error}") from None
    return _sealed(content), compiled.in_tree, compiled.out_tree


def _sealed(content: bytes) -> bytes:
    machine = hashlib.sha256(stored.machine().encode()).hexdigest().encode()
    return b"".join((_MAGIC, machine, b" ", hashlib.sha256(content).hexdigest().encode(), b"\n", content))


def _opened(data: bytes) -> Any:
    """The content of bytes made by :func:`_sealed`.

    Raises:
      ImportProgramError: not such bytes, damaged, or from another machine or version.
    """
    if not isinstance(data, bytes) or not data.startswith(_MAGIC):
        raise ImportProgramError("deserialize_and_load: expected the bytes that serialize gave, of this version")
    line, _, content = data[len(_MAGIC) :].partition(b"\n")
    machine, _, digest = line.partition(b" ")
    if digest.decode("ascii", "replace") != hashlib.sha256(content).hexdigest():
        raise ImportProgramError("deserialize_and_load: the bytes are damaged: their hash is another")
    if machine.decode("ascii", "replace") != hashlib.sha256(stored.machine().encode()).hexdigest():
        raise ImportProgramError(
            "deserialize_and_load: the program was compiled for another processor, or by another version of jaxlib; "
            "compile it here, or use export"
        )
    try:
        return pickle.loads(content)
    except (AttributeError, ImportError, TypeError, ValueError, pickle.UnpicklingError) as error:
        raise ImportProgramError(
            f"deserialize_and_load: the bytes are of another version of this package ({error}); compile it here"
        ) from None


def deserialize_and_load(
    serialized: bytes, in_tree: Any, out_tree: Any, backend: Any = None, execution_devices: Any = None
) -> Compiled:
    """Load a compiled program from what :func:`serialize` returned, possibly in another process.

    The bytes are code that runs as they are read: never pass bytes that you do not trust.

    Raises:
      ImportProgramError: not such bytes, or from another machine or version. ArgumentError: other structures.
    """
    only_default(
        "deserialize_and_load", "it runs where arrays are made", backend=backend, execution_devices=execution_devices
    )
    stage, in_shardings, facts, constants, code, calls_lapack = _opened(serialized)
    program = stage.program
    if (in_tree, out_tree) != (program.in_tree, program.out_tree):
        raise ArgumentError(
            f"deserialize_and_load: {program.name!r} takes {program.in_tree} and gives {program.out_tree}, got "
            f"in_tree={in_tree} and out_tree={out_tree}; give those that serialize returned"
        )
    loaded = None if code is None else stored.deserialized(code, calls_lapack)
    arrays = [from_numpy(c) for c in constants]
    executable = Executable(
        loaded, constants=[buffer_of(a) for a in arrays], keep=arrays, **facts,
        whole=lambda: stage.compile().executable.inspected,
    )  # fmt: skip
    on_device = None if program.mesh is None else lambda: stage.compile()._looked_into
    return Compiled(stage, executable, in_shardings, on_device)
