"""Parses foreign programs in a child process.

XLA's and MLIR's parsers trust their input: damaged input can crash the process, or take unlimited time and memory. So
they run in a child process that imports only ``jaxlib``, under limits (``config.load_seconds``,
``config.load_memory``). It returns bytecode that MLIR has written, which is well-formed. The child is kept for further
programs. It ends when its standard input is closed, at the latest with this process.
"""

from __future__ import annotations

import atexit
import json
import os
import re
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
#: for every so many bytes, the time limit is one second longer than ``config.load_seconds``
_PACE = 500_000
#: size in bytes of a program after which the child is ended, as it may keep much memory
_LARGE = 64 * 2**20
#: what XLA and LLVM write before they end the process, and how many characters of it are shown
_LAST_WORDS = re.compile(r"((?:Check failed|LLVM ERROR): .*?)(?:\n\*\*\*|\nPLEASE|\nStack dump|\Z)", re.DOTALL)
_MOST_WORDS = 300


class Refused(Exception):
    """A parser's errors: locations (MLIR's, or empty) and messages."""

    def __init__(self, complaints: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(message for _, message in complaints))
        self.complaints = complaints


class _Child:
    """The child process. Not thread-safe."""

    def __init__(self) -> None:
        folders = dict.fromkeys(str(Path(package.__path__[0]).parent) for package in (jaxlib, np))
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM), *folders],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
            start_new_session=True,  # so that Ctrl-C in a terminal does not end it
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )  # fmt: skip

    def ask(self, form: str, data: bytes, seconds: int, memory: int) -> bytes:
        """The answer to one request.

        Raises:
          Refused: the data cannot be read.
          ChildEnded: the process ended.
        """
        self.errors.seek(0)  # for the child too, as it shares the file position
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
        """Release the child in a fork of the process that started it, without ending it."""
        self.process.returncode = 0
        for pipe in (self.process.stdin, self.process.stdout):
            os.close(pipe.fileno())  # type: ignore[union-attr]


class ChildEnded(Exception):
    """The child process ended without an answer; by a signal if ``status`` is negative."""

    def __init__(self, status: int, stderr: str) -> None:
        super().__init__(status)
        self.status = status
        self.stderr = stderr

    @property
    def is_crash(self) -> bool:
        """Whether the parser ended the process, and no limit."""
        return self.status < 0 and self.status != -signal.SIGALRM

    def why(self, seconds: int, memory: int) -> str:
        """The cause and the remedy, given the limits."""
        if self.status == -signal.SIGALRM:
            return f"reading it takes longer than {seconds} s; if it is not damaged, raise config.load_seconds"
        if "bad_alloc" in self.stderr or "out of memory" in self.stderr.lower():
            size = f"{memory / 2**30:.1f} GiB"
            return f"reading it takes more than {size} of memory; if it is not damaged, raise config.load_memory"
        if self.status < 0:
            name = signal.Signals(-self.status).name
            said = _LAST_WORDS.search(self.stderr)
            words = " ".join(said[1].split())[:_MOST_WORDS] if said is not None else ""
            return f"XLA's reader ended with {name}: the program is damaged, or has something it does not expect" + (
                f" ({words})" if words else ""
            )
        lines = self.stderr.splitlines()
        return f"the process that reads it failed: {lines[-1] if lines else 'no message'}"


class Crashed(ImportProgramError):
    """A parser ended its process."""


_lock = threading.Lock()
_child: _Child | None = None


def read(form: str, data: bytes) -> bytes:
    """Parse ``data`` in a child process.

    Args:
      form: the form of ``data``. ``"stablehlo"`` or ``"hlo"`` text in UTF-8, a serialized ``HloModuleProto``
        (``"proto"``), and ``"bytecode"`` or a portable artifact give a StableHLO module. Three further values are
        requests for something else: ``"sharding"`` for the text of a serialized sharding; ``"unsaid"`` for the HLO text
        of a proto that StableHLO cannot fully express; ``"names"`` for a check of the names in bytecode.
      data: the program.

    Returns:
      the module as bytecode; or the text asked for, empty if StableHLO can express the proto; or nothing.

    Raises:
      Refused: the data cannot be read.
      Crashed: the child ended while reading.
      ImportProgramError: the child cannot be started, or reached a limit.
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
            kind = Crashed if ended.is_crash else ImportProgramError
            raise kind(ended.why(seconds, memory)) from None
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
    """Give a fork of this process its own lock and child."""
    global _lock, _child
    child, _lock, _child = _child, threading.Lock(), None
    if child is not None:
        child.forget()


atexit.register(_drop)
os.register_at_fork(after_in_child=_forget)


@lru_cache(maxsize=4096)
def sharding_text(proto: bytes) -> str:
    """The text of a GSPMD sharding, from the serialized proto in older programs.

    Raises:
      ImportProgramError: it is not a sharding.
    """
    try:
        return read("sharding", proto).decode()
    except Refused as refused:
        raise ImportProgramError(f"a sharding is no text and no proto: {refused}") from None
