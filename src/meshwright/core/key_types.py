"""The dtypes of random keys: each element of such an array is one key of a generator, whose words are hidden.

Compiled programs use the words, ``uint32[..., words]``; see :mod:`meshwright.transforms.keys`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from meshwright.core.records import dataclass


class extended(np.generic):
    """Base class of dtypes that are not numbers and do not exist in NumPy."""


class prng_key(extended):
    """Base class of dtypes of random keys: ``issubdtype(key.dtype, prng_key)``."""


@dataclass(frozen=True, repr=False, eq=False)
class KeyType:
    """The dtype of keys of one generator, such as ``key<fry>``; one object per generator (:data:`KEY_TYPES`)."""

    impl: str
    tag: str
    words: int
    type: ClassVar[type] = prng_key
    kind: ClassVar[str] = "V"

    @property
    def name(self) -> str:
        return f"key<{self.tag}>"

    @property
    def itemsize(self) -> int:
        return 4 * self.words

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        return key_type, (self.impl,)


#: by the name of the generator
_ALL = (KeyType("threefry2x32", "fry", 2), KeyType("rbg", "rbg", 4), KeyType("unsafe_rbg", "urbg", 4))
KEY_TYPES = {k.impl: k for k in _ALL}


def key_type(impl: str) -> KeyType:
    """The dtype of a generator's keys."""
    return KEY_TYPES[impl]


def is_key(dtype: Any) -> bool:
    """Whether this is the dtype of random keys."""
    return type(dtype) is KeyType
