"""Programs written to a folder after each pass, and the list of passes."""

import re

import numpy as np
from typer.testing import CliRunner

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.cli import app

MESH = mw.AbstractMesh((4, 2), ("data", "model"))
X, W = np.ones((8, 8), np.float32), np.ones((8, 16), np.float32)


def layer(x, w):
    return mw.jit(mnp.tanh)(x @ w).sum(0) * 2


def lowered():
    shardings = NamedSharding(MESH, P("data", "model")), NamedSharding(MESH, P("model"))
    return mw.jit(layer, in_shardings=shardings).lower(X, W)


def test_each_step_that_changed_the_program_is_written_in_order(tmp_path):
    with mw.dump_ir(tmp_path):
        part = lowered().partition()
    names = sorted(path.name for path in tmp_path.iterdir())
    steps = [re.match(r"(\d{3})_layer_(.*)\.txt", name).groups() for name in names]
    assert [int(number) for number, _ in steps] == list(range(len(steps)))
    order = [step for _, step in steps]
    assert order[:3] == ["input", "inline_calls", "partition"]
    assert "jit[" in (tmp_path / names[0]).read_text() and "jit[" not in (tmp_path / names[1]).read_text()
    assert (tmp_path / names[-1]).read_text().strip() == str(part.jaxpr)


def test_a_rewrite_for_the_layouts_found_is_written(tmp_path):
    spectrum = mw.jit(lambda x: mnp.fft.fft2(x), in_shardings=NamedSharding(MESH, P("data"))).lower(X)
    with mw.dump_ir(tmp_path):
        spectrum.partition()
    assert any("separate_fourier_transforms" in path.name.lower() for path in tmp_path.iterdir())


def test_nothing_is_written_and_nothing_changes_without_a_folder(tmp_path):
    with mw.dump_ir(tmp_path):
        dumped = lowered().partition()
    count = len(list(tmp_path.iterdir()))
    assert str(lowered().partition().jaxpr) == str(dumped.jaxpr)
    assert len(list(tmp_path.iterdir())) == count


def test_a_folder_that_cannot_be_written_to(tmp_path, refuses):
    (tmp_path / "file").write_text("")
    with mw.dump_ir(tmp_path / "file"), refuses(OSError, "dump_ir", "another folder"):
        lowered().partition()


def test_the_command_lists_every_pass_with_a_sentence():
    ran = CliRunner().invoke(app, ["passes"])
    assert ran.exit_code == 0
    rows = [re.match(r" ?(\d+)\. (\S.*?)  +(\S.*\.)", line) for line in ran.output.splitlines()]
    assert all(rows) and [int(row[1]) for row in rows] == list(range(1, len(rows) + 1))
    assert [row[2] for row in rows][:1] == ["inline calls"] and "partition" in [row[2] for row in rows]
