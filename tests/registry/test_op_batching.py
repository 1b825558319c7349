"""``vmap`` of every op is a loop, whichever operands are batched and wherever their batch dimensions stand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy_eval import evaluate_fun, results_of
from samples import DISTINCT, Sample
from sharding_harness import difference

from meshwright.ops.shape.rearrange import move_dim, reshape
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim
from meshwright.transforms.vmap import vmap

SIZE = 3
#: all except XLA's generator, which draws for a batch from its first state, as in JAX (tests/random/test_typed_keys.py)
LOOPS = [s for s in DISTINCT if s.args and s.op.name != "rng_bit_generator"]


def _stack(x: np.ndarray) -> np.ndarray:
    """``SIZE`` different arrays of the values of ``x`` (of one element: all equal)."""
    return np.stack([np.roll(x, i) for i in range(SIZE)])


def _in_axes(sample: Sample) -> Iterator[tuple[int | None, ...]]:
    """Every choice of batch positions. From four operands on, those of rank 0 or 1 are batched at the front only, and
    from six on all but the first two."""
    options = []
    for number, x in enumerate(sample.args):
        anywhere = len(sample.args) < 4 or (x.ndim > 1 and (number < 2 or len(sample.args) < 6))
        places = range(x.ndim + 1 if anywhere else 1)
        options.append([None, *places])
    for axes in itertools.product(*options):
        if any(a is not None for a in axes):
            yield axes


def _index(x: Any, i: int) -> Any:
    part = slice_in_dim(x, i, i + 1, axis=0)
    return reshape(part, part.shape[1:])


def _close(got: list[np.ndarray], want: list[np.ndarray], labels: list[str]) -> None:
    tol = 1e-2 if any(x.dtype.itemsize == 2 for x in want) else 1e-5
    assert len(got) == len(want)
    found = [f"{label}: {wrong}" for g, w, label in zip(got, want, labels) if (wrong := difference(g, w, tol))]
    assert not found, f"{len(found)} of {len(labels)} differ from the loop:\n" + "\n".join(found[:5])


@pytest.mark.parametrize("sample", LOOPS, ids=lambda s: s.id)
def test_vmap_is_a_loop(sample: Sample) -> None:
    every = list(_in_axes(sample))
    masks = sorted({tuple(a is not None for a in axes) for axes in every})
    n = len(sample.args)

    def fun(*xs: Any) -> list[Any]:
        single, stacked = xs[:n], xs[n : 2 * n]
        moved = dict(zip(keys, xs[2 * n :]))
        loops = {}
        for mask in masks:
            rows = [
                results_of(sample.op, *(_index(s, i) if b else x for x, s, b in zip(single, stacked, mask)))
                for i in range(SIZE)
            ]
            loops[mask] = [concatenate([reshape(y, (1, *y.shape)) for y in column], 0) for column in zip(*rows)]
        got, want = [], []
        for axes in every:
            args = [x if a is None else moved[o, a] for o, (x, a) in enumerate(zip(single, axes))]
            got += vmap(lambda *v: results_of(sample.op, *v), in_axes=axes)(*args)
            want += loops[tuple(a is not None for a in axes)]
        return [*got, *want]

    stacks = [_stack(x) for x in sample.args]
    keys = sorted({(o, a) for axes in every for o, a in enumerate(axes) if a is not None})
    moved = [np.moveaxis(stacks[o], 0, a) for o, a in keys]
    outs = evaluate_fun(fun, [*sample.args, *stacks, *moved])
    half = len(outs) // 2
    per = half // len(every)
    _close(outs[:half], outs[half:], [f"in_axes={axes}" for axes in every for _ in range(per)])


@pytest.mark.parametrize("sample", LOOPS, ids=lambda s: s.id)
def test_nested_vmap(sample: Sample) -> None:
    """Twice: the inner over some operands, the outer over some; their batch dimensions stand beside each other."""
    n = len(sample.args)
    masks = [m for m in itertools.product((False, True), repeat=n) if any(m)]
    pairs = list(itertools.product(masks, masks)) if n < 3 else [(m, masks[-1 - i]) for i, m in enumerate(masks)]
    stacks = [_stack(_stack(x)) for x in sample.args]  # [outer, inner, ...]

    def pick(x: Any, outer: int | None, inner: int | None) -> Any:
        return _index(_index(x, outer or 0), inner or 0)

    def fun(*xs: Any) -> list[Any]:
        got, want = [], []
        for outer, inner in pairs:
            args = []
            for x, o, i in zip(xs, outer, inner):
                args.append(x if o and i else _index(x, 0) if i else _inner_first(x) if o else pick(x, 0, 0))
            axes_in = tuple(-1 if i and x.ndim > 2 else 0 if i else None for x, i in zip(xs, inner))
            # The inner batch dimension is moved to the end where there is one to pass.
            args = [_to_end(a, 1 if o else 0) if ax == -1 else a for a, ax, o in zip(args, axes_in, outer)]
            inner_map = vmap(lambda *v: results_of(sample.op, *v), in_axes=axes_in)
            got += vmap(inner_map, in_axes=tuple(0 if o else None for o in outer))(*args)
            rows = []
            for a, b in itertools.product(range(SIZE), repeat=2):
                rows.append(
                    results_of(sample.op, *(pick(x, a if o else 0, b if i else 0) for x, o, i in zip(xs, outer, inner)))
                )
            for column in zip(*rows):
                flat = concatenate([reshape(y, (1, *y.shape)) for y in column], 0)
                want.append(reshape(flat, (SIZE, SIZE, *flat.shape[1:])))
        return [*got, *want]

    outs = evaluate_fun(fun, stacks)
    half = len(outs) // 2
    per = half // len(pairs)
    _close(outs[:half], outs[half:], [f"outer {o}, inner {i}" for o, i in pairs for _ in range(per)])


def _inner_first(x: Any) -> Any:
    """``x[:, 0]``."""
    part = slice_in_dim(x, 0, 1, axis=1)
    return reshape(part, (part.shape[0], *part.shape[2:]))


def _to_end(x: Any, dim: int) -> Any:

    return move_dim(x, dim, x.ndim - 1)
