# ruff: noqa: E501
"""Calls of every function of ``meshwright.numpy.fft``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from arguments import plain
from kinds import Kind
from outcomes import Call, Weak, call

SYNONYMS: dict[str, str] = {}
ELSEWHERE = ""


def _special(d: np.dtype) -> list[np.ndarray]:
    odd = plain(d, 4)
    if d.kind in "fcV":
        odd[1] = np.nan
    return [np.zeros(4, d), odd, plain(d, 1), plain(d, 3, 1)]


def _of_one(d: np.dtype) -> Iterator[Call]:
    x = plain(d, 2, 5)
    yield from (call(x), call(x, n=3), call(x, n=8), call(x, axis=0), call(x, n=1), call(x, 4, 0), call(x[0], n=0))
    yield from (call(x, norm=n) for n in ("ortho", "forward", "backward", "other"))
    yield from (call(s) for s in _special(d))
    yield from (call(plain(d, 0)), call(plain(d, 0, 4)), call(x, axis=2), call(plain(d)))


def _of_several(d: np.dtype) -> Iterator[Call]:
    x = plain(d, 2, 3, 4)
    yield from (call(x), call(x, s=(3, 2), axes=(0, 1)), call(x, s=(2, 5), axes=(1, 2)), call(x, axes=(0, 2)))
    yield from (call(x, norm=n) for n in ("ortho", "forward"))
    yield from (call(x[0]), call(x, axes=(0, 0)), call(x, axes=(0, 5)), call(plain(d, 0, 4)), call(plain(d, 3)))


def _shifted(d: np.dtype) -> Iterator[Call]:
    x = plain(d, 3, 4)
    yield from (call(x), call(x, axes=0), call(x, axes=(0, 1)), call(x[0]), call(plain(d, 0)), call(plain(d)))


ONE, SEVERAL, SHIFT = (
    Kind(k, (call(2.0), call(Weak(3)), call([1, 2.5, 3])), loose=16) for k in (_of_one, _of_several, _shifted)
)
_SAMPLED = Kind(lambda d: [call(5, dtype=d.name)], (call(5), call(4), call(4, 0.5), call(1), call(0), call(3, 2), call(4, np.float16(2)), call(4, d=Weak(0.5))))  # fmt: skip
TABLE: dict[str, Kind] = {
    **dict.fromkeys(("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"), ONE),
    **dict.fromkeys(("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn"), SEVERAL),
    **dict.fromkeys(("fftshift", "ifftshift"), SHIFT),
    **dict.fromkeys(("fftfreq", "rfftfreq"), _SAMPLED),
}
