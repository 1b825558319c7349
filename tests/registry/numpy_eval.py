"""A jaxpr evaluated op by op: in NumPy where that is one line, else by XLA through the cache of one-op programs.

The checks of this folder run tens of thousands of small programs that consist mostly of reshapes, slices and pads
around one interesting op. Compiling each takes a thousand times as long as running it. ``test_samples`` holds what is
written here against what XLA computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.op import Op
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.ir.verify import verify
from meshwright.runtime.array import default_sharding
from meshwright.runtime.compiling import compile_jaxpr
from meshwright.runtime.eager import single_op_jaxpr
from meshwright.runtime.executable import Executable

_cache: dict[Any, Executable] = {}


def _pad(op: Any, x: np.ndarray, value: np.ndarray) -> np.ndarray:
    for d, (low, high, inner) in enumerate(op.padding_config):
        n = x.shape[d]
        shape = list(x.shape)
        shape[d] = n + max(n - 1, 0) * inner
        spread = np.full(shape, value, x.dtype)
        spread[(slice(None),) * d + (slice(None, None, inner + 1),)] = x
        shape[d] += max(low, 0) + max(high, 0)
        full = np.full(shape, value, x.dtype)
        full[(slice(None),) * d + (slice(max(low, 0), max(low, 0) + spread.shape[d]),)] = spread
        x = full[(slice(None),) * d + (slice(max(-low, 0), shape[d] - max(-high, 0)),)]
    return x


def _broadcast(op: Any, x: np.ndarray) -> np.ndarray:
    shape = [1] * len(op.shape)
    for size, d in zip(x.shape, op.broadcast_dimensions):
        shape[d] = size
    return np.broadcast_to(x.reshape(shape), op.shape)


def _iota(op: Any) -> np.ndarray:
    shape = [1] * len(op.shape)
    shape[op.dimension] = -1
    return np.broadcast_to(np.arange(op.shape[op.dimension], dtype=op.dtype).reshape(shape), op.shape)


def _window(shape: Sequence[int], sizes: Sequence[int], starts: Sequence[np.ndarray]) -> tuple[slice, ...]:
    """The clamped window of a dynamic slice."""
    firsts = [min(max(int(s), 0), n - k) for s, n, k in zip(starts, shape, sizes)]
    return tuple(slice(f, f + k) for f, k in zip(firsts, sizes))


def _update(x: np.ndarray, update: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    y = x.copy()
    y[_window(x.shape, update.shape, starts)] = update
    return y


def _dot(op: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    (lc, rc), (lb, rb) = op.dimension_numbers
    left = [f"l{d}" for d in range(x.ndim)]
    right = [f"r{d}" for d in range(y.ndim)]
    for a, b in (*zip(lc, rc), *zip(lb, rb)):
        right[b] = left[a]
    out = [left[d] for d in lb] + [n for d, n in enumerate(left) if d not in (*lc, *lb)]
    out += [n for d, n in enumerate(right) if d not in (*rc, *rb)]
    number = {n: i for i, n in enumerate(dict.fromkeys((*left, *right)))}
    dtype = op.preferred_element_type or x.dtype
    wide = np.float64 if x.dtype.kind == "f" else x.dtype
    subscripts = ([number[n] for n in names] for names in (left, right, out))
    a, b, c = subscripts
    return np.einsum(x.astype(wide), a, y.astype(wide), b, c).astype(dtype)


def _ragged_dot(op: Any, x: np.ndarray, y: np.ndarray, sizes: np.ndarray, *first: np.ndarray) -> np.ndarray:
    """A product with each group, of which its rows are chosen, or which has only its rows."""
    (lc, rc), (lb, rb) = op.dimension_numbers
    if op.group is not None:
        rc, rb = ([d - (d > op.group) for d in dims] for dims in (rc, rb))
    product = SimpleNamespace(dimension_numbers=((lc, rc), (lb, rb)), preferred_element_type=op.preferred_element_type)
    sizes = np.maximum(sizes, 0)
    ends = np.cumsum(sizes, -1) + (first[0][..., None] if first else 0)
    out = np.zeros(op.infer(*map(typeof, (x, y, sizes, *first))).shape, op.preferred_element_type or x.dtype)
    grouped = (op.ragged, *op.along)
    places = np.indices([n if d in grouped else 1 for d, n in enumerate(x.shape)])
    row, which = places[op.ragged], tuple(places[d] for d in op.along)
    kept = [*lb, *(d for d in range(x.ndim) if d not in (*lc, *lb))]
    theirs = dict(zip((*rc, *rb), (*lc, *lb)))  # the dimensions of x, by those of y
    for g in range(sizes.shape[-1]):
        end, size = ends[..., g][which], sizes[..., g][which]
        mine = (end - size <= row) & (row < end)
        if op.group is None:
            of_y = mine.transpose(*(d for d in range(x.ndim) if d not in theirs.values()), *theirs.values())
            of_y = of_y.reshape([mine.shape[d] for d in theirs.values()]).transpose(np.argsort([*theirs]))
            of_y = of_y.reshape([mine.shape[theirs[d]] if d in theirs else 1 for d in range(y.ndim)])
            out[g] = _dot(product, np.where(mine, x, 0).astype(x.dtype), np.where(of_y, y, 0).astype(y.dtype))
        else:
            made = _dot(product, x, np.take(y, g, op.group))
            mask = mine.transpose(*kept, *lc).reshape([mine.shape[d] for d in kept] + [1] * (made.ndim - len(kept)))
            out = np.where(mask, made, out).astype(out.dtype)
    return out


def _wide_sum(op: Any, x: np.ndarray) -> np.ndarray:
    return x.sum(op.axes, dtype=np.float64 if x.dtype.kind == "f" else x.dtype).astype(x.dtype)


#: ops by name as functions of the op and NumPy arrays
NUMPY: dict[str, Callable[..., np.ndarray]] = {
    "reshape": lambda op, x: x.reshape(op.new_sizes),
    "squeeze": lambda op, x: x.squeeze(op.dimensions),
    "transpose": lambda op, x: x.transpose(op.permutation),
    "rev": lambda op, x: np.flip(x, op.dimensions),
    "copy": lambda op, x: x,
    "stop_gradient": lambda op, x: x,
    "slice": lambda op, x: x[tuple(map(slice, op.start_indices, op.limit_indices, op.strides))],
    "pad": _pad,
    "concatenate": lambda op, *xs: np.concatenate(xs, op.dimension),
    "broadcast_in_dim": _broadcast,
    "iota": _iota,
    "dynamic_slice": lambda op, x, *starts: x[_window(x.shape, op.slice_sizes, starts)],
    "dynamic_update_slice": lambda op, x, update, *starts: _update(x, update, *starts),
    "dot_general": _dot,
    "ragged_dot_general": _ragged_dot,
    "reduce_sum": _wide_sum,
    "reduce_max": lambda op, x: x.max(op.axes) if x.size else None,
    "reduce_min": lambda op, x: x.min(op.axes) if x.size else None,
    "add": lambda op, x, y: x + y if x.dtype != bool else x | y,
    "sub": lambda op, x, y: x - y,
    "mul": lambda op, x, y: x * y,
    "neg": lambda op, x: np.negative(x),
    "max": lambda op, x, y: np.maximum(x, y),
    "min": lambda op, x, y: np.minimum(x, y),
    "eq": lambda op, x, y: x == y,
    "ne": lambda op, x, y: x != y,
    "lt": lambda op, x, y: x < y,
    "le": lambda op, x, y: x <= y,
    "gt": lambda op, x, y: x > y,
    "ge": lambda op, x, y: x >= y,
    "and": lambda op, x, y: x & y,
    "or": lambda op, x, y: x | y,
    "not": lambda op, x: ~x,
    "select_n": lambda op, which, *cases: np.choose(which.astype(np.int32), cases, mode="clip"),
    "clamp": lambda op, low, x, high: np.minimum(np.maximum(x, low), high),
}


def _xla(eqn: JaxprEqn, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    avals = tuple(ShapedArray(a.shape, a.dtype) for a in args)
    key = (eqn.op, avals)
    found = _cache.get(key)
    if found is None:
        jaxpr = single_op_jaxpr(eqn.op, avals)
        found = _cache[key] = compile_jaxpr(jaxpr, eqn.op.name, [default_sharding()] * len(jaxpr.out_avals))
    return [np.asarray(y) for y in found(args)]


def evaluate(jaxpr: ClosedJaxpr, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a jaxpr; every value is checked against the aval that its variable has."""
    inner = jaxpr.jaxpr
    env: dict[Var, np.ndarray] = {v: np.asarray(c) for v, c in zip(inner.constvars, jaxpr.consts)}
    env.update(zip(inner.invars, args))

    def read(atom: Var | Literal) -> np.ndarray:
        return np.asarray(atom.val, atom.aval.dtype) if isinstance(atom, Literal) else env[atom]

    for eqn in inner.eqns:
        values = [read(a) for a in eqn.invars]
        fun = NUMPY.get(eqn.op.name)
        with np.errstate(all="ignore"):
            out = None if fun is None else fun(eqn.op, *values)
        outs = _xla(eqn, values) if out is None else [np.asarray(out)]
        for var, value in zip(eqn.outvars, outs, strict=True):
            assert (value.shape, value.dtype) == (var.aval.shape, var.aval.dtype), (
                f"{eqn}: made {value.dtype}{value.shape}"
            )
            env[var] = value
    return [read(a) for a in inner.outvars]


def evaluate_fun(fun: Callable[..., Sequence[Any]], args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Trace a function of flat arrays, verify the jaxpr and evaluate it."""
    jaxpr = trace_to_jaxpr(fun, [typeof(a) for a in args])
    verify(jaxpr)
    return evaluate(jaxpr, args)


def results_of(op: Op, *args: Any) -> list[Any]:
    """The results of an op as a list."""
    out = op.bind(*args)
    return list(out) if op.multiple_results else [out]
