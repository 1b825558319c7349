"""What TPUs move in kernels of their own, and the order of kernels; what is said of compiled programs is of a v5e."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.spmd.memory.compilers import compiler_for
from meshwright.spmd.memory.kernels import Kernel, Use, kernels_of
from meshwright.spmd.memory.order_rules import alike, carried, moves_nothing
from meshwright.spmd.memory.predict import predict
from meshwright.spmd.memory.record import record
from meshwright.spmd.memory.schedule import kernel_post_order, largest_first

F32, V5E, MESH = np.float32, compiler_for("tpu", "v5e"), mw.AbstractMesh((1,), ("x",))


def array(*shape, dtype=F32):
    return mw.ShapeDtypeStruct(shape, dtype)


def peak(fun, *args):
    return predict(mw.jit(fun).trace(*args).jaxpr, MESH, compiler=V5E).peak_bytes


# --- slices with steps ---------------------------------------------------------------------------------------
def product_of_columns(x):
    return mnp.sin(x * 2)[..., ::2] * mnp.cos(x * 2)[..., 1::2]


def product_of_rows(x):
    return mnp.sin(x * 2)[:, ::2] * mnp.cos(x * 2)[:, 1::2]


def product_of_both(x):
    return mnp.sin(x * 2)[:, ::2, ::2] * mnp.cos(x * 2)[:, 1::2, 1::2]


def product_of_halves(x):
    return mnp.sin(x * 2)[::2] * mnp.cos(x * 2)[1::2]


def of_an_argument(x):
    return mnp.sin(x[:, ::2]) * 2


def of_a_product(x, w):
    return (mnp.tanh(x @ w)[:, ::2] * 2).sum(1)


@pytest.mark.parametrize(
    ("fun", "shapes", "nbytes"),
    [(product_of_columns, [(64, 512)], 524288), (product_of_columns, [(8, 64, 512)], 4194304),
     (product_of_rows, [(8, 64, 512)], 4194304), (product_of_both, [(8, 64, 512)], 3670016),
     (product_of_halves, [(65536,)], 1048576), (product_of_halves, [(64, 8, 512)], 3670016),
     (of_an_argument, [(64, 512)], 262144), (of_a_product, [(256, 256), (256, 512)], 1836032)],
)  # fmt: skip
def test_elements_that_are_not_in_a_row_are_taken_in_a_kernel_of_its_own(fun, shapes, nbytes):
    """As compiled, exactly: nothing is computed along with slices with steps. What reads them is, if the steps are not
    along tiles (the last of ``product_of_halves``)."""
    assert peak(fun, *(array(*shape) for shape in shapes)) == nbytes


# --- reshapes ------------------------------------------------------------------------------------------------
def split(x):
    return mnp.sin(x).reshape(1024, 8) * 2


def split_to_lanes(x):
    return mnp.sin(x).reshape(64, 128) * 2


def joined(x):
    return (mnp.sin(x) * 2).reshape(-1)


def interleaved(x):
    return mnp.sin(mnp.stack([x[:, ::2] * 2, mnp.cos(x[:, 1::2])], -1).reshape(8, 1024)) + x


@pytest.mark.parametrize(
    ("fun", "shape", "nbytes"),
    [(split, (8192,), 622592), (split_to_lanes, (8192,), 65536), (joined, (1024, 8), 622592),
     (interleaved, (8, 1024), 655360)],
)  # fmt: skip
def test_vectors_are_in_a_row(fun, shape, nbytes):
    """As compiled, exactly. Matrices of 8 columns take 128 while they are reshaped; those of 128 are in a row, too."""
    assert peak(fun, array(*shape)) == nbytes


def test_vectors_that_branches_give_are_in_a_row():
    """As compiled, within 5 %: sorted numbers come from a branch, and are split into columns that take 128 elements."""

    def sorted_apart(x):
        return mnp.sort(mnp.sort(x).reshape(1024, 8).T.reshape(8192)), mnp.sin(x)

    assert peak(sorted_apart, array(8192)) == pytest.approx(655872, rel=0.05)


@pytest.mark.parametrize(
    ("before", "order", "after", "new", "same"),
    [
        ((8192,), (0,), (64, 128), (1, 0), True), ((8192,), (0,), (1024, 8), (1, 0), False),
        ((8192,), (0,), (8, 1024), (1, 0), False), ((8192,), (0,), (8192, 1), (0, 1), True),
        ((512,), (0,), (4, 128), (1, 0), False), ((64, 128), (1, 0), (8192,), (0,), True),
        ((1, 8192), (1, 0), (8192,), (0,), True),
        # lanes of one tile: rows follow each other, unless some of them are padding
        ((8, 512, 2), (0, 2, 1), (8, 1024), (0, 1), True), ((8, 512, 3), (0, 2, 1), (8, 1536), (0, 1), False),
        ((256, 512, 2), (0, 2, 1), (256, 1024), (0, 1), False),
    ],
)  # fmt: skip
def test_reshapes_that_are_the_same_memory(before, order, after, new, same):
    assert moves_nothing(before, order, after, new) is same


def test_a_vector_only_says_the_order_of_what_is_the_same_memory():
    for shape, order in (((64, 128), (1, 0)), ((1024, 8), None)):
        graph = record(mw.jit(lambda x, s=shape: mnp.sin(x).reshape(s)).trace(array(8192)).jaxpr, MESH, V5E)
        assert carried(graph.results[0], 0, (0,)) == order


def test_dimensions_of_one_element_count_for_padding():
    """A part of one row takes 128 elements where rows are along the lanes."""
    assert not alike((1, 16, 16), (2, 1, 0), (0, 2, 1))
    assert alike((1, 16, 16), (2, 1, 0), (2, 0, 1))
    assert alike((1, 1, 16), (2, 1, 0), (2, 0, 1))


# --- numbers of elements -------------------------------------------------------------------------------------
def test_elements_are_gathered_in_a_row():
    """As compiled, exactly: the row is then split into columns that take 128 elements."""
    assert peak(lambda x, i: mnp.sin(x[i] * 2), array(65536), array(1024, 4, dtype=np.int32)) == 1097728


def test_a_loop_is_given_numbers_in_the_order_of_their_row():
    """As compiled, within 5 %: they take 128 elements for 4 during the loop, and so does what is gathered."""

    def assembled(numbers, elements, x):
        def step(i, x):
            return x + mnp.zeros(2048, F32).at[numbers].add(mnp.einsum("eij,ej->ei", elements, x[numbers]))

        return lax.fori_loop(0, 10, step, x)

    found = peak(assembled, array(1024, 4, dtype=np.int32), array(1024, 4, 4), array(2048))
    assert found == pytest.approx(1222656, rel=0.05)


# --- order ---------------------------------------------------------------------------------------------------
def test_what_takes_more_runs_first():
    """A sum reads a small and a large chain; the large one was second. What is read twice comes before both."""

    def f(x, y):
        small = mnp.sin(x)[::2]
        large = lax.rev(mnp.cos(y), (0,))[::4]
        return small + large

    graph = record(mw.jit(f).trace(array(1024), array(2048)).jaxpr, MESH, V5E)
    by_node = kernels_of(graph)
    results = {by_node[x] for x in graph.results}
    kernels = kernel_post_order([*results])
    sizes = {kernel: kernel.root.avals[0].nbytes for kernel in kernels}
    plain = [kernel.root.op for kernel in kernels]
    first = [kernel.root.op for kernel in largest_first(kernels, results, sizes.__getitem__)]
    assert plain.index("sine") < plain.index("cosine")
    assert first.index("cosine") < first.index("reverse") < first.index("sine")
    assert sorted(first) == sorted(plain)


def test_what_has_more_users_runs_first():
    nodes = list(record(mw.jit(lambda x, y: (mnp.sin(x), mnp.cos(y))).trace(array(64), array(64)).jaxpr, MESH).results)
    a, b, c, d, e = (Kernel(nodes[i % 2], {nodes[i % 2]: None}, {}, number=i) for i in range(5))
    for kernel, sources in ((c, (a, b)), (d, (b,)), (e, (c, d))):
        kernel.inputs.update(dict.fromkeys(sources, Use.INPLACE))
        for source in sources:
            source.users.add(kernel)
    assert [k.number for k in largest_first([a, b, c, d, e], {e}, lambda kernel: 8)] == [1, 0, 2, 3, 4]
