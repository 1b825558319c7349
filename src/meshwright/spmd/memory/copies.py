"""Copy insertion: for results that already have a buffer, and for values overwritten while they have other uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from meshwright.spmd.memory.buffers import overwrites, updated
from meshwright.spmd.memory.fusion import depends, in_place_operand
from meshwright.spmd.memory.graph import Graph, Node
from meshwright.spmd.memory.kernels import Kernel, Use, copy_of
from meshwright.spmd.memory.library import ones_come_first
from meshwright.spmd.memory.prune import through

#: the number of kernels between a value's last use and the kernel that overwrites it that are examined
_HORIZON = 4000
#: ops whose results are never overwritten
_STAYS = ("parameter", "constant")


def matched(results: Sequence[Kernel], parameters: Sequence[Kernel], donated: Sequence[int]) -> dict[int, int]:
    """The donated argument whose buffer each result reuses: the first free one of the same size."""
    free = list(donated)
    aliases = {}
    for i, result in enumerate(results):
        size = result.root.avals[0].nbytes
        match = next((a for a in free if parameters[a].root.avals[0].nbytes == size), None)
        if match is not None:
            free.remove(match)
            aliases[i] = match
    return aliases


def copy_results(results: list[Kernel], parameters: Sequence[Kernel], aliases: Mapping[int, int]) -> None:
    """Insert copies of results that are arguments, constants or duplicate results, in place."""
    seen: set[Kernel] = set()
    for i, kernel in enumerate(results):
        buffer = _held_in(kernel)
        if buffer.root.op == "parameter" and aliases.get(i) == parameters.index(buffer):
            continue
        if buffer in seen or buffer.root.op in _STAYS:
            results[i] = copy_of(kernel)
        seen.add(buffer)


def _held_in(kernel: Kernel) -> Kernel:
    """The kernel that owns a value's buffer, looking through views and operands that all branches return unchanged."""
    while kernel.view and kernel.root.op == "reshape":
        (kernel,) = kernel.inputs
    (choice, i) = (kernel.operands[0], kernel.root.attributes["index"]) if kernel.root.op == "get" else (kernel, 0)
    source = through(choice.root, choice.root.attributes["used"][i]) if choice.root.op in ("case", "if") else None
    return kernel if source is None else _held_in(choice.operands[choice.root.operands.index(source)])


def with_own_results(graph: Graph) -> Graph:
    """Give each transposed result that a reduction of a library also reads a transpose of its own."""
    if len(graph.results) == 1:
        return graph
    read = {x for node in graph.post_order() if node.op == "reduce" and node.shape for x in node.operands[:1]}
    again = {node: Node(node.op, node.operands, node.avals, node.attributes, node.source, var=node.var)
             for node in graph.results if node.op == "transpose" and node in read}  # fmt: skip
    return replace(graph, results=tuple(again.get(node, node) for node in graph.results))


def copy_transposed(results: list[Kernel], carried: Sequence[Kernel], graph: Graph) -> None:
    """Copy results that are computed in another order than their own, in place.

    A value that a loop carries keeps the order in which it is computed, if only loops over elements read it. A reshape
    puts dimensions of size 1 before all others, if its result has no other use.
    """
    copies: dict[Kernel, Kernel] = {}
    for i, kernel in enumerate(results):
        ordered = i >= len(carried) or not all(user.loop for user in carried[i].users)
        if ordered and (_transposed(kernel) or (ones_come_first(_moved(kernel)) and _used_once(kernel.root, graph))):
            results[i] = copies[kernel] = copies.get(kernel) or copy_of(kernel)


def copy_turned(loop: Kernel) -> None:
    """Copy operands of a loop that are computed in another order than their own."""
    copies: dict[Kernel, Kernel] = {}
    for i, source in enumerate(loop.operands):
        if _transposed(source):
            loop.operands[i] = copies[source] = copies.get(source) or copy_of(source)
    if copies:
        _reread(loop)


def copy_carry(loop: Kernel) -> None:
    """Copy operands of a loop that the loop changes and that have other uses.

    The loop works in its operands' buffers.
    """
    body = loop.root.regions[1]
    for i, (before, after) in enumerate(zip(body.parameters, body.results)):
        if before is after:
            continue
        source = loop.operands[i]
        *_, owner = _views(source)
        shared = len(owner.users) > 1 or len(source.users) > 1 or source in loop.operands[:i]
        if owner.root.op in _STAYS or shared:
            loop.operands[i] = copy_of(source)
    _reread(loop)


def copy_reshaped(kernels: Sequence[Kernel], kept: Collection[Kernel]) -> None:
    """Copy what an update writes over if its kernel also reshapes it, before or after. It writes over the copy.

    XLA does not see that such a kernel can write over what it reads.
    """
    for kernel in kernels:
        if kernel.root.op != "dynamic_update_slice":
            continue
        old = in_place_operand(kernel)
        source = next((k for k in kernel.inputs if k.root is old), None)
        after = kernel not in kept and kernel.users and all(user.root.op == "reshape" for user in kernel.users)
        if source is not None and (after or old is not kernel.root.operands[0]):
            copy = copy_of(source)
            kernel.read(copy, source)
            kernel.operands[0] = copy


def copy_updated(kernel: Kernel, results: Sequence[Kernel], given: Collection[Kernel]) -> None:
    """Insert copies of operands that an op updates in place but that have other uses; ``given``: donated arguments."""
    for source in updated(kernel):
        *views, owner = _views(source)
        users = {*owner.users, *source.users} - {kernel, *views}
        if owner in given:
            continue
        shared = source in results or not all(depends(kernel, user, _HORIZON) for user in users)
        if owner.root.op in _STAYS or shared:
            kernel.read(copy_of(source), source)


def copy_donated(
    results: Sequence[Kernel], parameters: Sequence[Kernel], aliases: Mapping[int, int], waits: bool
) -> set[int]:
    """Insert copies of donated arguments that are read after a result is written to them; returns these results.

    ``waits``: where it can, a result is written after the reads.
    """
    copied = set()
    for result, argument in aliases.items():
        *_, writer = _views(results[result])
        parameter = parameters[argument]
        if writer is parameter:
            continue
        ours = parameter not in writer.inputs or overwrites(writer, parameter)
        users = [user for user in parameter.users if user is not writer]
        if ours and waits and not any(_follows(user, writer) for user in users):
            for user in users:
                writer.after[user] = user.before[writer] = None
            continue
        if ours and all(depends(writer, user, _HORIZON) for user in users):
            continue
        copied.add(result)
        copy = copy_of(parameter)
        for user in list(parameter.users):
            if user is not copy:
                user.read(copy, parameter)
    return copied


def _follows(kernel: Kernel, source: Kernel) -> bool:
    """Whether ``kernel`` can only run after ``source``."""
    seen, stack = {kernel}, [kernel]
    while stack:
        k = stack.pop()
        for x in (*k.inputs, *k.after):
            if x is source:
                return True
            if x not in seen:
                seen.add(x)
                stack.append(x)
    return False


def needed_last(source: Kernel, user: Kernel, results: Sequence[Kernel], given: Collection[Kernel]) -> bool:
    """Whether ``user`` is the last use of a value. False for arguments, except for the donated ones, ``given``."""
    chain = _views(source)
    if any(kernel in results for kernel in chain) or (chain[-1].root.op in _STAYS and chain[-1] not in given):
        return False
    others = {k for kernel in chain for k in kernel.users} - {user, *chain}
    return all(depends(user, other, _HORIZON) for other in others)


def _views(kernel: Kernel) -> list[Kernel]:
    """The kernel, the kernel it is a view of, and so on, up to the one that writes the buffer."""
    chain = [kernel]
    while chain[-1].view and chain[-1].inputs:
        chain += chain[-1].inputs
    return chain


def _reread(kernel: Kernel) -> None:
    """Update the inputs of a kernel after its operands have changed."""
    for source in kernel.inputs:
        source.users.remove(kernel)
    kernel.inputs = dict.fromkeys(kernel.operands, Use.REUSED)
    for source in kernel.inputs:
        source.users.add(kernel)


def _transposed(kernel: Kernel) -> bool:
    """Whether a kernel computes something and writes it in another order than that of results."""
    moved = _moved(kernel)
    return moved.op == "transpose" and any(not node.view and node.op != "transpose" for node in kernel.members)


def _moved(kernel: Kernel) -> Node:
    """The node that a kernel's root is computed from by a chain of elementwise functions."""
    root = kernel.root
    while root.elementwise and len(root.operands) == 1 and root.operands[0] in kernel.members:
        (root,) = root.operands
    return root


def _used_once(root: Node, graph: Graph) -> bool:
    """Whether a result, and the chain of elementwise ops that computes it, has no other use."""
    uses = Counter(x for node in graph.post_order() for x in node.operands)
    uses.update(graph.results)
    while root.elementwise and len(root.operands) == 1 and uses[root] == 1:
        (root,) = root.operands
    return uses[root] == 1
