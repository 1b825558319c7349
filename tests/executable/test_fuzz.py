"""Random programs, meshes and shardings: the partitioned program equals the unpartitioned one.

``MESHWRIGHT_FUZZ_EXAMPLES`` sets how many the slow test tries (``make fuzz``: 5,000).
"""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_programs import MESHES, programs, specs

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright.errors import MeshwrightWarning
from meshwright.ir.verify import verify
from meshwright.runtime.virtual import virtual_program

QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}


def check(data: st.DataObject) -> None:
    """Draw a program and shardings; compare; verify every jaxpr on the way."""
    sizes, names = data.draw(st.sampled_from(MESHES), label="mesh")
    mesh = mw.AbstractMesh(sizes, names)
    program = data.draw(programs(mesh), label="program")
    shardings = [
        data.draw(st.none() | specs(mesh, len(s)).map(lambda p: NamedSharding(mesh, p)), label="sharding")
        for s in program.inputs
    ]
    differentiate = data.draw(st.booleans(), label="gradient")
    results = program.inputs if differentiate else [program.shapes[i] for i in program.outputs]
    wanted = [
        data.draw(st.none() | specs(mesh, len(s)).map(lambda p: NamedSharding(mesh, p)), label="output sharding")
        for s in results
    ]

    def total(*args):
        return sum(mnp.sum(mnp.sin(y)) for y in program(*args))

    function = mw.grad(total, argnums=tuple(range(len(program.inputs)))) if differentiate else program
    rng = np.random.default_rng(0)
    values = [rng.normal(size=s).astype(np.float32) for s in program.inputs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MeshwrightWarning)
        outs = tuple(wanted) if differentiate else wanted
        lowered = mw.jit(lambda *a: function(*a), in_shardings=tuple(shardings), out_shardings=outs).lower(*values)
        part = lowered.partition(mesh)
        verify(lowered.program.jaxpr, "traced")
        verify(part.jaxpr, "partitioned")
        verify(virtual_program(part.part), "virtual")
        part.verify(*values, rtol=2e-4, atol=2e-4)


@settings(max_examples=80, derandomize=True, **QUIET)
@given(st.data())
def test_random_programs(data):
    check(data)


@pytest.mark.slow
@settings(max_examples=int(os.environ.get("MESHWRIGHT_FUZZ_EXAMPLES", "1000")), **QUIET)
@given(st.data())
def test_many_random_programs(data):
    check(data)


def test_position_on_an_axis_that_the_program_takes_apart():
    """A value on half of an axis makes the axis two; positions along it were those of one half."""
    mesh = mw.AbstractMesh((4,), ("x",))

    def loss(a, b):
        return mnp.sum(mnp.sin(mnp.concatenate([a, a], 0) + b))

    sharding = NamedSharding(mesh, mw.PartitionSpec("x", None))
    run = mw.jit(lambda a, b: mw.grad(loss, argnums=(0, 1))(a, b), in_shardings=(sharding, None))
    run.lower(np.full((2, 1), 0.3, np.float32), np.full((1,), 0.2, np.float32)).partition().verify()
