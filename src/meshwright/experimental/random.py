"""``jax.experimental.random``: a generator that keeps its own state, as NumPy's do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright import random
from meshwright.api.references import Ref, new_ref
from meshwright.core.absent import absent as _absent
from meshwright.core.key_types import is_key
from meshwright.core.pytree_classes import register_pytree_node_class
from meshwright.errors import ArgumentError, ArgumentTypeError
from meshwright.ir.state import STATE
from meshwright.ir.tracing import EVAL, typeof
from meshwright.numpy import asarray, broadcast_shapes, zeros

__all__ = ["StatefulPRNG", "stateful_rng"]

__getattr__ = _absent("experimental.random")

Size = int | Sequence[int] | None


def _shape(size: Size, *parameters: Any) -> tuple[int, ...]:
    """The shape of a draw: ``size``, or that to which its parameters broadcast."""
    if size is None:
        return broadcast_shapes(*(np.shape(p) for p in parameters))
    return (size,) if isinstance(size, int | np.integer) else tuple(size)


@register_pytree_node_class
class StatefulPRNG:
    """A key, and a reference to the number of keys that were made of it; see :func:`stateful_rng`.

    A generator may be an argument of transformed functions, or be closed over by them. Like other references, it is no
    result of them, and no carry of loops.
    """

    __slots__ = ("_base_key", "_counter")

    def __init__(self, _base_key: Any, _counter: Any) -> None:
        self._base_key, self._counter = _base_key, _counter

    def tree_flatten(self) -> tuple[tuple[Any, Any], None]:
        return (self._base_key, self._counter), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> StatefulPRNG:
        return cls(*children)

    def __repr__(self) -> str:
        return f"StatefulPRNG(_base_key={self._base_key!r}, _counter={self._counter!r})"

    def key(self, shape: int | Sequence[int] = ()) -> Any:
        """A new key, or keys of the given shape.

        Raises:
          ArgumentError: the generator was :meth:`split`, and is not mapped by ``vmap``.
        """
        if not isinstance(self._counter, Ref) or not is_key(typeof(self._base_key).dtype):
            raise ArgumentTypeError(f"{self!r} is no generator; make one with stateful_rng")
        if typeof(self._base_key).ndim:
            raise ArgumentError(
                f"a generator that was split into {typeof(self._base_key).shape} draws nothing itself; pass it to vmap"
            )
        key = random.fold_in(self._base_key, self._counter[...])
        self._counter.addupdate(1)
        return random.split(key, _shape(shape)) if _shape(shape) else key

    def random(self, size: Size = None, dtype: Any = float) -> Any:
        """Uniform numbers of [0, 1)."""
        return random.uniform(self.key(), _shape(size), dtype)

    def uniform(self, low: Any = 0, high: Any = 1, size: Size = None, *, dtype: Any = float) -> Any:
        """Uniform numbers of [``low``, ``high``)."""
        return random.uniform(self.key(), _shape(size, low, high), dtype, low, high)

    def normal(self, loc: Any = 0, scale: Any = 1, size: Size = None, *, dtype: Any = float) -> Any:
        """Normal numbers of mean ``loc`` and standard deviation ``scale``."""
        drawn = random.normal(self.key(), _shape(size, loc, scale), dtype)
        return (asarray(loc) + asarray(scale) * drawn).astype(dtype)

    def integers(self, low: Any, high: Any = None, size: Size = None, *, dtype: Any = int) -> Any:
        """Uniform integers of [``low``, ``high``), or of [0, ``low``)."""
        low, high = (0, low) if high is None else (low, high)
        return random.randint(self.key(), _shape(size, low, high), low, high, dtype)

    def split(self, num: int | Sequence[int]) -> StatefulPRNG:
        """Independent generators in one, of shape ``num``, for :func:`vmap <meshwright.vmap>`."""
        return StatefulPRNG(self.key(num), new_ref(zeros(num, int)))

    def spawn(self, n_children: int) -> list[StatefulPRNG]:
        """A list of independent generators."""
        return [StatefulPRNG(key, new_ref(0)) for key in self.key(n_children)]


def stateful_rng(seed: Any = None, *, impl: str | None = None) -> StatefulPRNG:
    """A generator whose draws are keys of ``seed`` and a counter, which a reference holds.

    Without a seed, outside of transformed functions alone, it is drawn from the operating system.

    Raises:
      ArgumentError: no seed is given in a transformed function.

    Example:
      >>> from meshwright.experimental.random import stateful_rng
      >>> rng = stateful_rng(42)
      >>> draw = mw.jit(lambda: rng.integers(0, 100))
      >>> int(draw()), int(draw())
      (75, 60)
    """
    if seed is None:
        if STATE.trace is not EVAL:
            raise ArgumentError("stateful_rng: in a transformed function, which is traced once, give a seed")
        seed = np.random.SeedSequence().generate_state(1)[0]
    return StatefulPRNG(random.key(seed, impl=impl), new_ref(0))
