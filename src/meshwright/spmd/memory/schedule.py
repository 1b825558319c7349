"""The order of execution: breadth first, as XLA's CPU runtime wants it, which runs independent kernels at once; or
depth first, as for accelerators."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from meshwright.spmd.memory.graph import post_order
from meshwright.spmd.memory.kernels import Kernel


def kernel_post_order(roots: Sequence[Kernel]) -> list[Kernel]:
    """Everything that ``roots`` read, depth first, numbered anew."""
    order = post_order(roots, lambda kernel: kernel.inputs)
    for number, kernel in enumerate(order):
        kernel.number = number
    return order


def breadth_first(kernels: Sequence[Kernel], parameters: Sequence[Kernel]) -> list[Kernel]:
    """A kernel runs once all that it reads is there, first come, first served; parameters come first."""
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
