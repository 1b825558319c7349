"""Which values get a buffer on GPUs and TPUs, and in which layout; what is said of compiled programs is of an H100 or
a v5e."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax, nn
from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.compilers import CPU, CUDA, compiler_for
from meshwright.spmd.memory.fixed_orders import convolution_order, elements_moved
from meshwright.spmd.memory.kernel_times import cycles
from meshwright.spmd.memory.kernels import kernels_of
from meshwright.spmd.memory.merge import merge_products
from meshwright.spmd.memory.order_rules import ordered_bytes
from meshwright.spmd.memory.plan import Scope, planned
from meshwright.spmd.memory.predict import predict
from meshwright.spmd.memory.priority import fuse_by_bytes
from meshwright.spmd.memory.record import record
from meshwright.spmd.memory.splits import move_splits
from meshwright.spmd.memory.tiles import tiled_bytes

MESH = mw.AbstractMesh((2,), ("x",))
MIB = 2**20
V5E = compiler_for("tpu", "v5e")


def array(*shape, dtype=np.float32):
    return mw.ShapeDtypeStruct(shape, dtype)


def memory(compiler, fun, *args):
    return predict(mw.jit(fun).trace(*args).jaxpr, MESH, compiler=compiler)


def temporaries(compiler, fun, *args):
    return [(b.what, b.aval.shape) for b in memory(compiler, fun, *args).buffers if b.kind == "temporary"]


def graph_of(fun, *args, compiler=V5E):
    return record(mw.jit(fun).trace(*args).jaxpr, MESH, compiler)


def fused(fun, *args, compiler=CUDA):
    """The kernels of a program."""
    graph = graph_of(fun, *args, compiler=compiler)
    by_node = kernels_of(graph)
    return fuse_by_bytes(list(by_node.values()), {by_node[r] for r in graph.results}, compiler)


def nearest(x, points):
    return lax.top_k(-((x**2).sum(1)[:, None] - 2 * x @ points.T), 8)


@pytest.mark.parametrize(("rows", "columns", "kernels"), [(4096, 1024, 2), (1024, 4096, 1), (16384, 1024, 1)])
def test_sums_of_few_columns_read_what_is_computed_before(rows, columns, kernels):
    """Few blocks read slowly, also from caches. Of very many rows the sums are made in two steps, with more blocks."""
    made = fused(lambda x, y: (x + y).sum(0), array(rows, columns), array(columns))
    assert len([k for k in made if k.root.op not in ("parameter", "constant")]) == kernels


def test_nothing_is_written_over_what_a_product_returns_beside_a_workspace():
    """On GPUs; as compiled, 33.09 MiB, of which two arrays of 16."""
    peak = memory(CUDA, nearest, array(512, 32), array(8192, 32)).peak_bytes
    assert peak == pytest.approx(33.09 * MIB, rel=0.001)


def test_chains_of_operations_are_computed_where_a_product_is_written():
    """On TPUs; as compiled, one array of 16 MiB, an argument and the largest: 17.50."""
    assert memory(V5E, nearest, array(512, 32), array(8192, 32)).temp_bytes == pytest.approx(17.5 * MIB, rel=0.03)


def test_the_input_of_a_transposed_convolution_is_padded_before_on_gpus():
    """As compiled, 9.04 MiB: of these 6.38 for the second input with zeros in between."""

    def decode(a, b, x):
        h = nn.relu(nn.conv_transpose(x, a, strides=2))
        return nn.tanh(nn.conv_transpose(h, b, strides=2))

    args = array(3, 3, 64, 48), array(3, 3, 48, 16), array(8, 16, 16, 64)
    assert memory(CUDA, decode, *args).peak_bytes == pytest.approx(9.04 * MIB, rel=0.001)
    assert ("pad", (8, 66, 66, 48)) in temporaries(CUDA, decode, *args)


def test_gradients_of_convolutions_read_activations_as_they_are_on_gpus():
    """cuDNN knows them; only kernels are transposed. What it does not know has its inputs copied."""

    def moved(**window):
        gradient = mw.grad(lambda k, x: (nn.conv(mnp.sin(x), k, **window) ** 2).sum(), argnums=(0, 1))
        nodes = graph_of(gradient, array(3, 3, 16, 24), array(8, 32, 32, 16), compiler=CUDA).post_order()
        return [node.shape for node in nodes if node.op == "transpose" and 8 in node.shape]

    assert not moved() and not moved(padding=[(2, 0), (2, 0)]) and moved(dilation=2)


def test_padding_on_one_side_is_written_on_gpus():
    def causal(k, x):
        return nn.conv(x, k, padding=[(4, 0)])

    args = array(5, 64, 64), array(8, 512, 64)
    assert ("pad", (8, 516, 64)) in temporaries(CUDA, causal, *args)
    assert not any(what == "pad" for what, _ in temporaries(CUDA, lambda k, x: nn.conv(x, k, padding=[(2, 2)]), *args))


def test_scatters_compute_the_places_that_they_write_on_gpus():
    """As compiled, a scatter alone computes three numbers for each element; what a gather reads too is written."""

    def picked(x, i):
        return mnp.take_along_axis(x, i[:, :, None], axis=1)

    def added(x, i):
        return mw.linear_transpose(lambda x: picked(x, i), x)(x)

    args = array(16, 100, 256), array(16, 100, dtype=np.int32)
    written = "concatenate", (16, 100, 256, 3)
    assert written not in temporaries(CUDA, added, *args)
    assert written in temporaries(CUDA, mw.grad(lambda x, i: (picked(x, i) ** 2).sum()), *args)


def test_places_of_elements_are_one_number_on_tpus():
    def loss(x, i):
        return (mnp.take_along_axis(x, i[:, :, None], axis=1) ** 2).sum()

    graph = graph_of(mw.grad(loss), array(16, 100, 256), array(16, 100, dtype=np.int32))
    (scatter,) = [node for node in graph.post_order() if node.op == "scatter"]
    assert scatter.operands[1].shape == (16, 100, 256, 1)


def test_windows_are_summed_along_with_what_reads_them_on_gpus():
    def pooled(x):
        return mnp.sin(nn.avg_pool(mnp.cos(x), 2)) + 1

    kernels = fused(pooled, array(8, 64, 64, 32))
    (kernel,) = [k for k in kernels if any(node.op == "reduce_window" for node in k.members)]
    assert kernel.root.op == "add"


def test_small_sums_are_computed_where_they_are_read_on_gpus():
    """Of three elements anywhere, of four (which threads of a warp share) in a reduction, of many nowhere."""

    def spread(n):
        def f(x, w):
            return mnp.tanh(((x[:, None] - x) ** 2).sum(-1)) @ w

        return [k.root.op for k in fused(f, array(512, n), array(512, 64)) if k.root.shape == (512, 512)]

    assert spread(3) == ["tanh"] and spread(4) == ["reduce", "tanh"]

    def total(x):
        return mnp.exp(-((x[:, None] - x) ** 2).sum(-1)).sum()

    assert memory(CUDA, total, array(512, 4)).temp_bytes < 8192 < MIB <= memory(CUDA, total, array(512, 64)).temp_bytes


def test_functions_cost_gpus_as_many_cycles_as_xla_has_measured():
    """A sum those of all that it adds; what is joined of a first part that fills no warps is dear."""

    def f(x):
        return mnp.tanh(x) + mnp.sqrt(x), mnp.concatenate([x[:, :8], x], 1), mnp.sum(x)

    of = {node.op: cycles(node) for node in graph_of(f, array(4, 64), compiler=CUDA).post_order()}
    assert [of[op] / 256 for op in ("tanh", "sqrt", "add", "reduce")] == [467, 75, 7, 7]
    assert of["concatenate"] == 4 * 72 * 400


def test_only_views_of_products_are_products_on_gpus():
    """A product is not computed along with what is elementwise before a reshape."""

    def f(x, w):
        return mnp.sin(x @ w).reshape(512, 8, 64).sum(1), x

    kernels = fused(f, array(512, 512), array(512, 512))
    assert any(k.root.op == "matmul" and len(k.members) == 1 for k in kernels)


def normalized(x):
    h = mnp.sin(x).reshape(16, 24, 24, 4, 16)
    h = h - h.mean((1, 2, 4), keepdims=True)
    return (h * lax.rsqrt((h**2).mean((1, 2, 4), keepdims=True) + 1e-5)).reshape(x.shape)


def test_channels_are_normalized_before_they_are_split_on_tpus():
    """Arrays of 4.5 MiB in tiles; with groups of 16 channels along the lanes they would have 12."""
    x = array(16, 24, 24, 64)
    assert tiled_bytes(ShapedArray((16, 24, 24, 4, 16), np.float32)) == 12 * MIB
    assert memory(V5E, normalized, x).temp_bytes < 10 * MIB
    graph = graph_of(normalized, x)
    move_splits(graph)
    large = [node for node in graph.post_order() if node.op != "reshape" and node.avals[0].size == 16 * 24 * 24 * 64]
    assert {node.shape for node in large} == {(16, 24, 24, 64)}
    reduced = [node for node in graph.post_order() if node.op == "reduce"]
    assert {node.shape for node in reduced} == {(16, 64), (16, 4)}


def test_splits_that_pad_nothing_stay():
    def f(x):
        return mnp.sin(x.reshape(64, 4, 128)) + 1

    graph = graph_of(f, array(64, 512))
    before = [node.shape for node in graph.post_order()]
    move_splits(graph)
    assert [node.shape for node in graph.post_order()] == before


def test_convolutions_lie_in_tiles_of_features_and_batch():
    """As compiled, f32[12,24,24,32] with 32 features along the lanes, and the batch along rows."""
    for batch, rows in ((12, 16), (2, 2)):
        aval = ShapedArray((batch, 24, 24, 32), np.float32)
        assert convolution_order(aval)[0] == 3
        assert ordered_bytes(aval, convolution_order(aval)) == 24 * 24 * rows * 128 * 4


def test_many_elements_are_gathered_by_numbers_that_are_packed():
    """As compiled, within 10 %: numbers and what they find are put in a row; a product waits in vector memory for
    196,608 elements, and not for 393,216."""

    def f(x, w, t, i):
        h = mnp.tanh(x @ w)
        return h * mnp.take_along_axis(t + h.sum(), i, axis=1).sum()

    for n, mebibytes in ((96, 9.75), (192, 12)):
        args = array(512, 384), array(384, 768), array(8, n, 256), array(8, n, 256, dtype=np.int32)
        assert memory(V5E, f, *args).peak_bytes / MIB == pytest.approx(mebibytes, rel=0.1)


@pytest.mark.parametrize(
    ("shape", "k", "mebibytes"),
    [((512, 1024), 12, 2.5), ((512, 1024), 15, 10), ((16, 16384), 200, 1.03), ((16, 16384), 255, 5),
     ((65536,), 10, 1.25), ((4, 128, 1024), 4, 10)],
)  # fmt: skip
def test_few_of_the_largest_elements_of_long_rows_are_found_without_sorting(shape, k, mebibytes):
    """As compiled, within 1 %: of matrices alone; others are sorted, with their positions."""

    def largest(x):
        return sum(mnp.sin(a.astype(np.float32)).sum() for a in lax.top_k(x, k))

    assert memory(V5E, largest, array(*shape)).peak_bytes / MIB == pytest.approx(mebibytes, rel=0.01)


@pytest.mark.parametrize(
    ("shape", "axis", "mebibytes"),
    [((512, 1024), 1, 8), ((16, 1024), 1, 0.25), ((8, 4, 64, 100), 3, 5.875), ((100000, 3), 0, 6.11)],
)
def test_what_is_sorted_is_along_the_rows_of_tiles(shape, axis, mebibytes):
    """As compiled, within 1 %: copies, if that does not double their size; values that nothing reads are elsewhere."""
    held = memory(V5E, lambda x: (mnp.argsort(x, axis) * 2.5).sum(), array(*shape))
    assert held.peak_bytes / MIB == pytest.approx(mebibytes, rel=0.01)


@pytest.mark.parametrize(("parts", "mebibytes"), [(1, 10.53), (2, 48.53), (4, 64.53)])
def test_parts_of_one_array_are_cut_at_once(parts, mebibytes):
    """As compiled, within 1 %: several tables in one array are cut from a copy of it, one table is copied alone."""

    def taken(x, i):
        return sum(mnp.sin(x[k][i]).sum(0) for k in range(parts))

    held = memory(V5E, taken, array(4, 16384, 2), array(4096, dtype=np.int32))
    assert held.peak_bytes / MIB == pytest.approx(mebibytes, rel=0.01)


def test_one_argument_is_copied_to_the_chip_before_the_program_begins():
    """As compiled, within 10 %: the largest that is read twice, by a product, or element by element."""

    def taken(x, i):
        return mnp.sin(mnp.take_along_axis(x, i * 2, 1)).sum()

    for x, i, mebibytes in (((512, 1024), (512, 256), 6), ((8, 256, 512), (8, 256, 128), 12)):
        along = taken if len(x) == 2 else lambda x, i: mnp.sin(mnp.take_along_axis(x, i * 2, 2)).sum()
        held = memory(V5E, along, array(*x), array(*i, dtype=np.int32))
        assert held.peak_bytes / MIB == pytest.approx(mebibytes, rel=0.1)


def test_rows_are_not_gathered_one_by_one():
    def moved(f, *args):
        return sum(elements_moved(node) for node in graph_of(f, *args).post_order())

    numbers = array(100, dtype=np.int32)
    assert moved(lambda x, i: x[i], array(64, 256), numbers) == 0
    assert moved(lambda x, i: x[i], array(64), numbers) == 100
    assert moved(lambda x, i: mnp.zeros(64).at[i].add(x), array(100), numbers) == 100


def test_values_are_computed_again_where_that_reads_little_more_on_tpus():
    """Each user reads one operand more on average; not where both users would read two."""

    def difference(user):
        def f(x, y):
            return abs(x - y).sum(), user(x, x - y)

        return {k.root.op for k in fused(f, array(512, 512), array(512, 512), compiler=V5E)}

    assert "subtract" not in difference(lambda x, d: x * mnp.sign(d))
    assert "subtract" in difference(lambda x, d: (d * d).sum(1))


def test_joined_rows_are_computed_where_they_are_read():
    """On GPUs. Each row takes its neighbours' ends."""

    def sums(x):
        return mnp.sin(mnp.roll(x, 1, 1)) + mnp.roll(x, -1, 1)

    assert temporaries(CUDA, sums, array(512, 512)) == []


def test_gpus_write_copies_of_what_several_scatters_start_with_at_once():
    """As compiled for an H100, the zeros of all sums come from one kernel."""

    def sums(x, numbers):
        return [mnp.sin(mnp.zeros(2**18).at[numbers].add(k * x)).sum() for k in range(1, 5)]

    held = memory(CUDA, sums, array(1024), array(1024, dtype=np.int32))
    assert held.temp_bytes >= 4 * MIB


@pytest.mark.parametrize(("rows", "gathers"), [(1024, 1), (2**16, 2)])
def test_gpus_combine_gathered_arrays_up_to_a_size(rows, gathers):
    mesh = mw.AbstractMesh((8,), ("x",))
    placed = mw.NamedSharding(mesh, mw.PartitionSpec("x"))
    whole = mw.NamedSharding(mesh, mw.PartitionSpec())
    step = mw.jit(lambda a, b: (a + 1, b * 2), in_shardings=(placed, placed), out_shardings=(whole, whole))
    part = step.lower(array(rows, 64), array(rows, 64)).partition()
    plan = planned(record(part.jaxpr, mesh.abstract_mesh, CUDA), Scope(CUDA))
    assert sum(k.root.op == "all_gather" for k in plan.order) == gathers


@pytest.mark.parametrize(("compiler", "wide"), [(CUDA, np.int8), (V5E, np.float32)])
def test_gpus_move_what_is_converted_in_its_narrow_type(compiler, wide):
    """As compiled for an H100 and a v5e: what is gathered or sent is widened after that, or before."""
    mesh = mw.AbstractMesh((8,), ("x",))

    def moved(x):
        wide = x.astype(np.float32)
        there = lax.ppermute(wide, "x", [(i, (i + 1) % 8) for i in range(8)])
        return lax.all_gather(wide, "x", tiled=True), there

    specs = mw.PartitionSpec("x")
    step = mw.shard_map(moved, mesh=mesh, in_specs=specs, out_specs=(mw.PartitionSpec(), specs), check_vma=False)
    part = mw.jit(step).lower(array(64, 64, dtype=np.int8)).partition()
    nodes = record(part.jaxpr, mesh, compiler).post_order()
    sent = [node.avals[0].dtype for node in nodes if node.op in ("all_gather", "collective_permute")]
    assert sent == [wide, wide]


@pytest.mark.parametrize(("rows", "products"), [(1024, 1), (2**16, 2)])
def test_gpus_make_one_product_of_two_that_read_the_same_matrix(rows, products):
    """If they are not too large."""

    def gated(x, gate, up):
        return mnp.sin(x @ gate) * (x @ up)

    graph = graph_of(gated, array(rows, 256), array(256, 128), array(256, 128), compiler=CUDA)
    merge_products(graph, CUDA.merges)
    assert sum(node.op == "matmul" for node in graph.post_order()) == products


def test_gpus_write_solutions_beside_what_they_solve_for():
    """As compiled for an H100, a triangular solve has an array for its result."""

    def solved(low, x):
        return lax.linalg.triangular_solve(low, mnp.sin(x), left_side=True, lower=True).sum()

    assert memory(CUDA, solved, array(64, 64), array(64, 4096)).temp_bytes >= 2 * MIB


@pytest.mark.parametrize(("rows", "columns", "mebibytes"), [(2, 2, 16.56), (2, 4, 8.53), (1, 2, 0.88)])
def test_parts_of_lanes_are_copied_along_lanes_of_their_own(rows, columns, mebibytes):
    """Sums of blocks of a matrix: 2 or 4 of 128 lanes are used, unless the rows are not split and can be the lanes."""

    def pooled(x):
        blocks = mnp.sin(x).reshape(256 // rows, rows, 256 // columns, columns)
        return mnp.sin(blocks.sum((1, 3)))

    found = memory(V5E, pooled, array(256, 256)).peak_bytes / MIB
    assert found == pytest.approx(mebibytes, rel=0.01 if mebibytes > 1 else 0.5)


def test_solutions_are_tiled_like_matrices():
    """Along 16 of 128 lanes: copies of both operands, and the solutions. A loop stacks solutions as they are.

    The stack is written once more when it is handed over.
    """

    def solved(matrix, x):
        return lax.linalg.triangular_solve(matrix, mnp.sin(x), left_side=True, lower=True)

    def one(matrix, x):
        return mnp.sin(solved(matrix, x))[:, :2] * 2

    def stacked(*args):
        return mnp.sum(lax.scan(lambda c, x: (c, solved(*x)), 0.0, args)[1], 0) * 2

    found = memory(V5E, one, array(4096, 4, 4), array(4096, 4, 16)).peak_bytes / MIB
    assert found == pytest.approx(25.75, rel=0.03)
    found = memory(V5E, stacked, array(64, 64, 4, 4), array(64, 64, 4, 16)).peak_bytes / MIB
    assert found == pytest.approx(18.78, rel=0.1)


def test_many_operations_are_one_kernel():
    """121 shifted windows are weighted and added up without a temporary."""

    def smoothed(x):
        middle, total, weights = x[:, 5:133, 5:517], 0.0, 0.0
        for row in range(11):
            for column in range(11):
                window = x[:, row : row + 128, column : column + 512]
                weight = mnp.exp(-((window - middle) ** 2) * 4)
                total, weights = total + weight * window, weights + weight
        return total / weights

    assert memory(CUDA, smoothed, array(4, 138, 522)).temp_bytes < 1000


def test_reshaped_results_of_convolutions_keep_their_layout():
    """32 images of one channel are along 128 lanes: 16 MiB, also after the dimension of channels is dropped."""

    def cost(x):
        found = lax.conv_general_dilated(mnp.sin(x)[:, None], mnp.ones((1, 1, 5, 5), np.float32), (1, 1), "SAME")
        return mnp.argmin(found[:, 0], 0)

    assert memory(V5E, cost, array(32, 128, 256)).temp_bytes >= 16 * MIB


@pytest.mark.parametrize(
    ("n", "k", "m", "library"), [(7, 7, 7, False), (5, 9, 6, False), (8, 8, 8, True), (4, 13, 4, True)]
)
def test_products_of_less_than_a_hundred_elements_are_loops_on_gpus(n, k, m, library):
    """As compiled, with 4 MiB for cuBLAS from (n + m) * k = 104 on, and with no temporaries up to 99."""
    found = memory(CUDA, lambda a, b: mnp.einsum("bnk,bkm->bnm", a, b), array(1024, n, k), array(1024, k, m))
    assert found.temp_bytes == (4 * MIB if library else 0)


@pytest.mark.parametrize(("compiler", "saved"), [(CPU, 0), (CUDA, 2), (V5E, 0)])
def test_operands_are_kept_as_the_algorithm_of_a_product_rounds_them(compiler, saved):
    """On GPUs: 2 MiB instead of 4. CPUs leave algorithms out; TPUs round operands anyway."""

    def held(precision):
        def product(x, y):
            return lax.dot(mnp.tanh(x) + x.sum(0), y, precision=precision, preferred_element_type=np.float32)

        return memory(compiler, product, array(1024, 1024), array(1024, 64)).temp_bytes / MIB

    assert held(None) - held("BF16_BF16_F32") == pytest.approx(saved, abs=0.2)
    assert held(None) == held("BF16_BF16_F32_X3")  # in parts
