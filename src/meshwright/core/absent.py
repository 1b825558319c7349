"""Explains names of ``jax`` that are left out on purpose, when they are accessed or imported."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from meshwright.core.late import LateModule
from meshwright.errors import LeftOutError

_tables: Any = LateModule("meshwright.core.left_out")


def absent(module: str) -> Callable[[str], NoReturn]:
    """A module's ``__getattr__`` that explains missing names.

    Raises (when called):
      AttributeError: names an alternative, if the name is one of ``jax``.
    """
    own = f"meshwright.{module}" if module else "meshwright"
    # Python asks import finders about names in ``from ... import`` only for modules with a path.
    vars(sys.modules[own]).setdefault("__path__", [])

    def missing(name: str) -> NoReturn:
        raise _AbsentError(module, own, name)

    return missing


class _AbsentError(AttributeError):
    """An AttributeError whose text is computed when it is read, since Python also looks up submodules as attributes.

    Tracebacks and pickles show a plain AttributeError.
    """

    __module__, __qualname__ = "builtins", "AttributeError"

    def __init__(self, module: str, own: str, name: str) -> None:
        super().__init__(module, own, name, name=name)

    def __str__(self) -> str:
        module, own, name = self.args
        why = reason(module, name)
        return f"module {own!r} has no attribute {name!r}" + (f": {why}" if why else "")

    def __reduce__(self) -> Any:
        return AttributeError, (str(self),), {"name": self.name}


def reason(module: str, name: str) -> str | None:
    """Why ``jax.module.name`` is left out; None if it is not known."""
    path = f"{module}.{name}" if module else name
    names, modules = _tables.NAMES.get(module, {}).items(), _tables.MODULES.items()
    found = (why for entries, asked in ((names, name), (modules, path)) for p, why in entries if re.fullmatch(p, asked))
    return next(found, None)


class _Finder:
    """The last of Python's import finders, which explains modules that the others did not find."""

    @staticmethod
    def find_spec(fullname: str, path: Any = None, target: Any = None) -> None:
        """Return None: there is no such module.

        Raises:
          LeftOutError: it is a module or name of ``jax``; names an alternative.
        """
        package, _, inner = fullname.partition(".")
        module, _, name = inner.rpartition(".")
        if package == "meshwright" and (why := reason(module, name)):
            raise LeftOutError(f"there is no {fullname}: {why}")


sys.meta_path.append(_Finder)
