"""Profiles are written, read and summed; memory is counted, and other processes see it."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, P, profiler, smi
from meshwright.cli import app
from meshwright.inspect.profile import summed
from meshwright.runtime.live_programs import ops_of
from meshwright.runtime.pjrt.profiling import Event


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Thousands of unblocked steps on 4 x 2 virtual devices, and a few of one device."""
    mesh = mw.make_mesh((4, 2), ("x", "y"))
    x = mw.device_put(np.ones((64, 64), np.float32), NamedSharding(mesh, P("x", "y")))
    w = mw.device_put(np.ones((64, 64), np.float32) / 64, NamedSharding(mesh, P("y")))
    step = mw.jit(lambda x, w: mnp.sin(x @ w) / 2, out_shardings=x.sharding)
    alone = mw.jit(lambda v: mnp.cumsum(v * 3))
    v = np.ones(4096, np.float32)
    step(x, w), alone(v)
    #: programs of the same name with ops of the same names, for one device and for eight
    others = [mw.jit(lambda x, w: mnp.cos(x @ w) / 2), mw.jit(lambda v: mnp.cumsum(v * 5), out_shardings=w.sharding)]
    others[0](np.ones((64, 64), np.float32), np.ones((64, 64), np.float32)), others[1](np.ones((64, 64), np.float32))
    folder = tmp_path_factory.mktemp("profile")
    with profiler.trace(folder, create_perfetto_trace=True):
        for number in range(3000):
            with profiler.StepTraceAnnotation("train", step_num=number):
                x = step(x, w)
        profiler.annotate_function(lambda: alone(v), name="on one device")().block_until_ready()
        x.block_until_ready()
    del others
    return folder


def test_a_profile_opens_in_perfetto_and_tensorboard(recorded):
    (run,) = (recorded / "plugins" / "profile").iterdir()
    names = {f.name.split(".", 1)[-1] for f in run.iterdir()}
    assert {"xplane.pb", "trace.json.gz"} <= names and (run / "perfetto_trace.json.gz").exists()
    events = json.loads(gzip.decompress((run / "perfetto_trace.json.gz").read_bytes()))["traceEvents"]
    spans = {e.get("name") for e in events}
    assert {"train", "on one device"} <= spans


def test_our_reading_says_where_the_time_went(recorded):
    profile = profiler.read_profile(recorded)
    assert set(profile.devices) == {"device 0"} and profile.seconds > 0
    assert max(profile.counts.values()) >= 3000
    lines = [line for line in profile.lines if "test_profiler.py" in line]
    assert lines and sum(profile.lines.values()) == pytest.approx(profile.seconds)
    assert len(profile.shares) == 8
    share = profile.shares["virtual device 0"]
    assert profile.shares["virtual device 7"] == share and 8 * share < profile.seconds
    text = str(profile)
    for title in ("by device:", "by virtual device (computed", "by op:", "by line of the program:"):
        assert title in text


def test_the_command_prints_a_profile(recorded, tmp_path):
    found = CliRunner().invoke(app, ["profile", str(recorded)])
    assert found.exit_code == 0 and "by line of the program:" in found.output
    with pytest.raises(mw.errors.ArgumentError, match="no profile in"):
        profiler.read_profile(tmp_path)


def test_collectives_of_real_devices_are_named():
    text = """HloModule m

FileNames
1 "a.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=2 end_column=3}

StackFrames
2 {file_location_id=1 parent_frame_id=1}

ENTRY %main (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  %both = (f32[2]{0}, s32[]) tuple(%p, %p)
  ROOT %psum.1 = f32[2]{0} all-reduce(%p), to_apply=%add, metadata={op_name="jit(f)/psum" stack_frame_id=2}
}
"""
    assert ops_of(text) == {
        "p": {"kind": "parameter", "name": "", "line": ""},
        "both": {"kind": "tuple", "name": "", "line": ""},
        "psum.1": {"kind": "all-reduce", "name": "jit(f)/psum", "line": "a.py:7"},
    }
    folder = mw.__path__[0]
    profile = summed(Path(folder), [Event("m", "x", 1, 0.0, 2e9)])
    assert profile.devices == {"device 1": 2.0} and profile.lines == {"unknown": 2.0} and not profile.shares
    profile.add(Event("m", "psum.1", 0, 0.0, 1e9), ops_of(text))
    assert profile.collectives == {"psum": 1.0} and profile.lines["a.py:7"] == 1.0 and not profile.shares


def test_one_profile_at_a_time(tmp_path, refuses):
    with refuses(mw.errors.ArgumentError, "no profile is being recorded"):
        profiler.stop_trace()
    with refuses(mw.errors.ArgumentError, "ui.perfetto.dev"):
        profiler.start_trace(tmp_path, create_perfetto_link=True)
    profiler.start_trace(tmp_path)
    with refuses(mw.errors.ArgumentError, "one at a time"):
        profiler.start_trace(tmp_path)
    profiler.stop_trace()


def test_memory_of_devices_is_counted(tmp_path):
    mesh = mw.make_mesh((4, 2), ("x", "y"))
    first, other = mw.devices()[0], mw.devices()[7]
    before = [d.memory_stats() for d in (first, other)]
    x = mw.device_put(np.ones((1024, 64), np.float32), NamedSharding(mesh, P("x")))
    after = [d.memory_stats() for d in (first, other)]
    for old, new in zip(before, after):
        assert new["bytes_in_use"] - old["bytes_in_use"] == 1024 * 64 // 4 * 4
        assert new["num_allocs"] == old["num_allocs"] + 1
        assert new["peak_bytes_in_use"] >= new["bytes_in_use"] and new["bytes_limit"] > 2**28
    del x
    now = first.memory_stats()
    assert now["bytes_in_use"] == before[0]["bytes_in_use"] and now["peak_bytes_in_use"] >= after[0]["bytes_in_use"]
    profiler.save_device_memory_profile(tmp_path / "memory.prof")
    assert len(gzip.decompress((tmp_path / "memory.prof").read_bytes())) > 20


OTHER = """
import sys
import meshwright as mw, meshwright.numpy as mnp
x = mnp.ones((512, 512)).block_until_ready()
mw.smi.initialise_tracking(0.2)
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_monitor_shows_several_processes(tmp_path, monkeypatch, refuses):
    monkeypatch.setenv("MESHWRIGHT_SMI_DIR", str(tmp_path))
    assert "no process reports" in smi.report()
    (tmp_path / "999999999.json").write_text("{}")  # of a process that is gone
    other = subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "ready\n"
        smi.initialise_tracking()
        found = CliRunner().invoke(app, ["smi", "--once"])
        assert found.exit_code == 0
        rows = {line.split()[0]: line for line in found.output.splitlines() if line.strip()}
        assert str(other.pid) in rows and "1.0 MiB" in rows[str(other.pid)] and str(os.getpid()) in rows
        assert found.output.splitlines()[1].startswith("cpu:0") and "999999999" not in rows
    finally:
        other.communicate("")
        smi._Tracker.thread.end()
    assert not (tmp_path / f"{other.pid}.json").exists()
    with refuses(mw.errors.ArgumentError, "must be positive"):
        smi.initialise_tracking(0)


def test_kernels_of_a_graph_on_gpus_are_told_by_their_names(tmp_path):
    """As an H100's profile has them: what is started as one graph has kernels, which are named after ops."""
    ops = {"add.1": {"name": "f/psum", "line": "a.py:1"}, "loop-add_fusion.2": {"name": "f/add", "line": "a.py:2"},
           "sm90.x": {"name": "f/mul", "line": "a.py:3"}, "sm90-x": {"name": "f/sub", "line": "a.py:4"}}  # fmt: skip
    (tmp_path / "meshwright.programs.json").write_text(json.dumps({"m": ops}))
    events = [Event("m", kernel, 0, 0.0, 1e9) for kernel in ("add.1", "loop_add_fusion_2", "sm90_x")]
    profile = summed(tmp_path, events)
    assert profile.lines == {"a.py:1": 1, "a.py:2": 1, "unknown": 1} and profile.collectives == {"psum": 1}
