"""Training steps and forward passes of real models, in the folder that ``MESHWRIGHT_PROGRAMS`` names."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import meshwright as mw
from meshwright.ir.interval import ANYWHERE
from meshwright.verification.draw import draw_inputs

sys.path.insert(0, str(Path(__file__).parents[1] / "stablehlo"))

from reading_oracle import assert_same, flat, opaque_ops, xla_run

FOLDER = Path(os.environ.get("MESHWRIGHT_PROGRAMS", Path(__file__).parents[3] / "shared" / "models"))

#: bytes that one device sends in one run of what XLA's own partitioner makes (jaxlib 0.10.2)
XLA_BYTES = {
    "bert_fwd": 1_310_720, "resnet_fwd": 184_448, "vit_train": 7_262_354, "gpt2_train": 90_255_086,
    "clip_train": 52_031_550,
}  # fmt: skip
#: second moments of the arguments
SMALLEST = 0.01
SLOW = pytest.mark.slow
RUNS = ["resnet_fwd", *(pytest.param(n, marks=SLOW) for n in XLA_BYTES if n != "resnet_fwd")]


def program_path(name):
    path = FOLDER / f"{name}.mlir"
    if not path.exists():
        pytest.skip(f"{path} is not there; set MESHWRIGHT_PROGRAMS to the folder with {name}.mlir")
    return path


def inputs(program):
    """Random values; second moments are positive, as an optimizer makes them, and not near 0.

    A step there is a gradient over its own size: XLA's result changes by 0.3 % with the last bits of the arguments.
    """
    values = draw_inputs(program.in_avals, [ANYWHERE] * len(program.in_avals))
    positive = [".nu[" in p.name or "var" in p.name for p in program.parameters]
    return [np.abs(v) + v.dtype.type(SMALLEST) if p else v for v, p in zip(values, positive)]


@cache
def partitioned(name):
    """The program, and what the partitioner makes of it."""
    program = mw.load(program_path(name))
    return program, program.partition()


@pytest.mark.parametrize(
    "name", [n if n in ("gpt2_train", "clip_train", "resnet_fwd") else pytest.param(n, marks=SLOW) for n in XLA_BYTES]
)
def test_sends_no_more_than_xla(name):
    program, part = partitioned(name)
    assert not opaque_ops(program)
    assert program.num_partitions == 8
    assert part.bytes_sent <= XLA_BYTES[name]
    assert not part.part.replicated
    assert all(c.source.file for c in part.collectives)


#: all-gathers of XLA's own partitioner
XLA_GATHERS = {"vit_train": 86, "clip_train": 177}


@pytest.mark.parametrize("name", [pytest.param("vit_train", marks=SLOW), "clip_train"])
def test_gathers_nothing_twice(name):
    """A bias's gradient is gathered once, not its moments and its update too."""
    _, part = partitioned(name)
    gathers = [e for e in part.jaxpr.eqns if e.op.name == "all_gather"]
    assert 0 < len(gathers) < XLA_GATHERS[name] / 2
    values = [(e.note.value, e.op.axes, e.op.dimension) for e in gathers]
    assert len(set(values)) == len(values)


def test_explain_advises_nothing_that_repeats_convolutions():
    """Whole kernels would save the gathers of activations, and make devices compute what others compute."""
    program, part = partitioned("resnet_fwd")
    entries = part.explain(suggest=True, seconds=60).entries
    name = program.parameters[29].name
    assert any(name in cause for e in entries for cause in e.causes)
    assert not [e.suggestion for e in entries if e.suggestion]
    assert part.work.redundancy < 1.01


@pytest.mark.parametrize("name", RUNS)
def test_runs_as_in_xla_and_partitioned(name):
    path = program_path(name)
    program = mw.load(path)
    args = inputs(program)
    want = xla_run(path.read_text(), args)
    assert all(np.isfinite(x).all() for x in want)
    assert_same(flat(program(*args)), want, rtol=1e-4)
    again = mw.load(program.as_text("stablehlo"))
    assert_same(flat(again(*args)), want, rtol=1e-4)
    assert again.partition().bytes_sent == program.partition().bytes_sent
    program.partition().verify(*args)
