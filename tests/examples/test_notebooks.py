"""The notebooks run from a clean kernel, and hold no outputs: these belong to whoever runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 5


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_run(notebook):
    environment = {k: v for k, v in os.environ.items() if k not in ("MESHWRIGHT_NUM_DEVICES", "XLA_FLAGS")}
    runner = Path(__file__).with_name("run_notebook.py")
    done = subprocess.run(
        [sys.executable, runner, notebook], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_are_stored_without_outputs(notebook):
    said = json.loads(notebook.read_text())
    code = [cell for cell in said["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert said["cells"][0]["cell_type"] == "markdown" and "".join(said["cells"][0]["source"]).startswith("# ")
