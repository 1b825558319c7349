"""Programs that JAX wrote, with shardings and manual regions, for both of its partitioners: read, partitioned, run, and
compared with what JAX computes on eight devices."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshwright as mw

SCRIPT = Path(__file__).with_name("jax_sharded_programs.py")
NAMES = [
    node.name
    for node in ast.parse(SCRIPT.read_text()).body
    if isinstance(node, ast.FunctionDef) and any(getattr(d, "func", d).id == "program" for d in node.decorator_list)
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("jax") / "programs.pkl"
    subprocess.run([sys.executable, str(SCRIPT), str(path)], check=True, timeout=300, capture_output=True)
    return pickle.loads(path.read_bytes())


def same(got: Any, want: list[np.ndarray]) -> None:
    got = got if isinstance(got, (tuple, list)) else (got,)
    assert len(got) == len(want)
    for x, y in zip(got, want):
        assert np.asarray(x).dtype == y.dtype
        np.testing.assert_allclose(np.asarray(x), y, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("partitioner", ["shardy", "gspmd", "shardy in HLO", "gspmd in HLO"])
@pytest.mark.parametrize("name", NAMES)
def test_program(exported: Any, name: str, partitioner: str) -> None:
    texts, args, want = exported[name]
    program = mw.load(texts[partitioner])
    same(program(*args), want)
    part = program.partition()
    assert part.num_devices == 8
    same(part.executable([np.asarray(a) for a in args]), want)
    # Written again, in both dialects, it is the same program.
    for dialect in ("stablehlo", "hlo"):
        again = mw.load(program.as_text(dialect)).partition()
        same(again.executable([np.asarray(a) for a in args]), want)


@pytest.mark.parametrize("name", NAMES)
def test_both_partitioners_texts_mean_the_same(exported: Any, name: str) -> None:
    texts, _, _ = exported[name]
    parts = [mw.load(texts[p]).partition() for p in ("shardy", "gspmd", "shardy in HLO")]
    sent = [sorted((c.kind, c.bytes_sent) for c in part.collectives) for part in parts]
    assert sent[0] == sent[1]
    # HLO's all-to-alls split and join one dimension, so that some become equal and are done once.
    assert sum(n for _, n in sent[2]) <= sum(n for _, n in sent[0])


def test_collectives_name_the_axes_of_their_groups(exported: Any) -> None:
    texts, _, _ = exported["moves"]
    part = mw.load(texts["shardy"]).partition()
    found = [(c.kind, c.axes) for c in part.collectives]
    assert found[:4] == [
        ("collective_permute", ("x",)),
        ("collective_permute", ("y",)),
        ("collective_permute", ("x", "y")),
        ("all_gather", ("y",)),
    ]
    assert {c.reason for c in part.collectives[:4]} == {"written in the program"}


def test_the_rest_of_a_region_is_partitioned_over_its_automatic_axes(exported: Any) -> None:
    texts, _, _ = exported["along_one_axis"]
    for partitioner in ("shardy", "gspmd"):
        program = mw.load(texts[partitioner])
        part = program.partition()
        first = part.collectives[0]
        (auto,) = program.mesh.axis_names[1:]
        assert first.axes == (auto,) and "partial sums" in first.reason
