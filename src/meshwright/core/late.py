"""Modules that few programs need, imported when the first of them does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import FunctionType, MappingProxyType
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


def late_attributes(
    package: str,
    names: Mapping[str, str],
    modules: Mapping[str, str] = MappingProxyType({}),
    missing: Callable[[str], Any] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__getattr__`` and ``__dir__`` (PEP 562): what is imported when it is first asked for.

    ``names`` says in which module each name is defined, ``modules`` which names stand for modules; ``missing`` raises
    for any other name.
    """

    def __getattr__(name: str) -> Any:
        if name in modules:
            value: Any = import_module(modules[name])
        elif name in names:
            value = getattr(import_module(names[name]), name)
        elif missing is not None:
            return missing(name)
        else:
            there = ", ".join(sorted({*names, *modules}))
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {there}", name=name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names, *modules})

    return __getattr__, __dir__


def submodules(package: str, *names: str) -> dict[str, str]:
    """``modules`` for :func:`late_attributes`: those inside of the package."""
    return {name: f"{package}.{name}" for name in names}
