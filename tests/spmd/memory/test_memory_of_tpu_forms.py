"""What TPUs compute instead of an operation, and constants; what is said of compiled programs is of libtpu 0.0.42."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright import lax, nn
from meshwright.api.targets import memory_on
from meshwright.spmd.memory.buffers import Buffer
from meshwright.spmd.memory.compilers import compiler_for
from meshwright.spmd.memory.graph import Graph
from meshwright.spmd.memory.halves import halve
from meshwright.spmd.memory.kernels import Kernel, kernels_of
from meshwright.spmd.memory.padding import pad
from meshwright.spmd.memory.predict import predict
from meshwright.spmd.memory.priority import fuse_by_bytes
from meshwright.spmd.memory.record import record

MESH = mw.AbstractMesh((4,), ("d",))
V5E = compiler_for("tpu", "v5e")


def array(*shape, dtype=np.float32):
    return mw.ShapeDtypeStruct(shape, dtype)


def kernels(fun, *args):
    """The operations of each kernel that is left after fusion, by its root."""
    graph = record(mw.jit(fun).trace(*args).jaxpr, MESH, V5E)
    by_node = kernels_of(graph)
    left = fuse_by_bytes(list(by_node.values()), {by_node[r] for r in graph.results}, V5E)
    return {k.root.op: [node.op for node in k.members] for k in left if k.root.op not in ("parameter", "constant")}


def partitioned(fun, *args):
    """The program with whole arguments and results on each device."""
    whole = mw.NamedSharding(MESH, P())
    return mw.jit(fun, in_shardings=(whole,) * len(args), out_shardings=whole).lower(*args).partition()


def spectrum(x):
    return mnp.abs(mnp.fft.fft(mnp.fft.fft((x + 1).astype(np.complex64)) * x))


def sums(x):
    return mnp.sin(mnp.cumsum(mnp.sin(x), 1))[:, ::2] * 2


def ends(x):
    column = mnp.arange(8, dtype=np.float32)[:, None]
    return mnp.sin(mnp.sin(x) * mnp.sin(x)[:, -1:].sum()) + mnp.cos(x)[:, -1:] * column


@pytest.mark.parametrize(
    ("fun", "shape", "compiled"),
    [(spectrum, (64, 256), 1769472), (sums, (256, 4096), 14713344), (ends, (8, 32000), 3072512)],
    ids=["a constant matrix", "rows of running sums", "a narrow slice"],
)
def test_peaks_as_compiled(fun, shape, compiled):
    """A transform of 256 numbers is a product with one matrix, whose parts and sums count; a slice of one column leaves
    the order of the rest open."""
    found = memory_on(partitioned(fun, array(*shape)), mw.target("v5e:2x2")).peak_bytes
    assert found == pytest.approx(compiled, rel=0.08)


def pulled_back(ct, x, size):
    return mw.vjp(lambda x: lax.reduce_window(x, -np.inf, lax.max, size, size, "VALID"), x)[1](ct)[0]


@pytest.mark.parametrize(
    ("shape", "size", "compiled"),
    [((8, 16, 16, 24), (1, 2, 2, 1), 4719616), ((8, 32, 16, 16), (1, 1, 2, 2), 4719616),
     ((64, 4096, 2), (1, 4, 1), 14156800), ((4, 6, 4096, 8), (1, 1, 4, 1), 90963456)],
)  # fmt: skip
def test_selected_elements_are_beside_their_windows(shape, size, compiled):
    """The kernel's tiles are along dimensions without windows."""
    source = tuple(n // w for n, w in zip(shape, size))
    jaxpr = mw.jit(lambda ct, x: pulled_back(ct, x, size)).trace(array(*source), array(*shape)).jaxpr
    assert predict(jaxpr, MESH, compiler=V5E).peak_bytes == pytest.approx(compiled, rel=0.02)


@pytest.mark.parametrize(("size", "has_kernel"), [((1, 2, 2, 1), True), ((2, 2, 2, 1), False), ((4, 2, 8, 4), False)])
def test_tpus_have_a_kernel_for_windows_beside_two_dimensions(size, has_kernel):
    """XLA refuses the others, of more than 32 elements too."""
    x = array(8, 8, 8, 8)
    ct = array(*(8 // n for n in size))
    text = str(partitioned(lambda ct, x: pulled_back(ct, x, size), ct, x).module("tpu"))
    assert ("stablehlo.select_and_scatter" in text) == has_kernel


def test_equal_constants_count_once():
    table = np.arange(2**16, dtype=np.float32).reshape(256, 256)

    def temporaries(a, b):
        return predict(mw.jit(lambda x: mnp.sin(x * a) + b).trace(array(256, 256)).jaxpr, MESH, compiler=V5E).temp_bytes

    assert temporaries(table, table + 0) >= table.nbytes
    assert temporaries(table, -table) - temporaries(table, table + 0) >= table.nbytes


def test_parts_of_complex_constants_that_are_one_number_take_no_memory():
    """As compiled for v5e:2x2, each part has 131,072 bytes twice: as a constant, and copied to vector memory."""

    def peak(factors):
        spectra = partitioned(lambda x: mnp.abs(mnp.fft.fft(x) * factors), array(256, 128, dtype=np.complex64))
        return memory_on(spectra, mw.target("v5e:2x2")).peak_bytes

    parts = np.arange(256 * 128, dtype=np.float32).reshape(256, 128)
    real, imaginary = parts.astype(np.complex64), np.zeros((256, 128), np.complex64)
    imaginary.imag = parts
    both = peak(real + imaginary)
    assert both - peak(real) == both - peak(imaginary) == 1441792 - 1179648
    negative = imaginary.copy()
    negative.real[0] = -0.0
    assert peak(negative) == both


def test_elements_written_to_rows_are_selected():
    """The gradient of picking an element of each row is fused, where a scatter would be a kernel of its own."""

    def loss(x, i):
        return (mnp.take_along_axis(nn.log_softmax(x), i[:, None], 1) ** 2).sum()

    made = kernels(mw.grad(loss), array(512, 1000), array(512, dtype=np.int32))
    assert "scatter" not in made
    assert "select" in made["add"]


def summed(x, k):
    return mnp.zeros((512, *x.shape[1:]), np.float32).at[k].add(x)


@pytest.mark.parametrize(
    ("fun", "shape", "compiled"),
    [
        (lambda k, x: summed(mnp.sin(x) * 2, k), (8192, 128), 4523008),
        (lambda k, t: mw.ops.segment_sum(t[k] * t[k + 1], k, 512), (512, 8), 655872),  # gathered as they are added
        (lambda k, v: summed(mnp.sin(v) * 2, k), (65536,), 1313280),  # single elements are computed first
        (lambda k, x: mw.ops.segment_sum(x[:, None] * x[:, :, None], k, 512).sum(1), (8192, 16), 76120576),  # matrices
    ],
)
def test_sums_of_rows_compute_what_they_add(fun, shape, compiled):
    numbers = array(max(shape[0], 8192), dtype=np.int32)
    predicted = predict(mw.jit(fun).trace(numbers, array(*shape)).jaxpr, MESH, compiler=V5E).live_bytes
    assert predicted == pytest.approx(compiled, rel=0.06)


def layers(activation, first, second="nf,fd->nd", bias=False):
    """The gradient of two products with an activation between them."""

    def loss(p, x, y):
        h = mnp.einsum(first, x, p["a"])
        h = activation(h + p["c"] if bias else h)
        return mnp.mean((mnp.einsum(second, h, p["b"]) - y) ** 2)

    return mw.value_and_grad(loss)


@pytest.mark.parametrize(
    ("step", "rows", "few", "compiled"),
    [
        (layers(nn.relu, "nd,df->nf"), (4096, 256), (), 42997760),  # in 32 bits: no dimension to pack bits along
        (layers(nn.relu, "bnd,df->bnf", "bnf,fd->bnd"), (8, 512, 256), (), 35133440),
        (layers(nn.relu, "end,edf->enf", "enf,efd->end"), (4, 512, 256), (4,), 36182016),
        (layers(nn.relu, "nd,df->nf", bias=True), (4096, 256), (), 47195648),  # its gradient has 16 bits
        (layers(nn.gelu, "bnd,df->bnf", "bnf,fd->bnd", bias=True), (8, 512, 256), (), 47195648),
    ],
    ids=["matrices", "bits", "experts", "bias", "gelu and bias"],
)
def test_products_also_write_signs_and_sums(step, rows, few, compiled):
    """What products read has 16 bits also if it is compared with a number, or summed up for a bias."""
    weights = {"a": array(*few, 256, 1024), "b": array(*few, 1024, 256), "c": array(1024)}
    traced = mw.jit(step).trace(weights, array(*rows), array(*rows))
    assert predict(traced.jaxpr, MESH, compiler=V5E).live_bytes == pytest.approx(compiled, rel=0.05)


def test_what_is_only_summed_has_32_bits():
    (sums,) = record(
        mw.jit(lambda x, y: mnp.sin(x @ y).sum(0)).trace(array(64, 64), array(64, 64)).jaxpr, MESH, V5E
    ).results
    halve(Graph((), (sums,)))
    assert sums.operands[0].avals[0].dtype == np.float32


@pytest.mark.parametrize("left", [True, False])
def test_solves_of_one_block_are_products(left):
    """They compute what they read, and what follows."""

    def squares(matrix, x):
        solved = lax.linalg.triangular_solve(matrix, mnp.sin(x), left_side=left, lower=True)
        return (solved * solved).sum(-1)

    shape = (64, 16, 256) if left else (64, 256, 16)
    made = kernels(squares, array(64, 16, 16), array(*shape))
    assert set(made) >= {"inverted", "reduce"}
    assert {"matmul", "sine"} <= {*made["reduce"]}
    assert "triangular_solve" in kernels(squares, array(4, 256, 256), array(4, 256, 256))


def test_temporaries_of_bodies_are_padded_once():
    """A body's temporary that has as many bytes as what the loop carries is not padded like that."""
    (node,) = record(mw.jit(mnp.sin).trace(array(64, 64)).jaxpr, MESH, V5E).results
    kernel = Kernel(node, {node: None}, {})
    own, inner = (Buffer(node.avals[0], node.avals[0].nbytes, kernel, 0, 0, inner=inner) for inner in (False, True))
    pad([own, inner])
    assert (own.nbytes, inner.nbytes) == (2 * node.avals[0].nbytes, node.avals[0].nbytes)


@pytest.mark.parametrize(("shape", "mebibytes"), [((128, 128), 0.188), ((512, 512), 3.938), ((4, 256, 256), 3.75)])
def test_lu_decompositions_hold_the_rows_below_a_block_in_both_orders(shape, mebibytes):
    """As compiled, within 1 %: the matrix before and after a block, and the rows below it as they are exchanged."""

    def packed(x):
        return (lax.linalg.lu(x + 1)[0] * 2).sum()

    held = predict(mw.jit(packed).trace(array(*shape)).jaxpr, MESH, compiler=V5E).peak_bytes / 2**20
    assert held == pytest.approx(mebibytes, rel=0.01)
