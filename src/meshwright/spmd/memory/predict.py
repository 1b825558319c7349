"""The prediction: builds a program's graph, fuses and schedules it, and assigns buffers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr, Var
from meshwright.ir.names import called
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.memory.allocations import place
from meshwright.spmd.memory.buffers import Buffer, liveness
from meshwright.spmd.memory.choices import aliases, handed_through
from meshwright.spmd.memory.combine import combine
from meshwright.spmd.memory.compilers import CPU, Compiler
from meshwright.spmd.memory.copies import (
    copy_carry,
    copy_donated,
    copy_results,
    copy_transposed,
    copy_updated,
    matched,
    with_own_results,
)
from meshwright.spmd.memory.fusion import fuse
from meshwright.spmd.memory.graph import Graph
from meshwright.spmd.memory.halves import halve, halve_invariants, halve_stacks
from meshwright.spmd.memory.held import LiveBuffer, Memory
from meshwright.spmd.memory.invariants import hoist
from meshwright.spmd.memory.kernels import Kernel, kernels_of
from meshwright.spmd.memory.layouts import lay_out
from meshwright.spmd.memory.library import fuse_reductions
from meshwright.spmd.memory.on_chip import UPDATES, VectorMemory
from meshwright.spmd.memory.packing import highest, joined, packed
from meshwright.spmd.memory.padding import pad
from meshwright.spmd.memory.priority import fuse_by_bytes
from meshwright.spmd.memory.prune import prune
from meshwright.spmd.memory.record import record
from meshwright.spmd.memory.schedule import breadth_first, freeing, kernel_post_order
from meshwright.spmd.memory.simplify import scatter_in_place
from meshwright.spmd.memory.splits import move_splits
from meshwright.spmd.memory.workspaces import workspaces

#: bytes per entry of the table of result addresses
_ADDRESS = 8


def predict(
    jaxpr: ClosedJaxpr,
    mesh: AbstractMesh,
    donated: Sequence[int] = (),
    stands_for: Mapping[Var, tuple[Var, Layout]] | None = None,
    names: Sequence[str] = (),
    compiler: Compiler = CPU,
) -> Memory:
    """The memory of a per-device program; ``donated`` are argument numbers, ``names`` the arguments' names.

    ``stands_for`` maps values of the program to the values of the unpartitioned program that they are shards of, and
    to their layouts.
    """
    known = {v: (whole.aval, layout.format(mesh)) for v, (whole, layout) in (stands_for or {}).items()}
    graph = record(jaxpr, mesh, compiler)
    if compiler.tiles:
        move_splits(graph)
        lay_out(graph)
        halve_invariants(graph)
    if compiler.hoists:
        hoist(graph)
    if compiler.tiles:
        halve_stacks(graph)
    memory = _Plan(graph, donated, known=known, names=names, compiler=compiler).memory
    return replace(memory, host_bytes=_in_host_memory(jaxpr))


def _in_host_memory(jaxpr: ClosedJaxpr) -> int:
    """The bytes of values whose type has a host memory kind: arguments, results, and values moved there in between."""
    put = (v for e in jaxpr.eqns if not any(a.aval.memory for a in e.invars) for v in e.outvars)
    values = dict.fromkeys((*jaxpr.jaxpr.invars, *jaxpr.jaxpr.outvars, *put))
    return sum(v.aval.nbytes for v in values if v.aval.memory)


class _Plan:
    """Runs the steps of the model for one program or region."""

    def __init__(
        self,
        graph: Graph,
        donated: Sequence[int] = (),
        aliases: dict[int, int] | None = None,
        known: Mapping[Var, tuple[ShapedArray, str]] = MappingProxyType({}),
        names: Sequence[str] = (),
        compiler: Compiler = CPU,
        branch: bool = False,
        inside: bool = False,
    ) -> None:
        self.known, self.compiler, self._branch, self._inside = known, compiler, branch, inside
        self._regions: dict[Graph, Sequence[int]] = {}
        self.names = names
        prune(graph)
        scatter_in_place(graph)
        if compiler.into_products:
            halve(graph)
        if compiler.copies_transposed:
            graph = with_own_results(graph)
        by_node = kernels_of(graph)
        self.parameters = [by_node[p] for p in graph.parameters]
        self.results = [by_node[r] for r in graph.results]
        effects = [by_node[e] for e in graph.effects]
        kernels = list(by_node.values())
        kept = {*self.results, *effects}
        if compiler.by_bytes:
            fuse_by_bytes(kernels, kept, compiler)
        else:
            fuse_reductions(kernels, kept)
            kernels = [k for k in kernels if k.users or k in kept or k.root.op == "parameter"]
            fuse(kernels, kept)
        combine(self.results, effects)
        if compiler.copies_transposed and (len(self.results) > 1 or aliases is not None):
            copy_transposed(self.results, self.parameters if aliases else (), graph)
        self.aliases = matched(self.results, self.parameters, donated) if aliases is None else aliases
        self.has_table = compiler.tables and aliases is None and len(self.results) > 1
        copy_results(self.results, self.parameters, self.aliases)
        roots = [*self.results, *effects]
        given = {self.parameters[a] for a in self.aliases.values()}
        for kernel in kernel_post_order([*self.parameters, *roots]):
            if kernel.root.op == "while":
                copy_carry(kernel)
            elif kernel.root.op in ("case", "if"):
                self._hand_through(kernel, given)
            else:
                copy_updated(kernel, self.results, given)
        self._copied = copy_donated(self.results, self.parameters, self.aliases)
        kernels = kernel_post_order([*self.parameters, *roots])
        self.order = self._ordered(kernels)
        self._place()

    def _ordered(self, kernels: list[Kernel]) -> list[Kernel]:
        if not self.compiler.depth_first:
            return breadth_first(kernels, self.parameters)
        if not self.compiler.into_products:
            return kernels
        orders = kernels, freeing(kernels, {*self.results})
        return min(orders, key=lambda order: highest(joined(liveness(order, self.results, self._inner).buffers)[0])[0])

    def _hand_through(self, choice: Kernel, given: Collection[Kernel]) -> None:
        """Let results of a conditional alias its operands where no branch needs a copy for that."""
        over = handed_through(choice, self.results, given)
        copied = {-1}
        while over and copied:
            plans = {b: self._region(b, aliases(b, over), branch=True) for b in choice.root.regions}
            copied = {place for plan in plans.values() for place in plan._copied}
            over = {place: operand for place, operand in over.items() if place not in copied}
        if over:
            choice.root.attributes = {**choice.root.attributes, "over": over}
            self._regions.update({branch: plan.temporaries for branch, plan in plans.items()})

    def _region(self, region: Graph, aliases: dict[int, int], branch: bool = False) -> _Plan:
        return _Plan(region, aliases=aliases, compiler=self.compiler, branch=branch, inside=True)

    def _inner(self, region: Graph, loop: bool) -> Sequence[int]:
        """The sizes of a region's temporaries at its peak; results of loop bodies alias their parameters."""
        sizes = self._regions.get(region)
        if sizes is None:
            carried = {i: i for i in range(len(region.results))} if loop else {}
            sizes = self._regions[region] = self._region(region, carried).temporaries
        return sizes

    # --- figures --------------------------------------------------------------------------------------------
    @cached_property
    def memory(self) -> Memory:
        """The predicted sizes, and the buffers live at the peak."""
        held = [
            *(b for b in self._arguments if b is not None),
            *(b for b in self._written if b not in self._donated),
            *(b for b in self._rest if b.start <= self._peak <= b.end),
        ]
        return Memory(
            sum(p.root.avals[0].nbytes for p in self.parameters),
            sum(r.root.avals[0].nbytes for r in self.results) + self.has_table * _ADDRESS * len(self.results),
            sum(self.parameters[a].root.avals[0].nbytes for a in self.aliases.values()),
            self._temp_bytes,
            tuple(self._shown(b) for b in sorted(held, key=lambda b: -b.nbytes)),
        )

    @cached_property
    def temporaries(self) -> Sequence[int]:
        """The sizes of the temporaries live at the peak, and the bytes lost to fragmentation."""
        sizes = [n for n, start, end in self._spans if start <= self._peak <= end]
        return [*sizes, self._temp_bytes - sum(sizes)] if self._temp_bytes > sum(sizes) else sizes

    def _place(self) -> None:
        live = liveness(self.order, self.results, self._inner, self.compiler.tupled)
        if self.compiler.tiles:
            pad(live.buffers, self.order)
        live.buffers += workspaces(self.order, self.compiler)
        self._arguments = [live.of[p][0] for p in self.parameters]
        results = [live.of[r][0] for r in self.results]
        self._donated = {
            result: argument
            for r, a in self.aliases.items()
            if (result := results[r]) is not None and (argument := self._arguments[a]) is not None
        }
        if self._branch:  # operands of a conditional are live as long as it runs
            for argument in self._donated.values():
                argument.end = len(self.order)
        kept = [r for r in results if r is not None and r.kind == "result"]
        near = VectorMemory(live, self.order, self.compiler) if self.compiler.on_chip and not self._inside else None
        if near:
            near.shorten()
        self._written, self._rest = place(live, kept, self._donated, near.only_here if near else ())
        self._spans, moments = joined(self._rest)
        if self._inside and self.compiler.on_chip:
            # A body that fits into vector memory has a place there for each value, also where one is written over:
            # what the loop carries has two while it changes, unless a part of it is written.
            apart = [(b.nbytes, b.start, b.end) for b in self._rest]
            changed = (b for b, old in self._donated.items() if b is not old and b.kernel.root.op not in UPDATES)
            apart += [(b.nbytes, b.start, b.start) for b in changed]
            if highest(apart)[0] < self.compiler.on_chip:
                self._spans = moments = apart
        _, self._peak = highest(self._spans)
        self._temp_bytes = max(packed(moments), near.peak_bytes if near else 0)

    def _shown(self, buffer: Buffer) -> LiveBuffer:
        kernel = buffer.kernel
        what = kernel.root.op
        if buffer.kind == "argument":
            what = called("input", self.parameters.index(kernel), self.names)
        node = kernel.root
        while node.var is None and node.op in ("copy", "reorder"):
            node = node.operands[0]
        whole = self.known.get(node.var, (None, "")) if node.var is not None else (None, "")
        return LiveBuffer(buffer.nbytes, buffer.kind, what, buffer.aval, kernel.root.source, *whole)
