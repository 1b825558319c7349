"""PJRT's plugins: real devices behind the C interface, and what is said where there are none."""

import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_real_devices import run_tests

import meshwright as mw
from meshwright import errors
from meshwright.core.config import PLUGINS_VARIABLE, platform_named
from meshwright.runtime.pjrt import buffers, compiler, deadlines, platforms, plugins
from meshwright.runtime.pjrt.world import WORLD

PROGRAMS = Path(__file__).with_name("on_real_devices.py")


@pytest.fixture
def named(monkeypatch):
    """``named(text)``: what the environment says of plugins."""
    return lambda text: monkeypatch.setenv(PLUGINS_VARIABLE, text)


def test_on_a_plugin_for_cpus():
    """XLA for CPUs as a plugin: all that is not of the hardware is as on a GPU's."""
    spec = importlib.util.find_spec("lammps_jax_pjrt_cpu")
    if spec is None or spec.origin is None:
        pytest.skip(
            "a plugin with 4 CPU devices comes with pip install --no-deps lammps-jax-pjrt-cpu (make test-plugin)"
        )
    library = Path(spec.origin).with_name("pjrt_c_api_cpu_plugin.so")
    # Flags that this version knows may be unknown to the plugin's, which ends the process.
    run_tests(4, PROGRAMS, MESHWRIGHT_PLATFORM="lammps", PJRT_NAMES_AND_LIBRARY_PATHS=f"lammps:{library}", XLA_FLAGS="")


def test_on_gpus_through_cuda():
    try:
        count = len(platforms.make_client("cuda", 0).local_devices())
    except (errors.DeviceError, errors.MissingExtraError) as error:
        pytest.skip(str(error))
    run_tests(count, PROGRAMS, MESHWRIGHT_PLATFORM="cuda", XLA_FLAGS="")


def test_processes_on_gpus_through_nccl():
    """Two processes; with one GPU they share it, and take each other to be on another host, as NCCL demands."""
    try:
        count = len(platforms.make_client("cuda", 0).local_devices())
    except (errors.DeviceError, errors.MissingExtraError) as error:
        pytest.skip(str(error))
    env = {**os.environ, "MESHWRIGHT_PLATFORM": "cuda", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_FLAGS": ""}
    env |= {"CUDA_VISIBLE_DEVICES": "0", "NCCL_SOCKET_IFNAME": "lo"} if count == 1 else {}
    command = [sys.executable, "-m", "meshwright", "run", "-n", "2", "--timeout", "60"]
    command.append(PROGRAMS.with_name("on_gpus.py"))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.count("all is well") == 2, done.stdout[-4000:] + done.stderr[-4000:]


class _Endless:
    """A buffer that another process does not make ready."""

    def __init__(self, maker=None):
        self.let_go, self.maker = threading.Event(), maker

    def is_ready(self):
        return self.let_go.is_set()

    def is_deleted(self):
        return False

    def block_until_ready(self):
        self.let_go.wait(30)


#: a program that several processes run
PSUM = SimpleNamespace(ranks=(0, 1))


@pytest.fixture
def asked(monkeypatch):
    """As rank 0 of two on GPUs, of which rank 1 is dead when that is asked for the second time."""
    asked, gone = [], errors.DistributedError("rank 1 is dead")
    explain = lambda error, maker: asked.append((str(error), maker)) or (gone if len(asked) > 1 else None)  # noqa: E731
    for name, value in {"count": 2, "service": object()}.items():
        monkeypatch.setattr(WORLD, name, value)
    monkeypatch.setattr(deadlines, "CAUSE", SimpleNamespace(value=explain))
    monkeypatch.setattr(platforms, "is_plugin", lambda: True)
    monkeypatch.setattr(deadlines, "config", SimpleNamespace(collective_timeout=0.05))
    monkeypatch.setattr(deadlines.shielded, "leave_behind", lambda: asked.append("left"))
    return asked


def test_waits_on_accelerators_end_with_who_is_behind_them(asked):
    """Collectives of GPUs have no timeout of their own."""
    buffer = _Endless(PSUM)
    with pytest.raises(errors.DistributedError, match="rank 1 is dead"):
        buffers.wait(buffer)
    buffer.let_go.set()
    assert asked == [("nothing; it is not computed after 0.05 s", PSUM)] * 2 + ["left"]


def test_programs_of_one_process_may_take_long_but_not_behind_collectives(asked):
    alone, shared = _Endless(), _Endless(PSUM)
    threading.Timer(0.3, alone.let_go.set).start()
    buffers.wait(alone)
    assert not asked
    deadlines.note_run(shared)
    behind = _Endless()
    with pytest.raises(errors.DistributedError, match="rank 1 is dead"):
        buffers.wait(behind)
    assert asked[-1] == "left"
    shared.let_go.set()
    behind.let_go.set()


def test_who_compiles_together(monkeypatch):
    """Processes share out the search for fast kernels only where all of them compile a program."""
    everybody, one = ([SimpleNamespace(process_index=r) for r in ranks] for ranks in ((0, 0, 1), (1,)))
    monkeypatch.setattr(WORLD, "count", 2)
    monkeypatch.setattr(compiler, "disk_cache", SimpleNamespace(is_used=lambda: False))
    assert compiler._compile_together(everybody) and not compiler._compile_together(one)
    monkeypatch.setattr(compiler, "disk_cache", SimpleNamespace(is_used=lambda: True))
    assert not compiler._compile_together(everybody)


def test_the_environment_names_libraries(named):
    named("one:/a/b.so, two:/c.so")
    assert plugins.named_libraries() == {"one": Path("/a/b.so"), "two": Path("/c.so")}
    named("")
    assert plugins.named_libraries() == {}


@pytest.mark.parametrize("text", ["/a/b.so", "one:", ":/a.so", "one:/a.so,two"])
def test_entries_without_a_name_or_a_path(named, text):
    named(text)
    with pytest.raises(errors.DeviceError, match=r"expected name:path,name:path, got the entry"):
        plugins.named_libraries()


def test_platforms_that_are_not_there(named, tmp_path):
    with pytest.raises(errors.DeviceError, match=r"'ipu': there are cpu, cuda, tpu; .*PJRT_NAMES.*'ipu:/path"):
        platforms.make_client("ipu", 0)
    named(f"ipu:{tmp_path}/none.so")
    with pytest.raises(errors.DeviceError, match=r"none\.so, where there is no file"):
        platforms.make_client("ipu", 0)
    (tmp_path / "none.so").write_text("no library")
    with pytest.raises(errors.DeviceError, match=r"'ipu' .*could not be started: .*'platform', 'cpu'"):
        platforms.make_client("ipu", 0)


def test_tpus_that_are_not_there(monkeypatch):
    monkeypatch.setattr(plugins, "runtime", lambda name: plugins.Plugin(name, Path("libtpu.so"), Path()))
    monkeypatch.setattr(platforms, "_has_tpus", lambda: False)
    with pytest.raises(errors.DeviceError, match=r"no device of Google's .*target\('v5e:2x4'\)"):
        platforms.make_client("tpu", 0)


def test_names_of_platforms():
    assert [platform_named(n) for n in ("gpu", "cuda,cpu", "tpu", None, "")] == ["cuda", "cuda", "tpu", "cpu", "cpu"]
    with pytest.raises(errors.ConfigError, match=r"expected cpu, cuda \(or gpu\), tpu, or a name in PJRT_NAMES"):
        mw.config.update("platform", "a-b")
