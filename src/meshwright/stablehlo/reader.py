"""Foreign programs, read in a process of their own.

XLA's and MLIR's readers trust what they read: damaged input can end the process, or take all its time and memory. So
they run in a child that imports nothing but ``jaxlib``, under limits (``config.load_seconds``, ``config.load_memory``).
What it hands back MLIR has written itself, and is well-formed. The child is kept: only the first program waits for its
start. It ends when its standard input does, with this process or before.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

import jaxlib
import numpy as np

from meshwright.core.config import config
from meshwright.errors import ImportProgramError

_PROGRAM = Path(__file__).with_name("reader_child.py")
#: bytes a second that are read at least, beside ``config.load_seconds``
_PACE = 500_000
#: a child that has read as much may hold on to much memory
_LARGE = 64 * 2**20


class Refused(Exception):
    """The readers' complaints: places (of MLIR's, or empty) and messages."""

    def __init__(self, complaints: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(message for _, message in complaints))
        self.complaints = complaints


class _Child:
    """The process that reads. Not for several threads at once."""

    def __init__(self) -> None:
        folders = dict.fromkeys(str(Path(package.__path__[0]).parent) for package in (jaxlib, np))
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM), *folders],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
            start_new_session=True,  # Ctrl-C at a terminal is for us
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )  # fmt: skip

    def ask(self, form: str, data: bytes, seconds: int, memory: int) -> bytes:
        """The answer to one request.

        Raises:
          Refused: what was sent cannot be read; ChildEnded: the process ended over it.
        """
        self.errors.seek(0)  # where the child writes too: it shares the position
        self.errors.truncate()
        header = {"form": form, "bytes": len(data), "seconds": seconds, "memory": memory}
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(json.dumps(header).encode() + b"\n")
            stdin.write(data)
            stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        line = stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {"bytes": -1}
        result = stdout.read(answer["bytes"]) if answer["bytes"] > 0 else b""
        if len(result) != answer["bytes"]:
            raise self._ended()
        if answer["refused"] is not None:
            raise Refused([(place, message) for place, message in answer["refused"]])
        return result

    def _ended(self) -> ChildEnded:
        self.close(kill=False)
        self.errors.seek(0)
        stderr = self.errors.read().decode(errors="replace").strip()
        return ChildEnded(self.process.returncode, stderr)

    def close(self, kill: bool = True) -> None:
        if kill:
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()  # type: ignore[union-attr]
            except BrokenPipeError:
                continue
        self.process.wait()

    def forget(self) -> None:
        """In a fork of the process that started it: it is not ours."""
        self.process.returncode = 0
        for pipe in (self.process.stdin, self.process.stdout):
            os.close(pipe.fileno())  # type: ignore[union-attr]


class ChildEnded(Exception):
    """The process that reads has ended instead of giving an answer: by a signal, if ``status`` is negative."""

    def __init__(self, status: int, stderr: str) -> None:
        super().__init__(status)
        self.status = status
        self.stderr = stderr

    def why(self, seconds: int, memory: int) -> str:
        """What happened, and what to do about it."""
        if self.status == -signal.SIGALRM:
            return f"reading it takes longer than {seconds} s; if it is not damaged, raise config.load_seconds"
        if "bad_alloc" in self.stderr or "out of memory" in self.stderr.lower():
            size = f"{memory / 2**30:.1f} GiB"
            return f"reading it takes more than {size} of memory; if it is not damaged, raise config.load_memory"
        if self.status < 0:
            name = signal.Signals(-self.status).name
            return f"XLA's reader ended with {name}: the program is damaged, or has something it does not expect"
        lines = self.stderr.splitlines()
        return f"the process that reads it failed: {lines[-1] if lines else 'no message'}"


_lock = threading.Lock()
_child: _Child | None = None


def read(form: str, data: bytes) -> bytes:
    """StableHLO as bytecode from ``data``: ``"stablehlo"`` or ``"hlo"`` text in UTF-8, a serialized ``HloModuleProto``
    (``"proto"``), ``"bytecode"`` or portable artifact. Three forms ask for something else: the text of a serialized
    ``"sharding"``, that of a proto in which something is ``"unsaid"`` by StableHLO (of another one nothing), and
    whether the ``"names"`` in bytecode can be used.

    Raises:
      Refused: it cannot be read; ImportProgramError: reading it ended the child.
    """
    global _child
    seconds, memory = config.load_seconds + len(data) // _PACE, config.load_memory
    with _lock:
        if _child is not None and _child.process.poll() is not None:
            _drop()
        if _child is None:
            _child = _started()
        kept = False
        try:
            result = _child.ask(form, data, seconds, memory)
            kept = len(data) < _LARGE
            return result
        except Refused:
            kept = True
            raise
        except ChildEnded as ended:
            raise ImportProgramError(ended.why(seconds, memory)) from None
        finally:
            if not kept:
                _drop()


def _started() -> _Child:
    try:
        return _Child()
    except OSError as error:
        raise ImportProgramError(f"the process that reads foreign programs cannot be started: {error}") from None


def _drop() -> None:
    global _child
    child, _child = _child, None
    if child is not None:
        child.close()


def _forget() -> None:
    """A fork of this process gets a lock and a child of its own."""
    global _lock, _child
    child, _lock, _child = _child, threading.Lock(), None
    if child is not None:
        child.forget()


atexit.register(_drop)
os.register_at_fork(after_in_child=_forget)


@lru_cache(maxsize=4096)
def sharding_text(proto: bytes) -> str:
    """The text of a GSPMD sharding from the serialized proto that older programs hold.

    Raises:
      ImportProgramError: it is none.
    """
    try:
        return read("sharding", proto).decode()
    except Refused as refused:
        raise ImportProgramError(f"a sharding is no text and no proto: {refused}") from None
