"""Contracts: written, kept, and what came and went when a program changes."""

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points

import numpy as np
import pytest

import meshwright as mw
from meshwright import errors
from meshwright.testing import contract


def layer(x, w, v):
    h = x @ w
    return h @ v


def parted(spec_w, spec_v):
    mesh = mw.AbstractMesh((4, 2), ("data", "model"))
    by = lambda *spec: mw.NamedSharding(mesh, mw.P(*spec))  # noqa: E731
    x, w, v = np.ones((8, 16), "f4"), np.ones((16, 32), "f4"), np.ones((32, 16), "f4")
    return mw.jit(layer, in_shardings=(by("data"), by(*spec_w), by(*spec_v))).lower(x, w, v).partition()


def test_a_contract_is_written_and_kept(tmp_path, refuses):
    file = tmp_path / "layer.json"
    part = parted((None, "model"), ("model", None))
    with refuses(errors.ContractError, "no contract", "--meshwright-update"):
        contract(part, file)
    contract(part, file, update=True)
    contract(part, file)
    said = json.loads(file.read_text())
    (name,) = said["collectives"]
    assert name == "all_reduce over model at test_contracts.py (layer): return h @ v"
    assert said["mesh"] == {"data": 4, "model": 2} and said["bytes_sent"] == part.bytes_sent > 0


def test_changes_say_what_came_and_went(tmp_path, refuses):
    split, whole = parted((None, "model"), ("model", None)), parted((None, None), (None, None))
    name = "all_reduce over model at test_contracts.py (layer): return h @ v"
    contract(split, tmp_path / "split.json", update=True)
    contract(whole, tmp_path / "whole.json", update=True)
    with refuses(AssertionError, f"- {name}: 1 time, 128 bytes", "~ bytes_sent: 128 is now 0", "~ work"):
        contract(whole, tmp_path / "split.json")
    with refuses(errors.ContractError, f"+ {name}: 1 time, 128 bytes", "because ", "~ bytes_sent: 0 is now 128"):
        contract(split, tmp_path / "whole.json")


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"collectives": 3}'])
def test_files_that_are_no_contracts_are_refused(text, tmp_path, refuses):
    file = tmp_path / "wrong.json"
    file.write_text(text)
    with refuses(errors.ContractError, "wrong.json", "--meshwright-update"):
        contract(parted((None, "model"), ("model", None)), file)
    with refuses(errors.ArgumentTypeError, "partitioned"):
        contract(3, file)


def test_the_plugin_of_pytest(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import numpy as np, meshwright as mw\n"
        "from pathlib import Path\n"
        "def test_sum():\n"
        "    part = mw.jit(lambda x: x.sum()).lower(np.ones(8, 'f4')).partition(num_devices=4)\n"
        "    mw.testing.contract(part, Path(__file__).parent / 'sum.json')\n"
    )

    def run(*options):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(tmp_path)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ)).returncode

    installed = any(e.name == "meshwright" for e in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "meshwright.testing.plugin")
    assert (run(*plugin), run(*plugin, "--meshwright-update"), run(*plugin)) == (1, 0, 0)
