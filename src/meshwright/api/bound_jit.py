"""Jitted methods."""

from __future__ import annotations

import functools
from typing import Any

from meshwright.api.stages import Lowered, Traced


class BoundJit(functools.partial):  # type: ignore[type-arg]
    """A jitted method bound to an object, which is the first argument of calls and stages."""

    func: Any  # a JitFunction

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """``trace`` of the jitted function."""
        return self.func.trace(*self.args, *args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """``lower`` of the jitted function."""
        return self.trace(*args, **kwargs).lower()
