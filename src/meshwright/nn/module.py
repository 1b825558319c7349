"""``Module``: a dataclass that is a pytree, so that a model with its parameters is an ordinary value.

Modules can be passed to ``grad``, ``jit`` or an optimizer, whose results have the same structure. There is no registry
of parameters, no state and no scope. The idea is from Equinox (Kidger and Garcia 2021).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self, dataclass_transform

from meshwright.core.pytree_classes import register_dataclass
from meshwright.errors import ArgumentError


def static(**options: Any) -> Any:
    """A field of a :class:`Module` that is part of its structure rather than its arrays: a size, a function, a name.

    Args:
      options: passed to ``dataclasses.field``, such as ``default``.

    >>> class Scale(Module):
    ...     factor: float = static(default=2.0)
    >>> Scale().factor
    2.0
    """
    return dataclasses.field(**options, metadata={**options.pop("metadata", {}), "static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static))
@dataclasses.dataclass(frozen=True, eq=False)
class Module:
    """Base class of models and layers. Subclasses become frozen dataclasses and pytrees; they are declared by their
    fields::

        class Linear(nn.Module):
            kernel: mw.Array
            bias: mw.Array
            activation: Callable = nn.static(default=nn.relu)

            def __call__(self, x):
                return self.activation(nn.dense(x, self.kernel, self.bias))

    Fields are arrays, modules or containers of these; declare others with :func:`static`. Modules are immutable:
    :meth:`replace` makes a new one. Create parameters in a function or a class method such as ``Linear.init(key)``.

    Raises (when a subclass is declared):
      ArgumentError: it defines ``__init__``.
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
        """This module with other values for some fields."""
        return dataclasses.replace(self, **changes)
