"""Types with shardings on a mesh of 8 × 4 × 2, function by function, as JAX has them: equal, or refused by both.

What JAX alone refuses is named in ``TAKEN``, with the reason.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax as jlax
from jax.sharding import PartitionSpec as JaxSpec

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.errors import MeshwrightError
from meshwright.sharding import AxisType

SIZES, NAMES = (8, 4, 2), ("a", "b", "c")
MESH = mw.AbstractMesh(SIZES, NAMES, axis_types=(AxisType.Explicit,) * 3)
JAX_MESH = jax.sharding.AbstractMesh(SIZES, NAMES, axis_types=(jax.sharding.AxisType.Explicit,) * 3)

#: of each argument its shape and what splits it
ARGUMENTS = {
    "rows": ((16, 32), ("a",)), "both": ((16, 32), ("a", "b")), "joint": ((16, 32), (("a", "c"),)),
    "columns": ((16, 32), (None, "b")), "whole": ((16, 32), ()), "weights": ((32, 16), ("b",)),
    "right": ((32, 16), (None, "c")), "square": ((32, 32), ("b",)), "cube": ((16, 8, 8), ("a",)),
    "deep": ((16, 8, 8), ("a", None, "c")), "vector": ((16,), ("a",)), "other": ((32,), ("b",)),
    "images": ((16, 3, 8, 8), ("a",)), "kernel": ((4, 3, 3, 3), ()), "filters": ((8, 3, 3, 3), ("c",)),
    "planes": ((16, 3, 8, 8), ("a", None, "c")),
}  # fmt: skip


class Library:
    """Where functions of one library are, under one set of names."""

    def __init__(self, top: Any, numpy: Any, lax: Any, spec: Any) -> None:
        self.top, self.np, self.lax, self.P = top, numpy, lax, spec
        self.nn, self.random = top.nn, top.random


OURS, THEIRS = Library(mw, mnp, lax, P), Library(jax, jnp, jlax, JaxSpec)


def custom(l):
    @l.top.custom_vjp
    def f(x):
        return l.np.sin(x)

    f.defvjp(lambda x: (f(x), x), lambda x, g: (g * l.np.cos(x),))
    return f


def custom_jvp(l):
    @l.top.custom_jvp
    def f(x):
        return l.np.sin(x)

    f.defjvp(lambda xs, ts: (f(xs[0]), ts[0] * l.np.cos(xs[0])))
    return f


def conv(l, x, k, **options):
    return l.lax.conv_general_dilated(x, k, (1, 1), "SAME", **options)


#: functions of a library and the arguments
CASES = {
    # control flow
    "scan over a cube": lambda l, a: l.lax.scan(
        lambda c, x: (c + x.sum(), x), 0.0, l.np.moveaxis(a["cube"], 0, 1)),
    "scan carry": lambda l, a: l.lax.scan(lambda c, x: (c + x, l.np.sin(x)), a["whole"], l.np.zeros((3, 16, 32))),
    "scan carry split": lambda l, a: l.lax.scan(lambda c, _: (c * 2, c), a["both"], None, length=3),
    "scan over a split dimension": lambda l, a: l.lax.scan(lambda c, x: (c, x), 0.0, a["rows"]),
    "scan carry that changes": lambda l, a: l.lax.scan(lambda c, _: (c + a["rows"], None), a["whole"], None, length=3),
    "while": lambda l, a: l.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, a["both"])),
    "while that changes": lambda l, a: l.lax.while_loop(lambda c: c.sum() < 3, lambda c: c + a["rows"], a["whole"]),
    "fori": lambda l, a: l.lax.fori_loop(0, 3, lambda i, c: l.np.sin(c), a["joint"]),
    "cond": lambda l, a: l.lax.cond(True, l.np.sin, l.np.cos, a["both"]),
    "cond of two types": lambda l, a: l.lax.cond(True, lambda x, y: x, lambda x, y: y, a["rows"], a["whole"]),
    "switch": lambda l, a: l.lax.switch(1, [l.np.sin, l.np.cos, lambda x: x], a["rows"]),
    "map": lambda l, a: l.lax.map(l.np.sin, a["columns"]),
    "associative scan": lambda l, a: l.lax.associative_scan(l.np.add, a["rows"], axis=1),
    # transformations
    "vmap": lambda l, a: l.top.vmap(l.np.sin)(a["rows"]),
    "vmap of other dimension": lambda l, a: l.top.vmap(lambda x: x.sum(), 1)(a["columns"]),
    "vmap of a product": lambda l, a: l.top.vmap(lambda x, w: w @ x, (0, None))(a["rows"], a["right"].T),
    "vmap over nothing": lambda l, a: l.top.vmap(lambda x, y: x + y, (0, None))(a["rows"], a["other"]),
    "vmap of split elements": lambda l, a: l.top.vmap(lambda x: x * 2, 0, 1)(a["both"]),
    "vmap twice": lambda l, a: l.top.vmap(lambda x: l.top.vmap(l.np.sin)(x))(a["both"]),
    "vmap of two": lambda l, a: l.top.vmap(l.np.add)(a["rows"], a["whole"]),
    "vmap of two splits": lambda l, a: l.top.vmap(l.np.add, (0, 1))(a["rows"], a["square"][:, :16]),
    "grad": lambda l, a: l.top.grad(lambda x: l.np.sin(x).sum())(a["both"]),
    "grad of weights": lambda l, a: l.top.grad(lambda w: (a["rows"] @ w).sum())(a["right"]),
    "grad of whole weights": lambda l, a: l.top.grad(lambda w: (a["rows"] @ w).sum())(a["whole"].T),
    "jvp": lambda l, a: l.top.jvp(l.np.sin, (a["rows"],), (a["rows"],)),
    "linearize": lambda l, a: l.top.linearize(l.np.sin, a["rows"])[1](a["rows"]),
    "jvp of other tangents": lambda l, a: l.top.jvp(l.np.sin, (a["rows"],), (a["whole"],)),
    "custom vjp": lambda l, a: l.top.grad(lambda x: custom(l)(x).sum())(a["both"]),
    "custom jvp": lambda l, a: l.top.jvp(custom_jvp(l), (a["both"],), (a["both"],)),
    "checkpoint": lambda l, a: l.top.grad(lambda x: l.top.checkpoint(l.np.sin)(x).sum())(a["joint"]),
    "jit": lambda l, a: l.top.jit(lambda x, y: x + y)(a["rows"], a["rows"]),
    "shard_map": lambda l, a: l.top.shard_map(lambda x: x * 2, in_specs=l.P("a"), out_specs=l.P("a"))(a["rows"]),
    "shard_map that sums": lambda l, a: l.top.shard_map(
        lambda x: l.lax.psum(x, "a"), in_specs=l.P("a"), out_specs=l.P())(a["rows"]),
    "shard_map of another spec": lambda l, a: l.top.shard_map(
        lambda x: x, in_specs=l.P("b"), out_specs=l.P("b"))(a["rows"]),
    "shard_map along one axis": lambda l, a: l.top.shard_map(
        lambda x: l.np.sin(x), in_specs=l.P("a"), out_specs=l.P("a"), axis_names={"a"})(a["both"]),
    # products
    "einsum": lambda l, a: l.np.einsum("ij,jk->ik", a["rows"], a["right"]),
    "einsum of one": lambda l, a: l.np.einsum("ij->ji", a["both"]),
    "einsum that sums": lambda l, a: l.np.einsum("ij->i", a["both"]),
    "einsum trace": lambda l, a: l.np.einsum("ii->i", a["whole"][:, :16]),
    "einsum of three": lambda l, a: l.np.einsum("ij,jk,k->i", a["rows"], a["right"], a["vector"]),
    "einsum of a batch": lambda l, a: l.np.einsum("bij,bjk->bik", a["deep"], a["cube"]),
    "einsum outer": lambda l, a: l.np.einsum("i,j->ij", a["vector"], a["other"]),
    "tensordot": lambda l, a: l.np.tensordot(a["cube"], a["whole"][:8, :5], ((2,), (0,))),
    "vdot": lambda l, a: l.np.vdot(a["vector"], a["vector"]),
    "matvec": lambda l, a: a["columns"].T @ l.np.zeros(16),
    "both split where summed": lambda l, a: a["columns"] @ a["weights"],
    "one split where summed": lambda l, a: a["whole"] @ a["weights"],
    "result split twice": lambda l, a: a["rows"] @ a["rows"].T,
    "conv": lambda l, a: conv(l, a["images"], a["kernel"]),
    "conv of split features": lambda l, a: conv(l, a["images"], a["filters"]),
    "conv of split rows": lambda l, a: conv(l, a["planes"], a["kernel"]),
    "conv of groups": lambda l, a: conv(l, a["images"], a["kernel"][:3, :1], feature_group_count=3),
    "convolve": lambda l, a: l.np.convolve(a["vector"], l.np.ones(3), mode="same"),
    # indexing
    "gather columns": lambda l, a: a["rows"][:, l.np.array([1, 5, 3])],
    "gather rows": lambda l, a: a["rows"][l.np.array([1, 5, 3])],
    "take": lambda l, a: l.np.take(a["rows"], l.np.array([1, 0]), axis=1),
    "take along": lambda l, a: l.np.take_along_axis(a["rows"], l.np.zeros((16, 1), int), 1),
    "take by split indices": lambda l, a: a["whole"][:, a["vector"].astype(int)],
    "slice": lambda l, a: a["rows"][:, 2:7],
    "slice with steps": lambda l, a: a["rows"][::2],
    "half of the rows": lambda l, a: a["rows"][:8],
    "all reversed": lambda l, a: a["both"][::-1, ::-1],
    "new axis": lambda l, a: a["both"][:, None, :, None],
    "dynamic slice": lambda l, a: l.lax.dynamic_slice(a["rows"], (0, 3), (16, 4)),
    "dynamic slice of rows": lambda l, a: l.lax.dynamic_slice(a["rows"], (3, 0), (8, 32)),
    "dynamic index": lambda l, a: l.lax.dynamic_index_in_dim(a["rows"], 3, 1),
    "dynamic update": lambda l, a: l.lax.dynamic_update_slice(a["rows"], a["rows"][:, :4], (0, 3)),
    "dynamic update of other": lambda l, a: l.lax.dynamic_update_slice(a["rows"], l.np.zeros((16, 4)), (0, 3)),
    "set a column": lambda l, a: a["rows"].at[:, 2].set(0.0),
    "set a row": lambda l, a: a["rows"].at[2].set(0.0),
    "add to columns": lambda l, a: a["rows"].at[:, l.np.array([1, 2])].add(1.0),
    "where a mask": lambda l, a: l.np.where(a["rows"] > 0, a["rows"], a["whole"]),
    "one hot": lambda l, a: l.nn.one_hot(a["vector"].astype(int), 7),
    # orders and sums
    "sort": lambda l, a: l.np.sort(a["rows"], 1),
    "sort a split dimension": lambda l, a: l.np.sort(a["rows"], 0),
    "argsort": lambda l, a: l.np.argsort(a["columns"], 0),
    "top_k": lambda l, a: l.lax.top_k(a["rows"], 3),
    "top_k of a split dimension": lambda l, a: l.lax.top_k(a["columns"], 3),
    "cumsum": lambda l, a: l.np.cumsum(a["rows"], 1),
    "cumsum of a split dimension": lambda l, a: l.np.cumsum(a["rows"], 0),
    "cummax": lambda l, a: l.lax.cummax(a["columns"], 0),
    "argmin": lambda l, a: l.np.argmin(a["both"], 1),
    "argmax of a split dimension": lambda l, a: l.np.argmax(a["both"], 0),
    "mean": lambda l, a: l.np.mean(a["joint"], 1),
    "mean kept": lambda l, a: l.np.mean(a["both"], 0, keepdims=True),
    "var": lambda l, a: l.np.var(a["both"], 1),
    "all": lambda l, a: l.np.all(a["rows"] > 0, 1),
    "prod": lambda l, a: l.np.prod(a["both"], 0),
    "logsumexp": lambda l, a: l.nn.logsumexp(a["both"], 1),
    "softmax": lambda l, a: l.nn.softmax(a["both"], -1),
    "log_softmax": lambda l, a: l.nn.log_softmax(a["rows"], -1),
    "reduce_precision": lambda l, a: l.lax.reduce_precision(a["rows"], 5, 10),
    # shapes
    "reshape major": lambda l, a: a["rows"].reshape(8, 2, 32),
    "reshape that splits two axes": lambda l, a: a["joint"].reshape(8, 2, 32),
    "reshape that splits both": lambda l, a: a["joint"].reshape(16, 1, 32),
    "reshape that joins whole": lambda l, a: a["rows"].reshape(512),
    "reshape that joins split": lambda l, a: a["both"].reshape(512),
    "reshape the minor": lambda l, a: a["columns"].reshape(16, 4, 8),
    "ravel": lambda l, a: l.np.ravel(a["cube"]),
    "swapaxes": lambda l, a: l.np.swapaxes(a["deep"], 0, 2),
    "moveaxis": lambda l, a: l.np.moveaxis(a["deep"], 2, 0),
    "expand_dims": lambda l, a: l.np.expand_dims(a["both"], 1),
    "squeeze": lambda l, a: l.np.squeeze(a["both"][:, None], 1),
    "repeat columns": lambda l, a: l.np.repeat(a["rows"], 2, 1),
    "repeat rows": lambda l, a: l.np.repeat(a["rows"], 2, 0),
    "tile rows": lambda l, a: l.np.tile(a["rows"], (2, 1)),
    "concatenate columns": lambda l, a: l.np.concatenate([a["rows"], a["rows"]], 1),
    "concatenate rows": lambda l, a: l.np.concatenate([a["rows"], a["rows"]], 0),
    "concatenate different": lambda l, a: l.np.concatenate([a["rows"], a["whole"]], 1),
    "split": lambda l, a: l.np.split(a["rows"], 2, 1),
    "split rows": lambda l, a: l.np.split(a["rows"], 2, 0),
    "stack": lambda l, a: l.np.stack([a["both"], a["both"]], 1),
    "pad": lambda l, a: l.np.pad(a["rows"], ((0, 0), (2, 2))),
    "pad rows": lambda l, a: l.np.pad(a["rows"], ((4, 4), (0, 0))),
    "roll columns": lambda l, a: l.np.roll(a["rows"], 1, 1),
    "roll rows": lambda l, a: l.np.roll(a["rows"], 1, 0),
    "flip": lambda l, a: l.np.flip(a["rows"], 0),
    "broadcast_in_dim": lambda l, a: l.lax.broadcast_in_dim(a["vector"], (5, 16), (1,)),
    "tril": lambda l, a: l.np.tril(a["rows"]),
    "diag": lambda l, a: l.np.diag(a["vector"]),
    "meshgrid": lambda l, a: l.np.meshgrid(a["vector"], a["other"], indexing="ij"),
    "iota": lambda l, a: l.lax.iota(int, 8),
    # elements
    "cast": lambda l, a: a["both"].astype(l.np.bfloat16),
    "bitcast": lambda l, a: l.lax.bitcast_convert_type(a["both"], l.np.int32),
    "clip": lambda l, a: l.np.clip(a["rows"], 0, 1),
    "select": lambda l, a: l.lax.select(a["rows"] > 0, a["rows"], a["rows"]),
    "select different": lambda l, a: l.lax.select(a["rows"] > 0, a["rows"], a["whole"]),
    "power": lambda l, a: a["rows"] ** 3,
    "compare": lambda l, a: a["rows"] == a["whole"],
    "three operands": lambda l, a: a["rows"] + a["whole"] * a["rows"],
    "row by column": lambda l, a: a["vector"][:, None] * a["other"],
    "crossed": lambda l, a: a["rows"] + a["columns"],
    "different axes": lambda l, a: a["rows"] + a["joint"],
    "complex": lambda l, a: l.lax.complex(a["rows"], a["rows"]),
    "relu": lambda l, a: l.nn.relu(a["both"]),
    "gelu": lambda l, a: l.nn.gelu(a["joint"]),
    "optimization_barrier": lambda l, a: l.lax.optimization_barrier(a["rows"]),
    "stop_gradient": lambda l, a: l.lax.stop_gradient(a["rows"]),
    "fft": lambda l, a: l.np.fft.fft(a["rows"]),
    "cholesky": lambda l, a: l.np.linalg.cholesky(a["deep"][:, :, :8] * 0 + l.np.eye(8)),
    "cholesky of a batch": lambda l, a: l.np.linalg.cholesky(a["cube"]),
    "reduce_window": lambda l, a: l.lax.reduce_window(a["rows"], -l.np.inf, l.lax.max, (1, 2), (1, 2), "VALID"),
    "reduce_window along a split": lambda l, a: l.lax.reduce_window(
        a["rows"], -l.np.inf, l.lax.max, (2, 1), (1, 1), "SAME"),
    "segment_sum": lambda l, a: l.top.ops.segment_sum(a["whole"], l.np.zeros(16, int), 4),
    "random": lambda l, a: l.random.normal(l.random.key(0), (16, 32)),
    "searchsorted": lambda l, a: l.np.searchsorted(l.np.arange(5.0), a["vector"]),
}  # fmt: skip

#: refused by JAX alone: nothing is ambiguous, and no data moves
TAKEN = {
    "a value that is whole meets one that is split, which takes its part of it, as in a sum": (
        "vmap of two", "vmap of two splits", "where a mask", "select different", "concatenate different",
        "dynamic update of other",
    ),
    "each device computes its part of the result": ("conv of split features", "take by split indices", "repeat rows"),
    "only the device that has the row writes it": ("set a row",),
    "JAX's own helpers meet values without a mesh": ("cholesky of a batch", "searchsorted"),
}  # fmt: skip


def given(library):
    sharding = (lambda s: mw.NamedSharding(MESH, P(*s))) if library is OURS else (
        lambda s: jax.sharding.NamedSharding(JAX_MESH, JaxSpec(*s)))  # fmt: skip
    return {
        n: library.top.ShapeDtypeStruct(shape, np.float32, sharding=sharding(s)) for n, (shape, s) in ARGUMENTS.items()
    }


def spelled(spec, ndim):
    entries = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec]
    return (*entries, *[()] * (ndim - len(entries)))


def found(library, f):
    """The shardings of the types of the results, or the refusal."""
    args = given(library)
    try:
        if library is OURS:
            with mw.set_mesh(MESH):
                outs = mw.make_jaxpr(lambda a: f(library, a))(args).out_avals
        else:
            with jax.sharding.use_abstract_mesh(JAX_MESH):
                outs = jax.make_jaxpr(lambda a: f(library, a))(args).out_avals
    except Exception as error:
        if library is OURS and not isinstance(error, MeshwrightError):
            raise
        return f"{type(error).__name__}: {error}"
    return [(spelled(a.sharding.spec, a.ndim), frozenset(a.sharding.spec.unreduced)) for a in outs]


@pytest.mark.parametrize("name", CASES)
def test_types_and_refusals_are_those_of_jax(name):
    mine, theirs = found(OURS, CASES[name]), found(THEIRS, CASES[name])
    if any(name in cases for cases in TAKEN.values()):
        assert isinstance(theirs, str) and not isinstance(mine, str)
    elif isinstance(theirs, str):
        assert isinstance(mine, str), f"ours {mine}, theirs {theirs}"
    else:
        assert mine == theirs
