"""Files and folders named by users: turns system errors into ours, which say what to do."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshwright.core.expected import as_path
from meshwright.errors import FileError, MeshwrightError, MissingFileError

_REMEDIES = {
    errno.EISDIR: "it is a folder; name a file in it",
    errno.ENOTDIR: "a part of the path is a file; name a folder there",
    errno.EEXIST: "a file is where a folder is expected; choose another path",
    errno.EACCES: "choose a path that you have the rights for, or change them",
    errno.EPERM: "choose a path that you have the rights for, or change them",
    errno.EROFS: "what is mounted there can only be read; choose another path",
    errno.ENOSPC: "the disk is full; make room there, or choose another path",
    errno.ENAMETOOLONG: "choose a shorter name",
}


@contextmanager
def user_file(what: str, path: Any, kind: type[MeshwrightError] | None = None) -> Iterator[None]:
    """A context for code that reads or writes the file or folder at ``path``; ``what`` names function and argument.

    Raises (or ``kind`` instead, if it is given):
      MissingFileError: for a ``FileNotFoundError``. FileError: for any other ``OSError``.
    """
    try:
        yield
    except MeshwrightError:
        raise
    except OSError as error:
        kind = kind or (MissingFileError if isinstance(error, FileNotFoundError) else FileError)
        why = error.strerror or str(error) or type(error).__name__
        raise kind(f"{what} {_shown(path)}: {why}; {_remedy(error, path)}") from None


def write_text(what: str, path: Any, text: str) -> Path:
    """Write a text file; ``what`` names function and argument.

    Raises:
      FileError: it cannot be written. ArgumentTypeError, ArgumentError: not a path.
    """
    file = as_path(what, path)
    with user_file(what, file):
        file.write_text(text, encoding="utf-8")
    return file


def exists(path: Path) -> bool:
    """Whether there is something at a path. Raises what ``stat`` raises if that cannot be found out, where
    ``Path.exists`` says False since Python 3.14."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def file_state(path: Path) -> tuple[int, ...]:
    """A value that changes when the file at ``path`` is written or replaced; empty for special files such as pipes,
    which reading would block on. Raises what ``stat`` raises."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _shown(path: Any) -> str:
    return repr(os.fspath(path)) if isinstance(path, (str, bytes, os.PathLike)) else f"the {type(path).__name__} given"


def _remedy(error: OSError, path: Any) -> str:
    if not isinstance(error, FileNotFoundError):
        return _REMEDIES.get(error.errno or 0, "choose another path")
    folder = os.path.dirname(os.path.abspath(os.fsdecode(path))) if isinstance(path, (str, bytes, os.PathLike)) else ""
    missing = folder and not os.path.isdir(folder)
    return f"there is no folder {folder!r}; choose another path, or make it" if missing else "check the name"
