"""Checkpoints: what is saved comes back, onto anything; what is not whole is not there."""

import errno
import gc
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kills
import numpy as np
import pytest
from safetensors import safe_open

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.checkpoint_io import CheckpointManager, files, restore, save, zarr
from meshwright.checkpoint_io.group import Group
from meshwright.checkpoint_io.index import NAME, REPLACED, WRITING, Entry, Index, Leaf
from meshwright.checkpoint_io.job import Job
from meshwright.core.dtypes import as_dtype
from meshwright.errors import ArgumentError, ArgumentTypeError, CheckpointError, CheckpointWarning, DTypeError

HERE = Path(__file__).parent
MESH = mw.make_mesh((4, 2), ("x", "y"))
OTHER = mw.make_mesh((2, 2, 2), ("a", "b", "c"))
VALUE = np.arange(70, dtype=np.float32).reshape(7, 10)


def tree():
    return {
        "w": mw.device_put(VALUE, NamedSharding(MESH, P("x", "y"))),
        "pair": (mnp.arange(3).astype("bfloat16"), mw.random.key(3)),
        "list": [None, 7, {"empty": mnp.zeros((0, 4)), "i4": mnp.arange(-4, 4).astype("int4")}],
        "z": mnp.array([1 + 2j, -0.0]),
    }


def check_equal(got, want):
    assert mw.tree.structure(got) == mw.tree.structure(want)
    for g, w in zip(mw.tree.leaves(got), mw.tree.leaves(want)):
        w = mnp.asarray(w)
        assert g.dtype == w.dtype and g.shape == w.shape
        if mnp.issubdtype(w.dtype, mw.dtypes.prng_key):
            g, w = mw.random.key_data(g), mw.random.key_data(w)
        assert np.asarray(g).tobytes() == np.asarray(w).tobytes()


def data_file(folder):
    """The only one."""
    (file,) = folder.glob("data-00000-*.safetensors")
    return file


def test_trees_come_back(tmp_path):
    seen = []
    assert save(tmp_path / "a", tree(), progress=lambda *p: seen.append(p)).is_done
    assert seen[-1][0] == seen[-1][1] > 280 and sorted(p.name for p in tmp_path.iterdir()) == ["a"]
    check_equal(restore(tmp_path / "a", verify=True), tree())
    check_equal(restore(tmp_path / "a", like={**tree(), "list": [None, mnp.int32(0), tree()["list"][2]]}), tree())


def test_onto_other_shardings_and_dtypes(tmp_path):
    save(tmp_path / "a", {"w": tree()["w"], "n": 3})
    for spec in (P(("a", "b"), "c"), P("c"), P()):
        like = {"w": mw.ShapeDtypeStruct((7, 10), "float16", sharding=NamedSharding(OTHER, spec)), "n": 1.5}
        got = restore(tmp_path / "a", like)
        np.testing.assert_array_equal(got["w"], VALUE)
        assert got["w"].dtype == "float16" and got["w"].sharding.spec == spec and type(got["n"]) is float
    host = restore(tmp_path / "a", {"w": np.zeros((7, 10), np.float64), "n": np.int8(0)})
    assert type(host["w"]) is np.ndarray and host["w"].dtype == np.float64 and host["w"].flags.writeable


@pytest.mark.parametrize("format", ["safetensors", "tensorstore"])
def test_onto_devices_that_have_only_padding(tmp_path, format):
    save(tmp_path / "a", VALUE[:3], format=format)
    split = NamedSharding(MESH, P("x"))
    got = restore(tmp_path / "a", mw.ShapeDtypeStruct((3, 10), "float32", sharding=split))
    assert got.sharding == split
    np.testing.assert_array_equal(got, VALUE[:3])


@pytest.mark.parametrize("saved, like", [(1j, 1.0), (1.5, 1), (1.5, True), (2, False), (1j, np.zeros((), np.float32))])
def test_numbers_do_not_lose_a_part(tmp_path, saved, like, refuses):
    save(tmp_path / "a", {"n": saved})
    with refuses(CheckpointError, "another tree", "['n']"):
        restore(tmp_path / "a", {"n": like})


def test_tensorstore(tmp_path):
    pytest.importorskip("tensorstore")
    some = {k: v for k, v in tree().items() if k in ("w", "pair", "z")}
    save(tmp_path / "a", some, format="tensorstore")
    check_equal(restore(tmp_path / "a", verify=True), some)
    like = {**some, "w": mw.ShapeDtypeStruct((7, 10), "float32", sharding=NamedSharding(OTHER, P("c", "a")))}
    np.testing.assert_array_equal(restore(tmp_path / "a", like)["w"], VALUE)


def test_tensorstore_opens_arrays_by_path(tmp_path):
    """As readers of Orbax's checkpoints do."""
    ts = pytest.importorskip("tensorstore")
    some = {"params": {"dense": [VALUE, mw.device_put(VALUE, NamedSharding(MESH, P("x", "y")))]}, "a.b": mnp.ones(3)}
    save(tmp_path / "a", {**some, "a": {"b": -mnp.zeros(2), "b.2": VALUE}}, format="tensorstore")
    base = {"driver": "ocdbt", "base": f"file://{tmp_path}/a/"}
    joined = {"a.b": [-0.0, -0.0], "a.b.2": VALUE, "a.b.3": [1] * 3}  # the third would be the second by its number
    for name, want in {"params.dense.0": VALUE, "params.dense.1": VALUE, **joined}.items():
        store = ts.open({"driver": "zarr", "kvstore": {**base, "path": f"{name}/"}}).result()
        assert store.read().result().tobytes() == np.asarray(want, np.float32).tobytes(), name
    tree = json.loads((tmp_path / "a" / "_METADATA").read_text())["tree_metadata"]
    assert tree["('params', 'dense', '1')"]["key_metadata"][2] == {"key": "1", "key_type": 1}
    (tmp_path / "a" / "ocdbt.process_0" / "manifest.ocdbt").unlink()
    check_equal(restore(tmp_path / "a", verify=True)["params"], some["params"])  # which only joining needed
    for file in (tmp_path / "a").rglob("d/*"):
        file.write_bytes(bytes(len(file.read_bytes())))
    with pytest.raises(CheckpointError, match="is damaged"):
        restore(tmp_path / "a", verify=True)


def test_names_and_empty_containers_are_as_orbax_has_them(tmp_path):
    """Keys as they are, whatever is in them, and what holds nothing, without which lists would be shorter."""
    ts = pytest.importorskip("tensorstore")
    keys = ["é", "x/y", "q'q", 'q"\n', "a\\b", "%2F", "..", "a]['b", "", "a/", "a"]
    tree = {0: {key: np.full(2, i) for i, key in enumerate(keys)}, 1: [{}, None, 7, (), []]}
    save(tmp_path / "a", tree, format="tensorstore")
    got = restore(tmp_path / "a", tree, verify=True)
    assert got[1] == tree[1] and all((got[0][key] == tree[0][key]).all() for key in keys)
    base = {"driver": "ocdbt", "base": f"file://{tmp_path}/a/"}
    for i, key in enumerate(keys[:-2]):  # the last two are one to Orbax
        store = ts.open({"driver": "zarr", "kvstore": {**base, "path": f"0.{key}/"}}).result()
        assert store.read().result().tolist() == [i, i], key
    known = json.loads((tmp_path / "a" / "_METADATA").read_text())["tree_metadata"]
    assert known["('0', 'é')"]["key_metadata"] == [{"key": "0", "key_type": 2}, {"key": "é", "key_type": 2}]
    kinds = {k: (v["value_metadata"]["value_type"], v["key_metadata"][1]["key_type"]) for k, v in known.items()}
    found = [kinds[f"('1', '{i}')"] for i in range(5)]
    assert found == [("Dict", 1), ("None", 1), ("np.ndarray", 1), ("Tuple", 1), ("List", 1)]


def test_databases_of_processes_are_joined(tmp_path):
    """The second one's tile is the short one."""
    pytest.importorskip("tensorstore")
    saved = []
    for rank, (a, b) in enumerate(((0, 4), (4, 7))):
        entry = Entry("['w']", [7, 10], "float32")
        leaf = Leaf(entry, VALUE.dtype, (4, 10), [([a, 0], [b, 10], lambda a=a, b=b: VALUE[a:b])])
        other = Leaf(Entry("['b']", [], "int32"), np.dtype("int32"), (), [([], [], lambda: np.int32(5))][rank:])
        saved.append(zarr.write(tmp_path, rank, [leaf, other], lambda count: None))
    zarr.join(tmp_path, [], saved[0])
    np.testing.assert_array_equal(zarr.read(tmp_path, saved[0][0], [slice(2, 6), slice(0, 10)]), VALUE[2:6])
    assert zarr.read(tmp_path, saved[0][1], []) == 5


def test_chunks_are_equal_parts_of_tiles():
    assert zarr._chunk((7, 10), 4) == [7, 10] and zarr._chunk((), 4) == [] and zarr._chunk((0, 4), 4) == [1, 4]
    assert zarr._chunk((4096, 4096), 4) == [1024, 4096] and zarr._chunk((3, 1 << 22), 8) == [1, 1 << 21]


def test_the_library_reads_the_files(tmp_path):
    save(tmp_path / "a", {"w": VALUE, "b": np.arange(3)})
    with safe_open(data_file(tmp_path / "a"), "np") as file:
        np.testing.assert_array_equal(file.get_tensor("['w'][0:7,0:10]"), VALUE)
        np.testing.assert_array_equal(file.get_tensor("['b'][0:3]"), [0, 1, 2])


def test_other_trees_are_refused_with_a_table(tmp_path, refuses):
    save(tmp_path / "a", {"w": VALUE, "b": np.arange(3)})
    with refuses(CheckpointError, "['w']  float32[7, 10]  float32[7, 9]", "['c']  -", "['b']  int64[3]        -"):
        restore(tmp_path / "a", {"w": mnp.zeros((7, 9)), "c": mnp.zeros(2)})
    with refuses(CheckpointError, "there is no checkpoint", "beside it there are a"):
        restore(tmp_path / "b")
    with refuses(CheckpointError, "there already", "overwrite=True"):
        save(tmp_path / "a", {})
    with refuses(ArgumentError, "safetensors, tensorstore", "'pickle'"):
        save(tmp_path / "b", {}, format="pickle")
    save(tmp_path / "a", {"w": VALUE + 1}, overwrite=True)
    np.testing.assert_array_equal(restore(tmp_path / "a")["w"], VALUE + 1)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_only_checkpoints_are_replaced(tmp_path, refuses):
    """Not a file, a device or somebody's folder."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("file", "folder", "pipe"):
        with refuses(CheckpointError, "no checkpoint", "choose another name"):
            save(tmp_path / name, {"w": VALUE}, overwrite=True)
    assert (tmp_path / "file").read_text() == "mine" and (tmp_path / "folder" / "inner").is_dir()
    save(tmp_path / "empty", {"w": VALUE}, overwrite=True)


def test_donated_arrays_are_saved_as_they_were(tmp_path):
    x = mw.device_put(np.ones(1 << 20, np.float32), NamedSharding(MESH, P("x")))
    saving = save(tmp_path / "a", {"x": x}, asynchronous=True)
    mw.jit(lambda x: x * 0, donate_argnums=0)(x).block_until_ready()
    saving.wait()
    assert np.asarray(restore(tmp_path / "a")["x"]).min() == 1


def test_damage_is_found(tmp_path, refuses):
    save(tmp_path / "a", {"w": VALUE, "b": np.arange(3)})
    data = data_file(tmp_path / "a")
    whole = bytearray(data.read_bytes())
    place = json.loads((tmp_path / "a" / "checkpoint.json").read_text())["entries"][1]["pieces"][0]["offset"]
    whole[place + 5] ^= 1
    data.write_bytes(whole)
    with refuses(CheckpointError, "damaged", "['w']"):
        restore(tmp_path / "a", verify=True)
    data.write_bytes(whole[:-100])
    with refuses(CheckpointError, "too short"):
        restore(tmp_path / "a")
    (tmp_path / "a" / "checkpoint.json").write_text("{")
    with refuses(CheckpointError, "damaged"):
        restore(tmp_path / "a")


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch, refuses):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "_write_all", full)
    with refuses(CheckpointError, "could not be written", "No space left"):
        save(tmp_path / "a", {"w": VALUE})
    saving = save(tmp_path / "a", {"w": VALUE}, asynchronous=True)
    with refuses(CheckpointError, "No space left"):
        saving.wait()
    assert not list(tmp_path.iterdir())


BIG = 2**40 + 5


@pytest.mark.parametrize("format", ["safetensors", "tensorstore"])
def test_what_is_no_array_keeps_its_bits(tmp_path, format, refuses):
    """Whatever arrays may have here: a count, a seed, the place in the data."""
    tree = {
        "int": BIG, "np": np.int64(-BIG), "array": np.array([2**63, 1], np.uint64)[::-1], "float": 0.1, "..": True,
        "big end": np.arange(3, dtype=">i8"), "z": 1 + 1e-12j, "i4": mnp.arange(-8, 8).astype("int4"),
    }  # fmt: skip
    save(tmp_path / "a", tree, format=format)
    got = restore(tmp_path / "a", like={**tree, "int": 0})
    for name, want in tree.items():
        assert type(got[name]) is (type(tree[name])), name
        np.testing.assert_array_equal(got[name], want)
    with refuses(CheckpointError, f"restore: ['array'] holds {2**63}, which does not fit in uint32", "enable_x64"):
        restore(tmp_path / "a")
    with refuses(CheckpointError, "holds -8, which does not fit in uint8"):
        restore(tmp_path / "a", like={**tree, "i4": np.zeros(16, np.uint8)})
    with mw.enable_x64():
        assert int(restore(tmp_path / "a")["int"]) == BIG


def test_types_that_zarr_lacks_are_named(tmp_path, refuses):
    pytest.importorskip("tensorstore")
    with refuses(CheckpointError, "save: the leaf \"['a'][1]\" cannot be written by tensorstore", "takes every dtype"):
        save(tmp_path / "a.b", {"a": [1, mnp.arange(4).astype("uint4")]}, format="tensorstore")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("leaf", ["text", object(), 2**64, np.array(["x"])])
def test_leaves_that_are_no_arrays_are_named(tmp_path, leaf, refuses):
    said = {object: ["of type object", "make it a container"]}.get(type(leaf), [])
    with refuses((ArgumentError, DTypeError), "save: the leaf", "['a'][1]", *said):
        save(tmp_path / "a", {"a": [1, leaf]})
    assert not [*tmp_path.iterdir()]


class Heard(dict):
    """What processes tell each other."""

    def put(self, key, value):
        self[key] = value

    def get(self, key, seconds):
        end = time.monotonic() + seconds
        while key not in self and time.monotonic() < end:
            time.sleep(0.01)
        return self.get_now(key)

    get_now = dict.get


def saved_by_two(folders, values, formats, paths=("", "")):
    """What comes of a save in two processes, each with its folder and what gives its half of the array."""
    heard, jobs = Heard(), []
    for rank, (folder, value, format, path) in enumerate(zip(folders, values, formats, paths)):
        group = Group()
        group.rank, group.count, group.table, group.key = rank, 2, heard, "save"
        leaf = Leaf(Entry(path, [4], "float32"), np.dtype("float32"), [2], [([2 * rank], [2 * rank + 2], value)])
        jobs.append(Job(folder, [leaf], Index([], {"leaf": 0}, format), group, None))
    with ThreadPoolExecutor(2) as pool:
        return [f.exception() for f in [pool.submit(job.run) for job in jobs]]


def fails(error):
    def value():
        raise error

    return value


def half():
    return np.ones(2, np.float32)


@pytest.mark.parametrize("format", ["safetensors", "tensorstore"])
@pytest.mark.parametrize(
    ("names", "values", "words"),
    [
        (("a/one", "b/one"), (half, half), ["a file system that they share"] * 2),
        (("a/one", "a/two"), (half, half), ["rank 0 saves 'one' here, rank 1 'two'"] * 2),
        (("a/one", "a/one"), (fails(OSError(28, "No space")), half), ["one could not be written: [Errno 28]"] * 2),
        (("a/one", "a/one"), (half, fails(KeyError("of the test"))), ["of the test"] * 2),
        (("a/one", "a/one"), (half, half), None),
    ],
)
def test_processes_that_fail_leave_nothing_and_are_heard(tmp_path, names, values, words, format):
    errors = saved_by_two([tmp_path / name for name in names], values, [format] * 2)
    if words is None:
        np.testing.assert_array_equal(restore(tmp_path / names[0]), np.ones(4))
        words, errors = [], [e for e in errors if e]
    assert [w in str(e) for w, e in zip(words, errors, strict=True)] == [True] * len(words), errors
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["one"] * (not words)
    assert not (tmp_path / "b").exists() or not [*(tmp_path / "b").iterdir()]


def in_two_processes(monkeypatch, folder, steps, ranks):
    """The errors of two processes that save steps, with a manager each; each thread's ``ranks.rank`` says its rank."""
    heard, errors = Heard(), ([], [])

    class GroupOfTwo(Group):
        def __init__(self):
            ranks.saves += 1
            self.rank, self.count, self.table, self._is_named = ranks.rank, 2, heard, False
            self.key = f"save {ranks.saves}"

    def process(rank):
        ranks.rank, ranks.saves = rank, 0
        manager = CheckpointManager(folder, keep=1)
        if rank:
            monkeypatch.setattr(manager, "_clean", lambda: None)
            monkeypatch.setattr(manager, "_remove_old", lambda: None)
        for step in steps:
            try:
                manager.save(step, {"w": 1.0} if rank == 0 else {}).wait()
            except CheckpointError as error:
                errors[rank].append(str(error))

    monkeypatch.setattr("meshwright.checkpoint_io.manager.Group", GroupOfTwo)
    monkeypatch.setattr("meshwright.checkpoint_io.group.PATIENCE", 20.0)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(process, rank) for rank in (0, 1)]:
            done.result()
    return errors


@pytest.mark.parametrize("what", ["iterdir", "rename", "glob"])
def test_all_processes_hear_that_the_first_cannot_tidy_up(tmp_path, what, monkeypatch):
    """Before a save, the first process removes what earlier runs left; the others wait for it."""
    (tmp_path / f"step_00000009{WRITING}abc").mkdir()
    save(tmp_path / "step_00000005", {"w": 1.0})
    (tmp_path / "step_00000005").rename(tmp_path / f"step_00000005{REPLACED}")

    ranks, works = threading.local(), getattr(type(tmp_path), what)

    def fails_in_the_first(*args, **options):
        if getattr(ranks, "rank", None) == 0:  # the second, which lists steps too, must not fail by itself
            raise PermissionError(13, "Permission denied", str(tmp_path))
        return works(*args, **options)

    monkeypatch.setattr(type(tmp_path), what, fails_in_the_first)
    first, second = in_two_processes(monkeypatch, tmp_path, (10, 11), ranks)
    assert first == second and len(first) == 2, (first, second)
    assert all("Permission denied" in e and str(tmp_path) in e for e in first)


def test_managers_go_on_after_failures_that_were_heard(tmp_path, monkeypatch):
    with CheckpointManager(tmp_path) as manager:
        with monkeypatch.context() as patched:
            patched.setattr(files, "write", lambda *args: 1 / 0)
            failed = manager.save(1, {"w": 1.0})
            with pytest.raises(ZeroDivisionError):
                failed.wait()
        manager.save(2, {"w": 1.0}).wait()
        with monkeypatch.context() as patched:
            patched.setattr(files, "write", lambda *args: 1 / 0)
            manager.save(3, {"w": 1.0})
            with pytest.raises(ZeroDivisionError):
                manager.wait()
    assert manager.steps() == [2]


def test_managers_keep_the_latest_and_the_best(tmp_path):
    with CheckpointManager(tmp_path, keep=2, keep_best=1, every=10) as manager:
        for step in range(5):
            manager.save(step, {"w": VALUE + step}, {"loss": abs(step - 1.0)})
    assert manager.steps() == [1, 3, 4] and manager.best_steps()[0] == 1 and manager.latest_step() == 4
    assert manager.all_steps() == [1, 3, 4] and manager.best_step() == 1
    assert manager.should_save(20) and not manager.should_save(21)
    data = data_file(manager.folder(4))
    data.write_bytes(data.read_bytes()[:-4] + b"junk")
    (tmp_path / f"step_00000009{WRITING}abc").mkdir()
    again = CheckpointManager(tmp_path)
    with pytest.warns(CheckpointWarning, match="step 4 is passed over"):
        np.testing.assert_array_equal(again.restore()["w"], VALUE + 3)
        again.save(5, {"w": VALUE}).wait()
    assert not list(tmp_path.glob(f"*{WRITING}*"))


@pytest.mark.parametrize(
    ("formats", "paths", "words"),
    [
        (("safetensors", "tensorstore"), ("", ""), "as safetensors, rank 1 as tensorstore"),
        (("safetensors",) * 2, ("['a']", "['b']"), "rank 0 saves ['a'] of type float32[4] where rank 1 saves ['b'] of"),
    ],
)
def test_processes_that_save_something_else_are_told(tmp_path, formats, paths, words):
    errors = saved_by_two([tmp_path / "one"] * 2, (half, half), formats, paths)
    assert all(words in str(e) for e in errors), errors
    assert not [*tmp_path.iterdir()]


def test_a_step_before_others_is_kept_until_the_next(tmp_path):
    with CheckpointManager(tmp_path, keep=1) as manager:
        manager.save(30, {"w": 1})
        for step in (10, 11):
            with pytest.warns(CheckpointWarning, match="later steps, 30 the last"):
                manager.save(step, {"w": step})
            manager.wait()
            assert manager.steps() == [step, 30] and int(manager.restore(step)["w"]) == step


def test_a_link_to_a_checkpoint_is_replaced_as_often_as_wanted(tmp_path):
    save(tmp_path / "a", {"w": 1})
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for w in (2, 3):
        save(tmp_path / "b", {"w": w}, overwrite=True)
        assert int(restore(tmp_path / "b")["w"]) == w and int(restore(tmp_path / "a")["w"]) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("mode, best", [("min", 2), ("max", 4)])
def test_metrics_are_numbers_and_nan_is_never_the_best(tmp_path, mode, best):
    metrics = mnp.nan, np.float32(3), mnp.float32(1), float("nan"), np.float64(5), 2
    with CheckpointManager(tmp_path, keep=1, keep_best=1, mode=mode) as manager:
        for step, metric in enumerate(metrics):
            manager.save(np.int64(step), {"w": VALUE}, {"loss": metric})
    assert manager.steps() == [best, 5] and manager.best_steps()[0] == best


def test_steps_and_metrics_that_cannot_be_kept(tmp_path, refuses):
    manager = CheckpointManager(tmp_path)
    with refuses(ArgumentError, "a step of 0 or more, got -1"):
        manager.save(-1, VALUE)
    with refuses(ArgumentTypeError, "an integer as the step, got 2.0"):
        manager.save(2.0, VALUE)
    with refuses(ArgumentTypeError, "metrics to be numbers by name"):
        save(tmp_path / "a", VALUE, metrics={"loss": "low"})
    assert not list(tmp_path.iterdir())


def test_what_was_not_yet_replaced_is_put_back(tmp_path):
    """As when a process ends between taking the old checkpoint away and putting the new one in its place."""
    save(tmp_path / "latest", VALUE).folder.rename(tmp_path / f"latest{REPLACED}")
    save(tmp_path / "other", VALUE)
    (tmp_path / f"other{REPLACED}").mkdir()
    manager = CheckpointManager(tmp_path)
    save(manager.folder(3), -VALUE).folder.rename(tmp_path / f"step_00000003{REPLACED}")
    assert manager.steps() == [3]
    np.testing.assert_array_equal(manager.restore(), -VALUE)
    manager.save(4, VALUE).wait()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "other", "step_00000003", "step_00000004"]
    np.testing.assert_array_equal(restore(tmp_path / "latest"), VALUE)
    assert manager.steps() == [3, 4]


UNTOLD = """
import sys
import numpy as np
import meshwright as mw
saving = mw.checkpoint_io.save(sys.argv[1] + "/there/a", {"w": np.ones(3)}, asynchronous=True)
if len(sys.argv) > 2:
    saving.wait()
"""


@pytest.mark.parametrize("waits", [False, True])
def test_failures_that_nobody_waited_for_are_told(tmp_path, waits):
    """At the end of a program too."""
    (tmp_path / "there").write_text("a file")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        saving = save(tmp_path / "there" / "a", VALUE, asynchronous=True)
        if waits:
            with pytest.raises(CheckpointError, match="could not be written"):
                saving.wait()
        while not saving.is_done:
            time.sleep(0.01)
        threads = [t for t in threading.enumerate() if t.name == "meshwright-checkpoint"]
        for thread in threads:
            thread.join()
        del saving
        gc.collect()
    told = [str(w.message) for w in seen if issubclass(w.category, CheckpointWarning)]
    assert len(told) == (not waits) and all("was not written, and wait() not called" in text for text in told)
    command = [sys.executable, "-c", UNTOLD, str(tmp_path), *["waits"] * waits]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == int(waits) and ("wait() not called" in done.stderr) != waits, done.stderr


def test_failures_of_what_is_dropped_at_once_are_told(tmp_path, monkeypatch):
    """Before it has failed."""
    is_dropped = threading.Event()

    def write(*_):
        assert is_dropped.wait(60)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(files, "write", write)
    with pytest.warns(CheckpointWarning, match="was not written, and wait.. not called.*full"):
        save(tmp_path / "a", VALUE, asynchronous=True)
        gc.collect()
        is_dropped.set()
        for thread in [t for t in threading.enumerate() if t.name == "meshwright-checkpoint"]:
            thread.join()


def test_managers_that_only_read_leave_alone_what_another_run_is_writing(tmp_path):
    save(tmp_path / "step_00000001", VALUE)
    unfinished = tmp_path / f"step_00000002{WRITING}abc"
    save(unfinished, VALUE)
    (unfinished / NAME).unlink()
    reader = CheckpointManager(tmp_path)
    assert reader.steps() == [1] and reader.best_steps() == []
    np.testing.assert_array_equal(reader.restore(), VALUE)
    reader.wait()
    assert unfinished.exists()
    reader.save(2, VALUE).wait()  # now it is this run's folder
    assert not unfinished.exists() and reader.steps() == [1, 2]


def test_managers_leave_alone_what_their_process_is_writing(tmp_path):
    """A checkpoint of another manager, or of none."""

    def meanwhile(*_):
        CheckpointManager(tmp_path).save(len(list(tmp_path.glob("step_*"))), -VALUE).wait()

    save(tmp_path / "final", VALUE, progress=meanwhile)
    np.testing.assert_array_equal(restore(tmp_path / "final", verify=True), VALUE)
    np.testing.assert_array_equal(CheckpointManager(tmp_path).restore(0), -VALUE)


def test_killed_at_any_moment():
    """``make fuzz`` ends 500 (``tests/long_runs.py``)."""
    assert not any(map(kills.found_in, range(4)))


def test_processes_write_together_and_others_read(tmp_path):
    """Two processes of four devices write, are killed in the middle of training, and resume; one process reads."""
    script = HERE / "train_and_save.py"
    command = [
        sys.executable,
        "-m",
        "meshwright",
        "run",
        "-n",
        "2",
        "--devices",
        "4",
        "--restarts",
        "1",
        script,
        tmp_path,
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "[0] resumed from step" in done.stdout and "restart 1 of 1" in done.stderr
    manager = CheckpointManager(tmp_path / "run")
    assert manager.latest_step() == 7
    got = manager.restore(like={"w": mw.ShapeDtypeStruct((8, 6), "float32", sharding=NamedSharding(MESH, P("y"))),
                                "step": 0})  # fmt: skip
    assert got["step"] == 7
    index = json.loads((manager.folder(7) / "checkpoint.json").read_text())
    assert {p["file"][:10] for p in index["entries"][1]["pieces"]} == {"data-00000", "data-00001"}
    w = np.ones((8, 6), np.float32)
    for step in range(8):
        w = w - 0.1 * (step + 1) * np.tanh(w)
    np.testing.assert_allclose(got["w"], w, rtol=1e-5)


#: numbers, the dtype that they are saved in, and by dtype in ``like`` how many of them it cannot hold
RANGES = [
    ([1, 65519.9, -3, np.inf, np.nan], "float32", {"float16": 0, "bfloat16": 0, "float8_e5m2": 1, "float4_e2m1fn": 3}),
    ([65520, -3e30, np.inf], "float32", {"float16": 2, "bfloat16": 0, "complex64": 0, "float8_e4m3fn": 2}),
    ([3.4e38, 1], "float32", {"bfloat16": 1, "float16": 1}),
    ([1e39, 2], "float64", {"float32": 1}),
    ([1e39j, -2], "complex128", {"complex64": 1}),
    ([463, -463], "float32", {"float8_e4m3fn": 0, "float8_e4m3b11fnuz": 2}),
    ([464, -464], "float32", {"float8_e4m3fn": 2}),
    ([0, -1, 4], "float32", {"float8_e8m0fnu": 2}),
    ([70000, -70000, 3], "int32", {"float16": 2, "bfloat16": 0}),
    ([2**32], "uint64", {"float32": 0}),
    ([True], "bool", {"float16": 0}),
    ([1e30], "bfloat16", {"float16": 1}),
    ([], "float32", {"float16": 0}),
]


@pytest.mark.parametrize(("numbers", "saved", "beyond"), RANGES)
def test_numbers_beyond_the_range_of_a_dtype_are_refused(tmp_path, numbers, saved, beyond, refuses, monkeypatch):
    """Neither infinities instead of numbers, nor NumPy's warnings."""
    monkeypatch.setattr("meshwright.checkpoint_io.reading._AT_ONCE", 2)
    value = np.array(numbers).astype(as_dtype(saved))
    save(tmp_path / "a", {"w": [value]})
    split = NamedSharding(mw.make_mesh((1,), ("x",)), P("x"))
    for name, count in beyond.items():
        own = as_dtype(name)
        for like in (
            np.zeros(len(numbers), own),
            *(mw.ShapeDtypeStruct(value.shape, own, sharding=s) for s in (None, split)),
        ):
            if count:
                with refuses(CheckpointError, f"['w'][0] of {saved} holds {count} number", f"that {name} cannot hold"):
                    restore(tmp_path / "a", {"w": [like]})
            else:
                got = restore(tmp_path / "a", {"w": [like]})["w"][0]
                assert got.dtype == own
                np.testing.assert_array_equal(np.asarray(got).astype(complex), value.astype(own).astype(complex))


def test_wide_numbers_are_not_narrowed_to_infinities(tmp_path, refuses):
    save(tmp_path / "a", {"w": np.array([1e300, 1.0])})
    with refuses(CheckpointError, "['w'] of float64 holds 1 number that float32 cannot hold", "from 1 to 1e+300"):
        restore(tmp_path / "a")
