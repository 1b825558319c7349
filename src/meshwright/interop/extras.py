"""Optional libraries: imported here, or an error that says what to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from meshwright.errors import MissingExtraError


def require(library: str, extra: str = "") -> Any:
    """The module of an optional library.

    Raises:
      MissingExtraError: it is not installed.
    """
    try:
        return import_module(library)
    except ImportError as error:
        raise MissingExtraError(
            f"this needs {library!r}, which cannot be imported here ({error}); "
            f'install it with: pip install "meshwright[{extra or library}]"'
        ) from error
