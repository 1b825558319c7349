"""What the tests of ops share: agreement with jax, with finite differences' exact cousins, and with plain loops."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import meshwright.runtime.eager
import meshwright.transforms.rules  # noqa: F401  (installs the transformations of jaxprs)
from meshwright.core import pytree
from meshwright.transforms.autodiff import jvp, vjp
from meshwright.transforms.vmap import vmap

F = Callable[..., Any]


def values(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Distinct values in random order, none of them zero."""
    n = int(np.prod(shape))
    order = np.random.default_rng(seed).permutation(n)
    return ((order - n // 2 + 0.5) / 2).reshape(shape).astype(dtype)


def assert_same(got: Any, want: Any, tol: float = 0.0) -> None:
    """Equal trees of arrays, in shape, dtype and value."""
    a, b = pytree.leaves(got), jax.tree.leaves(want)
    assert len(a) == len(b)
    for x, y in zip(a, b):
        x, y = np.asarray(x), np.asarray(y)
        assert x.shape == y.shape, f"shape {x.shape}, expected {y.shape}"
        assert x.dtype == y.dtype, f"dtype {x.dtype}, expected {y.dtype}"
        if tol:
            np.testing.assert_allclose(x, y, rtol=tol, atol=tol)
        else:
            np.testing.assert_array_equal(x, y)


def check_value(ours: F, theirs: F, *args: Any, tol: float = 0.0) -> None:
    """``ours`` and jax's ``theirs`` give the same on the same arguments."""
    assert_same(ours(*args), theirs(*args), tol)


def check_grad(ours: F, theirs: F, *args: Any, tol: float = 1e-4) -> None:
    """Both modes of derivative agree with jax's, and with each other."""
    tangents = tuple(values(*np.shape(a), seed=7 + i, dtype=a.dtype) / max(1, a.size) for i, a in enumerate(args))
    out, tangent = jvp(ours, args, tangents)
    want, want_tangent = jax.jvp(theirs, args, tangents)
    assert_same(out, want, tol)
    assert_same(tangent, want_tangent, tol)
    cts = pytree.map(lambda x: values(*np.shape(x), seed=3, dtype=np.asarray(x).dtype), out)
    assert_same(vjp(ours, *args)[1](cts), jax.vjp(theirs, *args)[1](jax.tree.map(np.asarray, cts)), tol)


def check_batch(fun: F, *args: np.ndarray, size: int = 3, tol: float = 0.0) -> None:
    """``vmap(fun)`` is a loop, whichever arguments are batched and wherever their batch dimension stands."""
    stacks = [
        np.stack([np.roll(a, i) if a.size > 1 else a + np.asarray(i, a.dtype) for i in range(size)]) for a in args
    ]
    for axes in itertools.product(*[[None, *range(a.ndim + 1)] for a in args]):
        if all(d is None for d in axes):
            continue
        given = [a if d is None else np.moveaxis(s, 0, d) for a, s, d in zip(args, stacks, axes)]
        got = vmap(fun, in_axes=tuple(axes))(*given)
        single = [fun(*[a if d is None else s[i] for a, s, d in zip(args, stacks, axes)]) for i in range(size)]
        leaves = [[np.asarray(x) for x in pytree.leaves(s)] for s in single]
        want = [np.stack(column) for column in zip(*leaves)]
        assert_same(pytree.leaves(got), want, tol)


def loop_axes(ndim: int) -> Sequence[int | None]:
    """Every batch position, and none."""
    return [None, *range(ndim + 1)]
