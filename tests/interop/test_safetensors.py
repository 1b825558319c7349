"""Weights in files: by name into shardings, in several files, of every dtype; hostile files and what does not fit."""

import json
import os
import struct

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is not installed")

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import errors
from meshwright.interop import safetensors
from meshwright.interop.weight_files import DTYPES

WEIGHTS = {
    "model.a.weight": mnp.arange(24.0).reshape(6, 4),
    "model.b.weight": mnp.arange(8, dtype="bfloat16"),
    "model.c": mnp.zeros((0, 3), "int8"),
    "model.d": mnp.asarray(2.5),
}


def same(got, want):
    assert got.keys() == want.keys()
    for name, x in want.items():
        assert got[name].dtype == x.dtype and got[name].shape == x.shape
        np.testing.assert_array_equal(got[name], x)


def test_types_of_the_format_come_back(tmp_path):
    arrays = {name: np.arange(1, 7).reshape(2, 3).astype(mnp.dtype(name)) for name in DTYPES.values()}
    safetensors.save(tmp_path / "w", arrays)
    with mw.enable_x64():
        same(safetensors.load(tmp_path / "w"), arrays)


@pytest.mark.parametrize("max_bytes", [float("inf"), 100, 1])
def test_what_is_saved_is_loaded(tmp_path, max_bytes):
    path = tmp_path / "weights"
    safetensors.save(path, WEIGHTS, max_bytes=max_bytes)
    same(safetensors.load(path), WEIGHTS)
    if path.is_dir():
        index = json.loads((path / safetensors.INDEX).read_text())
        assert index["weight_map"].keys() == WEIGHTS.keys()
        same(safetensors.load(path / safetensors.INDEX), WEIGHTS)


def test_each_device_reads_its_part(tmp_path, monkeypatch):
    file = tmp_path / "w.safetensors"
    safetensors.save(file, WEIGHTS)
    mesh = mw.make_mesh((4, 2), ("x", "y"))
    by = mw.NamedSharding(mesh, mw.P(None, "y"))
    loaded = safetensors.load(file, shardings={"model.a.weight": by})
    assert loaded["model.a.weight"].sharding == by
    same(loaded, WEIGHTS)


def test_renamed_and_converted(tmp_path, refuses):
    file = tmp_path / "w.safetensors"
    safetensors.save(file, WEIGHTS)
    like = {n.removeprefix("model."): mw.ShapeDtypeStruct(x.shape, "float32") for n, x in WEIGHTS.items()}
    loaded = safetensors.load(file, like=like, rename=[(r"^model\.", "")])
    assert loaded.keys() == like.keys() and all(x.dtype == "float32" for x in loaded.values())
    wrong = {**like, "e": like["d"], "d": mw.ShapeDtypeStruct((3,), "float32")}
    del wrong["c"]
    words = ("missing    e  ()", "left over  c  (0, 3)", "shape      d  is (), expected (3,)")
    with refuses(errors.WeightsError, *words):
        safetensors.load(file, like=wrong, rename=[(r"^model\.", "")])
    with refuses(errors.WeightsError, "one name"):
        safetensors.load(file, rename=[(".*", "all")])


def test_shardings_and_types_that_do_not_fit(tmp_path, refuses):
    file = tmp_path / "w.safetensors"
    safetensors.save(file, {"a": mnp.array([1j, 2]), "b": mnp.arange(8.0)})
    mesh = mw.make_mesh((8,), ("x",))
    with refuses(errors.WeightsError, "'B'", "there are a, b"):
        safetensors.load(file, shardings={"B": mw.NamedSharding(mesh, mw.P("x"))})
    with refuses(errors.MeshError, "shardings['b']", "no mesh is set"):
        safetensors.load(file, shardings={"b": mw.P("x")})
    with mesh:
        assert safetensors.load(file, shardings={"b": mw.P("x")})["b"].sharding.spec == mw.P("x")
    with refuses(errors.WeightsError, "dtype      a  is complex64, expected float32"):
        safetensors.load(file, like={"a": mnp.ones(2), "b": mnp.ones(8)})


def test_files_that_cannot_be_written(tmp_path, refuses):
    with refuses(errors.WeightsError, "nowhere"):
        safetensors.save(tmp_path / "nowhere" / "w.safetensors", WEIGHTS)
    with refuses(errors.WeightsError, "tensors has 1", "rename"):
        safetensors.save(tmp_path / "w.safetensors", {1: mnp.ones(2)})


def test_damaged_and_hostile_files_are_refused(tmp_path, refuses):
    file = tmp_path / "w.safetensors"
    safetensors.save(file, WEIGHTS)
    good = file.read_bytes()
    rng = np.random.default_rng(0)
    for case in range(150):
        data = bytearray(good)
        if case % 3 == 0:
            data = data[: rng.integers(0, len(data))]
        elif case % 3 == 1:
            data[:8] = int(rng.integers(0, 2**63)).to_bytes(8, "little")
        else:
            for place in rng.integers(0, len(data), 4):
                data[place] = rng.integers(0, 256)
        file.write_bytes(data)
        try:
            safetensors.load(file)
        except errors.WeightsError:
            continue
    file.write_bytes(b"\x80\x04pickled")
    with refuses(errors.WeightsError, "w.safetensors"):
        safetensors.load(file)
    index = tmp_path / safetensors.INDEX
    for text in ("", "[]", '{"weight_map": {"a": "../../etc/passwd"}}', '{"weight_map": {"a": 3}}'):
        index.write_text(text)
        with refuses(errors.WeightsError, safetensors.INDEX):
            safetensors.load(index)
    with refuses(errors.WeightsError, "none.safetensors"):
        safetensors.load(tmp_path / "none.safetensors")


def test_state_dicts_of_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
    module = torch.nn.Linear(3, 2)
    model = mw.from_torch(module, (torch.ones(1, 3),))
    state = {f"module.{n}": x for n, x in module.state_dict().items()}
    params = mw.interop.torch.from_tensors(safetensors.fit(state, model.params, [("^module.", "")]))
    same(params, model.params)


def test_integers_and_expressions_that_do_not_fit(tmp_path, refuses):
    file = tmp_path / "w.safetensors"
    with mw.enable_x64(True):
        safetensors.save(file, {"n": np.array([5, 2**40])})
        assert safetensors.load(file)["n"].tolist() == [5, 2**40]
    with refuses(errors.WeightsError, "n", "int64", "int32", "enable_x64"):
        safetensors.load(file)
    with refuses(errors.WeightsError, "rename", "(a"):
        safetensors.load(file, rename=[("(a", "b")])


# --- files that others wrote --------------------------------------------------------------------------------
def tensor(dtype="F32", shape=(2,), offsets=(0, 8), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def text(header, data=8):
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + bytes(range(data))


FILES = {
    "nothing": b"",
    "no header": b"1234567",
    "a list": text(b"[]"),
    "a number": text(b"1"),
    "not UTF-8": text(b'{"\xff":1}'),
    "cut": text({"a": tensor()}, 4),
    "a tail": text({"a": tensor()}, 80),
    "a hole": text({"a": tensor(), "b": tensor(offsets=(16, 24))}, 24),
    "overlap": text({"a": tensor(), "b": tensor(offsets=(4, 12))}, 12),
    "negative": text({"a": tensor(shape=(-2, -1))}),
    "backwards": text({"a": tensor(offsets=(8, 0))}),
    "huge": text({"a": tensor(shape=(2**62, 4))}),
    "mismatch": text({"a": tensor(shape=(3,))}),
    "much of nothing": text({"a": tensor(shape=(2**40, 0), offsets=(0, 0))}, 0),
    "overflow": text({"a": tensor(shape=(2**31, 2**32, 0), offsets=(0, 0))}, 0),
    "rank 40": text({"a": tensor(shape=(1,) * 40 + (2,))}),
    "rank 65": text({"a": tensor(shape=(1,) * 64 + (2,))}),
    "fraction": text({"a": tensor(shape=(2.0,))}),
    "bool": text({"a": tensor(shape=(True, 2))}),
    "no shape": text({"a": tensor(shape=())}),
    "no dtype": text({"a": tensor(dtype=None)}),
    "unknown": text({"a": tensor(dtype="F99")}),
    "of 4 bits": text({"a": tensor(dtype="F4", shape=(16,))}),
    "more": text({"a": tensor(x=1)}),
    "three": text({"a": tensor(offsets=(0, 4, 8))}),
    "twice": text(b'{"a":%b,"a":%b}' % ((json.dumps(tensor()).encode(),) * 2)),
    "deep": text(b'{"a":' + b"[" * 10**5 + b"]" * 10**5 + b"}"),
    "digits": text(b'{"a":{"dtype":"F32","shape":[' + b"9" * 6000 + b'],"data_offsets":[0,8]}}'),
    "metadata": text({"__metadata__": {"a": "b"}, "a": tensor()}),
    "odd metadata": text({"__metadata__": {"a": 1}, "a": tensor()}),
    "surrogate": text(b'{"\\ud800":%b}' % json.dumps(tensor()).encode()),
    "odd names": text({"a\0/../\U0001f600": tensor()}),
    "no name": text({"": tensor()}),
    "scalar": text({"a": tensor(shape=(), offsets=(0, 4))}, 4),
    "empty": text({}, 0),
    "bools": text({"a": tensor("BOOL", (2,), (0, 2))}, 2),
}


@pytest.mark.parametrize("name", FILES)
def test_headers_are_read_as_the_library_reads_them_or_refused(tmp_path, name):
    from safetensors import numpy as library

    file = tmp_path / "w.safetensors"
    file.write_bytes(FILES[name])
    try:
        got = safetensors.load(file)
    except errors.WeightsError as error:
        assert str(file) in str(error)
        with pytest.raises(Exception):  # noqa: B017 (of whatever kind)
            assert all(x.ndim < 64 for x in library.load_file(file).values())
    else:
        same(got, library.load_file(file))


INDEXES = {
    "deep": b"[" * 10**5, "not UTF-8": b"\xff\xfe{}", "of no map": b'{"weight_map": []}', "a list": b"[]",
    **{repr(name): json.dumps({"weight_map": {"a": name}}).encode() for name in (
        "..", ".", "", "x/..", "/etc/passwd", "x\0", "\ud800", "x" * 5000, 1, ["x"], None, "missing", "folder",
        "pipe", "loop",
    )},
}  # fmt: skip


@pytest.mark.parametrize("name", INDEXES)
def test_indexes_that_cannot_be_followed(tmp_path, name, refuses):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / safetensors.INDEX).write_bytes(INDEXES[name])
    with refuses(errors.WeightsError, str(tmp_path)):
        safetensors.load(tmp_path)


def test_what_an_index_names_is_there(tmp_path, refuses):
    (tmp_path / "blob").write_bytes(text({"a": tensor()}))
    (tmp_path / "w.safetensors").symlink_to("blob")  # as in Hugging Face's cache
    index = tmp_path / safetensors.INDEX
    index.write_text(json.dumps({"weight_map": {"a": "w.safetensors"}}))
    assert safetensors.load(tmp_path).keys() == {"a"}
    index.write_text(json.dumps({"weight_map": {"a": "w.safetensors", "b": "w.safetensors"}}))
    with refuses(errors.WeightsError, "w.safetensors", "'b'", "index", "again"):
        safetensors.load(tmp_path)


@pytest.mark.parametrize("change", ["cut", "written", "gone"])
def test_files_that_change_while_they_are_read(tmp_path, change, refuses):
    file = tmp_path / "w.safetensors"
    safetensors.save(file, {"a": mnp.arange(2000.0)})
    entry = safetensors.entries(file)["a"]
    assert entry.part((slice(3, 5),)).tolist() == [3, 4]
    if change == "cut":
        os.truncate(file, 100)
    elif change == "written":
        safetensors.save(file, {"a": mnp.arange(2000.0) + 1})
    else:
        file.unlink()
    with refuses(errors.WeightsError, str(file)):
        entry.part()


def test_arguments(tmp_path, refuses):
    file, x = tmp_path / "w.safetensors", mnp.ones(2)
    for call, words in {
        lambda: safetensors.load(3): ("load: path", "3"),
        lambda: safetensors.load("a\0b"): ("load: path", "zero byte"),
        lambda: safetensors.save(3, {"a": x}): ("save: path", "3"),
        lambda: safetensors.save(file, [x]): ("save: tensors", "by name"),
        lambda: safetensors.save(file, {"__metadata__": x}): ("__metadata__", "rename"),
        lambda: safetensors.save(file, {"a": "text"}): ("a is of", "convert"),
        lambda: safetensors.save(file, {"a": [x, "text", [1]]}): ("tensors['a']", "array"),
        lambda: safetensors.save(file, {"a": x}, metadata={"a": 1}): ("metadata['a']", "text"),
        lambda: safetensors.save(file, {"a": x}, metadata=[1]): ("metadata", "by name"),
        **{
            lambda v=v: safetensors.save(file, {"a": x}, max_bytes=v): ("max_bytes",)
            for v in (0, -1, "x", float("nan"))
        },
    }.items():
        with refuses((errors.WeightsError, errors.ArgumentError, errors.ArgumentTypeError), *words):
            call()
    assert not file.exists()
    safetensors.save(file, {"a": x, "b": [1.0, 2.0], "c": 2.5}, max_bytes=1)
    with mw.enable_x64(True):
        same(safetensors.load(file), {"a": x, "b": np.array([1.0, 2.0]), "c": np.array(2.5)})
    for call, words in {
        lambda: safetensors.load(file, like=[x]): ("like", "by name"),
        lambda: safetensors.load(file, like={"a": 1}): ("like", "by name"),
        lambda: safetensors.load(file, rename="ab"): ("rename", "pairs"),
        lambda: safetensors.load(file, rename=[("a", 1)]): ("rename", "pairs"),
    }.items():
        with refuses(errors.ArgumentTypeError, *words):
            call()
