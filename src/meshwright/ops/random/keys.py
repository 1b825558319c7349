"""Random keys, and conversion between keys and their words.

In jaxprs a key is one element of dtype ``key<...>``, which ops and transformations cannot take apart; only the two ops
here know its words. Programs are compiled on words: :mod:`meshwright.transforms.keys`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.key_types import KeyType, is_key
from meshwright.core.records import dataclass
from meshwright.core.weak import once_for_each
from meshwright.errors import ArgumentTypeError
from meshwright.ir.contract import ArrayLike
from meshwright.ir.jaxpr import Jaxpr, sub_jaxprs
from meshwright.ir.op import BatchAxis, BatchedResults, Dual, Op, Tangent, Zero
from meshwright.ir.tracing import typeof
from meshwright.ops.shape.rearrange import move_dim
from meshwright.sharding.rule import REPLICATED, ShardingRule, make_rule


@dataclass(frozen=True)
class KeyOp(Op):
    """Base class of the two ops that convert between keys and words."""

    key: KeyType
    takes_keys: ClassVar[bool] = True
    hidden_params: ClassVar[tuple[str, ...]] = ()

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        y = self.bind(*primals)
        return y, Zero(typeof(y))

    def of_array(self, x: Any) -> Any:
        """Evaluate the op on an array (of :mod:`meshwright.runtime.array`), whose buffer holds the words."""
        raise NotImplementedError

    def on_words(self, x: Any, dim: int | None) -> tuple[Any, int | None]:
        """The op if keys are represented by words along dimension ``dim``; returns as ``batch`` does."""
        raise NotImplementedError


@dataclass(frozen=True)
class RandomWrap(KeyOp):
    """Converts words ``uint32[..., n]`` to keys ``key[...]``."""

    name: ClassVar[str] = "random_wrap"

    def infer(self, words: ShapedArray) -> ShapedArray:
        if words.dtype != dtypes.uint32 or not words.ndim or words.shape[-1] != self.key.words:
            expected = f"a uint32 array of shape ({self.key.words},)"
            raise ArgumentTypeError(f"a key of {self.key.impl!r} is made of {expected}, got {words}")
        return words.update(shape=words.shape[:-1], dtype=self.key)  # type: ignore[arg-type]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x,), (dim,) = args, dims
        last = typeof(x).ndim - 1
        place = min(dim, last - 1)  # type: ignore[type-var]
        return self.bind(move_dim(x, dim, place)), place  # type: ignore[arg-type]

    def sharding_rule(self, words: ShapedArray) -> ShardingRule:
        return _rule(words.shape[:-1], self.key, from_words=True)

    def of_array(self, x: Any) -> Any:
        return x.keys(self.key)

    def on_words(self, x: Any, dim: int | None) -> tuple[Any, int | None]:
        return x, typeof(x).ndim - 1


@dataclass(frozen=True)
class RandomUnwrap(KeyOp):
    """Converts keys ``key[...]`` to words ``uint32[..., n]``."""

    name: ClassVar[str] = "random_unwrap"

    def infer(self, keys: ShapedArray) -> ShapedArray:
        return words_aval(keys)

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        return self.bind(*args), dims[0]

    def sharding_rule(self, keys: ShapedArray) -> ShardingRule:
        return _rule(keys.shape, self.key, from_words=False)

    def of_array(self, x: Any) -> Any:
        return x.words()

    def on_words(self, x: Any, dim: int | None) -> tuple[Any, int | None]:
        assert dim is not None
        return move_dim(x, dim, typeof(x).ndim - 1), None


@dataclass(frozen=True)
class RandomUse(KeyOp):
    """Marks that keys are used, and must not be again; see :mod:`meshwright.transforms.key_reuse`."""

    name: ClassVar[str] = "random_use"

    def infer(self, keys: ShapedArray) -> ShapedArray:
        return keys

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        return self.bind(*args), dims[0]

    def sharding_rule(self, keys: ShapedArray) -> ShardingRule:
        names = [f"d{d}" for d in range(keys.ndim)]
        return make_rule([names], [names], dict(zip(names, keys.shape)))

    def used_keys(self, keys: ShapedArray) -> np.ndarray:
        return np.ones(keys.shape, bool)

    def of_array(self, x: Any) -> Any:
        return x

    def on_words(self, x: Any, dim: int | None) -> tuple[Any, int | None]:
        return x, dim


def _rule(shape: Sequence[int], key: KeyType, from_words: bool) -> ShardingRule:
    """The keys are independent of each other; a device has all words of a key or none."""
    keys = [f"d{d}" for d in range(len(shape))]
    words = [*keys, "word"]
    sides = (words, keys) if from_words else (keys, words)
    return make_rule([sides[0]], [sides[1]], dict(zip(words, (*shape, key.words))), {"word": REPLICATED})


def wrap_words(words: Any, key: KeyType) -> Any:
    """Convert words to keys."""
    return RandomWrap(key).bind(words)


def unwrap_keys(keys: Any) -> Any:
    """Convert keys to words."""
    return RandomUnwrap(typeof(keys).dtype).bind(keys)  # type: ignore[arg-type]


def words_aval(aval: ShapedArray) -> ShapedArray:
    """The type of the words of an array of keys; other types are returned unchanged."""
    kind: Any = aval.dtype
    return aval.update(shape=(*aval.shape, kind.words), dtype=dtypes.uint32) if is_key(kind) else aval


def _avals(jaxpr: Jaxpr) -> Iterator[ShapedArray]:
    for atom in (*jaxpr.constvars, *jaxpr.invars, *jaxpr.outvars, *(v for eqn in jaxpr.eqns for v in eqn.outvars)):
        yield atom.aval


@once_for_each
def key_types_of(jaxpr: Jaxpr) -> frozenset[KeyType]:
    """The key dtypes in a program, including its inner jaxprs."""
    own: set[Any] = {a.dtype for a in _avals(jaxpr) if is_key(a.dtype)}
    inner = (key_types_of(j) for eqn in jaxpr.eqns if eqn.op.holds_jaxprs for j in sub_jaxprs(eqn.op))
    return frozenset(own.union(*inner))
