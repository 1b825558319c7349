"""The order of complex numbers: that of NumPy (real, then imaginary part; NaN first of all) wherever one is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax

PARTS = [0.0, 1.0, -2.5, np.inf, np.nan]
POINTS = np.array([complex(a, b) for a in PARTS for b in PARTS], np.complex64)
FINITE = np.random.default_rng(0).permutation(POINTS[np.isfinite(POINTS)].repeat(2)).astype(np.complex64)
LOWEST, HIGHEST = np.complex64(complex(-np.inf, -np.inf)), np.complex64(complex(np.inf, np.inf))


@pytest.mark.parametrize(
    "name", "maximum minimum fmax fmin less less_equal greater greater_equal equal not_equal".split()
)
@pytest.mark.parametrize("scalar", [False, True])
def test_elementwise(name: str, scalar: bool) -> None:
    y = POINTS[7] if scalar else POINTS
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(getattr(mnp, name)(POINTS[:, None], y), getattr(np, name)(POINTS[:, None], y))
        jitted = mw.jit(getattr(mnp, name))(POINTS[:, None], y)
        np.testing.assert_array_equal(jitted, getattr(np, name)(POINTS[:, None], y))


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin", "sort", "ptp"])
def test_reductions(name: str) -> None:
    values = [FINITE, FINITE.reshape(3, 6)] + ([POINTS, POINTS[::-1].copy(), POINTS[[4, 3]]] if "m" in name else [])
    for x in values:
        ours = getattr(mnp, name)(x, axis=-1)
        theirs = getattr(np, name)(x, axis=-1)
        np.testing.assert_array_equal(ours, theirs)


LARGEST: dict[str, Callable[[Any], Any]] = {
    "reduce_max": lambda x: lax.reduce_max(x, (0,)),
    "reduce": lambda x: lax.reduce(x, LOWEST, lax.max, (0,)),
    "cummax": lambda x: lax.cummax(x)[-1],
    "cummax reversed": lambda x: lax.cummax(x, reverse=True)[0],
    "reduce_window": lambda x: lax.reduce_window(x, LOWEST, lax.max, (len(x),), (1,), "VALID")[0],
    "scatter_max": lambda x: mnp.full(3, LOWEST).at[mnp.ones(len(x), int)].max(x)[1],
    "pmax": lambda x: mw.vmap(lambda x: lax.pmax(x, "i"), axis_name="i")(x)[0],
    "segment_max": lambda x: mnp.max(x, initial=LOWEST, where=x == x),
    "scan": lambda x: lax.associative_scan(lax.max, x)[-1],
    "sort": lambda x: mnp.sort(x)[-1],
    "clip": lambda x: mnp.clip(LOWEST, np.asarray(x).max(), HIGHEST),
    "clamp": lambda x: mw.lax.clamp(np.asarray(x).max(), mnp.asarray(x), HIGHEST)[0],
}


@pytest.mark.parametrize("name", LARGEST)
def test_every_maximum(name: str) -> None:
    np.testing.assert_array_equal(LARGEST[name](FINITE), FINITE.max())


SMALLEST: dict[str, Callable[[Any], Any]] = {
    "reduce_min": lambda x: lax.reduce_min(x, (0,)),
    "cummin": lambda x: lax.cummin(x)[-1],
    "reduce_window": lambda x: lax.reduce_window(x, HIGHEST, lax.min, (len(x),), (1,), "VALID")[0],
    "scatter_min": lambda x: mnp.full(3, HIGHEST).at[mnp.ones(len(x), int)].min(x)[1],
    "pmin": lambda x: mw.vmap(lambda x: lax.pmin(x, "i"), axis_name="i")(x)[0],
}


@pytest.mark.parametrize("name", SMALLEST)
def test_every_minimum(name: str) -> None:
    np.testing.assert_array_equal(SMALLEST[name](FINITE), FINITE.min())


@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin", "cummax", "at"])
def test_partitioned(kind: str) -> None:
    mesh = mw.make_mesh((4,), ("x",))
    x = np.resize(FINITE, (24, 3))
    f: dict[str, Any] = {
        "cummax": lambda x: lax.cummax(x, axis=0),
        "at": lambda x: mnp.zeros((3, 3), x.dtype).at[mnp.arange(24) % 3].max(x),
    }
    function = f.get(kind, lambda x: getattr(mnp, kind)(x, axis=0))
    split = mw.device_put(x, mw.NamedSharding(mesh, mw.P("x")))
    np.testing.assert_array_equal(mw.jit(function)(split), function(mnp.asarray(x)))
