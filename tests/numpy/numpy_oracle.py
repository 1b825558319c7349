"""Compares functions of the array library with those of jax.numpy: values, dtypes, weak types; eager and traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshwright.numpy as mnp
from meshwright.core import pytree
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr, typeof

#: relative and absolute tolerance by bytes of one element
TOLERANCE = {1: (0.3, 0.3), 2: (2e-2, 2e-2), 4: (3e-5, 3e-6), 8: (1e-6, 1e-7), 16: (1e-6, 1e-7)}


def assert_same(got: Any, want: Any, what: str = "", weak: bool = True) -> None:
    """Two trees of arrays agree in structure, shape, dtype, weak type and, up to rounding, values."""
    gots, wants = pytree.leaves(got), jax.tree.leaves(want)
    assert len(gots) == len(wants), what
    for g, w in zip(gots, wants):
        g_np, w_np = np.asarray(g), np.asarray(w)
        assert g_np.dtype == w_np.dtype, f"{what}: dtype {g_np.dtype}, expected {w_np.dtype}"
        assert g_np.shape == w_np.shape, f"{what}: shape {g_np.shape}, expected {w_np.shape}"
        if weak and isinstance(w, jax.Array) and w.dtype != bool:  # of bools it means nothing
            assert typeof(g).weak_type == w.weak_type, f"{what}: weak type should be {w.weak_type}"
        if g_np.dtype.kind in "biu":
            np.testing.assert_array_equal(g_np, w_np, err_msg=what)
        else:
            rtol, atol = TOLERANCE[max(g_np.dtype.itemsize, 1)]
            wide = np.complex128 if g_np.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(g_np.astype(wide), w_np.astype(wide), rtol, atol, err_msg=what)


def traced(f: Callable[..., Any], *args: Any) -> Any:
    """``f(*args)`` by way of a jaxpr; arrays among the arguments are its parameters."""
    places = [i for i, a in enumerate(args) if isinstance(a, np.ndarray)]
    tree: list[Any] = []

    def flat(*arrays: Any) -> list[Any]:
        given = list(args)
        for i, a in zip(places, arrays):
            given[i] = a
        leaves, treedef = pytree.flatten(f(*given))
        tree.append(treedef)
        return leaves

    arrays = [mnp.asarray(args[i]) for i in places]
    jaxpr = trace_to_jaxpr(flat, [typeof(a) for a in arrays])
    return pytree.unflatten(tree[0], eval_jaxpr(jaxpr, jaxpr.consts, *arrays))


def check(name: str, *args: Any, weak: bool = True, **kwargs: Any) -> None:
    """``meshwright.numpy.name(*args)`` equals ``jax.numpy.name(*args)``, eager and traced."""
    what = f"{name}{tuple(a.dtype.name + str(a.shape) if isinstance(a, np.ndarray) else a for a in args)} {kwargs}"
    check_functions(getattr(mnp, name), getattr(jnp, name), *args, what=what, weak=weak, **kwargs)


def check_functions(ours: Any, theirs: Any, *args: Any, what: str = "", weak: bool = True, **kwargs: Any) -> None:
    """Two functions of arrays are equal, eager and traced."""
    want = theirs(*args, **kwargs)
    assert_same(ours(*args, **kwargs), want, what, weak)
    assert_same(traced(lambda *a: ours(*a, **kwargs), *args), want, what + " traced", weak)


def sample(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0, low: float = -2.0, high: float = 2.0) -> Any:
    """Different numbers of a dtype."""
    rng = np.random.default_rng([seed, *shape])
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return rng.random(shape) > 0.5
    if dtype.kind in "iu":
        return rng.integers(max(int(low * 4), 0 if dtype.kind == "u" else -100), int(high * 8), shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.uniform(low, high, shape) + 1j * rng.uniform(low, high, shape)).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)
