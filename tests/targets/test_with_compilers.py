"""Programs compiled with the real compilers, where they are installed: ``make test-tpu``, ``make test-cuda``."""

import re

import numpy as np
import pytest
from target_programs import layers, mlp

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright.api.targets import memory_on
from meshwright.errors import MissingExtraError
from meshwright.runtime.pjrt import plugins
from meshwright.targets.child import Job, compile_in_child
from meshwright.targets.compiling import described


def needs(platform, extra):
    try:
        plugins.compiler(platform, platform)
    except MissingExtraError as error:
        return pytest.mark.skip(reason=f"needs meshwright[{extra}]: {str(error).split(';')[0]}")
    return pytest.mark.filterwarnings("default")


tpu, cuda = needs("tpu", "tpu"), needs("cuda", "cuda")


@tpu
@pytest.mark.parametrize(
    "name, slices",
    [("v5e:2x2", 1), ("v5e:4x8", 1), ("v5e:1x1", 1), ("v6e:4x4", 1), ("v4:2x2x4", 1), ("v5p:2x2x4", 1),
     ("tpu7x:2x2x2", 1), ("v5e:2x2", 2)],
)  # fmt: skip
def test_devices_of_tpus(name, slices):
    """Numbers, coordinates, cores and hosts are libtpu's."""
    target = mw.target(name, slices=slices)
    topology, options = described(target)
    found = compile_in_child(Job("", b"", "tpu", topology, options, []), plugins.compiler("tpu", name)).devices
    ours = {(d.id, d.coords, d.core_on_chip, d.process_index) for d in target.devices}
    assert ours == {(i, tuple(coords), core, process) for i, coords, core, process in found}


@tpu
def test_compiled_for_tpus():
    report = mlp().compile("v5e:2x4")
    assert report.fits and report.estimated_cycles and report.target.device_kind in report.executable.version
    assert [c.axes for c in report.collectives] == [("model",), ("data",)]
    assert "T(8,128)" in report.text


@tpu
@pytest.mark.slow
def test_gathers_go_on_beside_products_on_tpus():
    assert layers().compile("v5e:2x4").overlapped_share > 0.1


@tpu
def test_narrow_tiles_are_sent_in_full_rows_on_tpus():
    """Without the kernels in which libtpu lays tiles out anew before and after it sends them."""
    mesh = mw.AbstractMesh((8,), ("x",))
    rows = mw.NamedSharding(mesh, P("x"))
    x = mw.ShapeDtypeStruct((256, 256), np.complex64)
    part = mw.jit(mnp.fft.fft2, in_shardings=rows, out_shardings=rows).lower(x).partition()
    report = part.compile("v5e:2x4")
    assert [c.kind for c in report.collectives] == ["all_to_all"] * 4, "two each, real and imaginary parts"
    assert "f32[8,8,128]" in report.text
    assert not re.search(r" reduce\(.*all_to_all", report.text)


@tpu
def test_matrices_of_transforms_are_constants_on_tpus():
    """Without cosines, of which libtpu would compute a matrix for each product."""
    with mw.set_mesh(mw.AbstractMesh((4,), ("x",))):
        x = mw.ShapeDtypeStruct((64, 256), np.complex64)
        report = mw.jit(mnp.fft.fft, in_shardings=P("x")).lower(x).partition().compile("v5e:2x2")
    assert not report.collectives and "cosine" not in report.text
    assert report.estimated_cycles < 8_000


def steps(x):
    return sum(x[:, i : i + 512][:, ::2] * (i + 1) for i in range(4))


@tpu
@pytest.mark.parametrize(
    ("fun", "shape", "dtype"),
    [
        (mnp.fft.fft, (64, 4096), np.complex64),
        (lambda x: mnp.abs(mnp.fft.rfft(x)), (256, 128), np.float32),
        (lambda x: x * (2 + 1j) + 1, (256, 1024), np.complex64),
        (steps, (256, 1024), np.float32),
    ],
    ids=["transform", "real transform", "complex numbers", "slices with steps"],
)
def test_predicted_peaks_of_complex_numbers_and_steps_on_tpus(fun, shape, dtype):
    """What ``tests/spmd/memory/test_tpu_transforms.py`` states as compiled is so."""
    with mw.set_mesh(mw.AbstractMesh((1,), ("x",))):
        part = mw.jit(fun, in_shardings=P()).lower(mw.ShapeDtypeStruct(shape, dtype)).partition()
    target = mw.target("v5e:1x1")
    assert memory_on(part, target).live_bytes == pytest.approx(part.compile(target).peak_bytes, rel=0.02)


@tpu
def test_a_program_too_large_for_tpus():
    """32 GiB of temporaries, which no compiler can leave out."""
    types = [mw.ShapeDtypeStruct((65536, 65536), np.float32)] * 2
    with mw.set_mesh(mw.AbstractMesh((4,), ("x",))):
        part = mw.jit(lambda x, w: mnp.tanh(x @ w) @ w, in_shardings=(P("x"), P(None, "x"))).lower(*types).partition()
    report = part.compile("v5e:2x2")
    assert not report.fits and report.excess_bytes > 2**30 and "too much" in report.headline


@tpu
def test_four_thousand_chips_on_tpus():
    """Two layers for 4,096 v5p chips."""
    mesh = mw.AbstractMesh((256, 16), ("data", "model"))
    types = [mw.ShapeDtypeStruct(s, mnp.bfloat16) for s in ((65536, 1024), (1024, 4096), (4096, 1024))]
    with mw.set_mesh(mesh):
        step = mw.jit(
            lambda x, up, down: mnp.tanh(x @ up) @ down, in_shardings=(P("data"), P(None, "model"), P("model"))
        )
        report = step.lower(*types).partition().compile("v5p:16x16x16")
    assert report.fits and report.target.size == 4096 and report.seconds < 60
    assert any(c.axes == ("model",) for c in report.collectives)


@cuda
def test_compiled_for_cuda():
    report = mlp().compile("h100")
    assert report.fits and "__cublas$lt$matmul" in {k.library for k in report.kernels}
    assert [c.axes for c in report.collectives] == [("model",), ("data",)]


@cuda
def test_convolutions_for_cuda_are_cudnns():
    types = mw.ShapeDtypeStruct((8, 64, 64, 32), np.float32), mw.ShapeDtypeStruct((3, 3, 32, 64), np.float32)
    numbers = ("NHWC", "HWIO", "NHWC")
    with mw.set_mesh(mw.AbstractMesh((2,), ("x",))):
        step = mw.jit(
            lambda x, w: mw.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers),
            in_shardings=(P("x"), P()),
        )
        report = step.lower(*types).partition().compile("h100:2")
    assert any("cudnn" in k.library for k in report.kernels)


@cuda
@pytest.mark.parametrize("shape", [(2, 3), (64, 3, 3), (64, 64)])
@pytest.mark.parametrize(
    "types", ["i1 i4", "i1 f4", "i1 V2", "i2 f4", "V2 V2 f2", "f4 f4 V2", "f2 V2 f4", "i4 V2 f4", "f4 f8"]
)
def test_types_of_products_on_cuda(shape, types):
    """XLA refuses most of these as they are given, ends its process on some, and converts operands to narrower types;
    small ones of int8 are no library calls of that type."""
    named = {"V2": mnp.bfloat16, "i1": np.int8}
    given = [named.get(t, t) for t in types.split()]
    lhs, rhs, result = given if len(given) == 3 else (given[0], *given)
    numbers = (((len(shape) - 1,),) * 2, (tuple(range(len(shape) - 2)),) * 2)
    with mw.enable_x64(), mw.set_mesh(mw.AbstractMesh((1,), ("x",))):
        step = mw.jit(lambda x, y: mw.lax.dot_general(x, y, numbers, preferred_element_type=result))
        operands = [mw.ShapeDtypeStruct(shape, d) for d in (lhs, rhs)]
        text = step.lower(*operands).partition().compile("h100:1").text
    is_library = "__cublas" in text
    assert is_library or shape != (64, 64)
    assert not is_library or shape == (64, 64) or types != "i1 i4"
    assert len({lhs, rhs}) == 1 or not re.search(r"= bf16\[\S+ convert\(", text)


@cuda
def test_nodes_of_gpus_on_cuda():
    report = mlp((8, 2)).compile(mw.target("h200", nodes=2))
    assert report.target.size == 16 and report.fits


@pytest.mark.parametrize("where", [pytest.param("v5e:2x4", marks=tpu), pytest.param("h100", marks=cuda)])
def test_what_is_kept_in_the_hosts_memory(where):
    """Arguments, results, and what a scan's steps leave for the way back."""
    mesh, space = mw.AbstractMesh((8,), ("x",)), mw.memory.Space
    rows = mw.NamedSharding(mesh, P("x"))
    offload = mw.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["h"]
    )

    def layer(x, w):
        return mnp.tanh(mw.checkpoint_name(x @ w, "h")), None

    def loss(ws, x):
        y, _ = mw.lax.scan(mw.checkpoint(layer, policy=offload), mw.device_put(x, space.Device), ws)
        return (y**2).sum()

    on_host = rows.with_memory_kind("pinned_host")
    step = mw.jit(mw.grad(loss), in_shardings=(mw.NamedSharding(mesh, P()), on_host))
    shapes = mw.ShapeDtypeStruct((6, 256, 256), np.float32), mw.ShapeDtypeStruct((8192, 256), np.float32)
    report = step.lower(*shapes).partition().compile(where)
    expected = 7 * 1024 * 256 * 4  # the argument, and six steps' inputs
    assert report.host_bytes == report.predicted.memory.host_bytes == expected
    assert "in the host's memory" in str(report) and "S(5)" in report.text


def decompositions(a):
    """All that has a form for every target."""
    q, r = mnp.linalg.qr(a)
    symmetric = a + a.mT
    positive = mnp.linalg.cholesky(symmetric + 100 * mnp.eye(8))
    return q, r, mnp.linalg.eigh(symmetric), positive, mnp.linalg.solve(a, q), mnp.linalg.pinv(a[..., :5])


def compiled_decompositions(where):
    with mw.set_mesh(mw.AbstractMesh((2,), ("x",))):
        step = mw.jit(decompositions, in_shardings=(P("x"),)).lower(mw.ShapeDtypeStruct((4, 8, 8), np.float32))
        return step.partition().compile(where)


@pytest.mark.parametrize("derivative", [False, True])
@pytest.mark.parametrize("where", [pytest.param("v5e:2x4", marks=tpu), pytest.param("h100", marks=cuda)])
def test_rows_are_exchanged_by_the_operation_for_it(where, derivative):
    mesh = mw.AbstractMesh((8,), ("x",), machine=where)

    def exchanged(x, out, *tables):
        return mw.lax.ragged_all_to_all(x, out, *tables, axis_name="x")

    f = mw.shard_map(exchanged, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    wanted = mw.grad(lambda x, *rest: (f(x, *rest).astype(float) ** 2).sum()) if derivative else f
    rows, space = (mw.ShapeDtypeStruct((8 * n, 256), mnp.bfloat16) for n in (1024, 4096))
    part = mw.jit(wanted).partition(rows, space, *[mw.ShapeDtypeStruct((64,), mnp.int32)] * 4)
    report = part.compile(where)
    sent = [c.bytes_sent for c in report.collectives if c.kind == "ragged_all_to_all"]
    assert sent == [1024 * 256 * 2 * 7 // 8] * (1 + derivative)
    assert sum(sent) == sum(c.bytes_sent for c in part.collectives if c.kind == "ragged_all_to_all")


@tpu
def test_decompositions_on_tpus():
    assert compiled_decompositions("v5e:1x2").fits


@cuda
def test_decompositions_on_cuda():
    report = compiled_decompositions("h100:2")
    assert report.fits and "cusolver_getrf_ffi" in {k.library for k in report.kernels}


@cuda
def test_decompositions_that_only_libraries_have_on_cuda():
    def f(a):
        b = mnp.ones((4, 8, 3), np.float32)
        return (
            mnp.linalg.svd(a), mnp.linalg.svd(a[:, :5]), mnp.linalg.svdvals(a[0, :5]),
            mnp.linalg.eig(a), mw.lax.linalg.tridiagonal(a),
            mw.lax.linalg.qr(a, pivoting=True), mw.lax.linalg.tridiagonal_solve(a[0, :4], a[1, :4], a[2, :4], b),
        )  # fmt: skip

    with mw.set_mesh(mw.AbstractMesh((1,), ("x",))):
        step = mw.jit(f, in_shardings=(P(),)).lower(mw.ShapeDtypeStruct((4, 8, 8), np.float32))
        report = step.partition().compile("h100:1")
    found = {k.library for k in report.kernels}
    assert found >= {"cusolver_gesvdj_ffi", "cuhybrid_eig_real", "cusolver_sytrd_ffi", "cusparse_gtsv2_ffi"}
