"""The prediction: records a program's graph, plans it, and reports what its values take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from meshwright.core.avals import ShapedArray
from meshwright.core.collector import collector_paused
from meshwright.errors import RuleError
from meshwright.ir.jaxpr import ClosedJaxpr, Var
from meshwright.ir.names import called
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.memory.accumulate import add_in_place
from meshwright.spmd.memory.buffers import Buffer
from meshwright.spmd.memory.compilers import CPU, Compiler, compiler_of, platform_of
from meshwright.spmd.memory.halves import halve, halve_invariants
from meshwright.spmd.memory.held import LiveBuffer, Memory
from meshwright.spmd.memory.invariants import hoist, sink
from meshwright.spmd.memory.kernels import Kernel
from meshwright.spmd.memory.layout_normalization import normalize
from meshwright.spmd.memory.layouts import lay_out
from meshwright.spmd.memory.merge import merge_products
from meshwright.spmd.memory.plan import Plan, Scope, planned
from meshwright.spmd.memory.prune import hold_less, prune
from meshwright.spmd.memory.record import record
from meshwright.spmd.memory.repeats import carry_once
from meshwright.spmd.memory.splits import move_splits
from meshwright.spmd.memory.tiles import tiled_bytes

#: bytes per entry of the table of result addresses
_ADDRESS = 8


def predict(
    jaxpr: ClosedJaxpr,
    mesh: AbstractMesh,
    donated: Sequence[int] = (),
    stands_for: Mapping[Var, tuple[Var, Layout]] | None = None,
    names: Sequence[str] = (),
    compiler: Compiler | None = None,
) -> Memory:
    """The memory of a per-device program; ``donated`` are argument numbers, ``names`` the arguments' names.

    ``stands_for`` maps values of the program to the values of the unpartitioned program that they are shards of, and
    to their layouts. ``compiler``: by default, the one for the mesh's machine, or for CPUs if it has none, or if the
    program cannot be compiled for it (the virtual mesh runs it all the same); then the prediction has a ``note``.
    """
    with collector_paused():
        if compiler is not None:
            return _predicted(jaxpr, mesh, donated, stands_for, names, compiler)
        try:
            return _predicted(jaxpr, mesh, donated, stands_for, names, compiler_of(mesh))
        except RuleError as error:
            if platform_of(mesh) == "cpu":
                raise
            memory = _predicted(jaxpr, mesh, donated, stands_for, names, CPU)
            return replace(memory, note=f"this is the memory of CPUs, as the mesh's machine has no form of it: {error}")


def _predicted(
    jaxpr: ClosedJaxpr,
    mesh: AbstractMesh,
    donated: Sequence[int],
    stands_for: Mapping[Var, tuple[Var, Layout]] | None,
    names: Sequence[str],
    compiler: Compiler,
) -> Memory:
    known = {v: (whole.aval, layout.format(mesh)) for v, (whole, layout) in (stands_for or {}).items()}
    graph = record(jaxpr, mesh, compiler)
    # Elsewhere than on TPUs, barriers outside loops are taken to delay gathers as asked, to keep within a limit.
    inside = (region for node in graph.post_order() for region in node.regions)
    for part in [graph] if compiler.tiles else inside:
        hold_less(part)
    if compiler.tiles:
        move_splits(graph)
        graph = lay_out(graph)
        halve_invariants(graph)
    if compiler.trims_loops:
        carry_once(graph)
        sink(graph, arrays=True)
    if compiler.merges:
        merge_products(graph, compiler.merges)
    if compiler.bitcasts:
        graph = normalize(graph)
    if compiler.accumulates:
        add_in_place(graph)
    if compiler.hoists:
        hoist(graph, compiler.tiles)
    if compiler.tiles:
        sink(graph)
        prune(graph)
        halve(graph)
    memory = _memory(planned(graph, Scope(compiler, donated)), known, names)
    if compiler.tiles:
        memory = _tiled(memory, jaxpr.in_avals, jaxpr.out_avals)
    return replace(memory, host_bytes=_in_host_memory(jaxpr), chip=compiler.chip)


def _tiled(memory: Memory, ins: Iterable[ShapedArray], outs: Iterable[ShapedArray]) -> Memory:
    """The prediction with the tiled sizes of arguments and results; results in donated buffers grow with them."""
    arguments, results = sum(map(tiled_bytes, ins)), sum(map(tiled_bytes, outs))
    share = memory.alias_bytes / memory.output_bytes if memory.output_bytes else 0.0
    return replace(memory, argument_bytes=arguments, output_bytes=results, alias_bytes=int(share * results))


def _in_host_memory(jaxpr: ClosedJaxpr) -> int:
    """The bytes of values whose type has a host memory kind: arguments, results, and values moved there in between."""
    put = (v for e in jaxpr.eqns if not any(a.aval.memory for a in e.invars) for v in e.outvars)
    values = dict.fromkeys((*jaxpr.jaxpr.invars, *jaxpr.jaxpr.outvars, *put))
    return sum(v.aval.nbytes for v in values if v.aval.memory)


def _memory(plan: Plan, known: Mapping[Var, tuple[ShapedArray, str]], names: Sequence[str]) -> Memory:
    """The predicted sizes, and the buffers that are live at the peak."""
    placed, results = plan.placed, plan.results
    has_table = plan.compiler.tables and len(results) > 1
    held = sorted(placed.held, key=lambda b: -b.nbytes)
    return Memory(
        sum(p.root.avals[0].nbytes for p in plan.parameters),
        sum(r.root.avals[0].nbytes for r in results) + has_table * _ADDRESS * len(results),
        sum(plan.parameters[a].root.avals[0].nbytes for a in plan.aliases.values()),
        placed.temp_bytes,
        tuple(_shown(b, plan.parameters, known, names) for b in held),
        gap_bytes=placed.gap_bytes,
    )


def _shown(
    buffer: Buffer,
    parameters: Sequence[Kernel],
    known: Mapping[Var, tuple[ShapedArray, str]],
    names: Sequence[str],
) -> LiveBuffer:
    kernel = buffer.kernel
    what = kernel.root.op
    if buffer.kind == "argument":
        what = called("input", parameters.index(kernel), names)
    node = kernel.root
    while node.var is None and node.op in ("copy", "reorder"):
        node = node.operands[0]
    whole = known.get(node.var, (None, "")) if node.var is not None else (None, "")
    return LiveBuffer(buffer.nbytes, buffer.kind, what, buffer.aval, kernel.root.source, *whole)
