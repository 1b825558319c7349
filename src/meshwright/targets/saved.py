"""Executables in files: compiled here, and run where the hardware is.

A file consists of a line of JSON, which describes the contents and the target, and the executable as serialized by the
compiler. An executable is code: it is loaded only if its hash matches and no other user can write to the file, and run
only if the user states where it comes from.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import asdict, field
from os import PathLike
from pathlib import Path

from meshwright.core.expected import as_path
from meshwright.core.files import user_file
from meshwright.core.records import dataclass
from meshwright.errors import FileError, ImportProgramError

_FORM = "meshwright executable 1"


@dataclass(frozen=True)
class SavedExecutable:
    """A compiled per-device program; ``device_ids`` are its devices in mesh order."""

    name: str
    target: str
    platform: str
    version: str
    mesh: dict[str, int]
    device_ids: tuple[int, ...]
    data: bytes = field(repr=False)

    def write(self, path: str | PathLike[str]) -> Path:
        """Write the executable to ``path`` atomically.

        Raises:
          FileError: the file cannot be written.
        """
        file = as_path("save: path", path)
        header = {k: v for k, v in asdict(self).items() if k != "data"}
        header |= {"form": _FORM, "sha256": hashlib.sha256(self.data).hexdigest(), "bytes": len(self.data)}
        if file.is_dir():  # which would be seen only when the name is taken, after the writing
            raise FileError(f"save: path {str(file)!r}: is a folder; name a file in it")
        with user_file("save: path", file):
            beside = file.with_name(file.name + ".part")
            beside.write_bytes(json.dumps(header).encode() + b"\n" + self.data)
            beside.chmod(0o600)
            beside.replace(file)
        return file


def load_executable(path: str | PathLike[str]) -> SavedExecutable:
    """Read a file written by :meth:`TargetReport.save`.

    Raises:
      ImportProgramError: the file is not such a file, is damaged, is of another version, or is writable by other users.

    Example:
      >>> part = mw.jit(lambda x: 2 * x).lower(mnp.arange(4.0)).partition(mw.AbstractMesh((2,), ("x",)))
      >>> path = __import__("tempfile").mkdtemp() + "/double"
      >>> mw.load_executable(part.compile("cpu:2").save(path)).target
      'cpu:2'
    """
    file = as_path("load_executable: path", path)
    head, _, data = _read(file).partition(b"\n")
    try:
        header = json.loads(head)
        form = header.pop("form")
        if form != _FORM and form.startswith(_FORM.rpartition(" ")[0]):
            raise ImportProgramError(
                f"{file}: {form!r} is of another version of meshwright, this one reads {_FORM!r}; compile it again"
            )
        if form != _FORM:
            raise KeyError(form)
        digest, size = header.pop("sha256"), header.pop("bytes")
        executable = SavedExecutable(**{**header, "device_ids": tuple(header["device_ids"])}, data=data)
    except ImportProgramError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ImportProgramError(f"{file}: not an executable that report.save(path) has written") from None
    if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
        raise ImportProgramError(f"{file}: damaged: its bytes are not those that were written; compile it again")
    return executable


def _read(file: Path) -> bytes:
    try:
        for place in (file.resolve(), file.resolve().parent):
            if not _is_own(place):
                raise ImportProgramError(
                    f"{file}: an executable is code, and others may write to {place}; keep it in a folder of your own: "
                    f"chmod go-w {place}, if you trust what is there"
                )
        return file.read_bytes()
    except OSError as error:
        raise ImportProgramError(
            f"{file} cannot be read ({error.strerror}); report.save(path), of a program that was compiled for a "
            "target, writes such files"
        ) from None


def _is_own(path: Path) -> bool:
    """Whether only this user, or the system's, can change a file, or what is in a folder. In one that is sticky, each
    can change their own files alone."""
    status = path.stat()
    is_sticky = path.is_dir() and status.st_mode & stat.S_ISVTX
    is_shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_sticky
    return not hasattr(os, "getuid") or (status.st_uid in (os.getuid(), 0) and not is_shared)
