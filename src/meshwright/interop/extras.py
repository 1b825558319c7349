"""Imports of optional libraries, with an error that says what to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from meshwright.errors import MissingExtraError


def require(library: str, extra: str = "") -> Any:
    """Import the module ``library``; ``extra`` is the extra of Meshwright that installs it, by default the same name.

    Raises:
      MissingExtraError: it cannot be imported.
    """
    try:
        return import_module(library)
    except ImportError as error:
        raise MissingExtraError(
            f"this needs {library!r}, which cannot be imported here ({error}); "
            f'install it with: pip install "meshwright[{extra or library}]"'
        ) from error
