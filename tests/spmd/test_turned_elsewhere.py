"""What something is sent for is split along another dimension, with all that comes before and after it."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, nn
from meshwright import PartitionSpec as P
from meshwright.spmd.partition.lookahead import Search
from meshwright.spmd.partition.turned import elsewhere

MESH = mw.AbstractMesh((8,), ("d",))
GRID = mw.AbstractMesh((2, 4), ("d", "t"))
F32 = 4
DTYPES = [(np.float32,), (np.int32,)]


def f32(*shape):
    return shape, np.float32


def i32(*shape):
    return shape, np.int32


def filtered(x, k):
    """Images in bands of rows that a network convolves again and again."""
    for _ in range(6):
        x = nn.relu(mw.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    return x


def groups(w, u):
    """Each group of inputs has a weight of its own, whose gradient is a sum over the batch."""

    def loss(w):
        return (mnp.tanh(mnp.einsum("bik,iko->bio", u, w)) ** 2).mean()

    return w - mw.grad(loss)(w)


def edges(w, x, src, dst):
    """Messages along edges that devices share, summed at nodes that all have."""
    for _ in range(2):
        x = nn.relu(mnp.zeros_like(x).at[dst].add(x[src])) * w
    return x


def attention(weights, x):
    """Heads are split, with weights that are smaller than what flows between them."""
    for w in weights:
        q, k, v = ((x @ w[name]).reshape(8, 96, 4, 16) for name in "qkv")
        scores = nn.softmax(mnp.einsum("bihd,bjhd->bhij", q, k))
        x = x + mnp.einsum("bhij,bjhd->bihd", scores, v).reshape(8, 96, 64) @ w["o"]
    return x


CASES = {
    "windows": (
        filtered,
        (f32(8, 32, 32, 4), f32(3, 3, 4, 4)),
        (P(None, "d"), P()),
        P(None, "d"),
        2 * 32 * 32 * 4 * 7 // 8,
    ),
    "sums": (groups, (f32(64, 32, 32), f32(64, 64, 32)), (P(), P("d")), P(), 64 * (32 * 32 + 64 * 32 // 8) * 7 // 8),
    "scattered": (
        edges,
        (f32(64), f32(512, 64), i32(512), i32(512)),
        (P(), P(), P("d"), P("d")),
        P(),
        (2 * 512 + 512 * 64) * 7 // 8,
    ),
    "products": (
        attention,
        ([dict.fromkeys("qkvo", f32(64, 64))] * 2, f32(8, 96, 64)),
        ([{**dict.fromkeys("qkv", P(None, "t")), "o": P("t")}] * 2, P("d")),
        P("d"),
        (8 * 64 * 64 + 4 * 96 * 64) * 3 // 4,
    ),
}


def is_leaf(shape):
    return isinstance(shape, tuple) and shape[1:] in DTYPES


@pytest.mark.parametrize("name", CASES)
def test_it_is_moved_once_where_that_sends_less(name):
    program, shapes, ins, outs, sent = CASES[name]
    mesh = GRID if name == "products" else MESH
    args = mw.tree_util.tree_map(lambda shape: mw.ShapeDtypeStruct(*shape), shapes, is_leaf=is_leaf)
    shardings = mw.tree_util.tree_map(lambda s: NamedSharding(mesh, s), ins, is_leaf=lambda s: isinstance(s, P))
    run = mw.jit(program, in_shardings=shardings, out_shardings=NamedSharding(mesh, outs))
    part = run.lower(*args).partition()
    assert part.bytes_sent == F32 * sent and part.work.redundancy < 1.01
    part.verify()


def test_rows_of_nodes_and_edges_that_are_joined_are_split_alike():
    """On trial, the features of some of them are split by the axis of the rows of the others."""

    def messages(weights, x, e, src, dst):
        for up, down in weights:
            m = nn.relu(mnp.concatenate([x[src], x[dst], e], -1) @ up)
            total = mnp.zeros_like(x).at[dst].add(m)
            x, e = x + nn.relu(mnp.concatenate([x, total], -1) @ down), e + m
        return x

    shapes = ([(f32(48, 16), f32(32, 16))] * 2, f32(64, 16), f32(256, 16), i32(256), i32(256))
    args = mw.tree_util.tree_map(lambda shape: mw.ShapeDtypeStruct(*shape), shapes, is_leaf=is_leaf)
    rows = NamedSharding(MESH, P("d"))
    run = mw.jit(messages, in_shardings=(NamedSharding(MESH, P()), rows, rows, rows, rows), out_shardings=rows)
    run.lower(*args).partition().verify()


def test_what_is_tried_first_does_not_depend_on_hashes(monkeypatch):
    """The processes that run a program each partition it, and have to find the same: sets of names differ in order."""
    tried = []

    def listed(search, best):
        atoms = best.part.mesh.atoms
        tried.append([([atoms.index(axis) for axis in turn.axes], turn.dim) for turn in elsewhere(best.part)])
        return best

    monkeypatch.setattr(Search, "turn_elsewhere", listed)
    matrix = mw.ShapeDtypeStruct((64, 64), np.float32)
    for a, b in ("xy", "uv", "pq", "ij", "kl", "mn", "rs", "tw"):
        mesh = mw.AbstractMesh((2, 2, 2), (a, b, "z"))
        ins = NamedSharding(mesh, P(None, a)), NamedSharding(mesh, P((a, b)))
        run = mw.jit(mnp.matmul, in_shardings=ins, out_shardings=NamedSharding(mesh, P()))
        run.lower(matrix, matrix).partition()
        assert len(tried[-1]) > 2 and tried[-1] == tried[0]
