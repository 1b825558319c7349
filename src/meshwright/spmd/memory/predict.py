"""The prediction: a program's graph, fused, scheduled and given buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.source import UNKNOWN, SourceLocation
from meshwright.ir.jaxpr import ClosedJaxpr, Var
from meshwright.ir.names import called
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.memory.buffers import Buffer, highest, joined, liveness, overwrites, packed, place, updated
from meshwright.spmd.memory.combine import combine
from meshwright.spmd.memory.compilers import CPU, Compiler
from meshwright.spmd.memory.fusion import depends, fuse
from meshwright.spmd.memory.graph import Graph, Node
from meshwright.spmd.memory.halves import halve
from meshwright.spmd.memory.kernels import Kernel, Use, kernels_of
from meshwright.spmd.memory.library import fuse_reductions
from meshwright.spmd.memory.on_chip import VectorMemory
from meshwright.spmd.memory.priority import fuse_by_bytes
from meshwright.spmd.memory.prune import prune
from meshwright.spmd.memory.record import record
from meshwright.spmd.memory.schedule import breadth_first, freeing, kernel_post_order
from meshwright.spmd.memory.simplify import scatter_in_place
from meshwright.spmd.report import human_bytes

#: kernels between a donated argument's last use and its result that are looked at
_HORIZON = 4000
#: bytes of a result's address, in the table of several
_ADDRESS = 8
#: buffers that a report lists
_SHOWN = 12


@dataclass(frozen=True)
class LiveBuffer:
    """A buffer that is alive at the peak: ``kind`` is ``argument``, ``result`` or ``temporary``, ``what`` the op.

    Where it is a part of a value of the program before it was partitioned, ``whole`` is that value's type and
    ``sharding`` its layout on the mesh, in words: ``[{x}, {}]``.
    """

    nbytes: int
    kind: str
    what: str
    aval: ShapedArray
    source: SourceLocation
    whole: ShapedArray | None = None
    sharding: str = ""

    def __str__(self) -> str:
        where = "" if self.source is UNKNOWN else f"  at {self.source}"
        of = "" if self.whole is None else f" of {self.whole} as {self.sharding}"
        return f"{human_bytes(self.nbytes):>10}  {self.kind:<9}  {self.aval}{of} {self.what}{where}"


@dataclass(frozen=True)
class Memory:
    """What one device holds in one run, in bytes; ``alias_bytes`` are arguments' memory that results take over."""

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    #: alive at the peak, largest first
    buffers: tuple[LiveBuffer, ...]
    #: of arguments, results and what is kept between, in the host's memory
    host_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        return self.argument_bytes + self.output_bytes + self.temp_bytes - self.alias_bytes

    def __repr__(self) -> str:
        return f"Memory({str(self).partition(chr(10))[0]})"

    def __str__(self) -> str:
        show = human_bytes
        taken = f" ({show(self.alias_bytes)} of them in donated arguments)" if self.alias_bytes else ""
        lines = [
            f"a device holds at most {show(self.peak_bytes)}: arguments {show(self.argument_bytes)}, results "
            f"{show(self.output_bytes)}{taken}, temporaries {show(self.temp_bytes)}"
        ]
        if self.host_bytes:
            lines.append(f"{show(self.host_bytes)} of that are in the host's memory")
        lines += map(str, self.buffers[:_SHOWN])
        if len(self.buffers) > _SHOWN:
            rest = sum(b.nbytes for b in self.buffers[_SHOWN:])
            lines.append(f"{show(rest):>10}  in {len(self.buffers) - _SHOWN} smaller buffers")
        return "\n".join(lines)


def predict(
    jaxpr: ClosedJaxpr,
    mesh: AbstractMesh,
    donated: Sequence[int] = (),
    stands_for: Mapping[Var, tuple[Var, Layout]] | None = None,
    names: Sequence[str] = (),
    compiler: Compiler = CPU,
) -> Memory:
    """The memory of a per-device program; ``donated`` are argument numbers, ``names`` the arguments' names.

    ``stands_for`` says of which values of the unpartitioned program, in which layouts, its values are parts.
    """
    known = {v: (whole.aval, layout.format(mesh)) for v, (whole, layout) in (stands_for or {}).items()}
    memory = _Plan(record(jaxpr, mesh, compiler), donated, known=known, names=names, compiler=compiler).memory
    return replace(memory, host_bytes=_in_host_memory(jaxpr))


def _in_host_memory(jaxpr: ClosedJaxpr) -> int:
    """The bytes of what types say is in the host's memory: arguments, results, and what is put there between."""
    put = (v for e in jaxpr.eqns if not any(a.aval.memory for a in e.invars) for v in e.outvars)
    values = dict.fromkeys((*jaxpr.jaxpr.invars, *jaxpr.jaxpr.outvars, *put))
    return sum(v.aval.nbytes for v in values if v.aval.memory)


class _Plan:
    """One program on its way through the steps."""

    def __init__(
        self,
        graph: Graph,
        donated: Sequence[int] = (),
        aliases: dict[int, int] | None = None,
        known: Mapping[Var, tuple[ShapedArray, str]] = MappingProxyType({}),
        names: Sequence[str] = (),
        compiler: Compiler = CPU,
    ) -> None:
        self.known, self.compiler = known, compiler
        self._regions: dict[Graph, Sequence[int]] = {}
        self.names = names
        prune(graph)
        scatter_in_place(graph)
        if compiler.into_products:
            halve(graph)
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
            self.results = [_copy(k) if _transposed(k) else k for k in self.results]
        self.aliases = _matched(self.results, self.parameters, donated) if aliases is None else aliases
        self.has_table = compiler.tables and aliases is None and len(self.results) > 1
        self._copy_results()
        roots = [*self.results, *effects]
        kernels = kernel_post_order([*self.parameters, *roots])
        for kernel in kernels:
            if kernel.root.op == "while":
                self._copy_carry(kernel)
            else:
                self._copy_updated(kernel)
        self._copy_donated()
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

    # --- copies ---------------------------------------------------------------------------------------------
    def _copy_results(self) -> None:
        """Results that are arguments, constants or results already are copied."""
        seen: set[Kernel] = set()
        for i, kernel in enumerate(self.results):
            buffer = kernel
            while buffer.view and buffer.root.op == "reshape":
                (buffer,) = buffer.inputs
            if buffer.root.op == "parameter" and self.aliases.get(i) == self.parameters.index(buffer):
                continue
            if buffer in seen or buffer.root.op in ("parameter", "constant"):
                self.results[i] = _copy(kernel)
            seen.add(buffer)

    def _copy_carry(self, loop: Kernel) -> None:
        """A loop works in its operands' memory: what it changes and others need is copied."""
        body = loop.root.regions[1]
        for i, (before, after) in enumerate(zip(body.parameters, body.results)):
            if before is after:
                continue
            source = owner = loop.operands[i]
            while owner.view and owner.inputs:
                (owner,) = owner.inputs
            shared = len(owner.users) > 1 or len(source.users) > 1 or source in loop.operands[:i]
            if owner.root.op in ("parameter", "constant") or shared:
                loop.operands[i] = _copy(source)
        _reread(loop)

    def _copy_updated(self, kernel: Kernel) -> None:
        """What an operation writes into and others need, perhaps later, is copied."""
        given = {self.parameters[a] for a in self.aliases.values()}
        for source in updated(kernel):
            owner = source
            chain = {kernel}
            while owner.view and owner.inputs:
                chain.add(owner)
                (owner,) = owner.inputs
            users = {*owner.users, *source.users} - chain
            if owner in given:
                continue
            shared = source in self.results or not all(depends(kernel, user, _HORIZON) for user in users)
            if owner.root.op in ("parameter", "constant") or shared:
                copy = _copy(source)
                kernel.read(copy, source)

    def _copy_donated(self) -> None:
        """A donated argument that is still read while its memory is written is copied first."""
        for result, argument in self.aliases.items():
            writer, parameter = self.results[result], self.parameters[argument]
            while writer.view:
                (writer,) = writer.inputs
            if writer is parameter:
                continue
            ours = parameter not in writer.inputs or overwrites(writer, parameter)
            if ours and all(user is writer or depends(writer, user, _HORIZON) for user in parameter.users):
                continue
            copy = _copy(parameter)
            for user in list(parameter.users):
                if user is not copy:
                    user.read(copy, parameter)

    def _inner(self, region: Graph, loop: bool) -> Sequence[int]:
        """What a region needs besides its operands and results; a loop's results go where its parameters are."""
        sizes = self._regions.get(region)
        if sizes is None:
            carried = {i: i for i in range(len(region.results))} if loop else {}
            inside = replace(self.compiler, on_chip=0)
            sizes = self._regions[region] = _Plan(region, aliases=carried, compiler=inside).temporaries
        return sizes

    # --- figures --------------------------------------------------------------------------------------------
    @cached_property
    def memory(self) -> Memory:
        """Bytes, and what is alive at the peak."""
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
        """The temporaries at the peak, in bytes, and what is lost between them."""
        sizes = [n for n, start, end in self._spans if start <= self._peak <= end]
        return [*sizes, self._temp_bytes - sum(sizes)] if self._temp_bytes > sum(sizes) else sizes

    def _place(self) -> None:
        live = liveness(self.order, self.results, self._inner)
        self._arguments = [live.of[p][0] for p in self.parameters]
        results = [live.of[r][0] for r in self.results]
        self._donated = {
            result: argument
            for r, a in self.aliases.items()
            if (result := results[r]) is not None and (argument := self._arguments[a]) is not None
        }
        kept = [r for r in results if r is not None and r.kind == "result"]
        near = VectorMemory(live, self.order, self.compiler) if self.compiler.on_chip else None
        if near:
            near.shorten()
        self._written, self._rest = place(live, kept, self._donated, near.only_here if near else ())
        self._spans, moments = joined(self._rest)
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


def _reread(kernel: Kernel) -> None:
    """After operands have changed."""
    for source in kernel.inputs:
        del source.users[kernel]
    kernel.inputs = dict.fromkeys(kernel.operands, Use.REUSED)
    for source in kernel.inputs:
        source.users[kernel] = None


def _transposed(kernel: Kernel) -> bool:
    """Written in another order than results have, where something is computed on the way."""
    root = kernel.root
    while root.elementwise and len(root.operands) == 1 and root.operands[0] in kernel.members:
        (root,) = root.operands
    return root.op == "transpose" and any(not node.view and node.op != "transpose" for node in kernel.members)


def _copy(kernel: Kernel) -> Kernel:
    node = Node("copy", (kernel.root,), kernel.root.avals, {}, kernel.root.source)
    copy = Kernel(node, {node: None}, {kernel: Use.INPLACE}, number=kernel.number, operands=[kernel])
    kernel.users[copy] = None
    return copy


def _matched(results: Sequence[Kernel], parameters: Sequence[Kernel], donated: Sequence[int]) -> dict[int, int]:
    """Result to donated argument: the first free one of the same size."""
    free = list(donated)
    aliases = {}
    for i, result in enumerate(results):
        size = result.root.avals[0].nbytes
        match = next((a for a in free if parameters[a].root.avals[0].nbytes == size), None)
        if match is not None:
            free.remove(match)
            aliases[i] = match
    return aliases
