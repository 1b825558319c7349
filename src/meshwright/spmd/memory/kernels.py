"""Kernels: groups of fused operations that write one buffer per result."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
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


class Users:
    """The users of a value in an order; ``swaps``: as in XLA, the last one takes the place of one that is removed."""

    __slots__ = ("_at", "_order", "swaps")

    def __init__(self, swaps: bool = False) -> None:
        self.swaps = swaps
        self._order: list[Kernel | None] = []
        self._at: dict[Kernel, int] = {}

    def add(self, user: Kernel) -> None:
        """Add a user at the end, if it is new."""
        if user not in self._at:
            self._at[user] = len(self._order)
            self._order.append(user)

    def remove(self, user: Kernel) -> None:
        """Remove a user, if it is one."""
        at = self._at.pop(user, None)
        if at is None:
            return
        last = self._order.pop() if self.swaps else None
        if last is not user:
            self._order[at] = last
            if last is not None:
                self._at[last] = at

    def as_made(self) -> None:
        """Put the users in the order in which they were made; products whose sides were exchanged were made last."""
        order = sorted(self, key=lambda user: ("transposed" in user.root.attributes, user.root.made))
        self._order, self._at = [*order], {user: at for at, user in enumerate(order)}

    def __iter__(self) -> Iterator[Kernel]:
        return (user for user in self._order if user is not None)

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, user: object) -> bool:
        return user in self._at


@dataclass(eq=False, slots=True)
class Kernel:
    """A kernel: its root node, whose results it writes, all fused nodes, and the kernels whose results it reads."""

    root: Node
    members: dict[Node, None]
    inputs: dict[Kernel, Use]
    users: Users = field(default_factory=Users)
    #: a library call (matrix products, reductions), with which nothing more is fused
    library: bool = False
    #: it keeps rows on the chip (:mod:`meshwright.spmd.memory.normalizations`)
    rows: bool = False
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
        new.users.add(self)
        old.users.remove(self)

    def absorb(self, producer: Kernel, kept: bool = False) -> None:
        """Fuse ``producer`` into this kernel; ``kept``: it is also a result, so it remains a kernel."""
        how = self.inputs.pop(producer)
        self.members.update(producer.members)
        for kernel, use in producer.inputs.items():
            through = use.and_then(how)
            known = self.inputs.get(kernel)
            self.inputs[kernel] = through if known is None else known.beside(through)
            kernel.users.add(self)
        producer.users.remove(self)
        if not producer.users and not kept:
            for kernel in producer.inputs:
                kernel.users.remove(producer)


def kernels_of(graph: Graph, as_made: bool = False) -> dict[Node, Kernel]:
    """One kernel per node, in post-order.

    ``as_made``: the users of a value are in the order in which they were made. What compilers insert, once for each
    user, has them in post-order: they find there that it is equal.
    """
    kernels: dict[Node, Kernel] = {}
    for number, node in enumerate(graph.post_order()):
        node.number = number
        inputs: dict[Kernel, Use] = {}
        kernel = kernels[node] = Kernel(node, {node: None}, inputs, Users(as_made), number=number)
        kernel.operands = [kernels[x] for x in node.operands]
        for i, source in enumerate(kernel.operands):
            use = use_of(node, i)
            inputs[source] = inputs[source].beside(use) if source in inputs else use
            source.users.add(kernel)
    for kernel in kernels.values() if as_made else ():
        if len(kernel.users) > 1 and not kernel.root.inserted:
            kernel.users.as_made()
    return kernels


def copy_of(kernel: Kernel) -> Kernel:
    """A copy of what a kernel computes, in memory of its own."""
    node = Node("copy", (kernel.root,), kernel.root.avals, {}, kernel.root.source)
    users = Users(kernel.users.swaps)
    copy = Kernel(node, {node: None}, {kernel: Use.INPLACE}, users, number=kernel.number, operands=[kernel])
    kernel.users.add(copy)
    return copy


def alive(kernels: Sequence[Kernel], kept: set[Kernel]) -> list[Kernel]:
    """The kernels that have users or are in ``kept``, in the same order."""
    return [k for k in kernels if k.users or k in kept]
