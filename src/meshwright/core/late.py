"""Modules of third parties that few programs need, imported when the first of them does."""

from __future__ import annotations

import sys
from importlib import import_module
from types import FunctionType
from typing import Any


def made_importable(namespace: dict[str, Any]) -> None:
    """Let functions that are made by others be found where they are public, as pickles look for them."""
    for name, value in list(namespace.items()):
        home = sys.modules.get(getattr(value, "__module__", None) or "")
        if name.startswith("_") or not isinstance(value, FunctionType) or home is None:
            continue
        if getattr(home, value.__qualname__, None) is not value:
            value.__module__, value.__qualname__ = namespace["__name__"], name


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
