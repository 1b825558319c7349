"""Persistent compilation cache (``config.compilation_cache_dir``), so that a second process starts warm.

An entry is machine code that will be run, so it is read only from a folder that no other user can write to, and only if
its hash matches. Its key is the hash of everything that determines it: the program without source locations, XLA's
options and flags, the versions of ``jaxlib`` and its platform, the devices, and the features of this processor.

Lowering a large program takes longer than loading its executable. So *notes*, stored next to the entries, map programs
that have not been lowered yet to their entries. Their key is the hash of everything that determines such a program
(``ir/fingerprint.py``), including Meshwright's own sources.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import jaxlib
import ml_dtypes
import numpy as np
from jaxlib import xla_client as xc

from meshwright.core.config import OPTIONS, config
from meshwright.core.source import warn
from meshwright.errors import CompilationCacheWarning
from meshwright.runtime.pjrt.world import CAUSE, WORLD, ranks_of

_MAGIC = b"meshwright executable 1\n"
_SUFFIX, _NOTE, _UNFINISHED = ".xla", ".note", "tmp"
#: seconds after which an unfinished file is taken to be abandoned
_ABANDONED = 3600.0


def compiled(text: Callable[[], str], client: Any, devices: Any, options: Any, compile: Callable[[], Any]) -> Any:
    """The executable of the program with this ``text``, from the cache if it is used and has it, or ``compile()``."""
    if not is_used():
        return compile()
    content = text()
    path = _folder() / (_key(content, client, options) + _SUFFIX)
    done = "" if WORLD.service is None else f"meshwright/compiled/{_digest(content, options)}"
    if not path.exists() and not _compiles_first(devices):
        _wait_for_first(done, devices)
    if (loaded := _loaded(path, client, devices, options, _warn)) is None:
        loaded = _kept(path, compile)
    if WORLD.service is not None and _compiles_first(devices):  # even if other machines do not see the file
        with suppress(RuntimeError):  # without this message the others only lose time
            WORLD.service.key_value_set(done, "1", allow_overwrite=True)
    return loaded


def _kept(path: Path, compile: Callable[[], Any]) -> Any:
    """Return ``compile()``, and store it in a file if it took long enough and is large enough."""
    started = time.perf_counter()
    loaded = compile()
    if time.perf_counter() - started >= config.persistent_cache_min_compile_time_secs:
        blob = loaded.serialize()
        if len(blob) >= config.persistent_cache_min_entry_size_bytes:
            _write(path, blob)
    return loaded


def is_used() -> bool:
    """Whether compiled programs are looked up and stored."""
    return bool(config.compilation_cache_dir) and config.enable_compilation_cache


def _folder() -> Path:
    folder = Path(config.compilation_cache_dir or "")
    with suppress(RuntimeError):  # there is no home directory
        folder = folder.expanduser()
    return folder


def _loaded(path: Path, client: Any, devices: Any, options: Any, say: Callable[[str], None]) -> Any:
    """XLA's executable from a file; None if it is missing or cannot be loaded (reported by ``say``)."""
    try:
        return None if (blob := _read(path, say)) is None else client.deserialize_executable(blob, devices, options)
    except Exception as error:  # XLA's own errors, of a type that is not public
        say(f"{path} could not be loaded ({error}); the program is compiled again")


# --- notes --------------------------------------------------------------------------------------------------
def noted(mark: bytes, client: Any, options: Any) -> tuple[str, Any] | None:
    """The key of the executable and the facts that :func:`remember` noted for a fingerprint, or None."""
    content = _read(_note(mark, client, options), _silent)
    return None if content is None else tuple(json.loads(content))


def loaded(key: str, client: Any, devices: Any, options: Any) -> Any:
    """The executable with the key of a note; None if it is missing or cannot be loaded."""
    return _loaded(_folder() / (key + _SUFFIX), client, devices, options, _silent)


def remember(mark: bytes, text: str, facts: Any, client: Any, options: Any) -> None:
    """Note that the program with this fingerprint is lowered to ``text``, if that is stored, and JSON ``facts``."""
    key = _key(text, client, options)
    if (_folder() / (key + _SUFFIX)).exists():
        _write(_note(mark, client, options), json.dumps([key, facts]).encode())


def note_name(mark: bytes, client: Any, options: Any) -> str:
    """The hash of a fingerprint and of everything else that determines the executable."""
    return _key(f"{mark.hex()} {_settings()} {_sources()}", client, options)


def _note(mark: bytes, client: Any, options: Any) -> Path:
    return _folder() / (note_name(mark, client, options) + _NOTE)


def _settings() -> list[tuple[str, str]]:
    """All options except those of the cache itself."""
    cached = ("compilation_cache", "persistent_cache", "enable_compilation_cache")
    return [(name, repr(getattr(config, name))) for name in (*OPTIONS, "wide_types") if not name.startswith(cached)]


@cache
def _sources() -> str:
    """What lowering depends on: this package, by the paths, sizes and times of its files, and its dependencies."""
    state = sorted(_states(Path(__file__).parents[2]))
    return f"{sys.version} {np.__version__} {ml_dtypes.__version__} {state}"


def _states(folder: str | Path) -> Iterator[tuple[str, int, int]]:
    """The path, size and time of each Python file below a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _states(entry.path)
            elif entry.name.endswith(".py"):
                state = entry.stat()
                yield entry.path, state.st_size, state.st_mtime_ns


# --- processes that share a folder --------------------------------------------------------------------------
def _compiles_first(devices: Any) -> bool:
    """Whether this process is the one that compiles, among those that run the program."""
    return WORLD.service is None or ranks_of(devices)[0] == WORLD.rank


def _wait_for_first(done: str, devices: Any) -> None:
    """Wait until the first process has compiled the program, which sets the key ``done``.

    Gives up after a timeout, as the first process may have had the program compiled already.

    Raises:
      DistributedError: another process has failed.
    """
    if len(ranks_of(devices)) < 2:
        return
    seconds = config.collective_timeout
    try:
        WORLD.service.blocking_key_value_get(done, int(1000 * seconds))
    except RuntimeError:
        late = TimeoutError(f"nothing; no other process has compiled the program in {seconds:g} s")
        if (error := CAUSE.value(late, "the compilation by another process")) is not None:
            raise error from None


# --- the key ------------------------------------------------------------------------------------------------
def _key(text: str, client: Any, options: Any) -> str:
    flags = os.environ.get("XLA_FLAGS", ""), str(config.reproducible_sums)  # the latter sets a flag at startup
    return _digest(text, options, machine(client), *flags)


def _digest(text: str, options: Any, *more: str) -> str:
    """The hash of a program and its options; without ``more``, it does not depend on the processor."""
    digest = hashlib.sha256()
    for part in (text, options.SerializeAsString().hex(), *more):
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()


@cache
def machine(client: Any) -> str:
    """Identifies the compiler and the machine that it compiles for."""
    # Processes of a job have different local devices; the shared ones are part of the options, and so of the key.
    alone = WORLD.count == 1
    topology = xc.get_topology_for_devices(client.local_devices()).fingerprint() if alone else WORLD.count
    info = Path("/proc/cpuinfo")
    features = re.search(r"^(?:flags|Features)\s*:.*$", info.read_text(), re.M) if info.exists() else None
    return f"{jaxlib.__version__} {client.platform_version} {topology} {features.group() if features else ''}"


def forget() -> None:
    """Clear the cached facts about the sources and the machine."""
    _sources.cache_clear()
    machine.cache_clear()


# --- files --------------------------------------------------------------------------------------------------
def _warn(text: str) -> None:
    warn(f"compilation cache: {text}", CompilationCacheWarning)


def _silent(text: str) -> None:
    """Ignore a problem that is reported later, when the program is compiled."""


def _read(path: Path, say: Callable[[str], None] = _warn) -> bytes | None:
    """The content of a file; None if it is missing, or cannot be trusted (reported by ``say``)."""
    try:
        if not _is_private(path.parent) or not _is_private(path):
            say(f"{path} can be written to by other users and is not read; chmod go-w it and its folder")
            return None
        content = path.read_bytes()
        with suppress(OSError):  # the file is another user's, or read-only; whoever can write to it evicts it
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
    """Store a program in the cache, then evict old ones."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _put(path, _MAGIC + hashlib.sha256(blob).digest() + blob)
        _evict(path.parent)
    except OSError as error:
        _warn(f"a compiled program could not be kept in {path.parent}: {error}")


def _put(path: Path, content: bytes) -> None:
    """Write a file atomically, even if other processes write it at the same time."""
    handle, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _sizes(folder: Path, pattern: str) -> Iterator[tuple[float, int, Path]]:
    """The time, size and path of files, without those that another process removes meanwhile."""
    for path in folder.glob(pattern):
        with suppress(FileNotFoundError):
            status = path.stat()
            yield status.st_mtime, status.st_size, path


def _evict(folder: Path) -> None:
    """Remove the least recently used entries beyond ``compilation_cache_max_size``, abandoned files and stale notes."""
    if config.compilation_cache_max_size < 0:
        return
    total = 0
    for _, size, entry in sorted(_sizes(folder, "*" + _SUFFIX), reverse=True):
        total += size
        if total > config.compilation_cache_max_size:
            entry.unlink(missing_ok=True)
    for written, _, left in _sizes(folder, _UNFINISHED + "*"):
        if time.time() - written > _ABANDONED:
            left.unlink(missing_ok=True)
    for note in folder.glob("*" + _NOTE):
        content = _read(note, _silent)
        if content is None or not note.with_name(json.loads(content)[0] + _SUFFIX).exists():
            note.unlink(missing_ok=True)
