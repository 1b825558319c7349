"""Compiled programs on disk: a second process loads what the first compiled; what cannot be trusted is not loaded."""

import hashlib
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.api import partitioned, stages
from meshwright.errors import CompilationCacheWarning, DistributedError
from meshwright.experimental.serialize_executable import deserialize_and_load, serialize
from meshwright.lowering.lower import lower
from meshwright.runtime.pjrt import disk_cache, shielded, stored
from meshwright.runtime.pjrt.world import WORLD

X = np.arange(12, dtype=np.float32).reshape(3, 4)
SPLIT = mw.P(None, "d")


@pytest.fixture
def folder(tmp_path):
    with (
        mw.config.override("compilation_cache_dir", tmp_path / "programs"),
        mw.config.override("persistent_cache_min_compile_time_secs", 0.0),
    ):
        yield tmp_path / "programs"


@pytest.fixture
def compiles(monkeypatch):
    """The programs that XLA compiled."""
    made = []
    real = shielded.shielded
    monkeypatch.setattr(shielded, "shielded", lambda f: (made.append(f), real(f))[1])
    return made


def run(factor):
    return mw.jit(lambda x: mnp.sin(x) * factor)(X)


def entries(folder):
    return sorted(folder.glob("*.xla"))


def test_the_same_program_is_loaded(folder, compiles):
    want = run(2.5)
    assert len(compiles) == 1 and len(entries(folder)) == 1
    np.testing.assert_array_equal(run(2.5), want)
    assert len(compiles) == 1
    run(3.5)
    assert len(compiles) == 2 and len(entries(folder)) == 2


def test_where_the_function_stands_does_not_matter(folder, compiles):
    first = mw.jit(lambda x: x + 7)
    other = mw.jit(lambda x: x + 7)
    first(X), other(X)
    assert len(compiles) == 1


def test_another_process_starts_warm(folder):
    code = (
        "import sys, numpy as np, meshwright as mw\n"
        "mesh = mw.make_mesh((2,), ('d',))\n"
        "f = mw.jit(lambda x: mw.numpy.linalg.inv(x @ x.T + 1), in_shardings=mw.NamedSharding(mesh, mw.P('d')))\n"
        "print(float(f(np.eye(4, dtype=np.float32)).sum()))\n"
    )
    env = os.environ | {
        "MESHWRIGHT_COMPILATION_CACHE_DIR": str(folder), "MESHWRIGHT_NUM_DEVICES": "2",
        "MESHWRIGHT_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": str(Path(mw.__file__).parent.parent),
    }  # fmt: skip

    def once():
        ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout, {entry.name: entry.stat().st_ino for entry in folder.iterdir()}

    first = once()
    assert {name[-5:] for name in first[1]} >= {".note"}
    assert once() == first  # the same files: none was written again


def test_callbacks_are_never_kept(folder):
    shape = mw.ShapeDtypeStruct((), np.float32)
    mw.jit(lambda x: mw.pure_callback(lambda v: np.float32(np.asarray(v).sum()), shape, x))(X)
    assert not folder.exists() or not entries(folder)


@pytest.mark.parametrize("damage", ["cut", "byte", "empty", "foreign"])
def test_damaged_entries_are_compiled_again(folder, compiles, damage):
    want = run(4.5)
    (entry,) = entries(folder)
    content = bytearray(entry.read_bytes())
    content[-7] ^= 1
    texts = {"cut": entry.read_bytes()[:-10], "byte": bytes(content), "empty": b"", "foreign": b"hello"}
    entry.write_bytes(texts[damage])
    with pytest.warns(CompilationCacheWarning, match="damaged"):
        np.testing.assert_array_equal(run(4.5), want)
    assert len(compiles) == 2
    np.testing.assert_array_equal(run(4.5), want)  # the entry is whole again
    assert len(compiles) == 2


def test_entries_that_xla_cannot_load_are_compiled_again(folder, compiles):
    want = run(4.75)
    (entry,) = entries(folder)
    entry.write_bytes(disk_cache._MAGIC + hashlib.sha256(b"hello").digest() + b"hello")
    with pytest.warns(CompilationCacheWarning, match="could not be loaded"):
        np.testing.assert_array_equal(run(4.75), want)
    assert len(compiles) == 2


def test_entries_of_another_jaxlib_are_left_alone(folder, compiles, monkeypatch):
    want = run(4.875)
    before = entries(folder)
    disk_cache.machine.cache_clear()
    monkeypatch.setattr(disk_cache.jaxlib, "__version__", "0.0.1")
    np.testing.assert_array_equal(run(4.875), want)
    assert len(compiles) == 2 and len(entries(folder)) == 2 and before[0] in entries(folder)
    disk_cache.machine.cache_clear()


def test_what_others_can_write_to_is_not_read(folder, compiles):
    run(5.5)
    folder.chmod(0o777)
    with pytest.warns(CompilationCacheWarning, match="other users"):
        run(5.5)
    assert len(compiles) == 2


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        mw.config.override("compilation_cache_dir", tmp_path / "file" / "programs"),
        mw.config.override("persistent_cache_min_compile_time_secs", 0.0),
        pytest.warns(CompilationCacheWarning),
    ):
        np.testing.assert_allclose(run(6.5), np.sin(X) * 6.5, rtol=1e-6)


def test_what_compiles_in_no_time_is_not_kept(folder):
    with mw.config.override("persistent_cache_min_compile_time_secs", 1000):
        run(9.5)
    assert not folder.exists()


def test_folders_of_the_user_and_files_whose_time_nobody_may_change(tmp_path, monkeypatch, compiles):
    monkeypatch.setenv("HOME", str(tmp_path))
    with (
        mw.config.override("compilation_cache_dir", "~/programs"),
        mw.config.override("persistent_cache_min_compile_time_secs", 0.0),
    ):
        run(16.5)
        monkeypatch.setattr(disk_cache.os, "utime", lambda _: os.stat("/nowhere"))
        run(16.5)
    assert len(entries(tmp_path / "programs")) == len(compiles) == 1


def test_what_was_left_unfinished_goes(folder):
    run(17.5)
    (folder / "tmpold").write_bytes(b"half")
    os.utime(folder / "tmpold", (1, 1))
    with mw.config.override("compilation_cache_max_size", 1 << 30):
        run(18.5)
    assert not (folder / "tmpold").exists() and len(entries(folder)) == 2


@pytest.mark.parametrize("dead", [True, False])
def test_a_compilation_that_another_process_is_to_make(monkeypatch, dead):
    """Who waits for it says why it does not come, or makes it itself."""
    explained = DistributedError("rank 0 is dead") if dead else None

    def never(*_):
        raise RuntimeError("DEADLINE_EXCEEDED")

    monkeypatch.setattr(WORLD, "service", SimpleNamespace(blocking_key_value_get=never))
    monkeypatch.setattr(disk_cache, "CAUSE", SimpleNamespace(value=lambda error, maker: explained))
    with pytest.raises(DistributedError, match="rank 0 is dead") if dead else nullcontext():
        disk_cache._wait_for_first("key", [SimpleNamespace(process_index=r) for r in range(2)])


# --- programs that are not lowered --------------------------------------------------------------------------
@pytest.fixture
def lowered(monkeypatch):
    """The names of the programs that were lowered."""
    made, real = [], lower
    for module in (stages, partitioned):
        monkeypatch.setattr(module, "lower", lambda *a, **k: (made.append(a[1]), real(*a, **k))[1])
    return made


def on_devices(spec=SPLIT):
    mesh = mw.make_mesh((4,), ("d",))
    return mw.jit(lambda x: mnp.cos(x).sum(1), in_shardings=mw.NamedSharding(mesh, spec))(X)


@pytest.mark.parametrize("function", [lambda: run(10.5), on_devices])
def test_a_known_program_is_not_lowered(folder, compiles, lowered, function):
    want = function()
    assert len(lowered) == 1
    made = len(compiles)
    np.testing.assert_array_equal(function(), want)
    assert len(lowered) == 1 and len(compiles) == made


def test_what_is_recalled_donates_and_forwards(folder, lowered):
    def step(x, y):
        return x, y * 2, x + 1

    def once():
        x, y = mnp.asarray(X), mnp.asarray(X + 1)
        outs = mw.jit(step, donate_argnums=1)(x, y)
        return [np.asarray(o) for o in outs], y.is_deleted()

    (first, gone), (again, gone_again) = once(), once()
    assert len(lowered) == 1 and gone and gone_again
    for a, b, want in zip(first, again, step(X, X + 1), strict=True):
        np.testing.assert_array_equal(a, want)
        np.testing.assert_array_equal(b, want)


def other_constant(folder):
    return run(11.75)


def other_type(folder):
    return mw.jit(lambda x: mnp.sin(x) * 11.5)(X.astype(np.float16))


def other_option(folder):
    with mw.config.override("reproducible_sums", True):
        return run(11.5)


def sources_that_changed(folder):
    disk_cache._sources.cache_clear()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(disk_cache.np, "__version__", "0")
        out = run(11.5)
    disk_cache._sources.cache_clear()
    return out


def dumps(folder):
    with mw.config.override("dump_ir", folder.parent / "dumps"):
        return run(11.5)


@pytest.mark.parametrize("change", [other_constant, other_type, other_option, sources_that_changed, dumps])
def test_what_shapes_a_program_is_part_of_its_note(folder, lowered, change):
    run(11.5)
    change(folder)
    assert len(lowered) == 2


def test_other_splits_are_other_programs(folder, lowered):
    want = on_devices()
    np.testing.assert_allclose(on_devices(spec=mw.P()), want, rtol=1e-6)
    assert len(lowered) == 2


def test_programs_with_large_constants_are_lowered_again(folder, compiles, lowered):
    table = mnp.asarray(np.arange(1 << 17, dtype=np.float32))
    for _ in range(2):
        assert mw.jit(lambda x: (x.sum() + table)[-1])(X) == X.sum() + np.float32((1 << 17) - 1)
    assert lowered.count("<lambda>") == 2 and not list(folder.glob("*.note"))


@pytest.mark.parametrize("text", [b"", b"hello", b"../" * 20])
def test_damaged_notes_are_not_followed(folder, compiles, lowered, text):
    want = run(13.5)
    (note,) = folder.glob("*.note")
    note.write_bytes(text)
    for _ in range(2):  # the note is right again after the first
        np.testing.assert_array_equal(run(13.5), want)
    assert len(lowered) == 2 and len(compiles) == 1


def test_the_oldest_entries_go_when_it_is_full(folder):
    """Notes go with what they name."""
    run(14.5)
    (entry,) = entries(folder)
    os.utime(entry, (1, 1))
    with mw.config.override("compilation_cache_max_size", entry.stat().st_size + 10):
        run(15.5)
    assert not entry.exists() and len(entries(folder)) == len(list(folder.glob("*.note"))) == 1
    with mw.config.override("compilation_cache_max_size", 1):
        mw.jit(lambda x: mnp.cos(x) - 3)(X)
    assert not list(folder.iterdir())


# --- compiled programs as bytes -----------------------------------------------------------------------------
BIG = np.arange(5000, dtype=np.float32)
COMPILED = {
    "one device": lambda: mw.jit(lambda x: {"y": mnp.sin(x) @ x.T, "x": x}),
    "a constant": lambda: mw.jit(lambda x: mnp.asarray(BIG)[:4] * x),
    "nothing to run": lambda: mw.jit(lambda x: x),
    "LAPACK": lambda: mw.jit(lambda x: mnp.linalg.cholesky(x @ x.T + 9 * mnp.eye(3))),
    "a mesh": lambda: mw.jit(
        lambda x: mnp.cumsum(x, 0), in_shardings=mw.NamedSharding(mw.make_mesh((2,), ("d",)), SPLIT)
    ),
    "a donated argument": lambda: mw.jit(lambda x: x + 1, donate_argnums=0),
}


@pytest.mark.parametrize("name", COMPILED)
def test_serialized_programs_are_not_compiled_again(name, compiles):
    made = COMPILED[name]().lower(X).compile()
    want, data = made(X), serialize(made)
    count = len(compiles)
    loaded = deserialize_and_load(*data)
    got = loaded(X)
    assert len(compiles) == count and loaded.input_shardings == made.input_shardings
    for a, b in zip(mw.tree.leaves(got), mw.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.sharding == b.sharding and a.aval == b.aval
    assert loaded.as_text().startswith("HloModule")


def test_what_is_no_serialized_program_is_refused(refuses, monkeypatch):
    data, *trees = serialize(mw.jit(lambda x: x + 1).lower(X).compile())
    for bad in (b"x", data[:-1], data[:-1] + b"!", "x"):
        with refuses(ValueError, "deserialize_and_load"):
            deserialize_and_load(bad, *trees)
    with refuses(ValueError, "give those that serialize returned"):
        deserialize_and_load(data, trees[1], trees[0])
    monkeypatch.setattr(stored, "machine", lambda: "another")
    with refuses(ValueError, "another processor"):
        deserialize_and_load(data, *trees)
    with refuses(TypeError, "compile()"):
        serialize(mw.jit(lambda x: x))
    with refuses(ValueError, "calls Python"):
        serialize(mw.jit(lambda x: mw.pure_callback(np.sin, x, x)).lower(X).compile())
