"""Files that users name: what the system says of them comes as errors of ours that name argument, path and remedy."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import checkpoint_io, errors
from meshwright.interop import safetensors


@pytest.fixture(scope="module")
def part():
    lowered = mw.jit(lambda x: x.sum()).lower(mnp.ones(8))
    return lowered.partition(mw.AbstractMesh((2,), ("x",)))


#: what reads or writes a file, of a partitioned program and a path
USES = {
    "report": lambda part, path: part.report(path),
    "contract": lambda part, path: mw.testing.contract(part, path, update=True),
    "numpy.save": lambda part, path: mnp.save(path, np.ones(2)),
    "numpy.savez": lambda part, path: mnp.savez(path, np.ones(2)),
    "numpy.load": lambda part, path: mnp.load(path),
    "numpy.fromfile": lambda part, path: mnp.fromfile(path),
    "memory profile": lambda part, path: mw.profiler.save_device_memory_profile(path),
    "start_trace": lambda part, path: mw.profiler.start_trace(path),
    "executable": lambda part, path: part.compile("cpu:2").save(path),
    "load": lambda part, path: mw.load(path),
    "load_executable": lambda part, path: mw.load_executable(path),
    "CheckpointManager": lambda part, path: checkpoint_io.CheckpointManager(path),
    "checkpoint": lambda part, path: checkpoint_io.save(path, {"w": mnp.ones(2)}),
    "restore": lambda part, path: checkpoint_io.restore(path),
    "safetensors.save": lambda part, path: safetensors.save(path, {"w": mnp.ones(2)}),
    "safetensors in parts": lambda part, path: safetensors.save(path, {"w": mnp.ones(2)}, max_bytes=4),
    "safetensors.load": lambda part, path: safetensors.load(path),
}


@pytest.mark.parametrize("name", USES)
def test_a_path_through_a_file_is_an_error_of_ours(name, part, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(errors.MeshwrightError, match="file"):
        USES[name](part, tmp_path / "file" / "x.npy")


@pytest.mark.parametrize("name", ["report", "contract", "executable", "memory profile", "load", "safetensors.save"])
def test_a_folder_in_place_of_a_file_is_an_error_of_ours(name, part, tmp_path):
    with pytest.raises(errors.MeshwrightError, match=r"folder|directory"):
        USES[name](part, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_named(part, tmp_path):
    with pytest.raises(errors.MissingFileError, match=r"report: path .*no folder '.*missing'; choose"):
        part.report(tmp_path / "missing" / "page.html")
    with pytest.raises(FileNotFoundError, match="load: file"):
        mnp.load(str(tmp_path / "none.npy"))


def test_a_name_that_no_file_has_is_refused(part):
    with pytest.raises(errors.ArgumentError, match="zero byte"):
        part.report("a\0b")
    with pytest.raises(errors.ArgumentError, match="zero byte"):
        mw.load("a\0b")


def test_what_comes_out_of_a_folder_is_still_read(part, tmp_path):
    assert part.report(tmp_path / "page.html").read_text().startswith("<!")
    mw.testing.contract(part, tmp_path / "new" / "sum.json", update=True)
    mw.testing.contract(part, tmp_path / "new" / "sum.json")


@pytest.mark.parametrize(
    "text, where, near",
    [
        ("module {\n  func.func @main() {\n    return %a : f32\n  }\n}", ":3:12: ", "near 'return %a : f32'"),
        ("HloModule m\nENTRY e {\n  ROOT p = f32[4] parame\n}", ":3:", "near 'ROOT p = f32"),
    ],
)
def test_programs_that_cannot_be_parsed_say_where_and_what_to_do(text, where, near):
    with pytest.raises(errors.ImportProgramError) as caught:
        mw.load(text)
    message = str(caught.value)
    assert where in message and near in message and "print the module again" in message
