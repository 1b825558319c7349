"""Schedules: the order in which kernels run.

Breadth first, for XLA's CPU runtime, which runs independent kernels concurrently; depth first, as written or what takes
most first; or greedy, freeing memory as early as possible. For accelerators, XLA uses the one that needs least memory.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from meshwright.spmd.memory.graph import post_order
from meshwright.spmd.memory.kernels import Kernel


def kernel_post_order(roots: Sequence[Kernel]) -> list[Kernel]:
    """All kernels that ``roots`` depend on, in depth-first post-order, and renumbered."""
    order = post_order(roots, lambda kernel: [*kernel.inputs, *kernel.after])
    for number, kernel in enumerate(order):
        kernel.number = number
    return order


def largest_first(
    kernels: Sequence[Kernel], kept: set[Kernel], size: Callable[[Kernel], int] | None = None
) -> list[Kernel]:
    """Depth first, where of what a kernel reads comes first what has more users beside its first, in all that it is
    computed from, then what all of that takes. Based on XLA's ``DFSMemoryScheduler``.

    ``kernels`` are in post-order; ``kept`` are results. ``size`` gives the bytes of a kernel's results.
    """
    costs: dict[Kernel, tuple[int, int]] = {}
    users = taken = 0
    for kernel in kernels:
        own = max(len(kernel.users) - 1, 0), 0 if kernel.view else (size or _bytes)(kernel)
        users, taken = users + own[0], taken + own[1]
        before = [own, *(costs[source] for source in (*kernel.inputs, *kernel.after))]
        costs[kernel] = min(sum(n for n, _ in before), users), min(sum(n for _, n in before), taken)

    def first(found: Iterable[Kernel]) -> list[Kernel]:
        return sorted(found, key=lambda k: (-costs[k][0], -costs[k][1], k.number))

    roots = [kernel for kernel in kernels if kernel in kept or not kernel.users]
    return post_order(first(roots), lambda kernel: first([*kernel.inputs, *kernel.after]))


def breadth_first(kernels: Sequence[Kernel], parameters: Sequence[Kernel], inside: bool) -> list[Kernel]:
    """Kernels in the order in which they become ready; parameters first, in bodies and branches the last ones first.

    The operands of a loop or of a branch become a tuple before it, and a choice has a tuple of results, from which
    each is taken. Source: XLA's ``BFScheduler``.
    """
    tuples = {k: found for k in kernels if (found := _tuples(k))}
    waiting: dict[Kernel | _Tuple, int] = {k: len(_awaited(k)) for k in kernels}
    for kernel, parts in tuples.items():
        waiting[kernel] += len(parts)
        waiting.update((part, len(part.inputs)) for part in parts)

    def following(kernel: Kernel) -> Iterator[Kernel | _Tuple]:
        known = _is_number(kernel)
        for user in kernel.users:
            if user in waiting and not (known and _fused(user)):
                yield from (part for part in tuples.get(user, ()) if kernel in part.inputs)
                yield user

    given = set(parameters)
    first = [k for k in kernels if not waiting[k] and k not in given]
    alone = sorted((k for k in first if len(k.members) == 1), key=lambda k: k.root.made)
    fused = [k for k in reversed(first) if len(k.members) > 1]  # fusion goes from users to operands
    ready: deque[Kernel | _Tuple | _Result] = deque([*(parameters[::-1] if inside else parameters), *alone, *fused])
    order = []
    while ready:
        item = ready.popleft()
        users: Iterable[Kernel | _Tuple]
        if isinstance(item, Kernel):
            order.append(item)
            if item.root.op in ("case", "if") and len(item.root.avals) == 1:
                ready.append(_Result(item))
                continue
            users = following(item)
        else:
            users = (item.kernel,) if isinstance(item, _Tuple) else following(item.kernel)
        for user in users:
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    return order


@dataclass(eq=False, frozen=True, slots=True)
class _Tuple:
    """The operands of a loop or of a branch of a conditional."""

    kernel: Kernel
    inputs: Collection[Kernel]


@dataclass(eq=False, frozen=True, slots=True)
class _Result:
    """The only result of a conditional, taken from its tuple."""

    kernel: Kernel


def _tuples(kernel: Kernel) -> list[_Tuple]:
    """The tuples that a kernel reads. A loop with one value reads the value."""
    root = kernel.root
    if root.op == "while":
        return [_Tuple(kernel, kernel.inputs)] if len(kernel.operands) > 1 else []
    if root.op not in ("case", "if"):
        return []
    of = dict(zip(root.operands, kernel.operands))
    taken = {tuple(of[p.attributes["outside"]] for p in region.parameters) for region in root.regions}
    return [_Tuple(kernel, set(each)) for each in taken if each]


def _awaited(kernel: Kernel) -> Collection[Kernel]:
    """What is computed before a kernel; known numbers are a part of it, if it is fused."""
    return [k for k in kernel.inputs if not _is_number(k)] if _fused(kernel) else kernel.inputs


def _fused(kernel: Kernel) -> bool:
    return kernel.loop and len(kernel.members) > 1


def _is_number(kernel: Kernel) -> bool:
    return kernel.root.op == "constant" and not kernel.root.shape


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
