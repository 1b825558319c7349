"""Modules of third parties that few programs need, imported when the first of them does."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LateModule:
    """Stands for the module ``name`` until an attribute of it is asked for, which imports it.

    Importing SciPy's special functions takes longer than importing everything of ours; a program that calls none of
    them should not wait.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self._name), attribute)
        if not attribute.startswith("__"):
            setattr(self, attribute, value)
        return value

    def __repr__(self) -> str:
        return f"<late module {self._name!r}>"
