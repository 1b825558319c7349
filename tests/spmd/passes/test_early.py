"""For TPUs and CPUs all-reduces go before what scales their operands, and before nothing else."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.api.partitioned import PartitionedProgram
from meshwright.spmd.passes.pipeline import target_passes

MESH = mw.AbstractMesh((4,), ("data",))


def on(*spec: object) -> NamedSharding:
    return NamedSharding(MESH, P(*spec))


def of(*shape: int, dtype: object = np.float32) -> mw.ShapeDtypeStruct:
    return mw.ShapeDtypeStruct(shape, dtype)


def early(part):
    """A partitioned program as it is emitted for TPUs; checked to compute the same."""
    passes = target_passes("tpu", MESH, part.part.in_layouts)
    found = PartitionedProgram(part.program, replace(part.part, jaxpr=passes.run(part.part.jaxpr)[0]))
    found.verify()
    assert found.bytes_sent == part.bytes_sent
    return found


def order(function, *args, specs=(("data",), ("data",))):
    """The names of a device's equations, of a function of arrays that are split along the batch."""
    shardings = tuple(on(*s) for s in specs)
    part = mw.jit(function, in_shardings=shardings, out_shardings=on()).lower(*args).partition()
    return [e.op.name for e in early(part).jaxpr.eqns]


BATCH = of(8, 6), of(8, 4)


def test_scaling_comes_after_the_sum():
    names = order(lambda x, y: 0.01 * (x.T @ y) / 8.0, *BATCH)
    assert names[-4:] == ["dot_general", "psum", "mul", "div"]


def test_a_scalar_that_all_devices_have_is_a_scale():
    found = order(lambda x, y, s: s * (x.T @ y), *BATCH, of(), specs=(("data",), ("data",), ()))
    assert found.index("psum") < found.index("mul")


@pytest.mark.parametrize(
    ("function", "before"),
    [
        (lambda x, y: (x.T @ y) + (2 * x.T @ y), "add"),  # both terms are partial: one sum, not two
        (lambda x, y: (x.T @ y).T, "transpose"),  # the compiler's product does it
        (lambda x, y: (x.T @ y).sum(0), "reduce_sum"),  # fewer bytes
        (lambda x, y: lax.integer_pow(x.T @ y, 2), None),  # no linear op: it needs the whole sum
    ],
)
def test_what_it_stays_behind(function, before):
    names = order(function, *BATCH)
    assert names.count("psum") == 1
    if before is not None:
        assert names.index(before) < names.index("psum")


def test_a_value_with_other_uses_is_scaled_once():
    def step(x, y):
        g = 0.5 * (x.T @ y)
        return g, mnp.sin(g)

    part = mw.jit(step, in_shardings=on("data"), out_shardings=on()).lower(*BATCH).partition()
    names = [e.op.name for e in early(part).jaxpr.eqns]
    assert names.count("mul") == 1 and names.index("psum") < names.index("mul")


def test_sums_go_before_scaling_in_loops_too():
    def body(c, x):
        return c + mnp.tanh(0.1 * (x.T @ x)), None

    def f(xs):
        return lax.scan(body, mnp.zeros((6, 6), np.float32), xs)[0]

    part = mw.jit(f, in_shardings=on(None, "data"), out_shardings=on()).lower(of(3, 8, 6)).partition()
    (loop,) = (e for e in early(part).jaxpr.eqns if e.op.name == "scan")
    names = [e.op.name for e in loop.op.regions()[0].eqns]
    assert names.index("psum") < names.index("mul")


def test_gpus_get_the_program_as_it_is():
    part = mw.jit(lambda x, y: 0.01 * (x.T @ y), in_shardings=on("data"), out_shardings=on()).lower(*BATCH).partition()
    assert target_passes("cuda", MESH, part.part.in_layouts).passes == ()
    first = {p: re.findall(r"stablehlo\.(all_reduce|multiply)", str(part.module(p))) for p in ("cuda", "cpu", "tpu")}
    assert first.pop("cuda") == ["multiply", "all_reduce"]
    assert first == {p: ["all_reduce", "multiply"] for p in ("cpu", "tpu")}
