"""The commands ``partition`` and ``explain``, as a shell runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from forked import run
from jaxlib._hlo import hlo_module_from_text

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.api import compare
from meshwright.api.compare import compiled_figures, our_figures, xla_figures
from meshwright.errors import CompileError
from meshwright.runtime.pjrt.compiler import is_shardy
from meshwright.runtime.pjrt.xla_partitioner import xla_partition
from meshwright.stablehlo.hlo import module_bytecode
from meshwright.stablehlo.hlo_groups import with_listed_groups
from meshwright.stablehlo.sources import stablehlo_of

PROGRAM = """module @layer attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%x: tensor<4x6xf32> {mhlo.sharding = "{devices=[1,2,2]<=[4] last_tile_dim_replicate}"},
                         %w: tensor<6x8xf32> {mhlo.sharding = "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"})
      -> (tensor<4x8xf32> {mhlo.sharding = "{replicated}"}) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32> loc("product"("model.py":12:3))
    return %0 : tensor<4x8xf32>
  }
}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "layer.mlir"
    path.write_text(PROGRAM)
    return str(path)


def test_partition_prints_collectives_and_verifies(file):
    done = run("partition", file, "--mesh", "data=2,model=2", "--verify")
    assert done.returncode == 0, done.stderr
    assert "layer on mesh data=2 × model=2" in done.stdout
    # The product's terms are summed over two devices: 2 · 128 bytes · (2 - 1) / 2.
    assert [line.split() for line in done.stdout.splitlines() if "all_reduce" in line] == [["all_reduce", "1", "128"]]
    assert "verified: the output equals" in done.stdout


def test_text_alone_goes_to_the_standard_output(file):
    done = run("partition", file, "--text", "stablehlo")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("module @spmd_layer") and "stablehlo.all_reduce" in done.stdout
    assert "read and partitioned" in done.stderr


def test_explain_names_the_original_line(file):
    done = run("explain", file)
    assert done.returncode == 0, done.stderr
    assert "1 collective" in done.stdout and "all_reduce over x0 (2 devices)" in done.stdout
    assert "model.py:12 (product)" in done.stdout


def test_explain_suggests_unless_told_not_to(file):
    done = run("explain", file, "--seconds", "60")
    assert done.returncode == 0, done.stderr
    assert "caused by x0 in the sharding of input 0" in done.stdout and "annotations were tried" in done.stdout
    assert "annotations were tried" not in run("explain", file, "--no-suggest").stdout


def test_partition_combines_on_request(file):
    done = run("partition", file, "--combine-bytes", "1024", "--verify")
    assert done.returncode == 0, done.stderr
    assert "verified: the output equals" in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--mesh", "data=3"], "has shardings for 4 devices"),
        (["--mesh", "data:4"], "--mesh: expected axes and sizes such as data=4,model=2, got 'data:4'"),
        (["--mesh", "data=4", "--devices", "4"], "give either --mesh data=4 or --devices 4, not both"),
        (["--text", "c"], "--text: expected jaxpr, stablehlo, hlo, got 'c'"),
    ],
)
def test_errors_are_one_message(file, args, message):
    done = run("partition", file, *args)
    assert done.returncode == 1
    assert message in done.stderr and done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr and not done.stdout


def test_a_broken_file_names_its_line(tmp_path):
    path = tmp_path / "broken.mlir"
    path.write_text(PROGRAM.replace("stablehlo.dot_general", "stablehlo.dot_product"))
    done = run("explain", str(path))
    assert done.returncode == 1
    assert done.stderr.startswith("error: broken.mlir:5:10: ") and "dot_product" in done.stderr


def test_compare_shows_both_partitioners(file):
    done = run("compare", file, "--machine", "v5e:2x2")
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("bytes sent"))
    ours, theirs = (int(cell.replace(",", "")) for cell in row.split()[-2:])
    assert 0 < ours <= theirs
    for words, unit in (
        ("arithmetic of a device", r"\d\.\d\d"),
        ("time of a run, modelled on", r"[\d.]+ [µm]s"),
        ("memory of a device on v5e:2x2", r"[\d.]+ [KM]?i?B"),
    ):
        row = next(line for line in done.stdout.splitlines() if line.startswith(words))
        assert re.search(rf" {unit} +{unit}$", row.strip()), row


def test_programs_in_hlo_are_compared_too(tmp_path):
    """As text and as a proto, with parameters in tuples."""
    text = """HloModule m, num_partitions=4
ENTRY e {
  p = (f32[8,6], f32[6,4]) parameter(0), sharding={{devices=[2,2]<=[4]}, {devices=[2,2]<=[4]}}
  a = f32[8,6] get-tuple-element(p), index=0
  b = f32[6,4] get-tuple-element(p), index=1
  ROOT y = f32[8,4] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}, sharding={devices=[2,2]<=[4]}
}"""
    file = tmp_path / "program.hlo"
    file.write_text(text)
    for source in (text.encode(), file, hlo_module_from_text(text).as_serialized_hlo_module_proto()):
        figures = our_figures(mw.load(source)), xla_figures(source)
        assert [f.kinds for f in figures] == [{"all_gather": (2, 72)}] * 2


def test_what_xla_makes_is_priced_like_ours():
    """A product that nothing is sent for, one whose sum is completed, and one that all devices repeat."""
    text = """
    module @m attributes {mhlo.num_partitions = 4 : i32} {
      func.func public @main(%a: tensor<64x128xf32> {mhlo.sharding = "A"}, %b: tensor<128x32xf32> {mhlo.sharding = "B"})
          -> (tensor<64x32xf32> {mhlo.sharding = "{replicated}"}) {
        %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
            : (tensor<64x128xf32>, tensor<128x32xf32>) -> tensor<64x32xf32>
        return %0 : tensor<64x32xf32>
      }
    }"""
    cases = {
        ("{replicated}", "{replicated}"): (4.0, 0),
        ("{devices=[1,4]<=[4]}", "{devices=[4,1]<=[4]}"): (1.0, 2 * 64 * 32 * 4 * 3 // 4),
    }
    for (a, b), (redundancy, sent) in cases.items():
        source = text.replace('"A"', f'"{a}"').replace('"B"', f'"{b}"').encode()
        program = mw.load(source)
        mesh = mw.AbstractMesh((4,), ("x",), machine="v5e:2x2")
        ours, theirs = our_figures(program, mesh=mesh), xla_figures(source, program, mesh)
        made = compiled_figures(program, mesh=mesh)
        assert replace(made, seconds=theirs.seconds) == theirs
        assert (theirs.redundancy, theirs.bytes_sent, theirs.note) == (redundancy, sent, "")
        assert (ours.redundancy, ours.bytes_sent) == (redundancy, sent)
        assert theirs.run_seconds == pytest.approx(ours.run_seconds, rel=1e-6)
        assert theirs.memory_bytes == pytest.approx(ours.memory_bytes, rel=0.05)  # a v5e's, though compiled for CPUs


def test_collectives_of_loops_are_counted_as_often_as_they_run():
    """A sum over devices in each of seven rounds: the same bytes, whoever partitioned."""

    mesh = mw.AbstractMesh((4,), ("x",))
    on = [mw.NamedSharding(mesh, mw.PartitionSpec(*axes)) for axes in (("x",), (None, "x"))]
    step = mw.jit(lambda x, w: lax.fori_loop(0, 7, lambda _, c: mnp.tanh(w @ (x @ c)), mnp.ones(32)), in_shardings=on)
    source = module_bytecode(step.lower(mnp.ones((64, 32)), mnp.ones((32, 64))).compiler_ir())
    program = mw.load(source)
    figures = (our_figures(program), compiled_figures(program), xla_figures(source, program))
    assert [f.bytes_sent for f in figures] == [7 * 2 * 32 * 4 * 3 // 4] * 3


SHARDY = """module @m attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%a: tensor<64x128xT> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
                  %b: tensor<128x32xT> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                  %c: tensor<64x32xT> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, tf.aliasing_output = 0 : i32})
      -> (tensor<64x32xT> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
        : (tensor<64x128xT>, tensor<128x32xT>) -> tensor<64x32xT>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<64x32xT>
    %2 = stablehlo.add %1, %c : tensor<64x32xT>
    return %2 : tensor<64x32xT>
  }
}"""


@pytest.mark.parametrize(("type_", "size"), [("f32", 4), ("bf16", 2)])
def test_xla_is_judged_by_what_accelerators_would_run(type_, size):
    """Shardy's annotations are seen by XLA's partitioner. Narrow types stay narrow, though XLA compiles for CPUs, sums
    that are cut at once are scattered, and donated memory is used again."""
    source = SHARDY.replace("xT>", f"x{type_}>").encode()
    program = mw.load(source)
    mesh = mw.AbstractMesh((4,), ("x",), machine="v5e:2x2")
    ours, theirs = our_figures(program, mesh=mesh), xla_figures(source, program, mesh)
    assert ours.kinds == theirs.kinds == {"reduce_scatter": (1, 64 * 32 * size * 3 // 4)}
    assert theirs.memory_bytes == pytest.approx(ours.memory_bytes, rel=0.01)
    assert (theirs.redundancy, theirs.note) == (pytest.approx(ours.redundancy, rel=0.01), "")


def test_products_that_cpus_have_no_kernel_for_are_no_obstacle():
    """Products are read before XLA brings their dimensions into the order of a kernel."""
    source = b"""module @m attributes {mhlo.num_partitions = 4 : i32} {
      func.func @main(%a: tensor<64x16xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"},
                      %b: tensor<2x32x64x1xf32> {mhlo.sharding = "{devices=[1,1,4,1]<=[4]}"}) -> tensor<16x2x32x1xf32> {
        %0 = stablehlo.dot_general %a, %b, contracting_dims = [0] x [2]
            : (tensor<64x16xf32>, tensor<2x32x64x1xf32>) -> tensor<16x2x32x1xf32>
        return %0 : tensor<16x2x32x1xf32>
      }
    }"""
    program = mw.load(source)
    for mesh in (None, mw.AbstractMesh((4,), ("x",), machine="v5e:2x2")):
        figures = our_figures(program, mesh=mesh), xla_figures(source, program, mesh)
        assert all(f.bytes_sent > 0 and f.redundancy == pytest.approx(1) and not f.note for f in figures)


def test_xla_may_count_in_64_bits():
    """Which random bits are a device's own, XLA's partition computes in 64 bits, in the loops that draw them, too."""
    jax = pytest.importorskip("jax")
    devices = jax.sharding.AbstractMesh((4, 2), ("x", "y"))
    rows = jax.NamedSharding(devices, jax.P("x", None, "y"))

    def drawn(x, keys):
        def step(x, key):
            return jax.lax.scan(lambda x, key: (x * jax.random.uniform(key, x.shape), None), x, key)

        return jax.lax.scan(step, x, keys)[0]

    keys = jax.ShapeDtypeStruct((5, 3, 2), "uint32")
    step = jax.jit(drawn).trace(jax.ShapeDtypeStruct((8, 4, 16), "float32", sharding=rows), keys)
    source = step.lower(lowering_platforms=("cpu",)).as_text().encode()
    program = mw.load(source)
    mesh = mw.AbstractMesh((4, 2), ("x", "y"), machine="v5p:2x2x2")
    ours, theirs = our_figures(program, mesh=mesh), xla_figures(source, program, mesh)
    assert (theirs.bytes_sent, theirs.note) == (ours.bytes_sent, "")
    assert theirs.memory_bytes == pytest.approx(ours.memory_bytes, rel=0.1)


def test_what_cannot_be_read_has_the_figures_that_xla_states(monkeypatch):
    """On the machine that the mesh names, too."""

    def unreadable(*_):
        raise CompileError("it cannot be read")

    monkeypatch.setattr(compare, "_priced", unreadable)
    source = SHARDY.replace("xT>", "xf32>").encode()
    program = mw.load(source)
    for machine in (None, "v5e:2x2"):
        found = xla_figures(source, program, mw.AbstractMesh((4,), ("x",), machine=machine))
        assert found.memory_bytes > 0 and found.run_seconds is None and "it cannot be read" in found.note
        assert found.kinds == {"all_reduce": (1, 2 * 64 * 32 * 4 * 3 // 4)}  # CPUs scatter no sums


def test_shardys_annotations_are_told_from_words_in_constants_and_names():
    shardy = SHARDY.replace("xT>", "xf32>")
    assert is_shardy(shardy) and is_shardy(stablehlo_of(shardy.encode()))
    for other in (PROGRAM, PROGRAM.replace("@layer", "@sdy"), PROGRAM.replace('"model.py"', '"a sdy b"')):
        assert not is_shardy(other) and not is_shardy(stablehlo_of(other.encode()))


def test_calls_of_libraries_are_no_obstacle_to_counting():
    """What XLA attaches to a call of LAPACK is no JSON."""
    on = mw.NamedSharding(mw.AbstractMesh((4,), ("x",)), mw.PartitionSpec("x"))
    step = mw.jit(lambda a: mnp.linalg.qr(a)[1].sum(), in_shardings=on).lower(mnp.ones((8, 6, 6)))
    source = module_bytecode(step.compiler_ir())
    figures = our_figures(mw.load(source)), xla_figures(source)
    assert 0 < figures[0].bytes_sent <= figures[1].bytes_sent


@pytest.mark.parametrize(
    ("groups", "listed"),
    [
        ("mesh['x'=2,'y'=2] {'x'}", "{{0,2},{1,3}}"),
        ("mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)) {'x'}", "{{0,1},{2,3}}"),
        ("mesh['x'=4], device_ids=(3,1,2,0) {'x':(1)2}", "{{3,2},{1,0}}"),
        ("mesh['x'=2,'y'=1,'z'=2] {'z','x'}", "{{0,2,1,3}}"),
        ("{{0,1},{2,3}}", "{{0,1},{2,3}}"),
    ],
)  # fmt: skip
def test_groups_over_a_mesh_are_listed(groups, listed):
    text = "all-gather(%a), replica_groups=%s, dimensions={0}"
    assert with_listed_groups(text.replace("%s", groups)) == text.replace("%s", listed)


def test_a_compiler_that_ends_its_process_does_not_end_ours(tmp_path, monkeypatch):
    dying = tmp_path / "dying"
    dying.write_text("#!/bin/sh\necho these are my last words >&2\nkill -SEGV $$\n")
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    for path, words in ((dying, "with SIGSEGV, saying:\nthese are my last words"), (slow, "longer than 1 s; raise")):
        path.chmod(0o755)
        with (
            monkeypatch.context() as patch,
            mw.config.override("target_seconds", 1),
            pytest.raises(CompileError) as caught,
        ):
            patch.setattr(sys, "executable", str(path))
            xla_partition(PROGRAM, 4, [True])
        assert words in str(caught.value)
    with pytest.raises(CompileError, match="refused the program"):
        xla_partition("no program", 4, [True])


# --- where output goes, and where programs come from --------------------------------------------------------
def shell(command, **environment):
    """What a shell says of a command line in which ``mw`` is ours."""
    code = f"{sys.executable} -c 'from meshwright.cli import main; main()'"
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command.replace('mw ', code + ' ')}"],
        capture_output=True, text=True, timeout=120, env={**os.environ, **environment},
    )  # fmt: skip


def test_a_terminal_without_all_characters(file):
    done = shell(f"mw partition {file}", PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert "layer on mesh x0=2 ? x1=2" in done.stdout


@pytest.mark.parametrize("command", ["partition", "explain --no-suggest", "compare"])
def test_a_full_disk_is_an_error(file, command):
    done = shell(f"mw {command} {file} > /dev/full")
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, last) == (1, "error: the output cannot be written: No space left on device")
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_none(file):
    done = shell(f"mw partition {file} --text stablehlo | true; exit ${{PIPESTATUS[0]}}")
    assert done.returncode in (0, 1) and "error" not in done.stderr and "Traceback" not in done.stderr


def test_closed_outputs_are_none(file):
    assert shell(f"mw partition {file} >&- 2>&-").returncode == 0


@pytest.mark.parametrize("command", ["partition", "explain --no-suggest", "compare"])
def test_the_standard_input_is_a_file(file, command):
    assert shell(f"mw {command} - < {file}").returncode == 0


@pytest.mark.parametrize(
    ("file", "words"),
    [("/nowhere", "No such file"), ("/", "Is a directory"), ("/dev/null", "is empty")],
)  # fmt: skip
@pytest.mark.parametrize("command", ["partition", "explain", "compare"])
def test_files_that_are_none(command, file, words):
    done = run(command, file)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and words in done.stderr


@pytest.mark.parametrize("mesh", ["a=²", "a=0", f"a={10**20}", "a=2,a=2", "=4", "a", "a=-2", "a=4:b", "a:(1)2=2"])
def test_meshes_that_are_none(file, mesh):
    done = run("partition", file, "--mesh", mesh)
    assert done.returncode == 1 and done.stderr.startswith("error: "), done.stderr


def test_compile_for_a_target(file, tmp_path):
    """For CPUs, whose compiler is always there."""
    saved = tmp_path / "layer.exe"
    done = run("compile", file, "--target", "cpu:4", "--mesh", "data=2,model=2", "--save", str(saved))
    assert done.returncode == 0, done.stderr
    assert "'layer' for cpu:4" in done.stdout and "fits" in done.stdout and "all_reduce over" in done.stdout
    assert saved.stat().st_size > 1000
    done = run("compile", file, "--target", "v5w:4x4")
    assert done.returncode == 1 and "did you mean" in done.stderr and "Traceback" not in done.stderr
    done = run("compile", file, "--target", "cpu:8", "--mesh", "data=2,model=2")
    assert done.returncode == 1 and "use target cpu:4" in done.stderr


def test_times_are_those_of_a_machine(file, tmp_path):
    done = run("partition", file, "--machine", "v5e:2x2", "--time")
    assert done.returncode == 0, done.stderr
    assert "time of a run on v5e:2x2" in done.stdout and "rests on guessed figures of v5e" in done.stdout
    assert "dot_general at model.py:12" in done.stdout
    wrong = run("partition", file, "--machine", "v5f:2x2")
    assert wrong.returncode == 1 and "no chip 'v5f' is known; did you mean" in " ".join(wrong.stderr.split())


@pytest.mark.parametrize("command", ["partition --machine v5e:2x2", "explain", "compare --machine v5e:2x2"])
def test_without_devices_the_options_are_named(command, tmp_path):
    plain = tmp_path / "plain.mlir"
    text = PROGRAM.replace("num_partitions = 4", "num_partitions = 1")
    plain.write_text(re.sub(r' {mhlo.sharding = "{.*?}"}', "", text))
    done = run(*command.split(), str(plain))
    expected = "compare one whose" if command.startswith("compare") else "--mesh data=4,model=2 or --devices 8"
    assert done.returncode == 1 and expected in " ".join(done.stderr.split()), done.stderr


def test_chips_are_listed_with_their_sources():
    done = run("hardware")
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in ("v5e", "tpu7x", "h200", "b200")) and "989.4" in done.stdout


def test_the_version():
    done = run("--version")
    assert re.fullmatch(r"meshwright \d+\.\d+\.\d+ \(jaxlib [\d.]+, Python 3[\d.]+\)\n", done.stdout), done.stderr
