"""What happens to a graph: values are fused into kernels, copied, scheduled, and given a place in memory.

:func:`planned` runs these steps for a program. The bodies of its loops and the branches of its conditionals are planned
in the same way, when the plan around them needs their sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.spmd.memory.allocations import place
from meshwright.spmd.memory.buffers import Buffer, Liveness, liveness
from meshwright.spmd.memory.choices import aliases, handed_through
from meshwright.spmd.memory.combine import combine
from meshwright.spmd.memory.compilers import Compiler
from meshwright.spmd.memory.copies import (
    copy_carry,
    copy_donated,
    copy_reshaped,
    copy_results,
    copy_transposed,
    copy_turned,
    copy_updated,
    matched,
    with_own_results,
)
from meshwright.spmd.memory.fusion import fuse
from meshwright.spmd.memory.graph import Graph
from meshwright.spmd.memory.hiding import as_units, hide
from meshwright.spmd.memory.kernels import Kernel, kernels_of
from meshwright.spmd.memory.library import fuse_reductions
from meshwright.spmd.memory.on_chip import UPDATES, VectorMemory
from meshwright.spmd.memory.packing import Span, highest, joined, packed
from meshwright.spmd.memory.padding import constant_bytes, pad, padded
from meshwright.spmd.memory.priority import fuse_by_bytes
from meshwright.spmd.memory.prune import prune
from meshwright.spmd.memory.rearrange import move_late
from meshwright.spmd.memory.schedule import breadth_first, copied_at_once, freeing, kernel_post_order, largest_first
from meshwright.spmd.memory.siblings import run_together, written_together
from meshwright.spmd.memory.simplify import reduce_first, scatter_in_place
from meshwright.spmd.memory.stacks import whole_readers, written_at_once
from meshwright.spmd.memory.workspaces import workspaces


@dataclass(frozen=True)
class Scope:
    """What a graph is a part of: a whole program, the body of a loop, or a branch of a conditional."""

    compiler: Compiler
    #: the numbers of donated arguments, for a program
    donated: Sequence[int] = ()
    #: the parameter that each result aliases, for a body or a branch; None for a program
    aliases: Mapping[int, int] | None = None
    branch: bool = False
    #: the number of loops around it
    depth: int = 0

    @property
    def inside(self) -> bool:
        """Whether it is a body or a branch."""
        return self.aliases is not None


@dataclass(frozen=True)
class Placed:
    """Where the values of a plan are, and what that takes."""

    arguments: Sequence[Buffer | None]
    #: results that are written over an argument
    donated: Mapping[Buffer, Buffer]
    #: results with an allocation of their own
    written: Sequence[Buffer]
    #: temporaries that share one block
    rest: Sequence[Buffer]
    spans: Sequence[Span]
    #: the step at which most bytes of the block are in use
    peak: int
    temp_bytes: int
    #: of a body, the parameters that it copies to vector memory, by number, with the size and the time of each copy
    copies: Mapping[int, Span]
    #: of a body, the parameters of which it writes parts, by number, with the size and the time
    writes: Mapping[int, Span]
    #: those of ``temp_bytes`` that no value takes at the peak
    gap_bytes: int = 0
    #: what is in vector memory at its peak, where that is higher than the block's
    on_chip: Sequence[Buffer] | None = None

    @property
    def temporaries(self) -> Sequence[int]:
        """The sizes of the temporaries that are live at the peak, and the bytes lost to fragmentation."""
        sizes = [n for n, start, end in self.spans if start <= self.peak <= end]
        return [*sizes, self.temp_bytes - sum(sizes)] if self.temp_bytes > sum(sizes) else sizes

    def grown(self, more: Sequence[Span]) -> int:
        """The bytes by which the peak grows with more spans."""
        return highest([*self.spans, *more])[0] - highest(self.spans)[0] if more else 0

    @property
    def held(self) -> Sequence[Buffer]:
        """The buffers that are live at the peak."""
        in_block = (b for b in self.rest if b.start <= self.peak <= b.end)
        return [
            *(b for b in self.arguments if b is not None),
            *(b for b in self.written if b not in self.donated),
            *(in_block if self.on_chip is None else self.on_chip),
        ]


def planned(graph: Graph, scope: Scope) -> Plan:
    """The plan of a graph, which is changed in place."""
    prune(graph)
    if scope.compiler.moves_late:
        move_late(graph)
    scatter_in_place(graph)
    if scope.compiler.copies_transposed:
        reduce_first(graph)
    return Plan(with_own_results(graph) if scope.compiler.copies_transposed else graph, scope)


class Plan:
    """The kernels of a graph in the order in which they run, and the places of their values."""

    def __init__(self, graph: Graph, scope: Scope) -> None:
        self.graph, self.scope, self.compiler = graph, scope, scope.compiler
        self._regions: dict[Graph, Plan] = {}
        self._fuse()
        self.aliases = self._aliases()
        self._copy()
        self._until: Sequence[int] = ()
        self._together: Sequence[Sequence[Kernel]] = ()
        self.order = self._ordered()
        self.placed = self._place()

    # --- kernels --------------------------------------------------------------------------------------------
    def _fuse(self) -> None:
        by_node = kernels_of(self.graph, as_made=not self.compiler.depth_first)
        self.parameters = [by_node[p] for p in self.graph.parameters]
        self.results = [by_node[r] for r in self.graph.results]
        self._effects = [by_node[e] for e in self.graph.effects]
        kernels = list(by_node.values())
        kept = {*self.results, *self._effects}
        if self.compiler.by_bytes:
            fuse_by_bytes(kernels, kept, self.compiler)
        else:
            fuse_reductions(kernels, kept)
            left = fuse([k for k in kernels if k.users or k in kept or k.root.op == "parameter"], kept)
            copy_reshaped(left, kept)
        combine(self.results, self._effects, self.compiler)

    def _aliases(self) -> Mapping[int, int]:
        """The parameter whose memory each result is written to, by their numbers."""
        given = self.scope.aliases
        if self.compiler.copies_transposed and (len(self.results) > 1 or given is not None):
            copy_transposed(self.results, self.parameters if given else (), self.graph)
        return matched(self.results, self.parameters, self.scope.donated) if given is None else given

    def _copy(self) -> None:
        copy_results(self.results, self.parameters, self.aliases)
        given = {self.parameters[a] for a in self.aliases.values()}
        for kernel in self._post_order():
            if kernel.root.op == "while":
                if self.compiler.copies_transposed:
                    copy_turned(kernel)
                copy_carry(kernel)
            elif kernel.root.op in ("case", "if"):
                self._hand_through(kernel, given)
            else:
                copy_updated(kernel, self.results, given)
        waits = self.compiler.into_products
        self.copied = copy_donated(self.results, self.parameters, self.aliases, waits)

    def _post_order(self) -> list[Kernel]:
        return kernel_post_order([*self.parameters, *self.results, *self._effects])

    def _ordered(self) -> list[Kernel]:
        kernels = self._post_order()
        if not self.compiler.depth_first:
            return breadth_first(kernels, self.parameters, self.scope.inside)
        size = padded if self.compiler.tiles else None
        if self.compiler.into_products:
            kernels, self._together = run_together(kernels, {*self.results, *self._effects})
        orders = [kernels, freeing(kernels, {*self.results}, size)]
        if self.compiler.into_products:
            orders.append(largest_first(kernels, {*self.results}, size))
            units = (as_units(order, self._together) for order in orders)
            order, self._until = min(units, key=lambda found: self._highest(*found))
            return order
        kernels = min(orders, key=self._highest)
        order, copied = copied_at_once(kernels)
        self._together = [*copied, *written_together(kernels)]
        order, self._until = hide(order, self._together)
        return order

    def _highest(self, order: Sequence[Kernel], until: Sequence[int] = ()) -> int:
        """The most bytes that are live at a time."""
        buffers = liveness(order, self.results, self._inner, False, until, self._together).buffers
        if self.compiler.tiles:
            pad(buffers)
        return highest(joined(buffers)[0])[0]

    # --- bodies and branches --------------------------------------------------------------------------------
    def _hand_through(self, choice: Kernel, given: Collection[Kernel]) -> None:
        """Let results of a conditional alias its operands where no branch needs a copy for that."""
        over = handed_through(choice, self.results, given)
        copied = {-1}
        while over and copied:
            branch = replace(self.scope, donated=(), branch=True)
            plans = {b: planned(b, replace(branch, aliases=aliases(b, over))) for b in choice.root.regions}
            copied = {place for plan in plans.values() for place in plan.copied}
            over = {place: operand for place, operand in over.items() if place not in copied}
        if over:
            choice.root.attributes = {**choice.root.attributes, "over": over}
            self._regions.update(plans)

    def _region(self, region: Graph, loop: bool) -> Plan:
        """The plan of a body or a branch; results of the body of a loop alias its parameters."""
        plan = self._regions.get(region)
        if plan is None:
            carried = {i: i for i in range(len(region.results))} if loop else {}
            scope = Scope(self.compiler, aliases=carried, depth=self.scope.depth + loop)
            plan = self._regions[region] = planned(region, scope)
        return plan

    def _inner(self, region: Graph, loop: bool) -> Sequence[int]:
        return self._region(region, loop).placed.temporaries

    # --- places ---------------------------------------------------------------------------------------------
    def _place(self) -> Placed:
        live = liveness(self.order, self.results, self._inner, self.compiler.tupled, self._until, self._together)
        if self.compiler.tiles:
            pad(live.buffers)
        live.buffers += workspaces(self.order, self.compiler)
        arguments = [live.of[p][0] for p in self.parameters]
        results = [live.of[r][0] for r in self.results]
        donated = {
            result: argument
            for r, a in self.aliases.items()
            if (result := results[r]) is not None and (argument := arguments[a]) is not None
        }
        if self.scope.branch:  # operands of a conditional are live as long as it runs
            for argument in donated.values():
                argument.end = len(self.order)
        kept = [r for r in results if r is not None and r.kind == "result"]
        vector = VectorMemory(live, self.order, self.compiler, self.scope.depth) if self.compiler.on_chip else None
        if vector is None:
            found = self._packed(arguments, donated, *place(live, kept, donated))
            counts = self.compiler.trims_loops and not self.scope.inside
            arrays = (k.root for k in self._constants() if not k.root.is_splat()) if counts else ()
            return replace(found, temp_bytes=found.temp_bytes + sum(node.avals[0].nbytes for node in arrays))
        if self.scope.inside:
            return self._in_body(vector, arguments, donated, *place(live, kept, donated))
        vector.shorten()
        found = self._packed(arguments, donated, *place(live, kept, donated, vector.only_here))
        most, there = vector.highest(self._inside_loops(vector, live))
        if most > found.temp_bytes:
            found = replace(found, temp_bytes=most, on_chip=there)
        different = {k.root.attributes.get("digest", k.root): constant_bytes(k) for k in self._constants()}
        return replace(found, temp_bytes=found.temp_bytes + sum(different.values()))

    def _constants(self) -> Iterator[Kernel]:
        """The arrays of constants, those in bodies first."""
        for plan in self._regions.values():
            yield from plan._constants()
        yield from (kernel for kernel in self.order if kernel.root.op == "constant" and kernel.root.shape)

    def _packed(
        self,
        arguments: Sequence[Buffer | None],
        donated: Mapping[Buffer, Buffer],
        written: Sequence[Buffer],
        rest: Sequence[Buffer],
    ) -> Placed:
        """Temporaries share one block."""
        spans, moments = joined(rest)
        live, peak = highest(spans)
        counts_live = self.compiler.counts_live
        size = live if counts_live and self.scope.inside else packed(moments)  # a body's values share the whole block
        gap = size - live if counts_live else 0
        return Placed(arguments, donated, written, rest, spans, peak, size, {}, {}, gap)

    def _in_body(
        self,
        vector: VectorMemory,
        arguments: Sequence[Buffer | None],
        donated: Mapping[Buffer, Buffer],
        written: Sequence[Buffer],
        rest: Sequence[Buffer],
    ) -> Placed:
        """The places of a body on a TPU, and the copies that it makes.

        A body that fits into vector memory has a place there for each value, even if it is written over another one.
        What the loop carries has two places while it changes.
        """
        apart = [(b.nbytes, b.start, b.end) for b in rest]
        changed = [(b, old) for b, old in donated.items() if b is not old]
        apart += [(b.nbytes, b.start, b.start) for b, _ in changed if b.kernel.root.op not in UPDATES]
        apart += [(n, at, at) for at, n in self._inside_loops(vector, vector.live).items()]
        copied = list(vector.copies())
        apart += [(b.nbytes, first, last) for b, first, last in copied if b.kind == "constant"]
        found = self._packed(arguments, donated, written, rest)
        if highest(apart)[0] < self.compiler.on_chip:
            found = replace(found, spans=apart, peak=highest(apart)[1], temp_bytes=packed(apart))
        when = {kernel: step for step, kernel in enumerate(self.order)} | written_at_once(self.order)
        writes = {
            arguments.index(old): (b.nbytes, when[b.kernel], when[b.kernel])
            for b, old in changed
            if b.kernel.root.op in UPDATES
        }
        copies = dict[int, Span]()
        read = whole_readers(self.graph)
        for buffer, first, last in (copy for copy in copied if copy[0].kind == "argument"):
            number = arguments.index(buffer)
            if self.graph.parameters[number] in read:
                copies[number] = (buffer.nbytes, first, last)
        return replace(found, copies=copies, writes=writes)

    def _inside_loops(self, vector: VectorMemory, live: Liveness) -> dict[int, int]:
        """The bytes that loops take in vector memory besides their carry and temporaries, by the step of the loop.

        Their bodies copy values there that are in main memory. Of values that are there, they write parts; then these
        count twice.
        """
        inside = {}
        for step, kernel in enumerate(self.order):
            if kernel.root.op != "while":
                continue
            body = self._region(kernel.root.regions[1], loop=True).placed
            held = {i for i, k in enumerate(kernel.operands) if (b := live.of[k][0]) is None or vector.holds(b, step)}
            more = [span for i, span in body.copies.items() if i not in held]
            more += [span for i, span in body.writes.items() if i in held]
            inside[step] = body.grown(more)
        return inside
