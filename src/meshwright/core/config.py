"""Configuration: a few options, each settable by ``config.update`` or an environment variable.

``MESHWRIGHT_<OPTION>`` in the environment gives the initial value. Options that shape the runtime
(``num_devices``) are frozen once the runtime has started; ``on_change`` hooks let caches notice the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from meshwright.errors import ConfigError


@dataclass
class Config:
    """The options and their defaults. Read as attributes, change with :meth:`update`."""

    num_devices: int = 1
    enable_x64: bool = False
    debug_nans: bool = False
    default_prng_impl: str = "threefry2x32"

    def __post_init__(self) -> None:
        self._frozen: dict[str, str] = {}
        self._hooks: list[Callable[[str], None]] = []
        for field in fields(self):
            text = os.environ.get("MESHWRIGHT_" + field.name.upper())
            if text is not None:
                setattr(self, field.name, _parse(field.name, getattr(self, field.name), text))

    def update(self, name: str, value: Any) -> None:
        """Set option ``name`` to ``value``.

        Raises:
          ConfigError: unknown option, a value of the wrong type, or an option that is already in use.
        """
        name = name.removeprefix("meshwright_").removeprefix("jax_")
        known = [f.name for f in fields(self)]
        if name not in known:
            raise ConfigError(f"config.update: unknown option {name!r}; the options are {', '.join(known)}")
        old = getattr(self, name)
        if type(value) is not type(old):
            raise ConfigError(
                f"config.update({name!r}): expected {type(old).__name__}, got {value!r} of type {type(value).__name__}"
            )
        if name == "num_devices" and value < 1:
            raise ConfigError(f"config.update('num_devices'): expected a positive number, got {value}")
        if value == old:
            return
        if name in self._frozen:
            raise ConfigError(f"config.update({name!r}): {self._frozen[name]}")
        setattr(self, name, value)
        for hook in self._hooks:
            hook(name)

    def freeze(self, name: str, why: str) -> None:
        """Refuse later changes of ``name``, saying ``why``."""
        self._frozen.setdefault(name, why)

    def on_change(self, hook: Callable[[str], None]) -> None:
        """Call ``hook(name)`` after each change of an option."""
        self._hooks.append(hook)

    @contextmanager
    def override(self, name: str, value: Any) -> Iterator[None]:
        """Set an option for the length of a ``with`` block."""
        old = getattr(self, name)
        self.update(name, value)
        try:
            yield
        finally:
            self.update(name, old)


def _parse(name: str, default: Any, text: str) -> Any:
    variable = "MESHWRIGHT_" + name.upper()
    if isinstance(default, bool):
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off", ""):
            return False
        raise ConfigError(f"{variable}: expected 0 or 1, got {text!r}")
    if isinstance(default, int):
        if not text.isdigit() or int(text) < 1:
            raise ConfigError(f"{variable}: expected a positive number, got {text!r}")
        return int(text)
    return text


config = Config()
