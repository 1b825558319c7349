"""Kernels that XLA makes one of although none of them is computed from another.

On GPUs, kernels that read the same value run as one if their loops have the same elements: those that they sum up, or
those of their results. Source: XLA's ``MultiOutputFusion`` for GPUs. On TPUs, those that cut parts from one array do.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import attrgetter

from meshwright.spmd.memory.ancestors import Ancestors
from meshwright.spmd.memory.graph import Node
from meshwright.spmd.memory.kernels import Kernel


def written_together(kernels: Sequence[Kernel]) -> list[list[Kernel]]:
    """The groups of kernels, in post-order, that run as one.

    Reductions come last in their group: what they read is not written over by the others.
    """
    number = {kernel: i for i, kernel in enumerate(kernels)}
    loops = {kernel: loop for kernel in kernels if (loop := _loop(kernel)) is not None}
    ancestors = Ancestors(kernels, attrgetter("inputs"), loops)
    groups: dict[Kernel, list[Kernel]] = {}
    for parent in reversed(kernels):
        if parent.root.op == "constant" or len(parent.users) < 2:
            continue
        heads: dict[Hashable, list[list[Kernel]]] = {}
        for user in sorted((u for u in parent.users if u in loops), key=number.__getitem__):
            group = groups.get(user, [user])
            same = heads.setdefault(loops[user][0], [])
            if group in same:
                continue
            for other in same:
                if _fit(group, other, loops) and ancestors.apart(group, other):
                    whole = sorted((*group, *other), key=number.__getitem__)
                    groups.update(dict.fromkeys(whole, whole))
                    ancestors.join(whole)
                    break
            else:
                same.append(group)
    firsts = [group for kernel, group in groups.items() if kernel is group[0]]
    return [sorted(group, key=lambda kernel: kernel.root.op == "reduce") for group in firsts]


def cut_together(kernels: Sequence[Kernel]) -> list[list[Kernel]]:
    """The groups of kernels that cut parts of one shape from one array, which run as one on TPUs."""
    groups: dict[Hashable, list[Kernel]] = {}
    for kernel in kernels:
        ops = {node.op for node in kernel.members}
        if len(kernel.inputs) == 1 and "slice" in ops and ops <= {"slice", "reshape", "convert"}:
            groups.setdefault((*kernel.inputs, kernel.root.shape), []).append(kernel)
    return [group for group in groups.values() if len(group) > 1]


def _loop(kernel: Kernel) -> tuple[Hashable, Node | None] | None:
    """The elements of a kernel's loop, and its reduction; ``None`` if it does not run with others."""
    root = kernel.root
    if kernel.library or kernel.view or len(root.avals) != 1:
        return None
    if root.op == "reduce":
        return root.operands[0].shape, root
    return (root.shape, None) if root.elementwise and root.op != "copy" else None


def _fit(group: Sequence[Kernel], other: Sequence[Kernel], loops: dict[Kernel, tuple[Hashable, Node | None]]) -> bool:
    """Whether the reductions of two groups are over the same dimensions."""
    sums = [node for kernel in (*group, *other) if (node := loops[kernel][1]) is not None]
    return len({tuple(node.attributes["dimensions"]) for node in sums}) <= 1
