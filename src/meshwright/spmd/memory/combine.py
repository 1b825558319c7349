"""Combines independent collectives over the same devices, as XLA's combiners do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.core.source import SourceLocation
from meshwright.spmd.memory.compilers import Compiler
from meshwright.spmd.memory.graph import Node
from meshwright.spmd.memory.kernels import Kernel, Use
from meshwright.spmd.memory.schedule import kernel_post_order


def combine(results: list[Kernel], effects: Sequence[Kernel], compiler: Compiler) -> None:
    """Combine the collectives that the compiler combines, in place, and update ``results``."""
    for op in compiler.combines:
        _combine(op, results, effects, compiler)


def _combine(op: str, results: list[Kernel], effects: Sequence[Kernel], compiler: Compiler) -> None:
    most = compiler.together
    kernels = kernel_post_order([*results, *effects])
    keys = {k: _key(k.root) for k in kernels if k.root.op == op and _bytes(k) <= most}
    while keys:
        if compiler.into_products:
            together = _late(kernels, keys)
        else:
            together = _together(kernels, keys, next(iter(keys)).number, most)
        if len(together) > 1:
            replaced = _joined(together) if compiler.joins_sums and op == "all_reduce" else _merge(together)
            results[:] = [replaced.get(k, k) for k in results]
            # A kernel that depends on one of them now depends on all of them.
            kernels = kernel_post_order([*results, *effects])
            keys = {k: keys[k] for k in kernels if k in keys}


def _key(node: Node) -> Any:
    dtype = None if node.op == "all_gather" else node.avals[0].dtype
    devices = node.attributes["source_target_pairs" if node.op == "collective_permute" else "replica_groups"]
    return devices, node.attributes.get("reducer"), dtype


def _bytes(kernel: Kernel) -> int:
    return kernel.root.avals[0].nbytes


def _together(kernels: Sequence[Kernel], keys: dict[Kernel, Any], start: int, most: float) -> list[Kernel]:
    """The next collective, at or after ``start``, and those to combine with it. Removes them from ``keys``.

    Together they have no more than ``most`` bytes.
    """
    group: list[Kernel] = []
    after: set[Kernel] = set()
    group_key = None
    for i in range(start, len(kernels)):
        kernel = kernels[i]
        depends = any(k in after for k in kernel.inputs)
        key = keys.get(kernel)
        if key is not None and (group_key is None or key == group_key):
            if depends or sum(map(_bytes, group)) + _bytes(kernel) > most:
                break
            group_key = key
            group.append(kernel)
            del keys[kernel]
            depends = True
        if depends:
            after.add(kernel)
    return group


def _late(kernels: Sequence[Kernel], keys: dict[Kernel, Any]) -> list[Kernel]:
    """The last collective, and those to combine with it, as late as they can be. Removes them from ``keys``."""
    group: list[Kernel] = []
    before: set[Kernel] = set()
    for kernel in reversed(kernels):
        if kernel in keys and kernel not in before and keys[kernel] == keys.get((group or [kernel])[0]):
            group.append(kernel)
        elif kernel not in before:
            continue
        before.update(kernel.inputs)
    for kernel in group:
        del keys[kernel]
    return group[::-1]


def _joined(together: Sequence[Kernel]) -> dict[Kernel, Kernel]:
    """Reduce the concatenation of what is combined, and cut the result apart; returns the replacement of each."""
    nodes = [k.root for k in together]
    flat = nodes[0].avals[0].update(shape=(sum(n.avals[0].size for n in nodes),))
    given = [next(iter(k.inputs)) for k in together]
    number, source = together[-1].number, nodes[0].source
    joined = _reading(given, "concatenate", flat, {"dimension": 0}, number, source)
    whole = _reading([joined], nodes[0].op, flat, nodes[0].attributes, number, source)
    replaced = {}
    for one in together:
        part = replaced[one] = _reading([whole], "slice", one.root.avals[0], {}, number, one.root.source)
        for user in list(one.users):
            user.read(part, one)
        for x in one.inputs:
            x.users.remove(one)
    return replaced


def _reading(
    sources: Sequence[Kernel], op: str, aval: ShapedArray, given: Mapping[str, Any], number: int, source: SourceLocation
) -> Kernel:
    """A kernel of one operation, with which nothing is fused."""
    node = Node(op, tuple(k.root for k in sources), (aval,), given, source)
    inputs = dict.fromkeys(sources, Use.MOVED)
    kernel = Kernel(node, {node: None}, inputs, library=True, number=number, operands=[*sources])
    for k in inputs:
        k.users.add(kernel)
    return kernel


def _merge(together: Sequence[Kernel]) -> dict[Kernel, Kernel]:
    """Merge kernels into one; returns the replacement of each."""
    nodes = tuple(k.root for k in together)
    whole = Node(nodes[0].op, (), tuple(n.avals[0] for n in nodes), nodes[0].attributes, nodes[0].source)
    kernel = Kernel(whole, {whole: None}, {}, number=together[-1].number)
    replaced = {}
    for i, one in enumerate(together):
        for source in list(one.inputs):
            kernel.inputs[source] = Use.REUSED
            kernel.operands.append(source)
            source.users.add(kernel)
            source.users.remove(one)
        part = Node("get", (whole,), (nodes[i].avals[0],), {"index": i}, nodes[i].source)
        taken = replaced[one] = Kernel(part, {part: None}, {kernel: Use.MOVED}, number=kernel.number, operands=[kernel])
        kernel.users.add(taken)
        for user in list(one.users):
            user.read(taken, one)
    return replaced
