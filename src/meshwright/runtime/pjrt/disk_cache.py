"""Compiled programs on disk, so that a second process starts warm: ``config.compilation_cache_dir``.

An entry is machine code that will be run: it is read only from a folder that no other user can write to, and only if
its hash is right. Its name is the hash of all that shapes it: the program without source locations, XLA's options and
flags, the versions of ``jaxlib`` and its platform, the devices, and what this processor can do.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
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
_SUFFIX = ".xla"


def compiled(text: Callable[[], str], client: Any, devices: Any, options: Any, compile: Callable[[], Any]) -> Any:
    """What ``compile()`` gives for the program with this ``text``, from the cache if there is one and it is there."""
    folder = config.compilation_cache_dir
    if not folder or not config.enable_compilation_cache:
        return compile()
    key = _key(text(), client, options)
    path = Path(folder) / (key + _SUFFIX)
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
def _read(path: Path) -> bytes | None:
    """The program in a file; None if there is none that can be trusted."""
    try:
        if not _is_private(path.parent) or not _is_private(path):
            _warn(f"{path} can be written to by other users and is not read; chmod go-w it and its folder")
            return None
        content = path.read_bytes()
        os.utime(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn(f"{path} could not be read: {error}")
        return None
    head = len(_MAGIC) + hashlib.sha256().digest_size
    blob = content[head:]
    if content[:head] != _MAGIC + hashlib.sha256(blob).digest():
        _warn(f"{path} is damaged; the program is compiled again")
        return None
    return blob


def _is_private(path: Path) -> bool:
    status = path.stat()
    if not hasattr(os, "getuid"):
        return True
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _write(path: Path, blob: bytes) -> None:
    """Put a program into the cache: whole or not at all, whoever else writes it at the same time."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(blob).digest() + blob)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
        _evict(path.parent)
    except OSError as error:
        _warn(f"a compiled program could not be kept in {path.parent}: {error}")


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


def _warn(text: str) -> None:
    warn(f"compilation cache: {text}", CompilationCacheWarning)
