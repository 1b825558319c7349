"""Keys, the states of random number generators. Every function that draws takes a key, and does not change it.

A key is an element of an array whose dtype names the generator, ``key<fry>[]`` (:func:`key`), or, in the older form, an
array of its words, ``uint32[2]`` (:func:`PRNGKey`). All functions take both. Keys, bits and values are those of
``jax.random``. There, too, XLA's generator draws all numbers of a mapped draw from the first of the mapped keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.core import dtypes
from meshwright.core.config import config
from meshwright.core.key_types import KeyType, is_key
from meshwright.errors import ArgumentError, ArgumentTypeError, DrawnTypeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.axes import normal_shape
from meshwright.numpy.creation import asarray
from meshwright.numpy.out_sharding import placed
from meshwright.ops.elementwise.table import copy
from meshwright.ops.random.keys import RandomUse, unwrap_keys, wrap_words
from meshwright.random.drawing import drawn
from meshwright.random.generators import GENERATORS, Generator

#: alternative names of generators
_SHORT = {"fry": "threefry2x32", "urbg": "unsafe_rbg"}


def _generator(impl: Any, name: str, dtype: Any = None) -> Generator:
    """The generator given by name or by the dtype of its keys; by default, the configured one.

    Raises:
      ArgumentError: there is no such generator, or both ``impl`` and ``dtype`` are given.
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
      ArgumentTypeError: ``keys`` are neither keys nor words of keys of the configured generator.
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
    """:func:`_opened` for a single key.

    Raises:
      ArgumentError: ``key`` is an array of keys.
    """
    aval = typeof(key)
    if is_key(aval.dtype) and aval.shape:
        raise ArgumentError(f"random.{name}: expected one key, got {aval}; use vmap for an array of keys")
    if config.debug_key_reuse and name != "fold_in" and is_key(aval.dtype):
        key = RandomUse(aval.dtype).bind(key)  # type: ignore[arg-type]
    return _opened(key, name)


def _like(key: Any, generator: Generator, words: Any) -> Any:
    """Words in the same form as ``key``."""
    return wrap_words(words, generator.key) if is_key(typeof(key).dtype) else words


def key(seed: Any, *, impl: Any = None, dtype: Any = None) -> Any:
    """Create a key, of dtype ``key<...>``, from an integer seed.

    Args:
      seed: an integer, or a traced integer scalar. Without ``enable_x64``, only its lower 32 bits are used.
      impl: the generator: ``"threefry2x32"``, ``"rbg"`` or ``"unsafe_rbg"`` (see :mod:`meshwright.random.generators`).
        The default is the option ``default_prng_impl``.
      dtype: the dtype of a generator's keys, instead of ``impl``.

    Raises:
      ArgumentTypeError: the seed is not an integer scalar.
      ArgumentError: there is no such generator.

    >>> key(7)
    Array((), dtype=key<fry>) overlaying:
    [0 7]
    """
    generator = _generator(impl, "key", dtype)
    return wrap_words(generator.seed(_offset(seed)), generator.key)


def key_dtype(impl_spec: Any = None) -> KeyType:
    """The dtype of a generator's keys, by default of the configured one.

    >>> key_dtype("rbg"), key_dtype() == key(0).dtype
    (key<rbg>, True)
    """
    return _generator(impl_spec, "key_dtype").key


def _offset(seed: Any) -> Any:
    """The seed plus the offset that the options add to all seeds."""
    return seed + config.random_seed_offset if config.random_seed_offset else seed


def PRNGKey(seed: Any, *, impl: Any = None) -> Any:
    """Create a key in the older form, as its words ``uint32[2]``, from an integer seed. Prefer :func:`key`.

    The arguments are those of :func:`key`. With the option ``enable_custom_prng`` it is the same as :func:`key`.

    >>> PRNGKey(7).tolist()
    [0, 7]
    """
    if config.enable_custom_prng:
        return key(seed, impl=impl)
    return _generator(impl, "PRNGKey").seed(_offset(seed))


@drawn
def split(key: Any, num: int | Sequence[int] = 2) -> Any:
    """Derive independent new keys from a key, which must not be used again.

    Args:
      key: a key.
      num: the number of new keys, or a shape.

    Returns:
      an array of ``num`` keys, over which one can iterate.

    Raises:
      ArgumentError: ``key`` is an array of keys.

    >>> split(key(0), 3).shape, split(PRNGKey(0), 3).shape
    ((3,), (3, 2))
    """
    generator, words = _one(key, "split")
    return _like(key, generator, generator.split(words, normal_shape(num, "random.split")))


@drawn
def fold_in(key: Any, data: Any) -> Any:
    """Derive a new key from a key and an integer, such as the number of a step or layer.

    Raises:
      ArgumentError: ``key`` is an array of keys.
      ArgumentTypeError: ``data`` is not an integer scalar.

    >>> fold_in(PRNGKey(0), 3).shape
    (2,)
    """
    generator, words = _one(key, "fold_in")
    return _like(key, generator, generator.fold_in(words, data))


def key_impl(keys: Any) -> str:
    """The name of the generator of keys.

    Raises:
      ArgumentTypeError: ``keys`` are not keys.

    >>> key_impl(key(3)), key_impl(key(3, impl="rbg"))
    ('threefry2x32', 'rbg')
    """
    return _opened(keys, "key_impl")[0].key.impl


def key_data(keys: Any) -> Any:
    """The words of keys, ``uint32[..., words]``.

    Raises:
      ArgumentTypeError: ``keys`` are not keys.

    >>> key_data(key(3)).tolist()
    [0, 3]
    """
    return _opened(keys, "key_data")[1]


def wrap_key_data(key_bits_array: Any, *, impl: Any = None, dtype: Any = None) -> Any:
    """Create a key, or an array of keys, from words; ``impl`` is as for :func:`key`.

    Raises:
      ArgumentTypeError: the words are not ``uint32[..., words]``.
      ArgumentError: there is no such generator.

    >>> wrap_key_data(np.array([0, 3], "uint32")).dtype
    key<fry>
    """
    generator = _generator(impl, "wrap_key_data", dtype)
    words = asarray(key_bits_array)
    _check_words("wrap_key_data", typeof(words), generator)
    return wrap_words(words, generator.key)


def clone(key: Any) -> Any:
    """A copy of a key, to mark that it is deliberately used again.

    >>> key_data(clone(PRNGKey(3))).tolist()
    [0, 3]
    """
    _opened(key, "clone")
    return copy(key)


def random_bits(key: Any, bit_width: int, shape: Sequence[int]) -> Any:
    """Draw uniformly distributed unsigned integers of ``bit_width`` bits.

    Raises:
      ArgumentError: ``key`` is an array of keys.

    >>> random_bits(key(0), 32, (2,)).shape
    (2,)
    """
    generator, words = _one(key, "bits")
    return generator.bits(words, bit_width, tuple(shape))


@placed
@drawn
def bits(key: Any, shape: Sequence[int] = (), dtype: Any = None) -> Any:
    """Draw uniformly distributed bits, as unsigned integers.

    Args:
      key: a key.
      shape: the shape of the result.
      dtype: uint8, uint16, uint32 (the default) or, with ``enable_x64``, uint64 (then the default).

    Raises:
      DrawnTypeError: an unsupported dtype.

    >>> bits(PRNGKey(0), (2,)).dtype.name
    'uint32'
    """
    target = dtypes.canonical(dtypes.uint64) if dtype is None else dtypes.requested(dtype, "random.bits")
    if not dtypes.is_unsigned(target):
        raise DrawnTypeError(f"random.bits: dtype must be an unsigned integer type, got {target}")
    return random_bits(key, dtypes.bit_width(target), normal_shape(shape, "random.bits"))
