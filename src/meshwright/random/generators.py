"""The random number generators of keys, as functions of the keys' words.

``threefry2x32`` (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) is counter-based: every device
generates its own part, and the numbers only depend on the key. ``rbg`` draws bits with XLA's generator (Philox on CPUs)
and derives keys with Threefry; ``unsafe_rbg`` also derives keys with XLA's generator. They are those of ``jax.random``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core.key_types import KEY_TYPES, KeyType
from meshwright.core.records import dataclass
from meshwright.ir.tracing import typeof
from meshwright.lax.random_bits import bits_of_key
from meshwright.ops.elementwise.table import xor
from meshwright.ops.random.bits import folded_seed, random_bits, threefry_fold_in, threefry_seed, threefry_split
from meshwright.ops.shape.rearrange import reshape
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim

#: ``unsafe_rbg`` uses one of every so many keys that XLA's generator yields, as JAX does
_SKIPPED = 10


@dataclass(frozen=True)
class Generator:
    """A generator: functions on the words of its keys."""

    key: KeyType
    seed: Callable[[Any], Any]
    split: Callable[[Any, tuple[int, ...]], Any]
    fold_in: Callable[[Any, Any], Any]
    #: ``bits(key, bit width, shape)``
    bits: Callable[[Any, int, Sequence[int]], Any]


def _halves(key: Any) -> list[Any]:
    return [slice_in_dim(key, 0, 2), slice_in_dim(key, 2, 4)]


def _twice(derive: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a function that derives keys of two words to both halves of keys of four words."""

    def derived(key: Any, how: Any) -> Any:
        parts = [derive(half, how) for half in _halves(key)]
        return concatenate(parts, typeof(parts[0]).ndim - 1)

    return derived


def _seed_of_four(seed: Any) -> Any:
    half = threefry_seed(seed)
    return concatenate([half, half], 0)


def _xla_bits(key: Any, bit_width: int, shape: Sequence[int]) -> Any:
    return bits_of_key(key, shape, f"uint{bit_width}")


def _xla_split(key: Any, shape: tuple[int, ...]) -> Any:
    count = math.prod(shape)
    keys = _xla_bits(key, 32, (_SKIPPED * count, 4))
    return reshape(slice_in_dim(keys, 0, _SKIPPED * count, _SKIPPED), (*shape, 4))


def _xla_fold_in(key: Any, data: Any) -> Any:
    half = folded_seed(data)
    drawn = _xla_bits(concatenate([half, half], 0), 32, (_SKIPPED, 4))
    return xor(key, reshape(slice_in_dim(drawn, _SKIPPED - 1, _SKIPPED), (4,)))


#: by name
GENERATORS = {
    g.key.impl: g
    for g in (
        Generator(KEY_TYPES["threefry2x32"], threefry_seed, threefry_split, threefry_fold_in, random_bits),
        Generator(KEY_TYPES["rbg"], _seed_of_four, _twice(threefry_split), _twice(threefry_fold_in), _xla_bits),
        Generator(KEY_TYPES["unsafe_rbg"], _seed_of_four, _xla_split, _xla_fold_in, _xla_bits),
    )
}
