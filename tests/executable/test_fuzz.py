"""Random programs, meshes and shardings: the partitioned program equals the unpartitioned one.

``make fuzz`` tries 5,000 (``tests/long_runs.py``).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from random_programs import MESHES, WITHOUT_MESH, programs, specs

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright.errors import MeshwrightWarning
from meshwright.hardware.chips import DEFAULT_CHIP
from meshwright.ir.verify import verify
from meshwright.lowering.batched import virtual_program

#: on which starting a collective takes no time: reshards of small arrays have as many steps as those of large ones
FREE = replace(DEFAULT_CHIP, name="free to start", link_latency=0.0, network_latency=0.0)
MANY_AXES = [((2, 2, 2), ("x", "y", "z")), ((3, 4), ("x", "y")), ((2, 4, 3), ("x", "y", "z"))]
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}


def check(data: st.DataObject) -> None:
    """Draw a program and shardings; compare; verify every jaxpr on the way; perhaps read it from text, and compare."""
    sizes, names = data.draw(st.sampled_from([*MESHES, *MANY_AXES]), label="mesh")
    chip = data.draw(st.sampled_from([None, None, FREE]), label="chip")
    machine = chip and mw.hardware.machine(chip, devices=math.prod(sizes))
    mesh = mw.AbstractMesh(sizes, names, machine=machine)
    program = data.draw(programs(mesh), label="program")
    shardings = [
        data.draw(st.none() | specs(mesh, len(s)).map(lambda p: NamedSharding(mesh, p)), label="sharding")
        for s in program.inputs
    ]
    differentiate = program.reversible and data.draw(st.booleans(), label="gradient")
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
    dialect = data.draw(st.sampled_from([None, None, "stablehlo", "hlo"]), label="read again from text")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MeshwrightWarning)
        outs = tuple(wanted) if differentiate else wanted
        lowered = mw.jit(lambda *a: function(*a), in_shardings=tuple(shardings), out_shardings=outs).lower(*values)
        verify(lowered.program.jaxpr, "traced")
        check_partitioned(lowered.partition(mesh), values)
        if dialect is not None:
            loaded = mw.load(lowered.as_text(dialect))
            taken = lowered.program.picked(values)  # the text has no parameters that nothing uses
            verify(loaded.jaxpr, "read")
            check_partitioned(loaded.partition(num_devices=None if any_tiled(loaded) else mesh.size), taken)
            for mine, theirs in zip(mw.tree.leaves(loaded(*taken)), on_one_device(function, values)):
                np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=2e-4, atol=2e-4)


def check_partitioned(part, values):
    """All forms of a partitioned program are well-formed, and it computes what the unpartitioned one does."""
    verify(part.jaxpr, "partitioned")
    verify(virtual_program(part.part), "virtual")
    part.verify(*values, finite=0)


def on_one_device(function, values):
    """The results without a mesh."""
    token = WITHOUT_MESH.set(True)
    try:
        return mw.tree.leaves(mw.jit(lambda *a: function(*a))(*values))
    finally:
        WITHOUT_MESH.reset(token)


def any_tiled(loaded):
    """Whether the text says for how many devices it is."""
    return loaded.num_partitions > 1


@settings(max_examples=10, derandomize=True, **QUIET)
@given(st.data())
def test_random_programs(data):
    check(data)


def found_in(number: int) -> str:
    """What programs number 25 × ``number`` and the 24 after it find; "" if nothing."""

    @seed(number)
    @settings(max_examples=25, database=None, **QUIET)
    @given(st.data())
    def programs(data):
        check(data)

    try:
        programs()
    except Exception as error:
        return "\n".join((f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())))
    return ""


def test_position_on_an_axis_that_the_program_takes_apart():
    """A value on half of an axis makes the axis two; positions along it were those of one half."""
    mesh = mw.AbstractMesh((4,), ("x",))

    def loss(a, b):
        return mnp.sum(mnp.sin(mnp.concatenate([a, a], 0) + b))

    sharding = NamedSharding(mesh, mw.PartitionSpec("x", None))
    run = mw.jit(lambda a, b: mw.grad(loss, argnums=(0, 1))(a, b), in_shardings=(sharding, None))
    run.lower(np.full((2, 1), 0.3, np.float32), np.full((1,), 0.2, np.float32)).partition().verify()
