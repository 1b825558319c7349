"""Kernels that XLA makes one of although none of them is computed from another, or although others read it too.

Kernels that read the same value run as one if their loops have the same elements: those that they sum up, or those of
their results. Source: XLA's ``MultiOutputFusion``. On TPUs this value is an array, the sums may be over different
dimensions, and what one kernel reads of another element by element does not part them. There, kernels that cut parts of
one shape from one array run as one, too. Derived from programs that libtpu 0.0.42 compiled, where next to no two such
kernels are apart.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from meshwright.spmd.memory.ancestors import Ancestors
from meshwright.spmd.memory.graph import Node
from meshwright.spmd.memory.kernel_times import in_tiles, turns
from meshwright.spmd.memory.kernels import Kernel, Use
from meshwright.spmd.memory.priority import is_product

#: operations of kernels that run alone: they only move elements, find them by number, or write a part of an array
_ALONE = ("copy", "dynamic_update_slice", "gather", "reshape")


def run_together(kernels: Sequence[Kernel], kept: Collection[Kernel]) -> tuple[list[Kernel], list[list[Kernel]]]:
    """The kernels of a TPU, in post-order, and the groups of them that run as one.

    What only its own group reads is computed there and not written, unless it is one of ``kept``.
    """
    cut = cut_together(kernels)
    groups = written_together(kernels, {kernel for group in cut for kernel in group}, on_tpus=True)
    gone = set[Kernel]()
    for group in groups:
        inside = set(group)
        for kernel in reversed([k for k in group if k.root.op != "reduce" and k not in kept]):
            if kernel.users and inside.issuperset(kernel.users) and not (kernel.after or kernel.before):
                for user in list(kernel.users):
                    user.absorb(kernel)
                gone.add(kernel)
    left = ([kernel for kernel in group if kernel not in gone] for group in groups)
    return [kernel for kernel in kernels if kernel not in gone], [*cut, *(group for group in left if len(group) > 1)]


def written_together(
    kernels: Sequence[Kernel], others: Collection[Kernel] = (), on_tpus: bool = False
) -> list[list[Kernel]]:
    """The groups of kernels, in post-order, that run as one, without ``others``.

    Reductions come last in their group: what they read is not written over by the others. On TPUs, what reads a product
    that the group does not share is not in the group, as it is computed along with the product.
    """
    number = {kernel: i for i, kernel in enumerate(kernels)}
    loops = {
        kernel: loop for kernel in kernels if kernel not in others and (loop := _loop(kernel, on_tpus)) is not None
    }
    ancestors = Ancestors(kernels, _before, loops)
    groups: dict[Kernel, list[Kernel]] = {}

    def fit(group: Sequence[Kernel], other: Sequence[Kernel]) -> bool:
        if on_tpus:
            return _runs_as_one((*group, *other), loops, ancestors)
        return _fit(group, other, loops) and ancestors.apart(group, other)

    def joined(group: Sequence[Kernel], other: Sequence[Kernel]) -> list[Kernel]:
        whole = sorted((*group, *other), key=number.__getitem__)
        groups.update(dict.fromkeys(whole, whole))
        ancestors.join(whole)
        return whole

    for parent in reversed(kernels):
        if parent.root.op == "constant" or len(parent.users) < 2 or (on_tpus and not _is_array(parent)):
            continue
        heads: dict[Hashable, list[list[Kernel]]] = {}
        users = (u for u in parent.users if u in loops and not (on_tpus and _reads_product(u, parent)))
        for user in sorted(users, key=number.__getitem__):
            group = groups.get(user, [user])
            same = heads.setdefault(loops[user][0], [])
            if group in same:
                continue
            for i, other in enumerate(same):
                if fit(group, other):
                    same[i] = joined(group, other)
                    break
            else:
                same.append(group)
        if on_tpus and parent in loops:
            for other in heads.get(loops[parent][0], ()):
                group = groups.get(parent, [parent])
                if group is not other and fit(group, other):
                    joined(group, other)
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


def _before(kernel: Kernel) -> list[Kernel]:
    """What runs before a kernel."""
    return [*kernel.inputs, *kernel.after]


def _is_array(kernel: Kernel) -> bool:
    """Whether a kernel has one result, of several elements."""
    return len(kernel.root.avals) == 1 and kernel.root.avals[0].size > 1


def _runs_as_one(
    whole: Sequence[Kernel], loops: dict[Kernel, tuple[Hashable, Node | None]], ancestors: Ancestors[Kernel]
) -> bool:
    """Whether kernels can run as one loop: each reads others of them in their place, and nothing else waits for any."""
    inside = set(whole)
    for kernel in whole:
        for source, use in kernel.inputs.items():
            if source in inside and (use is not Use.INPLACE or loops[source][1] is not None):
                return False
        if any(ancestors.follows(source, whole) for source in _before(kernel) if source not in inside):
            return False
    return True


def _reads_product(kernel: Kernel, parent: Kernel) -> bool:
    """Whether a kernel reads a product other than ``parent``."""
    sources = [source for source in kernel.inputs if source is not parent]
    for i, source in enumerate(sources):
        while source.view and source.inputs:
            (source,) = source.inputs
        sources[i] = source
    return any(map(is_product, sources))


def _loop(kernel: Kernel, on_tpus: bool) -> tuple[Hashable, Node | None] | None:
    """The elements of a kernel's loop, and its reduction; ``None`` if it does not run with others.

    GPUs count elements; what dimensions they have does not matter, but in transposes by tiles.
    """
    root = kernel.root
    while not on_tpus and root.op == "reshape" and root.operands[0] in kernel.members:
        (root,) = root.operands  # on GPUs, what a kernel writes is only then said to have other dimensions
    if kernel.view or not kernel.loop or len(root.avals) != 1 or root.op in _ALONE:
        return None
    if root.op == "reduce":
        return _elements(root.operands[0], on_tpus), root
    if not on_tpus:
        tiled = [node for node in kernel.members if turns(node) and in_tiles(node)]
        if tiled:
            return (root.shape, tuple(tiled[0].attributes["permutation"])), None
    return _elements(root, on_tpus), None


def _elements(node: Node, on_tpus: bool) -> Hashable:
    return node.shape if on_tpus else node.avals[0].size


def _fit(group: Sequence[Kernel], other: Sequence[Kernel], loops: dict[Kernel, tuple[Hashable, Node | None]]) -> bool:
    """Whether the reductions of two groups are over the same dimensions."""
    sums = [node for kernel in (*group, *other) if (node := loops[kernel][1]) is not None]
    return len({tuple(node.attributes["dimensions"]) for node in sums}) <= 1
