"""Keys: values that determine what is drawn. Every draw takes a key and none is changed by it.

A key is one element of an array whose dtype says the generator, ``key<fry>[]`` (:func:`key`), or, as it was before
there were such dtypes, its words, ``uint32[2]`` (:func:`PRNGKey`). All functions take both. Keys, bits and values are
those of ``jax.random``, but under ``vmap`` with keys of ``rbg``: here each key draws what it draws alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.config import config
from meshwright.core.key_types import KeyType, is_key
from meshwright.errors import ArgumentError, ArgumentTypeError, DrawnTypeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.axes import normal_shape
from meshwright.numpy.creation import asarray
from meshwright.numpy.out_sharding import placed
from meshwright.ops.elementwise.table import copy
from meshwright.ops.random.keys import unwrap_keys, wrap_words
from meshwright.random.drawing import drawn
from meshwright.random.generators import GENERATORS, Generator

#: other names of generators
_SHORT = {"fry": "threefry2x32", "urbg": "unsafe_rbg"}


def _generator(impl: Any, name: str, dtype: Any = None) -> Generator:
    """The generator that a user names, by itself or by the dtype of its keys; else the one that is configured.

    Raises:
      ArgumentError: there is none of that name, or two are named.
    """
    if impl is not None and dtype is not None:
        raise ArgumentError(f"random.{name}: give impl or dtype, not both")
    requested = config.default_prng_impl if impl is None and dtype is None else impl if dtype is None else dtype
    chosen = requested.impl if isinstance(requested, KeyType) else _SHORT.get(requested, requested)
    if chosen not in GENERATORS:
        known = ", ".join(map(repr, GENERATORS))
        raise ArgumentError(f"random.{name}: impl must be one of {known}, or the dtype of keys, got {requested!r}")
    return GENERATORS[chosen]


def _opened(keys: Any, name: str) -> tuple[Generator, Any]:
    """The generator and the words of keys.

    Raises:
      ArgumentTypeError: neither keys nor the words of the configured generator.
    """
    aval = typeof(keys)
    if is_key(aval.dtype):
        return GENERATORS[aval.dtype.impl], unwrap_keys(keys)  # type: ignore[attr-defined]
    generator = GENERATORS[config.default_prng_impl]
    _check_words(name, aval, generator)
    return generator, keys


def _check_words(name: str, aval: Any, generator: Generator) -> None:
    words = generator.key.words
    if aval.dtype != dtypes.uint32 or aval.ndim < 1 or aval.shape[-1] != words:
        raise ArgumentTypeError(
            f"random.{name}: a key is of dtype {generator.key}, or its words, a uint32 array of shape ({words},); got "
            f"{aval}; make one with random.key(seed)"
        )


def _one(key: Any, name: str) -> tuple[Generator, Any]:
    """:func:`_opened` of a single key.

    Raises:
      ArgumentError: an array of keys.
    """
    aval = typeof(key)
    if is_key(aval.dtype) and aval.shape:
        raise ArgumentError(f"random.{name}: expected one key, got {aval}; use vmap for an array of keys")
    return _opened(key, name)


def _like(key: Any, generator: Generator, words: Any) -> Any:
    """Words in the form in which ``key`` was given."""
    return wrap_words(words, generator.key) if is_key(typeof(key).dtype) else words


def key(seed: Any, *, impl: Any = None, dtype: Any = None) -> Any:
    """The key of an integer seed, of dtype ``key<...>``.

    Args:
      seed: integer, or a traced integer scalar. Without x64 only its lower 32 bits count.
      impl: the generator: "threefry2x32" (the default, unless configured: ``default_prng_impl``), "rbg" or
        "unsafe_rbg"; see :mod:`meshwright.random.generators`.
      dtype: the dtype of keys of a generator, in place of ``impl``.

    Raises:
      ArgumentTypeError: not an integer scalar. ArgumentError: no such generator.

    >>> key(7)
    Array((), dtype=key<fry>) overlaying:
    [0 7]
    """
    generator = _generator(impl, "key", dtype)
    return wrap_words(generator.seed(_offset(seed)), generator.key)


def key_dtype(impl_spec: Any = None) -> KeyType:
    """The dtype of a generator's keys; without one, of the one that is configured.

    >>> key_dtype("rbg"), key_dtype() == key(0).dtype
    (key<rbg>, True)
    """
    return _generator(impl_spec, "key_dtype").key


def _offset(seed: Any) -> Any:
    """The seed, with what the options add to all of them."""
    return seed + config.random_seed_offset if config.random_seed_offset else seed


def PRNGKey(seed: Any, *, impl: Any = None) -> Any:
    """The words of the key of an integer seed, ``uint32[2]``; arguments as for :func:`key`, which programs written
    today use. With the option ``enable_custom_prng`` it is :func:`key`.

    >>> PRNGKey(7).tolist()
    [0, 7]
    """
    if config.enable_custom_prng:
        return key(seed, impl=impl)
    return _generator(impl, "PRNGKey").seed(_offset(seed))


@drawn
def split(key: Any, num: int | Sequence[int] = 2) -> Any:
    """New independent keys from one, which must not be used again.

    Args:
      key: a key.
      num: how many, or a shape.

    Returns:
      an array of ``num`` keys; iterate over it, or unpack it.

    Raises:
      ArgumentError: an array of keys.

    >>> split(key(0), 3).shape, split(PRNGKey(0), 3).shape
    ((3,), (3, 2))
    """
    generator, words = _one(key, "split")
    return _like(key, generator, generator.split(words, normal_shape(num, "random.split")))


@drawn
def fold_in(key: Any, data: Any) -> Any:
    """A new key from one and an integer, such as a step or layer number.

    Raises:
      ArgumentError: an array of keys. ArgumentTypeError: ``data`` is no integer scalar.

    >>> fold_in(PRNGKey(0), 3).shape
    (2,)
    """
    generator, words = _one(key, "fold_in")
    return _like(key, generator, generator.fold_in(words, data))


def key_impl(keys: Any) -> str:
    """The name of the generator that keys are for.

    Raises:
      ArgumentTypeError: no keys.

    >>> key_impl(key(3)), key_impl(key(3, impl="rbg"))
    ('threefry2x32', 'rbg')
    """
    return _opened(keys, "key_impl")[0].key.impl


def key_data(keys: Any) -> Any:
    """The words of keys, ``uint32[..., words]``.

    Raises:
      ArgumentTypeError: no keys.

    >>> key_data(key(3)).tolist()
    [0, 3]
    """
    return _opened(keys, "key_data")[1]


def wrap_key_data(key_bits_array: Any, *, impl: Any = None, dtype: Any = None) -> Any:
    """The key (or keys) of words; arguments as for :func:`key`.

    Raises:
      ArgumentTypeError: not ``uint32[..., words]``. ArgumentError: no such generator.

    >>> wrap_key_data(np.array([0, 3], "uint32")).dtype
    key<fry>
    """
    generator = _generator(impl, "wrap_key_data", dtype)
    words = asarray(key_bits_array)
    _check_words("wrap_key_data", typeof(words), generator)
    return wrap_words(words, generator.key)


def clone(key: Any) -> Any:
    """The same key, for where it is to be used again on purpose.

    >>> key_data(clone(PRNGKey(3))).tolist()
    [0, 3]
    """
    _opened(key, "clone")
    return copy(key)


def random_bits(key: Any, bit_width: int, shape: Sequence[int]) -> Any:
    """Uniformly random unsigned integers of ``bit_width`` bits.

    Raises:
      ArgumentError: an array of keys.

    >>> random_bits(key(0), 32, (2,)).shape
    (2,)
    """
    generator, words = _one(key, "bits")
    return generator.bits(words, bit_width, tuple(shape))


@placed
@drawn
def bits(key: Any, shape: Sequence[int] = (), dtype: Any = None) -> Any:
    """Uniformly random bits, as unsigned integers.

    Args:
      key: a key.
      dtype: uint8, uint16, uint32 (the default) or, with x64, uint64.

    Raises:
      DrawnTypeError: another dtype.

    >>> bits(PRNGKey(0), (2,)).dtype.name
    'uint32'
    """
    target = np.dtype(np.uint32) if dtype is None else dtypes.requested(dtype, "random.bits")
    if not dtypes.is_unsigned(target):
        raise DrawnTypeError(f"random.bits: dtype must be an unsigned integer type, got {target}")
    return random_bits(key, dtypes.bit_width(target), normal_shape(shape, "random.bits"))
