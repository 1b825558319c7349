"""Keys: ``uint32[2]`` arrays that determine what is drawn. Every draw takes a key and none is changed by it.

The generator is counter-based (Threefry-2x32, Salmon et al. 2011), so that each device of a mesh makes its own part of
a random array without talking to the others. Keys, bits and values are those of ``jax.random``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.errors import ArgumentError, DTypeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.axes import normal_shape
from meshwright.numpy.creation import asarray
from meshwright.numpy.out_sharding import placed
from meshwright.ops.random_bits import check_key, random_bits, threefry_fold_in, threefry_seed, threefry_split

#: names of the one generator there is
_THREEFRY = (None, "threefry2x32", "fry")


def _check_generator(impl: Any, name: str) -> None:
    if impl not in _THREEFRY:
        raise ArgumentError(
            f"random.{name}: impl must be 'threefry2x32', got {impl!r}: other generators give numbers that depend on "
            "the device or the sharding"
        )


def key(seed: Any, *, impl: str | None = None) -> Any:
    """The key of an integer seed.

    Args:
      seed: integer, or a traced integer scalar. Without x64 only its lower 32 bits count.
      impl: the generator, which is "threefry2x32".

    Raises:
      ArgumentTypeError: not an integer scalar. ArgumentError: another generator.

    >>> key(7).tolist()
    [0, 7]
    """
    _check_generator(impl, "key")
    return threefry_seed(seed)


PRNGKey = key


def split(key: Any, num: int | Sequence[int] = 2) -> Any:
    """New independent keys from one, which must not be used again.

    Args:
      key: ``uint32[2]``.
      num: how many, or a shape.

    Returns:
      ``uint32[num, 2]``; iterate over it, or unpack it.

    >>> split(PRNGKey(0), 3).shape
    (3, 2)
    """
    return threefry_split(key, normal_shape(num, "random.split"))


def fold_in(key: Any, data: Any) -> Any:
    """A new key from one and an integer, such as a step or layer number.

    >>> fold_in(PRNGKey(0), 3).shape
    (2,)
    """
    return threefry_fold_in(key, data)


def key_impl(keys: Any) -> str:
    """The name of the generator that keys are for.

    Raises:
      ArgumentTypeError: not ``uint32[..., 2]``.

    >>> key_impl(PRNGKey(3))
    'threefry2x32'
    """
    check_key("random.key_impl", typeof(keys))
    return "threefry2x32"


def key_data(keys: Any) -> Any:
    """The words of a key: the key itself.

    >>> key_data(PRNGKey(3)).tolist()
    [0, 3]
    """
    return keys


def wrap_key_data(key_bits_array: Any, *, impl: str | None = None) -> Any:
    """The key (or keys) of raw words: the words themselves, checked.

    Raises:
      ArgumentTypeError: not ``uint32[..., 2]``.

    >>> wrap_key_data(np.array([0, 3], "uint32")).tolist()
    [0, 3]
    """
    _check_generator(impl, "wrap_key_data")
    check_key("random.wrap_key_data", typeof(key_bits_array))
    return asarray(key_bits_array)


def clone(key: Any) -> Any:
    """The same key, for where it is to be used again on purpose.

    >>> clone(PRNGKey(3)).tolist()
    [0, 3]
    """
    return key


@placed
def bits(key: Any, shape: Sequence[int] = (), dtype: Any = None) -> Any:
    """Uniformly random bits, as unsigned integers.

    Args:
      key: ``uint32[2]``.
      dtype: uint8, uint16, uint32 (the default) or, with x64, uint64.

    Raises:
      DTypeError: another dtype.

    >>> bits(PRNGKey(0), (2,)).dtype.name
    'uint32'
    """
    target = np.dtype(np.uint32) if dtype is None else dtypes.requested(dtype, "random.bits")
    if not dtypes.is_unsigned(target):
        raise DTypeError(f"random.bits: dtype must be an unsigned integer type, got {target}")
    return random_bits(key, dtypes.bit_width(target), normal_shape(shape, "random.bits"))
