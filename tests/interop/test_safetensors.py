"""Weights in files: by name into shardings, in several files, of every dtype; hostile files and what does not fit."""

import json

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is not installed")

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import errors
from meshwright.interop import safetensors

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
    with refuses(errors.WeightsError, "cannot be written"):
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
    with refuses(errors.WeightsError, "no file"):
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
