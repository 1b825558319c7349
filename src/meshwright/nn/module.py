"""``Module``: a dataclass that is a pytree, so that a model with its parameters is a value like any other.

A module is passed to ``grad``, ``jit`` or an optimiser as it is, and comes back with its structure. That is all: there
is no registry of parameters, no state and no scope. The idea is Equinox's (Kidger and Garcia 2021).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self, dataclass_transform

from meshwright.core.pytree_classes import register_dataclass
from meshwright.errors import ArgumentError


def static(**options: Any) -> Any:
    """A field of a :class:`Module` that is part of its structure, not of its arrays: a size, a function, a name.

    Args:
      options: of ``dataclasses.field``, such as ``default``.

    >>> class Scale(Module):
    ...     factor: float = static(default=2.0)
    >>> Scale().factor
    2.0
    """
    return dataclasses.field(**options, metadata={**options.pop("metadata", {}), "static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static))
@dataclasses.dataclass(frozen=True, eq=False)
class Module:
    """Base of models and layers. Subclasses are frozen dataclasses and pytrees; they are declared by their fields::

        class Linear(nn.Module):
            kernel: mw.Array
            bias: mw.Array
            activation: Callable = nn.static(default=nn.relu)

            def __call__(self, x):
                return self.activation(nn.dense(x, self.kernel, self.bias))

    Fields are arrays, modules or containers of these; others are declared with :func:`static`. Modules do not change:
    :meth:`replace` makes a new one. Parameters are made by a function, or a class method such as ``Linear.init(key)``.

    Raises (when a subclass is declared):
      ArgumentError: it has an ``__init__`` of its own.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in cls.__dict__:
            raise ArgumentError(
                f"Module {cls.__name__}: __init__ is made from the fields; make parameters in a class method instead, "
                f"@classmethod def init(cls, key): return cls(...)"
            )
        dataclasses.dataclass(frozen=True, eq=False)(cls)
        register_dataclass(cls)

    def replace(self, **changes: Any) -> Self:
        """This module with other values in some fields."""
        return dataclasses.replace(self, **changes)
