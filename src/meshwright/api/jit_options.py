"""What ``jit`` was told of a function, and the static arguments of a call."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple


class JitOptions(NamedTuple):
    """The options of a jitted function: a tuple, since caches see through trees (:func:`core.identity.as_key`)."""

    in_shardings: Any = None
    out_shardings: Any = None
    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    donate_argnums: tuple[int, ...] = ()
    donate_argnames: tuple[str, ...] = ()
    inline: bool = False
    #: XLA flags by name
    compiler_options: tuple[tuple[str, Any], ...] = ()
    keep_unused: bool = False
    #: whether arguments placed with another sharding than ``in_shardings`` are moved, as by ``pjit``
    move_arguments: bool = False

    @property
    def has_static(self) -> bool:
        return bool(self.static_argnums or self.static_argnames)

    @property
    def also_of_values(self) -> JitOptions:
        """Those of the function that also returns the final values of references."""
        return self._replace(out_shardings=None if self.out_shardings is None else (None, self.out_shardings))

    @property
    def of_values(self) -> JitOptions:
        """Those of the function of the dynamic arguments that also returns the final values of references."""
        nothing: dict[str, Any] = dict.fromkeys(("static_argnums", "static_argnames", "donate_argnums"), ())
        return self.also_of_values._replace(donate_argnames=(), **nothing)


class Static(NamedTuple):
    """The static arguments of a call: the number of its positional arguments, those that are static, and their kinds,
    as values of different types may be equal."""

    num_args: int
    positional: tuple[tuple[int, Any], ...]
    named: tuple[tuple[str, Any], ...]
    kinds: Hashable = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(number for number, _ in self.positional)

    def bound(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """``fun`` as a function of the other arguments."""
        fixed = dict(self.positional)

        def call(*args: Any, **kwargs: Any) -> Any:
            given = iter(args)
            full = [fixed[i] if i in fixed else next(given) for i in range(self.num_args)]
            return fun(*full, **kwargs, **dict(self.named))

        return call
