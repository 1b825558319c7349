"""Schedules: the order in which kernels run.

Breadth first, for XLA's CPU runtime, which runs independent kernels concurrently; depth first; or greedy, freeing
memory as early as possible. For accelerators, XLA uses the one of the last two that needs less memory.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Sequence

from meshwright.spmd.memory.graph import post_order
from meshwright.spmd.memory.kernels import Kernel


def kernel_post_order(roots: Sequence[Kernel]) -> list[Kernel]:
    """All kernels that ``roots`` depend on, in depth-first post-order, and renumbered."""
    order = post_order(roots, lambda kernel: [*kernel.inputs, *kernel.after])
    for number, kernel in enumerate(order):
        kernel.number = number
    return order


def breadth_first(kernels: Sequence[Kernel], parameters: Sequence[Kernel]) -> list[Kernel]:
    """Kernels in the order in which they become ready; parameters first."""
    waiting = {k: len(k.inputs) for k in kernels}
    given = set(parameters)
    ready = deque([*parameters, *(k for k in kernels if not k.inputs and k not in given)])
    order = []
    while ready:
        kernel = ready.popleft()
        order.append(kernel)
        for user in sorted((u for u in kernel.users if u in waiting), key=lambda u: u.number):
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    return order


def copied_at_once(kernels: Sequence[Kernel]) -> tuple[list[Kernel], list[list[Kernel]]]:
    """The same order, but each kernel that computes element by element also writes the copies of its result.

    Also returns the kernels that do so, each with the copies. Source: XLA's ``CopyFusion``.
    """
    early = {k for k in kernels if k.root.op == "copy" and all(source.loop for source in k.inputs)}
    order, groups = list[Kernel](), list[list[Kernel]]()
    for kernel in kernels:
        if kernel not in early:
            group = [kernel, *sorted((k for k in kernel.users if k in early), key=lambda k: k.number)]
            order += group
            groups += [group] * (len(group) > 1)
    return order, groups


def freeing(kernels: Sequence[Kernel], kept: set[Kernel], size: Callable[[Kernel], int] | None = None) -> list[Kernel]:
    """List scheduling: of the ready kernels, run the one that frees most bytes net of those that it writes.

    Ties are broken by the order of ``kernels``, which is depth first; ``kept`` are results. Based on XLA's
    ``ListScheduler``. ``size`` gives the bytes of a kernel's results, with padding if they have any.
    """
    sizes = {k: (size or _bytes)(k) for k in kernels}
    owner: dict[Kernel, Kernel] = {}
    for kernel in kernels:
        owner[kernel] = owner[next(iter(kernel.inputs))] if kernel.view else kernel
    reads = {k: {owner[s] for s in k.inputs} for k in kernels if not k.view}
    readers: dict[Kernel, list[Kernel]] = {}
    for kernel, sources in reads.items():
        for source in sources:
            readers.setdefault(source, []).append(kernel)
    left = Counter({source: len(users) for source, users in readers.items()})
    left.update(owner[k] for k in kept)
    waiting = {k: len(k.inputs) + len(k.after) for k in kernels}

    def gain(kernel: Kernel) -> int:
        freed = sum(sizes[s] for s in reads.get(kernel, ()) if left[s] == 1 and s.root.op != "parameter")
        return freed - (0 if kernel.view else sizes[kernel])

    ready = [(-gain(k), k.number, k) for k in kernels if not waiting[k]]
    heapq.heapify(ready)
    order: dict[Kernel, None] = {}
    while ready:
        negative, _, kernel = heapq.heappop(ready)
        if kernel in order:
            continue
        if gain(kernel) < -negative:
            heapq.heappush(ready, (-gain(kernel), kernel.number, kernel))
            continue
        order[kernel] = None
        changed = []
        for source in reads.get(kernel, ()):
            left[source] -= 1
            if left[source] == 1:
                changed += [k for k in readers[source] if k not in order and not waiting[k]]
        for user in (*kernel.users, *kernel.before):
            if user in waiting:
                waiting[user] -= 1
                if not waiting[user]:
                    changed.append(user)
        for other in changed:
            heapq.heappush(ready, (-gain(other), other.number, other))
    return list(order)


def _bytes(kernel: Kernel) -> int:
    return sum(aval.nbytes for aval in kernel.root.avals)
