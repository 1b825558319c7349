"""Compiled programs on disk, so that a second process starts warm: ``config.compilation_cache_dir``.

An entry is machine code that will be run: it is read only from a folder that no other user can write to, and only if
its hash is right. Its name is the hash of all that shapes it: the program without source locations, XLA's options and
flags, the versions of ``jaxlib`` and its platform, the devices, and what this processor can do.

Loading a large program takes as long as lowering it, and holds no lock of Python's. So a *note* beside the entries says
which one a program was the last time that its *sketch*, which is known before it is lowered, was the same; another
thread loads it meanwhile. It is taken only if its name turns out to be the right one: a note decides nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import jaxlib
from jaxlib import xla_client as xc

from meshwright.core.config import config
from meshwright.core.source import warn
from meshwright.errors import CompilationCacheWarning
from meshwright.runtime.pjrt.world import WORLD

_MAGIC = b"meshwright executable 1\n"
_SUFFIX, _NOTE = ".xla", ".last"
#: programs of fewer bytes are loaded in a few milliseconds
_LARGE = 1 << 16


def compiled(text: Callable[[], str], client: Any, devices: Any, options: Any, compile: Callable[[], Any]) -> Any:
    """What ``compile()`` gives for the program with this ``text``, from the cache if there is one and it is there."""
    if not is_used():
        return compile()
    key = _key(text(), client, options)
    ahead = getattr(_here, "ahead", None)
    if ahead is not None and (found := ahead.taken(key)) is not None:
        return found
    path = _folder() / (key + _SUFFIX)
    blob = _read(path)
    if blob is None and not _compiles_first(devices):
        _wait_for_first(key, devices)
        blob = _read(path)
    if blob is not None:
        try:
            return client.deserialize_executable(blob, devices, options)
        except Exception as error:  # XLA's own errors, of a type that is not public
            _warn(f"{path} could not be loaded ({error}); the program is compiled again")
    started = time.perf_counter()
    loaded = compile()
    if time.perf_counter() - started >= config.persistent_cache_min_compile_time_secs:
        blob = loaded.serialize()
        if len(blob) >= config.persistent_cache_min_entry_size_bytes:
            _write(path, blob)
    if WORLD.service is not None and _compiles_first(devices):
        with suppress(RuntimeError):  # that others did not hear it costs them time, no more
            WORLD.service.key_value_set(f"meshwright/compiled/{key}", "1", allow_overwrite=True)
    return loaded


def is_used() -> bool:
    """Whether compiled programs are looked for and kept."""
    return bool(config.compilation_cache_dir) and config.enable_compilation_cache


def _folder() -> Path:
    return Path(config.compilation_cache_dir or "")


# --- loading while lowering ---------------------------------------------------------------------------------
class _Ahead:
    """What another thread loads, and what is asked for meanwhile."""

    def __init__(self, note: Path, load: Callable[[bytes], Any]) -> None:
        self._note, self._load = note, load
        self._loaded: Any = None
        self.key = self.asked = _noted(note)
        self._thread = threading.Thread(target=self._run) if self.key else None
        if self._thread is not None:
            self._thread.start()

    def _run(self) -> None:
        blob = _read(self._note.with_name(self.key + _SUFFIX), say=lambda _: None)
        if blob is not None:
            with suppress(Exception):  # what is wrong with an entry is said where it is asked for
                self._loaded = self._load(blob)

    def taken(self, key: str) -> Any:
        """The program of this name, once; None if it is not the one that was loaded."""
        self.asked = key
        if key != self.key or self._thread is None:
            return None
        self._thread.join()
        loaded, self._loaded = self._loaded, None
        return loaded

    def write_note(self) -> None:
        """Note what was asked for, for the next time."""
        entry = self._note.with_name(self.asked + _SUFFIX)
        if self.asked != self.key and entry.exists() and entry.stat().st_size >= _LARGE:
            _put(self._note, self.asked.encode())


def _noted(note: Path) -> str:
    """The entry that a note names; none if it cannot be trusted."""
    with suppress(OSError, UnicodeDecodeError):
        if _is_private(note.parent) and _is_private(note) and re.fullmatch("[0-9a-f]{64}", name := note.read_text()):
            return name
    return ""


_here = threading.local()


@contextmanager
def loading_ahead(sketch: str, client: Any, devices: Any, options: Any) -> Iterator[None]:
    """Within, what was compiled the last time that there was this ``sketch`` of a program is loaded by another thread,
    and :func:`compiled` takes it if it is what it is asked for."""
    note = _folder() / (hashlib.sha256(sketch.encode(errors="surrogatepass")).hexdigest() + _NOTE)
    ahead = _Ahead(note, lambda blob: client.deserialize_executable(blob, devices, options))
    outer, _here.ahead = getattr(_here, "ahead", None), ahead
    try:
        yield
    finally:
        _here.ahead = outer
    with suppress(OSError):
        ahead.write_note()


# --- processes that share a folder --------------------------------------------------------------------------
def _ranks(devices: Any) -> set[int]:
    return {d.process_index for d in devices}


def _compiles_first(devices: Any) -> bool:
    """Whether, of the processes that run a program together, this is the one that compiles it."""
    return WORLD.service is None or min(_ranks(devices)) == WORLD.rank


def _wait_for_first(key: str, devices: Any) -> None:
    """Wait until the first process has compiled the program; not for ever, as it may have it compiled already."""
    if len(_ranks(devices)) > 1:
        with suppress(RuntimeError):
            WORLD.service.blocking_key_value_get(f"meshwright/compiled/{key}", int(1000 * config.collective_timeout))


# --- the key ------------------------------------------------------------------------------------------------
def _key(text: str, client: Any, options: Any) -> str:
    flags = os.environ.get("XLA_FLAGS", ""), str(config.reproducible_sums)  # which stands for a flag at the start
    parts = (text, options.SerializeAsString().hex(), _machine(client), *flags)
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()


@cache
def _machine(client: Any) -> str:
    """What compiles, and for what."""
    # Of several processes each has its own; what they share, the options' devices, is in the key anyway.
    alone = WORLD.count == 1
    topology = xc.get_topology_for_devices(client.local_devices()).fingerprint() if alone else WORLD.count
    info = Path("/proc/cpuinfo")
    features = re.search(r"^(?:flags|Features)\s*:.*$", info.read_text(), re.M) if info.exists() else None
    return f"{jaxlib.__version__} {client.platform_version} {topology} {features.group() if features else ''}"


# --- files --------------------------------------------------------------------------------------------------
def _warn(text: str) -> None:
    warn(f"compilation cache: {text}", CompilationCacheWarning)


def _read(path: Path, say: Callable[[str], None] = _warn) -> bytes | None:
    """The program in a file; None if there is none that can be trusted, and why not is said."""
    try:
        if not _is_private(path.parent) or not _is_private(path):
            say(f"{path} can be written to by other users and is not read; chmod go-w it and its folder")
            return None
        content = path.read_bytes()
        os.utime(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        say(f"{path} could not be read: {error}")
        return None
    head = len(_MAGIC) + hashlib.sha256().digest_size
    blob = content[head:]
    if content[:head] != _MAGIC + hashlib.sha256(blob).digest():
        say(f"{path} is damaged; the program is compiled again")
        return None
    return blob


def _is_private(path: Path) -> bool:
    status = path.stat()
    if not hasattr(os, "getuid"):
        return True
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _write(path: Path, blob: bytes) -> None:
    """Put a program into the cache."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _put(path, _MAGIC + hashlib.sha256(blob).digest() + blob)
        _evict(path.parent)
    except OSError as error:
        _warn(f"a compiled program could not be kept in {path.parent}: {error}")


def _put(path: Path, content: bytes) -> None:
    """Write a file: whole or not at all, whoever else writes it at the same time."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _evict(folder: Path) -> None:
    """Remove the entries that were not used for longest, until the rest fits ``compilation_cache_max_size``."""
    if config.compilation_cache_max_size < 0:
        return
    entries = sorted(((e.stat().st_mtime, e.stat().st_size, e) for e in folder.glob("*" + _SUFFIX)), reverse=True)
    total = 0
    for _, size, entry in entries:
        total += size
        if total > config.compilation_cache_max_size:
            entry.unlink(missing_ok=True)
    for note in folder.glob("*" + _NOTE):
        if not note.with_name(_noted(note) + _SUFFIX).exists():
            note.unlink(missing_ok=True)
