"""Modules that are imported on first use, because few programs need them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import FunctionType, MappingProxyType
from typing import Any


def made_importable(namespace: dict[str, Any]) -> None:
    """Set ``__module__`` of generated functions so that pickle finds them where they are public."""
    for name, value in list(namespace.items()):
        home = sys.modules.get(getattr(value, "__module__", None) or "")
        if name.startswith("_") or not isinstance(value, FunctionType) or home is None:
            continue
        if getattr(home, value.__qualname__, None) is not value:
            value.__module__, value.__qualname__ = namespace["__name__"], name


class LateModule:
    """Represents the module ``name``, and imports it on the first access of an attribute.

    Importing SciPy's special functions takes longer than importing all of this package, which programs that do not need
    them should not wait for.
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
    """A package's ``__getattr__`` and ``__dir__`` (PEP 562) for names that are imported on first access.

    ``names`` maps each name to the module that defines it, ``modules`` maps names to modules; ``missing`` raises the
    error for any other name.
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
    """``modules`` for :func:`late_attributes`, for submodules of the package."""
    return {name: f"{package}.{name}" for name in names}
