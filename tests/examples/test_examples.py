"""The examples run, and what the README shows is what they print."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def run(*command: str) -> str:
    """Standard output of a command in the project's root."""
    environment = {**os.environ, "COLUMNS": "100", "TERM": "dumb"}
    for name in ("MESHWRIGHT_NUM_DEVICES", "XLA_FLAGS"):  # as a user runs them
        environment.pop(name, None)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readme_shows_the_quickstart_and_its_real_output():
    readme = (ROOT / "README.md").read_text()
    source = (ROOT / "examples" / "quickstart.py").read_text()
    shown = re.search(r"```python\n(.*?)```", readme, re.S)
    assert shown is not None and shown.group(1).strip() in source
    printed = re.search(r"```text\n(.*?)```", readme, re.S)
    assert printed is not None
    assert printed.group(1).strip() == run(sys.executable, "examples/quickstart.py").strip()


def test_readme_commands_are_targets_of_the_makefile():
    readme = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`?\bmake ([a-z-]+)(?=`| +#)", readme)) <= targets


def test_gpt_learns_and_matches_one_device():
    out = run(sys.executable, "examples/gpt.py", "40")
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", out)]
    assert losses[-1] < losses[0] - 0.7
    assert "reduce_scatter over model" in out and "because" in out
    difference = re.search(r"one device: ([\d.e+-]+)", out)
    assert difference is not None and float(difference.group(1)) < 1e-4


def test_demo_trains_and_explains():
    out = run(sys.executable, "-m", "meshwright", "demo", "--epochs", "20")
    accuracy = re.search(r"test accuracy ([\d.]+) %", out)
    assert accuracy is not None and float(accuracy.group(1)) > 95
    assert "because" in out and "digits.py" in out
    assert "equals the unpartitioned one" in " ".join(out.split())
    assert "CPU 0,1" in out


@pytest.mark.slow
def test_vae_learns_and_matches_one_device():
    out = run(sys.executable, "examples/vae.py", "40")
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", out)]
    assert losses[-1] < losses[0] - 10
    assert int(re.search(r"bytes sent a step: ([\d,]+)", out).group(1).replace(",", "")) > 0
    assert float(re.search(r"one device: ([\d.e+-]+)", out).group(1)) < 1e-4


@pytest.mark.slow
def test_maml_adapts_and_matches_one_device():
    out = run(sys.executable, "examples/maml.py", "200")
    before, after = (float(re.search(rf"{n} inner steps: loss ([\d.]+)", out).group(1)) for n in (0, 1))
    assert after < before
    assert "all_reduce over tasks" in out
    assert float(re.search(r"one device: ([\d.e+-]+)", out).group(1)) < 1e-4
