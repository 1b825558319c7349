"""Normalizations of rows, which GPUs compute in one kernel that keeps a row on the chip: softmax, layer norm, RMS norm.

A row is combined with a sum over it, so it is read twice: in the sum and in its place. What leads from the row to the
sum, to its place and on from there, one value in and one out, is a part of the kernel. Source: XLA's
``SoftmaxRewriterTriton``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from meshwright.spmd.memory.graph import Node
from meshwright.spmd.memory.kernels import Kernel

#: elements of the longest rows that a kernel keeps on the chip
_ROW = 16_384
#: what else a kernel computes that keeps rows
_SPREADS = ("broadcast_in_dim", "iota")


def hold_rows(kernels: Sequence[Kernel], kept: Collection[Kernel]) -> list[Kernel]:
    """Make each normalization one kernel; returns the kernels that are left, in the same order."""
    inside: dict[Kernel, None] = {}
    for kernel in kernels:
        if kernel not in inside and (found := _normalization(kernel, kept)):
            _join(kernel, found)
            inside.update(found)
            end = kernel
            while end not in kept and len(end.users) == 1 and _leads(user := next(iter(end.users))):
                _absorb(user, end)
                inside[end] = None
                end = user
    return [k for k in kernels if k not in inside]


def joins_rows(user: Kernel, producer: Kernel) -> bool:
    """Whether what one kernel computes is computed in another one, where at least one of them keeps rows."""
    if producer.root.is_splat():
        return user.loop
    if len(producer.users) != 1 and any(not x.root.is_splat() for x in producer.inputs):
        return False
    other, rows = (producer, user) if user.rows else (user, producer)
    if any(
        not (node.elementwise or node.op in _SPREADS) or node.shape not in ((), rows.root.shape)
        for node in other.members
    ):
        return False
    return other.loop


def _normalization(kernel: Kernel, kept: Collection[Kernel]) -> dict[Kernel, None]:
    """The kernels that are computed with the last one of a normalization; empty if it is none."""
    if len(kernel.operands) != 2 or not kernel.root.elementwise or not _floats(kernel.root):
        return {}
    row, other = kernel.operands
    found: dict[Kernel, None] = {}

    def back(k: Kernel, end: str = "", summed: bool = False) -> Kernel:
        """The first value, from the last one on, that does not follow from one other value alone."""
        while k.root.op != end and _leads(k, summed) and _once(k, kept):
            found[k] = None
            k = _source(k)
        return k

    spread = back(other, "broadcast_in_dim")
    last = len(kernel.root.shape) - 1
    if (
        spread.root.op != "broadcast_in_dim"
        or not _once(spread, kept)
        or last in spread.root.attributes["broadcast_dimensions"]
    ):
        return {}
    total = back(spread.operands[0], "reduce", summed=True)
    if not _sums_rows(total.root) or not _once(total, kept):
        return {}
    found.update(dict.fromkeys((spread, total)))
    given = back(total.operands[0])
    while row is not given and _leads(row) and _once(row, kept):
        found[row] = None
        row = _source(row)
    if row is not given:
        return {}
    # what only the two paths read is computed with them, also another normalization of these rows
    if len(given.users) == 2 and given not in kept:
        if _leads(given):
            found[given] = None
            given = back(_source(given))
            if given.rows and _once(given, kept):
                found[given] = None
        elif given.rows:
            found[given] = None
    return found


def _once(kernel: Kernel, kept: Collection[Kernel]) -> bool:
    return len(kernel.users) == 1 and kernel not in kept


def _leads(kernel: Kernel, summed: bool = False) -> bool:
    """Whether a value follows, element by element, from one other value; ``summed``: these are no rows, but sums."""
    node = kernel.root
    if kernel.rows or not _floats(node):
        return False
    if node.op == "reshape":
        (x,) = node.operands
        return summed or x.shape[-1:] == node.shape[-1:]
    return node.elementwise and len(list(_arrays(node))) == 1


def _source(kernel: Kernel) -> Kernel:
    (x,) = _arrays(kernel.root)
    return next(k for k in kernel.operands if k.root is x)


def _arrays(node: Node) -> Iterable[Node]:
    """What an operation reads, each once, but for known numbers."""
    return dict.fromkeys(x for x in node.operands if not x.is_splat())


def _floats(node: Node) -> bool:
    return node.avals[0].dtype.kind in "fV"


def _sums_rows(node: Node) -> bool:
    if node.op != "reduce" or len(node.operands) != 2 or not _floats(node):
        return False
    shape = node.operands[0].shape
    return tuple(node.attributes["dimensions"]) == (len(shape) - 1,) and shape[-1] <= _ROW


def _join(kernel: Kernel, found: Collection[Kernel]) -> None:
    """Absorb all kernels of a normalization, users first."""
    for producer in sorted(found, key=lambda k: -k.number):
        _absorb(kernel, producer)


def _absorb(kernel: Kernel, producer: Kernel) -> None:
    kernel.absorb(producer)
    kernel.rows = True
