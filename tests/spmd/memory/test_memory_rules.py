"""What XLA does to small programs, each a rule of the memory model: the peaks are the same to a few scalars."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax, nn
from meshwright import PartitionSpec as P
from meshwright.ops.window.reductions import reduce_window
from meshwright.runtime.pjrt.replicas import compiled_memory
from meshwright.spmd.memory.buffers import Buffer
from meshwright.spmd.memory.graph import Graph
from meshwright.spmd.memory.packing import joined, packed
from meshwright.spmd.memory.rearrange import move_late
from meshwright.spmd.memory.record import record

MESH = mw.AbstractMesh((4,), ("x",))
#: bytes of scalars, and of starts of buffers at multiples of 64
SMALL = 1024
Shapes = tuple[tuple[int, ...], ...]
INDEX = ()
X = (256, 512)


def positive(x: Any) -> Any:
    """Matrices that have a Cholesky factor."""
    return x @ mnp.swapaxes(x, -1, -2) + x.shape[-1] * mnp.eye(x.shape[-2])


def two_windows(x: Any, i: Any) -> Any:
    """A padded array of which two kernels take parts."""
    y = mnp.pad(x, ((0, 0), (10, 12)))
    return mnp.fft.fft(lax.dynamic_slice_in_dim(y, i, 22, 1)).real @ lax.dynamic_slice_in_dim(y, 2 * i, 22, 1).T


def wrapped_twice(x: Any) -> Any:
    y = mnp.concatenate([x[21:], x, x[:4]], 0)
    return mnp.concatenate([y[40:], y, y[:28]], 0)


def written_late(x: Any, y: Any, i: Any) -> Any:
    """What is written into is copied first of all, and has its memory from then on."""
    return lax.dynamic_update_slice(x, (mnp.tanh(y @ y.T) @ y)[:1], (i, 0))


def pooled(x: Any) -> Any:
    return mnp.sin(reduce_window(x, np.float32(-np.inf), "max", (1, 3, 1), (1, 2, 1), ((0, 0), (1, 2), (0, 0)))).sum()


def repeated(step: Callable[..., Any]) -> Callable[..., Any]:
    """A loop whose carry is changed by a step that also reads what stays."""
    return lambda x, *fixed: lax.scan(lambda c, _: (step(c, *fixed), None), x, None, length=5)[0]


def loop_in_loop(x: Any, w: Any) -> Any:
    return repeated(lambda c, w: repeated(lambda d, w: mnp.sin(d) + mnp.tanh(w))(c, w))(x, w)


def equal_choices(x: Any, i: Any) -> Any:
    a, b = (lax.cond(i > 0, lambda a: mnp.sin(a) @ a, lambda a: mnp.cos(a) @ a, x) for _ in range(2))
    return a.T @ b


def equal_loops(x: Any, w: Any) -> Any:
    a, b = (repeated(lambda c, w: mnp.sin(c) @ w)(x, w) for _ in range(2))
    return a.T @ b


def reduced_too(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A transposed result, whose rows are reduced as well."""

    def both(x: Any) -> Any:
        y = mnp.transpose(fun(x), (1, 0, 2))
        return y, mnp.min(y, 2)

    return both


def window_of_one(c: Any) -> Any:
    return mnp.tanh(reduce_window(c, np.float32(-np.inf), "max", (1, 1), (1, 1), ((0, 0), (0, 0))))


def written_apart(x: Any, numbers: Any) -> Any:
    """Each row is written into a row of its own."""
    return mw.vmap(lambda a, j: mnp.zeros_like(a).at[j.astype(np.int32)].add(a))(x, numbers)


def cut_and_read(x: Any, i: Any) -> Any:
    y = lax.pad(x, np.float32(0.5), ((-1, 255, 0), (0, 0, 0), (0, 0, 0)))
    z = mnp.pad(mnp.concatenate([y, mnp.sin(y[:, :1])], 1), ((0, 0), (1, 1), (0, 0)))
    part = mnp.where(mnp.arange(12)[None, :, None] + i < 10, lax.dynamic_slice(z, (0, i, 0), (510, 12, 64)), 0)
    sums = reduce_window(part, np.float32(0), "add", (1, 3, 1), (1, 3, 1), ((0, 0), (0, 0), (0, 0)))
    return y, sums[::-1], sums @ mnp.ones((64, 64))


def same(a: Any) -> Any:
    return a


def chosen(*branches: Callable[..., Any]) -> Callable[..., Any]:
    """One of several functions of a temporary."""
    return lambda x, i: lax.switch(i, branches, mnp.tanh(x @ x.T) @ x)


def gathered(a: Any) -> Any:
    """What it is computed from is not needed any more when it is written."""
    return (a @ a.T) @ mnp.ones(a.shape, np.float32)


def handed_through(x: Any, i: Any) -> Any:
    """An argument, as both branches give it, beside something that takes memory."""
    return lax.cond(i > 0, same, same, x), mnp.sin(mnp.cumsum(mnp.cos(x), 1))[::2].sum()


def twice(x: Any) -> Any:
    y = mnp.tanh(mnp.cumsum(x, 0))
    return y, y


def slice_replaced(x: Any, i: Any) -> Any:
    """A part is read, reshaped, and written into: first it is copied."""
    return mnp.sort(lax.dynamic_update_slice(x[1].reshape(128, 256), mnp.ones((1, 256)), (i, 0)), 0)


def row_replaced(x: Any, i: Any) -> Any:
    """A row is computed from what it replaces, which is therefore computed before."""
    y = mnp.sin(x) + mnp.sort(x, 0)
    return mnp.sort(y.at[3].set(mnp.where(i > 3, 1.0, y[3])), 1)


def kept_by_a_loop(x: Any) -> Any:
    y = mnp.exp(mnp.sort(x, 0))
    c = lax.fori_loop(0, 3, lambda _, c: 1 / (y @ (1 / (c @ y))), mnp.ones(256))
    return mnp.sort(c[:, None] * y, 0)


def found_in_columns(x: Any, i: Any) -> Any:
    """The gradient of elements that are found by numbers: these are read twice, in two shapes."""
    places = (i % 16).astype(np.int32)[:, :, None]
    return mw.grad(lambda x: (mnp.take_along_axis(mnp.sin(x), places, 1) ** 2).sum())(x)


def beside_a_loop(x: Any, w: Any) -> Any:
    """Sums that are there before the loop begins, which waits for a tuple."""
    y = x @ w
    return mnp.where(y > 0.5, y, -1).sum(0), repeated(lambda c: mnp.sin(c @ c.T) @ c)(x)


def read_as_written(x: Any, w: Any) -> Any:
    """The first to read a value is the first in the program, not in the results."""
    y = mnp.tanh(x @ w)
    second = (y @ w).sum(0)
    return (mnp.where(y > 0, y, 2.0) @ w).sum(0), second


def column_by_column(p: Any, y: Any) -> Any:
    """Rows of a matrix, each a vector in a product and also read as it is."""
    d = 1 / (1 + p)
    q = d / d.sum()
    return mnp.einsum("ij,ijk->ik", (p - q) * d, y[:, None] - y[None]), (p * mnp.log(p / q)).sum()


def outer_products_sorted(x: Any, v: Any) -> Any:
    m = mnp.tanh(v)
    outer = m[:, :, None] * m[:, None, : x.shape[2]]
    return mnp.sort(outer.transpose(1, 0, 2), 0).max(0), mnp.einsum("bi,bij->bj", m, mnp.sort(x, 0))


def trained(a: Any, b: Any, x: Any) -> Any:
    """The gradient of the last weight, a transposed product, is computed after that of its input."""
    return mw.grad(lambda ws: mnp.sin(mnp.maximum(x @ ws[0], 0) @ ws[1]).sum())((a, b))


def one_expert(x: Any, w: Any, v: Any) -> Any:
    """Between products of one matrix each, values are matrices."""
    h = mnp.einsum("eij,ejk->eik", x[None], w[None])
    return mnp.einsum("eij,ejk->eik", mnp.where(h > 0, h, 2.0), v[None]).sum(1)


CASES: dict[str, tuple[Callable[..., Any], Shapes]] = {
    "numbers of elements are one row for each element": (found_in_columns, ((32, 16, 64), (32, 64))),
    "a loop begins after the tuple of its operands": (beside_a_loop, ((256, 512), (512, 512))),
    "what reads a value runs in the order of the program": (read_as_written, ((512, 512), (512, 512))),
    "vectors in products are matrices of one column": (column_by_column, ((512, 512), (512, 2))),
    "transposed products are computed last": (trained, ((64, 512), (512, 64), (1024, 64))),
    "batches of one matrix are matrices": (one_expert, ((512, 256), (256, 512), (512, 128))),
    "the result of a choice is taken from a tuple": (outer_products_sorted, ((64, 256, 64), (64, 256))),
    "a cosine of real numbers is computed twice": (lambda x: (mnp.cos(x)[:128], mnp.cos(x)[128:]), ((256, 512),)),
    "a factor takes the place of its matrix": (lambda x: mw.linalg.cholesky(positive(mnp.tanh(x))), ((64, 32, 32),)),
    "the products around a softmax are in its call": (
        lambda a, b: nn.softmax(a @ b, -1) @ b.T, ((8192, 16), (16, 64)),
    ),
    "a call computes what follows its sums, if it is long": (
        lambda x: mnp.sort(mnp.sqrt(mnp.exp(x).sum(0)) + 1), ((4, 8192),),
    ),
    "more than eight parts are joined apart": (
        lambda x: mnp.sort(mnp.concatenate([k * x for k in range(2, 11)]) + 1, 0), ((64, 128),),
    ),
    "what is transposed for a product is a copy": (
        lambda x: mnp.concatenate([mnp.sort(x, 0), x]) @ mnp.concatenate([x, mnp.sort(x, 1)]).T, ((256, 96),),
    ),
    "transposed arrays are reduced as they are": (
        lambda x: mnp.sort(mnp.sort(x, 2).transpose(1, 0, 2).sum(1)), ((2, 64, 512),),
    ),
    "what is written into is read as it was": (slice_replaced, ((2, 256, 128), INDEX)),
    "what a row replaces is computed before": (row_replaced, ((256, 512), INDEX)),
    "what a loop kept is written over": (kept_by_a_loop, ((256, 512),)),
    "a loop takes a copy of what is computed transposed": (
        lambda x, w: lax.scan(lambda c, y: (c * y, mnp.sort(c)), w, mnp.exp(x).T)[1], ((96, 256), (96,)),
    ),
    "sums are scattered onto what is added to them": (
        lambda x: mnp.full((256, 512), x[0, 0]).at[mnp.arange(5) * 7].add(x[:5]) + mnp.sort(x, 0), ((256, 512),),
    ),
    "repeated numbers are multiplied before they are repeated": (
        lambda x: mnp.sort((x[:, :1] * 2) * mnp.sort(x, 1), 0) + (x[:, :1] * 2) * x.sum(), ((256, 512),),
    ),
    "what is padded for two kernels is written once": (two_windows, ((160, 32), INDEX)),
    "parts of joined parts": (wrapped_twice, ((32, 64, 96),)),
    "one row is written in place": (lambda x: x.at[mnp.array([3])].add(1).T, ((256, 512),)),
    "an argument that is written into is copied": (written_late, ((256, 512), (256, 512), INDEX)),
    "the last of cumulative sums is a sum": (lambda x: mnp.cumsum(x, 1)[:, 7], ((96, 8, 32),)),
    "what max-pooling selects is compiled apart": (mw.grad(pooled), ((80, 96, 32),)),
    "what a loop does not change is computed before it": (
        repeated(lambda c, w: mnp.sin(c) + mnp.tanh(w)), ((256, 512), (256, 512)),
    ),
    "parts of it as they are needed": (
        repeated(lambda c, w: mnp.sin(c) + mnp.exp(w[0])[:256, None] * mnp.cos(w[1])), ((256, 512), (256, 512)),
    ),
    "also a choice": (
        repeated(lambda c, w, i: mnp.sin(c) + lax.cond(i > 0, mnp.sin, mnp.tanh, w)), ((256, 512), (256, 512), INDEX),
    ),
    "out of both of two loops": (loop_in_loop, ((256, 512), (256, 512))),
    "a loop carries what it computes in the order in which it computes it": (
        repeated(lambda c: mnp.tanh(mnp.cumsum(c, 0))), ((64, 96, 128),),
    ),
    "but not if a product reads it": (repeated(lambda c: mnp.sin(c.T @ c).T), ((256, 256),)),
    "a window of one element is the element": (repeated(window_of_one), ((256, 512),)),
    "a transposed result is transposed again for a reduction": (reduced_too(lambda x: x), ((64, 96, 128),)),
    "and what both are transposed from is kept": (reduced_too(mnp.tanh), ((64, 96, 128),)),
    "a pad that cuts off an edge pads first": (cut_and_read, ((256, 11, 64), INDEX)),
    "a scatter along batches has their numbers written": (written_apart, ((256, 512), (256, 512))),
    "a choice's result is in the memory of what its first branch hands through": (chosen(same, mnp.sin), (X, INDEX)),
    "also where another branch needs that no more": (chosen(same, gathered), (X, INDEX)),
    "but not where it does": (chosen(same, lambda a: a + a[::-1]), (X, INDEX)),
    "nor if a branch before has a result of its own": (chosen(mnp.sin, same), (X, INDEX)),
    "nor if one between has": (chosen(same, mnp.sin, same), (X, INDEX)),
    "nor if the operand is needed after": (
        lambda x, i: (lambda y: lax.cond(i > 0, mnp.sin, same, y) @ y.T)(mnp.tanh(x @ x.T) @ x), (X, INDEX),
    ),
    "a choice in a choice": (chosen(same, lambda a: lax.cond(a[0, 0] > 0, mnp.sin, same, a)), (X, INDEX)),
    "a loop carries what a choice hands through": (
        repeated(lambda c, i: lax.cond(i > 0, mnp.sin, same, c)), (X, INDEX),
    ),
    "an argument that all branches hand through is copied": (handed_through, (X, INDEX)),
    "also if one of them is a choice": (
        lambda x, i: mnp.sin(chosen(lambda a: lax.cond(a[0, 0] > 0, same, same, a), same)(x, i) @ x.T), (X, INDEX),
    ),
    "one element is its own sum": (
        lambda x: (lambda y: (y.sum(0), mnp.cos(y[0]) * 2))(mnp.pad(x, 3)[x[0, 0].astype(np.int32)][None]), (X,),
    ),
    "a transposed result that is there twice is transposed once": (twice, (X,)),
    "a result with dimensions of size 1 is copied into their order": (lambda x: (mnp.tanh(x)[:, None], x), (X,)),
    "also one that a product or a reduction gives": (
        lambda x: ((x @ x.T)[:, None], mnp.cos(x).reshape(64, 4, 512).sum(1, keepdims=True)), (X,),
    ),
    "but not if it is made of one dimension": (lambda x: (x.sum(1, keepdims=True), x), ((40960, 16),)),
    "nor if it is used again": (lambda x: (lambda y: (y, mnp.sin(y), y.sum(0)))(mnp.tanh(x)[:, None]), (X,)),
    "the larger of a value and itself is the value": (lambda x: mnp.concatenate([x, mnp.maximum(x, x)], 1), (X,)),
    "what has another name since is written over by readers of that alone": (
        lambda x: (lambda y: mnp.cumsum(y, 1) + y)(mnp.roll(x, 1, 1)), (X,),
    ),
    "numbers of another type do not take the place of what they are made of": (
        lambda x: ((x @ x.T) * 2).astype(np.int32).sum(0), (X,),
    ),
    "nor do positions": (lambda x, y: ((x[:, None] - y) ** 2).sum(-1).argmin(1), ((512, 32), (64, 32))),
    "rows that a scatter adds stay as they are": (lambda x: mnp.zeros((64, 512)).at[mnp.arange(256) % 64].add(x), (X,)),
    "columns do not": (lambda x: mnp.zeros((256, 64)).at[:, mnp.arange(512) % 64].add(x), (X,)),
    "equal choices are made once": (equal_choices, ((256, 256), INDEX)),
    "equal loops run once": (equal_loops, ((256, 256), (256, 256))),
}  # fmt: skip


def struct(shape: tuple[int, ...]) -> Any:
    return mw.ShapeDtypeStruct(shape, np.float32 if shape else np.int32)


def peaks(fun: Callable[..., Any], shapes: Shapes, spec: P, out: Any = None) -> tuple[int, int]:
    """Predicted and compiled."""
    ins = [NamedSharding(MESH, spec if shape else P()) for shape in shapes]
    part = mw.jit(fun, in_shardings=tuple(ins), out_shardings=out).lower(*map(struct, shapes)).partition()
    return part.memory.peak_bytes, compiled_memory(part.as_text("stablehlo"), MESH.size).peak_bytes


def test_what_a_branch_gives_is_not_written_over() -> None:
    """Nor is what every branch hands through copied."""

    def either(i: Any, x: Any) -> Any:
        return mnp.sin(lax.cond(i > 0, same, mnp.tanh, x)) @ x.T

    def neither(i: Any, x: Any) -> Any:
        return mnp.sort(lax.cond(i > 0, same, same, x) @ x.T)

    for fun in either, neither:
        predicted, compiled = peaks(fun, (INDEX, (256, 512)), P())
        assert predicted == pytest.approx(compiled, abs=SMALL)


@pytest.mark.parametrize("name", CASES)
def test_rule(name: str) -> None:
    predicted, compiled = peaks(*CASES[name], P())
    assert predicted == pytest.approx(compiled, abs=SMALL)


def test_what_is_exchanged_is_joined_along_the_dimension_that_was_split() -> None:
    """An all-to-all, and rows of what it joins in the order that a gather wants."""
    spec, out = P(None, None, "x"), NamedSharding(MESH, P(None, "x"))
    predicted, compiled = peaks(lambda x: mnp.cos(x.reshape(64, 32, 96)), ((64, 32, 96),), spec, out)
    assert predicted == pytest.approx(compiled, abs=SMALL)


def test_elementwise_operations_come_before_reshapes() -> None:
    """Unless something else reads what is reshaped. Of two moves one is left, or none."""

    def moved(fun: Callable[..., Any]) -> Graph:
        part = mw.jit(fun).lower(struct((512, 4))).partition(MESH)
        graph = record(part.jaxpr, MESH)
        move_late(graph)
        return graph

    (late,) = moved(lambda x: mnp.sin(x.reshape(8, 64, 4) * 2)).results
    assert late.op == "reshape" and [late.operands[0].op, late.operands[0].shape] == ["sine", (512, 4)]
    (gone,) = moved(lambda x: mnp.sin(mnp.tanh(x.T)).T @ x.T).results
    assert gone.op == "matmul" and gone.operands[0].op in ("sine", "reshape")
    read = moved(lambda x: (mnp.sin(x.reshape(8, 64, 4)), x.reshape(8, 64, 4))).results
    assert [node.op for node in read] == ["sine", "reshape"]


def test_a_product_with_two_numbers_is_one() -> None:
    (result,) = record(mw.jit(lambda x: x * 3 * 4).lower(struct((512,))).partition(MESH).jaxpr, MESH).results
    assert [x.op for x in result.operands] == ["parameter", "broadcast_in_dim"]


def test_buffers_that_live_longest_are_placed_first() -> None:
    """How long is counted in buffers that come and go, not in steps: XLA's block for five transforms in a row."""
    kib = 6400
    lives = ((kib, 2, 5), (kib, 5, 6), (4040, 6, 7), (kib, 7, 8), (kib, 8, 9), (kib // 2, 9, 10))
    buffers = [Buffer(None, 1024 * n, None, start, end) for n, start, end in lives]  # type: ignore[arg-type]
    steps, moments = joined(buffers)
    assert packed(moments) == 2 * kib * 1024 < packed(steps)
