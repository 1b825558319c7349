"""Arrays as they lie in memory, for GPUs: each in the default order of its dimensions, with those as they lie.

Transposes that move nothing become reshapes, and where an array is read in another order than it has, it is transposed.
What was computed of transposed arrays as well is then computed once.
Source: XLA's ``LayoutNormalization``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.graph import COLLECTIVES, Graph, Node
from meshwright.spmd.memory.layout_constraints import (
    Layouts,
    Order,
    assign_layouts,
    default,
    keeps,
    regrouped,
    same_memory,
)
from meshwright.spmd.memory.repeats import merged
from meshwright.spmd.memory.simplify import keeps_order

#: attributes with one number for each dimension, and with numbers of dimensions
_EACH = frozenset(
    """start_indices limit_indices strides edge_padding_low edge_padding_high interior_padding slice_sizes
    window_dimensions window_strides base_dilations window_dilations padding""".split()
)
#: collectives that are recorded with copies around them
_MAJOR = ("all_gather", "all_to_all", "reduce_scatter")
_ONE = frozenset("dimension iota_dimension all_gather_dim scatter_dimension split_dimension concat_dimension".split())


def normalize(graph: Graph) -> Graph:
    """The graph with arrays as they lie in memory. Nodes are changed in place, also in bodies of loops and branches."""
    _as_orders(graph)
    return _Normalizer(assign_layouts(graph)).run()


def _as_orders(graph: Graph) -> None:
    """Write the copies around collectives and custom calls as orders or transposes, in place."""
    users: dict[Node, list[Node]] = defaultdict(list)
    nodes = graph.post_order()
    for node in nodes:
        for x in node.operands:
            users[x].append(node)
    for node in nodes:
        for region in node.regions:
            _as_orders(region)
        if node.op == "all_to_all" and len(node.avals) == 1 and not node.attributes.get("ordered"):
            _exchange(node)
        if node.op != "reorder":
            continue
        (x,) = node.operands
        if x.op in _MAJOR and x.attributes.get("ordered"):
            given = {name: value for name, value in x.attributes.items() if name != "ordered"}
            node.op, node.operands, node.attributes = x.op, x.operands[0].operands, given
            if node.op == "all_to_all":
                _exchange(node)
        elif "order" in node.attributes and not _is_written_over(node, users[node]):
            _as_transpose(node, x, node.attributes["order"][::-1])


def _is_written_over(node: Node, users: Sequence[Node]) -> bool:
    """Whether custom calls write their result over an operand. XLA copies it before it assigns layouts."""
    return any(user.op == "custom_call" and "output_operand_aliases" in user.attributes for user in users)


def _exchange(node: Node) -> None:
    """Let an all-to-all exchange parts of one dimension. Those that it got are joined along another one after it."""
    given = node.attributes
    n, split, concat = (given[key] for key in ("split_count", "split_dimension", "concat_dimension"))
    if split == concat or n == 1:
        return
    (x,), aval = node.operands, node.avals[0]
    parts = Node("all_to_all", (x,), x.avals, {**given, "concat_dimension": split}, node.source)
    apart = (*x.shape[:split], n, x.shape[split] // n, *x.shape[split + 1 :])
    whole = Node("reshape", (parts,), (aval.update(shape=apart),), {}, node.source)
    order = [d for d in range(len(apart)) if d != split]
    order.insert(concat, split)
    lies = aval.update(shape=tuple(apart[d] for d in order))
    turned = Node("transpose", (whole,), (lies,), {"permutation": tuple(order)}, node.source)
    node.op, node.operands, node.attributes = "reshape", (turned,), {}


def _as_transpose(node: Node, x: Node, order: Order) -> None:
    """The transpose that copies an operand of a custom call to an order, or a result from it."""
    aval = x.avals[0]
    lies = tuple(aval.shape[d] for d in order)
    if x.op in ("get", "custom_call"):
        flat = Node("reshape", (x,), (aval.update(shape=lies),), {}, x.source)
        back = tuple(order.index(d) for d in range(len(order)))
        node.op, node.operands, node.attributes = "transpose", (flat,), {"permutation": back}
    else:
        turned = Node("transpose", (x,), (aval.update(shape=lies),), {"permutation": order}, x.source, inserted=True)
        node.op, node.operands, node.attributes = "reshape", (turned,), {}


class _Normalizer:
    def __init__(self, layouts: Layouts) -> None:
        self.layouts = layouts
        #: what an array is in memory, and in which order of its dimensions; if a node is not mentioned: itself
        self.lies: dict[Node, tuple[Node, Order]] = {}
        self._made: dict[tuple[Node, Order], Node] = {}
        #: the arrays of the program, with the dimensions that the program gives them
        self._shapes = {node: node.avals[0].shape for node in layouts.graph.post_order() if node.avals}
        self._known = set(self._shapes)

    def run(self) -> Graph:
        graph = self.layouts.graph
        for node in graph.post_order():
            self._normalize(node)
        results = tuple(self._as(x, order) for x, order in zip(graph.results, self.layouts.results))
        return merged(replace(graph, results=results), {})

    def _as(self, x: Node, order: Order) -> Node:
        """An array as it lies in an order."""
        node, has = self.lies.get(x, (x, default(x)))
        if len(x.avals) != 1 or has == order:
            return node
        key = x, order
        if key not in self._made:
            self._made[key] = found = moved(node, tuple(has.index(d) for d in order))
            self._known.add(found)
        return self._made[key]

    def _viewed(self, x: Node, order: Order) -> Node:
        """An array that lies in an order, with its dimensions as the program has them."""
        return reshaped(self._as(x, order), self._shapes[x])

    def _normalize(self, node: Node) -> None:
        if node in self.layouts.inside:
            node.regions = tuple(_Normalizer(inner).run() for inner in self.layouts.inside[node])
        order = self.layouts.orders.get(node, default(node)) if len(node.avals) == 1 else ()
        read = [self.layouts.of_operand(node, i) for i in range(len(node.operands))]
        if node.op == "transpose":
            self._transpose(node, order, read[0])
        elif node.op == "reshape":
            self._reshape(node, order)
        elif node.op == "broadcast_in_dim":
            self._broadcast(node, order)
        elif node.op == "reduce" and len(node.avals) == 1:
            self._reduce(node, order, read)
        elif (keeps(node) and node.op not in COLLECTIVES) or node.op in ("iota", "constant", "parameter"):
            self._keep(node, order)
        elif node.op == "get":
            self._write(node, order)
        elif node.op == "while":
            node.operands = tuple(self._as(x, its) for x, its in zip(node.operands, read))
            lie = self.layouts.inside[node][-1].results
            node.avals = tuple(_permuted_aval(aval, o) for aval, o in zip(node.avals, lie))
        else:
            views = [self._viewed(x, its) if len(x.avals) == 1 else x for x, its in zip(node.operands, read)]
            if node.regions:
                node.read(dict(zip(node.operands, views)))
            else:
                node.operands = tuple(views)
            if order != default(node):
                self.lies[node] = reshaped(node, tuple(node.shape[d] for d in order)), order

    def _write(self, node: Node, order: Order) -> None:
        """Give a node the shape that it has in memory."""
        if order != default(node):
            self.lies[node] = node, order
            node.avals = (_permuted_aval(node.avals[0], order),)

    def _keep(self, node: Node, order: Order) -> None:
        n = len(node.shape)
        if order == default(node):
            node.operands = tuple(self._as(x, order if len(x.shape) == n else default(x)) for x in node.operands)
            return
        node.operands = tuple(
            self._as(x, order) if len(x.shape) == n else self._as(x, default(x)) for x in node.operands
        )
        starts = len(node.operands) - n
        if node.op in ("dynamic_slice", "dynamic_update_slice") and starts in (1, 2):
            places = node.operands[starts:]
            node.operands = (*node.operands[:starts], *(places[d] for d in order))
        node.attributes = {name: _permuted(name, value, order) for name, value in node.attributes.items()}
        if node.op == "constant":
            node.attributes = {**node.attributes, "order": order}
        self._write(node, order)

    def _transpose(self, node: Node, order: Order, read: Order) -> None:
        permutation = node.attributes["permutation"]
        self._is(node, order, moved(self._as(node.operands[0], read), tuple(read.index(permutation[d]) for d in order)))

    def _reshape(self, node: Node, order: Order) -> None:
        (x,), shape = node.operands, node.shape
        before, has = self._shapes[x], self.lies.get(x, (x, default(x)))[1]
        its = regrouped(before, has, shape)
        if its is None and _flat(before, has, shape, order):
            its = order
        if its is not None and same_memory(shape, its, order):
            source = self._as(x, has)
        elif (other := regrouped(shape, order, before)) is not None:
            source = self._as(x, other)
        elif its is not None:
            flat = reshaped(self._as(x, has), tuple(shape[d] for d in its))
            source = moved(flat, tuple(its.index(d) for d in order))
        else:
            source = moved(reshaped(self._as(x, default(x)), shape), order)
        self._is(node, order, reshaped(source, tuple(shape[d] for d in order)))

    def _is(self, node: Node, order: Order, source: Node) -> None:
        """Let a node lie in an order as another one, whose operation it becomes, unless that is in the program."""
        if source in self._known:
            self.lies[node] = source, order
            return
        self._write(node, order)
        node.op, node.operands, node.attributes = source.op, source.operands, source.attributes

    def _broadcast(self, node: Node, order: Order) -> None:
        (x,), dims = node.operands, node.attributes["broadcast_dimensions"]
        its = tuple(sorted(range(len(dims)), key=lambda i: order.index(dims[i])))
        node.operands = (self._as(x, its),)
        node.attributes = {**node.attributes, "broadcast_dimensions": tuple(order.index(dims[i]) for i in its)}
        self._write(node, order)

    def _reduce(self, node: Node, order: Order, read: Sequence[Order]) -> None:
        dims = node.attributes["dimensions"]
        node.operands = tuple(self._as(x, its) for x, its in zip(node.operands, read))
        node.attributes = {**node.attributes, "dimensions": tuple(sorted(read[0].index(d) for d in dims))}
        self._write(node, order)


def _permuted_aval(aval: ShapedArray, order: Order) -> ShapedArray:
    return aval.update(shape=tuple(aval.shape[d] for d in order))


def _flat(before: Sequence[int], has: Order, shape: Sequence[int], order: Order) -> bool:
    """Whether both are arrays of one dimension, but for dimensions of one element, or have the default order."""
    if all(sum(n != 1 for n in one) <= 1 for one in (before, shape)):
        return True
    ends = ((before, has), (shape, order))
    return all(same_memory(one, its, tuple(range(len(one)))) for one, its in ends)


def _permuted(name: str, value: Any, order: Order) -> Any:
    if name in _ONE and isinstance(value, int):
        return order.index(value)
    if name == "dimensions" and isinstance(value, Sequence):
        return tuple(sorted(order.index(d) for d in value))
    if name in _EACH:
        if isinstance(value, np.ndarray):
            return value[list(order)] if len(value) == len(order) else value
        if isinstance(value, Sequence) and len(value) == len(order):
            return tuple(value[d] for d in order)
    return value


def _source(x: Node) -> Node:
    """What a reshape is of."""
    while x.op == "reshape" and len(x.operands) == 1:
        (x,) = x.operands
    return x


def reshaped(x: Node, shape: tuple[int, ...]) -> Node:
    x = _source(x) if x.shape != shape else x
    return x if x.shape == shape else Node("reshape", (x,), (x.avals[0].update(shape=shape),), {}, x.source)


def moved(x: Node, permutation: Sequence[int]) -> Node:
    """A transposed array. It is a reshape if nothing moves."""
    shape = tuple(x.shape[d] for d in permutation)
    node = Node("transpose", (x,), (x.avals[0].update(shape=shape),), {}, x.source, inserted=True)
    _move(node, x, permutation)
    return reshaped(x, shape) if node.op == "reshape" else node


def _move(node: Node, x: Node, permutation: Sequence[int]) -> None:
    """Make a node the transpose of an array."""
    if x.op == "broadcast_in_dim":  # written in the other order at once
        dims = x.attributes["broadcast_dimensions"]
        its = tuple(sorted(range(len(dims)), key=lambda i: permutation.index(dims[i])))
        inner = moved(x.operands[0], its) if its != tuple(range(len(dims))) else x.operands[0]
        node.op, node.operands = "broadcast_in_dim", (inner,)
        node.attributes = {"broadcast_dimensions": tuple(permutation.index(dims[i]) for i in its)}
        return
    if x.op == "transpose":
        before = x.attributes["permutation"]
        x, permutation = x.operands[0], [before[d] for d in permutation]
    if keeps_order(x.shape, permutation):
        node.op, node.operands, node.attributes = "reshape", (_source(x),), {}
    else:
        node.op, node.operands, node.attributes = "transpose", (x,), {"permutation": tuple(permutation)}
