"""Per-device programs written by hand, for the communication passes: what they print, send, and compute on a mesh."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import meshwright as mw
from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, Var
from meshwright.ir.state import extend_axis_env
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr
from meshwright.ir.verify import verify
from meshwright.lowering.batched import virtual_program
from meshwright.ops.collective.tiles import AllSlice
from meshwright.ops.shape.rearrange import expand_dims
from meshwright.runtime.compiling import compile_jaxpr
from meshwright.sharding import Layout
from meshwright.spmd import report
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.passes.pipeline import Change, communication_passes
from meshwright.spmd.propagate import Propagation

MESH = mw.AbstractMesh((2, 3), ("x", "y"))
#: an input of a local program: its local type, and the mesh axes along which it differs (stacked on dimension 0)
Input = tuple[ShapedArray, tuple[str, ...]]


def array(*shape: int, over: str = "", dtype: Any = np.float32) -> Input:
    """An input that differs along the axes ``over``, one letter each."""
    return ShapedArray(shape, np.dtype(dtype)), tuple(over)


def all_slice(x: Any, axes: str, dim: int) -> Any:
    """This device's tile of ``x``."""
    return AllSlice(tuple(axes), tuple(MESH.shape[a] for a in axes), dim).bind(x)


def layouts(inputs: Sequence[Input]) -> list[Layout]:
    return [Layout((axes, *((),) * (a.ndim - 1)) if a.ndim else ()) for a, axes in inputs]


def trace(function: Callable[..., Any], inputs: Sequence[Input]) -> ClosedJaxpr:
    """The per-device jaxpr of a function of local arrays."""

    def flat(*args: Any) -> Any:
        outs = function(*args)
        return list(outs) if isinstance(outs, (tuple, list)) else [outs]

    with extend_axis_env(MESH.shape):
        return trace_to_jaxpr(flat, [a for a, _ in inputs])


def apply(names: str, jaxpr: ClosedJaxpr, inputs: Sequence[Input], combine_bytes: int = 0) -> ClosedJaxpr:
    """The jaxpr after the passes whose names have one of ``names`` (separated by ``|``) in them."""
    pipeline = communication_passes(MESH, layouts(inputs), combine_bytes)
    for step in pipeline.passes:
        if any(name in step.name for name in names.split("|")):
            jaxpr = step.apply(jaxpr)
            verify(jaxpr, step.name)
    return jaxpr


def optimize(jaxpr: ClosedJaxpr, inputs: Sequence[Input], combine_bytes: int = 0) -> tuple[ClosedJaxpr, list[Change]]:
    """The jaxpr after the whole pipeline."""
    with extend_axis_env(MESH.shape):
        return communication_passes(MESH, layouts(inputs), combine_bytes).run(jaxpr)


def sent(jaxpr: ClosedJaxpr) -> int:
    return sum(c.bytes_sent for c in report.collectives(jaxpr.jaxpr))


def kinds(jaxpr: ClosedJaxpr) -> list[str]:
    return [c.kind for c in report.collectives(jaxpr.jaxpr)]


def run(jaxpr: ClosedJaxpr, inputs: Sequence[Input], seed: int = 0) -> list[np.ndarray]:
    """What every device computes from random inputs: each result with a leading dimension for the devices."""
    rng = np.random.default_rng(seed)
    shapes = [(a.shape[0] * MESH.sizes(axes), *a.shape[1:]) if a.ndim else () for a, axes in inputs]
    values = [rng.normal(size=s).astype(a.dtype) for s, (a, _) in zip(shapes, inputs)]
    with extend_axis_env(MESH.shape):
        stacked = trace_to_jaxpr(
            lambda *args: [expand_dims(x, [0]) for x in eval_jaxpr(jaxpr, jaxpr.consts, *args)], [a for a, _ in inputs]
        )
    outs = [a.update(shape=(MESH.size, *a.shape)) for a in jaxpr.out_avals]
    out_layouts = [Layout((("x", "y"), *((),) * (a.ndim - 1))) for a in outs]
    source = ClosedJaxpr(_signature([ShapedArray(s, v.dtype) for s, v in zip(shapes, values)], outs))
    part = Partition(stacked, MESH, layouts(inputs), out_layouts, source, Propagation(MESH))
    program = virtual_program(part)
    shardings = [mw.NamedSharding(MESH, mw.PartitionSpec())] * len(outs)
    return [np.asarray(x) for x in compile_jaxpr(program, "local", shardings, True)(values)]


def _signature(ins: Sequence[ShapedArray], outs: Sequence[ShapedArray]) -> Jaxpr:
    """A jaxpr of which only the types are asked."""
    return Jaxpr([], [Var(a) for a in ins], [Var(a) for a in outs], [])


def same(before: ClosedJaxpr, after: ClosedJaxpr, inputs: Sequence[Input], tolerance: float = 1e-5) -> None:
    """Every device computes the same, and sends no more."""
    assert sent(after) <= sent(before)
    for got, want in zip(run(after, inputs), run(before, inputs), strict=True):
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance * max(1, np.abs(want).max())
        )


def becomes(passes: str, function: Callable[..., Any], inputs: Sequence[Input], expected: str, tolerance=1e-5) -> None:
    """The golden text of a function's program after some passes; run before and after, it computes the same."""
    before = trace(function, inputs)
    after = apply(passes, before, inputs)
    wanted = textwrap.dedent(expected).strip("\n")
    assert str(after) == wanted, f"\nbefore:\n{before}\nafter:\n{after}"
    same(before, after, inputs, tolerance)


def stays(passes: str, function: Callable[..., Any], inputs: Sequence[Input]) -> None:
    """The passes have nothing to do."""
    before = trace(function, inputs)
    assert apply(passes, before, inputs) is before
