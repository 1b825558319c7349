"""Kernels: groups of fused operations that write one buffer per result."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.spmd.memory.graph import Graph, Node


class Use(enum.IntEnum):
    """How operand elements are used: each at its own index, each at another index, or each several times."""

    INPLACE = 0
    MOVED = 1
    REUSED = 2

    def and_then(self, outer: Use) -> Use:
        """The combined use of a value that is used so by a value that is itself used as ``outer``."""
        return max(self, outer)

    def beside(self, other: Use) -> Use:
        """The combination of two uses of one operand; uses in different orders are reuse."""
        return Use.INPLACE if self is other is Use.INPLACE else Use.REUSED


def use_of(node: Node, i: int) -> Use:
    """How a node uses its operand ``i`` (XLA's ``HloInstruction::OperandElementUse``)."""
    match node.op:
        case "reshape" | "concatenate" | "slice" | "transpose" | "reverse" | "gather" | "reorder" | "sort":
            return Use.MOVED
        case "pad" | "scatter":
            return Use.MOVED if i == 0 else Use.REUSED
        case "reduce":
            return Use.MOVED if 2 * i < len(node.operands) else Use.REUSED
        case "dynamic_update_slice":
            return Use.MOVED if i < 2 else Use.REUSED
    if node.elementwise and (node.operands[i].shape or not node.shape):
        return Use.INPLACE
    return Use.REUSED


@dataclass(eq=False, slots=True)
class Kernel:
    """A kernel: its root node, whose results it writes, all fused nodes, and the kernels whose results it reads."""

    root: Node
    members: dict[Node, None]
    inputs: dict[Kernel, Use]
    users: dict[Kernel, None] = field(default_factory=dict)
    #: a library call (matrix products, reductions), with which nothing more is fused
    library: bool = False
    number: int = 0
    #: the kernels of the root's operands, in order
    operands: list[Kernel] = field(default_factory=list)
    #: kernels that run before it, as they read what it writes over; and those that it runs before
    after: dict[Kernel, None] = field(default_factory=dict)
    before: dict[Kernel, None] = field(default_factory=dict)
    #: the fusion profile, cached with the number of members it was computed for
    profiled: tuple[int, Any] | None = None
    #: what fusing this kernel into each user gains, cached with the numbers of members of both
    gains: dict[Kernel, tuple[tuple[int, int], float | None]] = field(default_factory=dict)

    @property
    def view(self) -> bool:
        """Whether the kernel computes nothing: its result is the operand's buffer."""
        return self.root.view and len(self.members) == 1

    @property
    def loop(self) -> bool:
        return self.root.fusible and not self.library

    def read(self, new: Kernel, old: Kernel) -> None:
        """Read ``new`` wherever ``old`` was read."""
        self.inputs = {new if k is old else k: use for k, use in self.inputs.items()}
        self.operands = [new if k is old else k for k in self.operands]
        new.users[self] = None
        old.users.pop(self, None)

    def absorb(self, producer: Kernel, kept: bool = False) -> None:
        """Fuse ``producer`` into this kernel; ``kept``: it is also a result, so it remains a kernel."""
        how = self.inputs.pop(producer)
        self.members.update(producer.members)
        for kernel, use in producer.inputs.items():
            through = use.and_then(how)
            known = self.inputs.get(kernel)
            self.inputs[kernel] = through if known is None else known.beside(through)
            kernel.users[self] = None
        del producer.users[self]
        if not producer.users and not kept:
            for kernel in producer.inputs:
                kernel.users.pop(producer, None)


def kernels_of(graph: Graph) -> dict[Node, Kernel]:
    """One kernel per node, in post-order."""
    kernels: dict[Node, Kernel] = {}
    for number, node in enumerate(graph.post_order()):
        node.number = number
        inputs: dict[Kernel, Use] = {}
        kernel = kernels[node] = Kernel(node, {node: None}, inputs, number=number)
        kernel.operands = [kernels[x] for x in node.operands]
        for i, source in enumerate(kernel.operands):
            use = use_of(node, i)
            inputs[source] = inputs[source].beside(use) if source in inputs else use
            source.users[kernel] = None
    return kernels


def copy_of(kernel: Kernel) -> Kernel:
    """A copy of what a kernel computes, in memory of its own."""
    node = Node("copy", (kernel.root,), kernel.root.avals, {}, kernel.root.source)
    copy = Kernel(node, {node: None}, {kernel: Use.INPLACE}, number=kernel.number, operands=[kernel])
    kernel.users[copy] = None
    return copy


def alive(kernels: Sequence[Kernel], kept: set[Kernel]) -> list[Kernel]:
    """The kernels that have users or are in ``kept``, in the same order."""
    return [k for k in kernels if k.users or k in kept]
