"""Targets: names, devices and their places, what is said where something is missing, and reports of kept programs."""

import dataclasses
import itertools
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from target_programs import COMPILED, kept_report, mlp, subject

import meshwright as mw
from meshwright import errors
from meshwright.api.targets import memory_on
from meshwright.experimental.mesh_utils import create_device_mesh
from meshwright.hardware.placement import snake
from meshwright.runtime.pjrt import plugins
from meshwright.spmd.memory.tiles import tiled_bytes
from meshwright.targets import child
from meshwright.targets.child import Answer, Job, compile_in_child
from meshwright.targets.compiling import needed, report_of
from meshwright.targets.hlo import parse_hlo
from meshwright.targets.report import TargetReport
from meshwright.targets.schedule import _iota_groups


@pytest.fixture(scope="module")
def reports():
    return {name: kept_report(name) for name in COMPILED}


# --- names and devices --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name, size, platform",
    [("v5e:4x4", 16, "tpu"), ("v5p:2x2x4", 16, "tpu"), ("v4:2x2x2", 16 // 2, "tpu"), ("tpu7x:2x2x1", 8, "tpu"),
     ("h100", 8, "cuda"), ("h100:4", 4, "cuda"), ("h200:2x8", 16, "cuda"), ("a100:1", 1, "cuda"), ("cpu:8", 8, "cpu")],
)  # fmt: skip
def test_names(name, size, platform):
    target = mw.target(name)
    assert (target.size, target.platform, len(target.devices)) == (size, platform, size)
    assert len({d.id for d in target.devices}) == size
    assert mw.target(target.name) == target and mw.target(target) is target
    assert target.name.split(":")[0] in repr(target)


def test_nodes_and_slices():
    assert mw.target("h100", nodes=2) == mw.target("h100:2x8")
    assert [d.process_index for d in mw.target("h100", nodes=2).devices] == [0] * 8 + [1] * 8
    slices = mw.target("v5e:2x2", slices=2)
    assert [d.id for d in slices.devices] == [100000, 100002, 100001, 100003, 200000, 200002, 200001, 200003]
    assert [d.slice_index for d in slices.devices] == [0] * 4 + [1] * 4


def test_numbers_of_tpu_devices():
    """As libtpu numbers them: by coordinates, the first fastest; hosts have blocks of 2×2 chips, chips up to two
    cores."""
    v6e = {d.coords: (d.id, d.process_index) for d in mw.target("v6e:4x4").devices}
    assert [v6e[c, 0, 0] for c in range(4)] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert (v6e[0, 1, 0], v6e[3, 1, 0], v6e[1, 2, 0], v6e[3, 3, 0]) == ((4, 0), (7, 1), (9, 2), (15, 3))
    v5p = {d.coords: (d.id, d.process_index) for d in mw.target("v5p:2x2x4").devices}
    assert (v5p[1, 1, 0], v5p[0, 1, 2], v5p[1, 1, 3]) == ((3, 0), (10, 2), (15, 3))
    cores = {(d.coords, d.core_on_chip): d.id for d in mw.target("tpu7x:2x2x2").devices}
    assert (cores[(1, 0, 0), 1], cores[(0, 1, 1), 0]) == (3, 12)


@pytest.mark.parametrize(
    "name, kind, said",
    [("v5x:2x2", "ArgumentError", "v5e"), ("h10", "ArgumentError", "h100"), ("b200", "ArgumentError", "no description"),
     ("cpu:two", "ArgumentError", "number of devices"), (8, "ArgumentError", "expected a name"),
     ("v5e:2x2x2", "MeshError", "2 dimensions"), ("v5e:64x64", "MeshError", "16x16"),
     ("v5e:3x3", "MeshError", "1 or even; take v5e:4x4"), ("v5p:1x3x3", "MeshError", "take v5p:1x4x3")],
)  # fmt: skip
def test_names_that_are_none(name, kind, said):
    with pytest.raises(getattr(errors, kind), match=said):
        mw.target(name)


def test_cpus_have_no_nodes():
    with pytest.raises(errors.ArgumentError, match="no nodes or slices; say how many there are: 'cpu:2'"):
        mw.target("cpu", nodes=2)


def test_meshes_that_do_not_go_on_a_target():
    with pytest.raises(errors.MeshError, match=r"has 4 devices, a mesh of shape \(8,\) has 8; use target v5e:2x4"):
        mw.target("v5e:2x2").arranged((8,))
    part = mlp()
    with pytest.raises(errors.MeshError, match="use target v5e:2x4"):
        part.compile("v5e:4x4")
    with pytest.raises(errors.MeshError, match="has 5; partition for a mesh of 16"):  # there is no v5e:1x5
        mw.target("v5e:4x4").arranged((5,))
    other = mw.target("v6e:2x4").mesh((4, 2), ("data", "model"))
    with pytest.raises(errors.MeshError, match=r"not those of target v5e:2x4.*make_mesh"):
        mw.target("v5e:2x4").order_of(other)


# --- placement ----------------------------------------------------------------------------------------------
def hops(a, b, shape):
    """Links between two chips of a torus whose dimensions are rings."""
    return sum(min(abs(x - y), n - abs(x - y)) for x, y, n in zip(a.coords, b.coords, (*shape, 1)))


@pytest.mark.parametrize(
    "name, shape",
    [("v5e:4x4", (16,)), ("v5e:4x4", (4, 4)), ("v5e:4x8", (8, 4)), ("v5p:4x4x8", (8, 16)), ("v5p:2x2x4", (4, 2, 2)),
     ("v5p:2x2x4", (4, 4)), ("v5e:16x16", (256,)), ("v6e:2x4", (1, 8))],
)  # fmt: skip
def test_neighbours_on_a_mesh_are_neighbours_on_the_torus(name, shape):
    target = mw.target(name)
    placed = target.arranged(shape)
    assert placed.shape == shape and {d.id for d in placed.flat} == {d.id for d in target.devices}
    for axis in range(len(shape)):
        lines = np.moveaxis(placed, axis, -1).reshape(-1, shape[axis])
        for line in lines:
            assert all(hops(a, b, target.machine.shape) == 1 for a, b in itertools.pairwise(line))


def test_axes_of_other_sizes_are_placed_too():
    placed = mw.target("v5e:4x4").arranged((2, 8))  # no dimension of 2 or 8
    assert sorted(d.id for d in placed.flat) == list(range(16))


def test_the_network_is_for_the_first_axis():
    placed = mw.target("h100", nodes=2).arranged((2, 8))
    assert [[d.process_index for d in row] for row in placed] == [[0] * 8, [1] * 8]
    placed = mw.target("v5e:2x4", slices=2).arranged((2, 8))
    assert [{d.slice_index for d in row} for row in placed] == [{0}, {1}]


def test_snakes():
    assert snake([2, 3]) == [0, 1, 2, 5, 4, 3]
    places = [np.unravel_index(n, (2, 3, 4)) for n in snake([2, 3, 4])]
    assert all(np.abs(np.subtract(a, b)).sum() == 1 for a, b in itertools.pairwise(places))


def test_meshes_of_targets_devices():
    """What makes meshes places a target's devices; a mesh whose devices are a target's keeps them."""
    target = mw.target("v5e:2x4")
    mesh = target.mesh((4, 2), ("data", "model"))
    assert target.order_of(mesh) == [d.id for d in mesh.devices.flat]
    assert target.order_of(mesh) == target.order_of(mw.AbstractMesh((4, 2), ("data", "model")))
    made = mw.make_mesh((4, 2), ("data", "model"), devices=target.devices)
    assert made.flat_ids == mesh.flat_ids
    placed = create_device_mesh((4, 2), target.devices[::-1])
    assert [d.id for d in placed.flat] == [d.id for d in mesh.devices.flat]
    turned = mw.Mesh(mesh.devices[::-1], ("data", "model"))
    assert target.order_of(turned) == [d.id for d in mesh.devices[::-1].flat]


# --- what is missing ----------------------------------------------------------------------------------------
class _Nothing:
    """Finds no package."""

    def __call__(self, name):
        raise plugins.metadata.PackageNotFoundError(name)


def test_missing_extras_say_what_to_install(monkeypatch):
    monkeypatch.setattr(plugins, "_version", lambda name: None)
    monkeypatch.setattr(plugins.metadata, "distribution", _Nothing())
    with pytest.raises(ImportError, match=r"meshwright\[tpu\].*not an open one.*Google Cloud Platform Terms"):
        plugins.compiler("tpu", "v5e:4x4")
    with pytest.raises(errors.MissingExtraError, match=r"jax-cuda13-pjrt.*meshwright\[cuda\]"):
        plugins.compiler("cuda", "h100")


def test_plugins_of_other_versions(monkeypatch):
    class Old:
        version = "0.0.17"

    monkeypatch.setattr(plugins.metadata, "distribution", lambda name: Old())
    with pytest.raises(errors.MissingExtraError, match=r"0\.0\.17 is installed. pip install 'libtpu==0\.0\.42\.\*'"):
        plugins.compiler("tpu", "v5e:4x4")
    with pytest.raises(errors.MissingExtraError, match=r"which goes with jaxlib .*; 0\.0\.17 is installed"):
        plugins.compiler("cuda", "h100")


# --- the compiler's process ---------------------------------------------------------------------------------
JOB = Job("f", b"", "cpu", "", {}, [0])


@pytest.mark.parametrize(
    "body, option, said",
    [("import time; time.sleep(60)", ("target_seconds", 1), "takes longer than 1 s; raise config.target_seconds"),
     ("import time; time.sleep(60)", ("target_memory", 4096), "takes more than .* raise config.target_memory"),
     ("import os; os.kill(os.getpid(), 6)", None, "ended with SIGABRT"),
     ("raise SystemExit('no room')", None, r"ended with status 1, saying:\nno room")],
)  # fmt: skip
def test_compilers_that_fail(body, option, said, monkeypatch, tmp_path):
    script = tmp_path / "child.py"
    script.write_text(body)
    monkeypatch.setattr(child, "CHILD", script)
    if option:
        monkeypatch.setitem(mw.config.__dict__, *option)
    with pytest.raises(errors.CompileError, match=said):
        compile_in_child(JOB, None)


@pytest.fixture(scope="module")
def on_cpu():
    told, before = [], "libtpu" in sys.modules  # JAX imports it
    report = mlp().compile(mw.target("cpu"), progress=lambda seconds, held: told.append((seconds, held)))
    assert ("libtpu" in sys.modules) == before
    return report, told


def test_compiled_for_cpus(on_cpu):
    """In another process, which needs no extra; what comes back is XLA's for 8 devices."""
    report, told = on_cpu
    assert report.fits and "replica_count=8" in report.text and told
    assert sum(c.kind == "all_reduce" for c in report.collectives) >= 2
    assert report.argument_bytes == report.predicted.memory.argument_bytes


@pytest.mark.slow
def test_compiled_for_cpus_with_lapack():
    lowered = mw.jit(mw.numpy.linalg.inv).lower(mw.ShapeDtypeStruct((2, 3, 3), "float32"))
    report = lowered.partition(mw.AbstractMesh((2,), ("x",))).compile(mw.target("cpu"))
    assert report.fits and "lapack_sgetrf_ffi" in report.text


def test_executables_are_saved_and_loaded(on_cpu, tmp_path):
    report, _ = on_cpu
    file = report.save(tmp_path / "step.exe")
    loaded = mw.load_executable(file)
    for place, mode in ((file, 0o666), (file.parent, 0o777)):
        before = place.stat().st_mode
        place.chmod(mode)
        with pytest.raises(errors.ImportProgramError, match="others may write to"):
            mw.load_executable(file)
        place.chmod(before)
    assert loaded == report.executable and loaded.target == "cpu:8" and loaded.mesh == {"data": 4, "model": 2}
    damaged = bytearray(file.read_bytes())
    damaged[-3] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(errors.ImportProgramError, match="damaged"):
        mw.load_executable(file)
    file.write_text("{}\n")
    with pytest.raises(errors.ImportProgramError, match="not an executable"):
        mw.load_executable(file)


def test_files_that_are_no_executables(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b'{"form": "meshwright executable 0"}\n')
    for file, said in ((tmp_path / "none", "No such file.*report.save"), (tmp_path, "Is a directory"),
                       (other, "another version of meshwright.*compile it again")):  # fmt: skip
        with pytest.raises(errors.ImportProgramError, match=said):
            mw.load_executable(file)


def test_compiling_for_the_meshs_devices():
    with pytest.raises(errors.MeshError, match=r"has no devices.*compile\(target\)"):
        mlp().compile()


# --- reports ------------------------------------------------------------------------------------------------
def test_a_program_that_fits(reports):
    report = reports["mlp_v5e"]
    assert report.fits and report.excess_bytes == 0 and report.host_bytes == 0
    assert 0 < report.argument_bytes <= report.device_bytes < report.memory_bytes
    assert report.estimated_cycles > 5_000
    assert {k.source.line for k in report.kernels if k.what == "dot_general"} <= lines_of("mlp")


def lines_of(name):
    import inspect

    import target_programs

    source, start = inspect.getsourcelines(getattr(target_programs, name))
    return set(range(start, start + len(source)))


@pytest.mark.parametrize("name", ["mlp_v5e", "mlp_h100"])
def test_combined_collectives_have_all_reasons(reports, name):
    """Both compilers send two gradients and the loss in one all-reduce; on GPUs they are one array then."""
    found = reports[name].collectives
    assert [c.kind for c in found] == ["all_reduce", "all_reduce"]
    forward, gradients = found
    assert (forward.axes, forward.group_size) == (("model",), 2)
    assert (gradients.axes, gradients.group_size, len(gradients.operands)) == (("data",), 4, 3)
    assert len(gradients.reasons) >= 2 and "partial sums over data" in gradients.reason
    assert forward.source.line in lines_of("mlp")
    part = mlp()
    assert reports[name].bytes_sent == pytest.approx(part.bytes_sent, rel=1e-3)


def test_libraries_are_named(reports):
    libraries = [k.library for k in reports["mlp_h100"].kernels if k.library]
    assert libraries == ["__cublas$lt$matmul"] * 5


def test_collectives_beside_other_work(reports):
    """The gathers of weights in the loops go on beside products of the layer before."""
    report = reports["layers_v5e"]
    assert report.schedule.unknown_loops == 0
    beside = [c for c in report.collectives if c.asynchronous]
    assert len(beside) >= 3 and {c.kind for c in beside} == {"all_gather"}
    assert all(c.count == 3 and c.axes == ("data",) for c in beside)
    assert all(any(k.what == "dot_general" for k in c.overlaps) and c.overlapped_cycles > 0 for c in beside)
    assert 0 < report.overlapped_share < 0.5
    assert all(c.reason != "put in by the compiler" for c in report.collectives)


def test_every_kind_of_collective(reports):
    found = reports["moves_v5e"].collectives
    kinds = {c.kind for c in found}
    assert {"all_gather", "reduce_scatter", "all_reduce", "collective_permute", "all_to_all"} <= kinds
    assert all(c.axes and c.source.line in lines_of("moves") and c.bytes_sent > 0 for c in found)
    assert any("Ring" in c.algorithm for c in found)


def test_one_collective_is_one():
    report = SimpleNamespace(bytes_sent=1536, overlapped_share=0.0, collectives=[SimpleNamespace(asynchronous=False)])
    said = "1 collective sends 1.5 KiB a run; it does not run beside other work"
    assert TargetReport.summary.fget(report) == said


def test_reports_are_printed(reports):
    text = str(reports["layers_v5e"])
    for said in ("'loss' for v5e:2x4 (8 × TPU v5 lite) fits", "run beside other work", "predicted", "temporaries",
                 "3 × all_gather over data", "dot_general", "cycles", "target_programs.py"):  # fmt: skip
        assert said in text
    page = reports["layers_v5e"]._repr_html_()
    assert page.count("<table>") == 3 and "all_gather over data" in page and "/work" not in text


def test_programs_that_are_too_large():
    what, target = subject(mlp()), mw.target("v5e:2x4")
    said = "JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory on HBM. Used 24.00G of 15.75G hbm."
    report = report_of(what, target, range(8), Answer(refused=said))
    assert not report.fits and report.excess_bytes == 8 * 2**30 and "8.0 GiB too much" in str(report)
    with pytest.raises(errors.CompileError, match="no executable"):
        report.save("nowhere")
    with pytest.raises(errors.CompileError, match="refuses it: INVALID"):
        report_of(what, target, range(8), Answer(refused="INVALID"))
    large = dataclasses.replace(kept_report("mlp_h100"), target=mw.target("h100"))
    held = dataclasses.replace(large.memory, temp_bytes=100 * 2**30)
    assert not dataclasses.replace(large, memory=held).fits  # XLA for CUDA does not refuse it


@pytest.mark.parametrize(
    "said, size",
    [("the total memory required for HLO temporaries (24.00G) exceeds available HBM (15.75G)", 24 * 2**30),
     ("Used 1.50M of 15.75G hbm", 3 * 2**19), ("something else", None)],
)  # fmt: skip
def test_needed(said, size):
    assert needed(said) == size


@pytest.mark.parametrize(
    "shape, dtype, size",
    [((), "float32", 512), ((64,), "float32", 512), ((768,), "float32", 4096), ((3000,), "float32", 3072 * 4),
     ((64, 16), "float32", 16 * 128 * 4), ((51, 64), "float32", 56 * 128 * 4), ((3, 2048), "float32", 4 * 2048 * 4),
     ((3, 3, 32, 16), "float32", 9 * 16 * 128 * 4), ((2048, 512), "bfloat16", 2 * 2**20)],
)  # fmt: skip
def test_tiles_of_tpus(shape, dtype, size):
    """As libtpu lays arguments out, by its text: T(8,128), T(4,128), T(1024), the dimensions in the best order."""
    assert tiled_bytes(mw.ShapeDtypeStruct(shape, dtype)) == size


def test_arguments_in_tiles(reports):
    """What is predicted of a kept program is what the compiler said."""
    assert memory_on(mlp(), mw.target("v5e:2x4")).argument_bytes == reports["mlp_v5e"].argument_bytes


def test_products_on_gpus_have_a_workspace(reports):
    """While they run; where the peak is elsewhere it counts nothing."""
    part, report = mlp(), reports["mlp_h100"]
    predicted = memory_on(part, mw.target("h100:8"))
    assert any(b.nbytes == 2**22 and b.what == "matmul" for b in predicted.buffers) and "s8[4194304]" in report.text
    assert predicted.peak_bytes == pytest.approx(report.peak_bytes, rel=0.15)


# --- HLO text -----------------------------------------------------------------------------------------------
def test_groups_in_every_form():
    assert _iota_groups("2,4", "8", None) == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert _iota_groups("4,2", "2,4", "1,0") == {(0, 4), (1, 5), (2, 6), (3, 7)}


@pytest.mark.parametrize("text", ["", "HloModule f", "ENTRY main (a: f32[]) -> f32[] {\n  %x = (f32[]"])
def test_texts_that_are_no_programs(text):
    with pytest.raises(errors.ImportProgramError):
        parse_hlo(text)
