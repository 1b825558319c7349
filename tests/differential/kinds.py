"""Kinds of functions: for each, the calls that are made of it for a dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from arguments import ALL, BOOL, NARROW, NUMPY_SCALARS, PYTHON_SCALARS, WIDE, few, plain, special, tied
from outcomes import Call, Weak, call

Calls = Iterable[Call]


@dataclass(frozen=True)
class Kind:
    """``by_dtype`` makes the calls for a dtype, ``others`` are those for no dtype in particular."""

    by_dtype: Callable[[np.dtype], Calls]
    others: tuple[Call, ...] = ()
    dtypes: Sequence[np.dtype] = tuple(ALL)
    #: of more rounding errors than one
    loose: float = 1.0

    def calls(self, dtypes: Sequence[np.dtype]) -> Iterator[Call]:
        for dtype in dtypes:
            if dtype in self.dtypes:
                yield from self.by_dtype(dtype)
        yield from self.others


def on(
    *shapes: tuple[int, ...], dtypes: Sequence[np.dtype] = ALL, values: Any = plain, loose: float = 1.0
) -> Callable[..., Kind]:
    """A kind from a function of arrays of these shapes, which yields calls, and from other calls."""

    def made(f: Callable[..., Calls], others: Sequence[Call] = ()) -> Kind:
        def by_dtype(dtype: np.dtype) -> Calls:
            arrays = [
                values(dtype, *s) if values is not plain else plain(dtype, *s, seed=i) for i, s in enumerate(shapes)
            ]
            return f(*arrays)

        return Kind(by_dtype, tuple(others), dtypes, loose)

    return made


_ONE_NUMBER = tuple(call(x) for x in [*PYTHON_SCALARS, *NUMPY_SCALARS, Weak(2), Weak(0.5), Weak(1j)])


#: one of each kind: where it is not values but kinds of dtypes that matter
ONE_OF_EACH = tuple(np.dtype(n) for n in ("bool", "int8", "uint32", "int64", "float16", "float32", "complex64"))


def _unary(dtype: np.dtype) -> Calls:
    return [call(special(dtype)), *([call(plain(dtype, 0, 3))] if dtype in ONE_OF_EACH else [])]


UNARY = Kind(_unary, _ONE_NUMBER)


def _beside(dtype: np.dtype) -> list[Call]:
    """An array beside numbers, before and behind it."""
    if dtype not in ONE_OF_EACH:
        return []
    x = plain(dtype, 3)
    behind = [True, 3, -2, 0.5, 1j, np.int8(3), np.uint16(9), np.float64(2.0), Weak(0.5)]
    return [*(call(x, n) for n in behind), *(call(n, x) for n in (2, -0.5, np.float16(2), Weak(3)))]


def _pairs_of_dtypes(dtype: np.dtype) -> list[Call]:
    return [call(plain(dtype, 2, 1), plain(other, 3, seed=1)) for other in (ALL if dtype in WIDE else NARROW)]


def _crossed(dtype: np.dtype) -> list[Call]:
    values = few(dtype)
    return [call(values[:, None], values), call(plain(dtype, 0, 1), plain(dtype, 3))]


def _binary(dtype: np.dtype) -> list[Call]:
    return [*_crossed(dtype), *_beside(dtype), *_pairs_of_dtypes(dtype)]


_TWO_NUMBERS = tuple(call(a, b) for a in (True, 2, 0.5, Weak(3)) for b in (3, -0.5, np.int8(2), np.float32(2)))
#: also of every two dtypes
BINARY_OF_DTYPES = Kind(_binary, _TWO_NUMBERS)
BINARY = Kind(lambda d: [*_crossed(d), *_beside(d)], _TWO_NUMBERS)
#: of one dtype only
BINARY_ALIKE = Kind(lambda d: [*_crossed(d), call(plain(d, 3), 2), call(plain(d, 3), Weak(2.0))], _TWO_NUMBERS)


def _reduced(dtype: np.dtype) -> Iterator[Call]:
    x = tied(dtype, 3, 4)
    yield call(x)
    yield call(x, axis=0)
    yield call(x, axis=-1, keepdims=True)
    yield call(plain(dtype, 0, 3), axis=0)
    if dtype in ONE_OF_EACH:
        yield from (call(plain(dtype, 2, 3, 2), axis=(0, 2)), call(plain(dtype)), call(plain(dtype, 0, 3), axis=1))


def _where(dtype: np.dtype) -> Iterator[Call]:
    mask = plain(BOOL, 3, 4)
    yield call(plain(dtype, 3, 4), axis=1, where=mask)
    yield call(tied(dtype, 3, 4), axis=0, where=mask[:, :1])


def _initial(dtype: np.dtype) -> Iterator[Call]:
    if dtype not in ONE_OF_EACH:
        return
    yield from (call(plain(dtype, 3, 4), axis=0, initial=i) for i in (2, -1.5, np.array(3, np.int8)))
    yield call(plain(dtype, 0, 3), axis=0, initial=1)
    yield call(plain(dtype, 3, 4), axis=1, where=plain(BOOL, 3, 4), initial=1)


_DTYPES = ("bool", "int8", "uint8", "int32", "float16", "bfloat16", "float32", "complex64")


def _dtype(dtype: np.dtype) -> Iterator[Call]:
    if dtype in ONE_OF_EACH:
        yield from (call(plain(dtype, 3, 4), axis=0, dtype=d) for d in _DTYPES)


def reduction(*extras: Callable[[np.dtype], Calls]) -> Kind:
    """A reduction whose further arguments are those of ``extras``."""
    return Kind(
        lambda d: [*_reduced(d), *(c for e in extras for c in e(d))], (call(2), call(0.5), call(Weak(3), axis=None))
    )


REDUCTION, WHERE, INITIAL, DTYPE = reduction(), _where, _initial, _dtype


def _position(dtype: np.dtype) -> Iterator[Call]:
    x = tied(dtype, 3, 4)
    yield from (call(x), call(x, axis=0), call(x, axis=-1, keepdims=True), call(plain(dtype, 4, 3), axis=1))
    yield from (call(special(dtype)), call(special(dtype)[::-1].copy()), call(plain(dtype, 0, 3), axis=1))


POSITION = Kind(_position)


def _cumulative(dtype: np.dtype) -> Iterator[Call]:
    x = tied(dtype, 3, 4)
    yield from (call(x, axis=0), call(x, axis=-1), call(plain(dtype, 3, 4), axis=1), call(plain(dtype, 0, 3), axis=0))
    yield call(plain(dtype))


CUMULATIVE = Kind(_cumulative)
