"""Layout assignment for GPUs: in which order each array's dimensions lie in memory.

Arguments and results have the default order, and so do the operands of library calls. From there orders spread to
operands and users, depth first: elementwise operations compute in the order of their operands, and a transpose or a
reshape takes the order in which it moves nothing. So a transposed array is read where it lies, or written where it is
to be read; what cannot have two orders is copied. What no order reaches has the default. Bodies of loops are planned
first, and say in which orders the loops carry arrays. Source: XLA's ``LayoutAssignment`` and ``GpuLayoutAssignment``.

Here an order lists an array's dimensions, the slowest first.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from meshwright.spmd.memory.graph import Graph, Node
from meshwright.spmd.memory.order_rules import followed

Order = tuple[int, ...]
#: an array, or the operand of an operation with a number
Place = Node | tuple[Node, int]

#: operations, besides elementwise ones, whose operands of the same rank lie like their result
_KEEP = frozenset(
    """all_gather all_reduce all_to_all collective_permute concatenate dynamic_slice dynamic_update_slice
    optimization_barrier pad reduce_scatter reduce_window reverse scatter slice""".split()
)
#: operations that take an operand, and give a result, in any order
_ANY = frozenset("broadcast_in_dim constant gather iota parameter reduce reshape transpose".split())
#: transposes and the like, whose orders are set before those of others
_FIRST = ("gather", "scatter", "transpose")
#: the attributes that name the dimension that must be the slowest
_FIRST_DIMENSION = ("all_gather_dim", "scatter_dimension", "split_dimension")
#: elements from which on a reduction is made one along rows
_ROWS = 32
#: how often the order of one place changes at most
_CHANGES = 10


@dataclass
class Layouts:
    """The orders of a graph's arrays, those in which they are read, and the same for the graphs inside."""

    graph: Graph
    orders: dict[Node, Order] = field(default_factory=dict)
    read: dict[tuple[Node, int], Order] = field(default_factory=dict)
    results: Sequence[Order] = ()
    inside: dict[Node, Sequence[Layouts]] = field(default_factory=dict)

    def of_operand(self, node: Node, i: int) -> Order:
        """The order in which a node reads an operand."""
        x = node.operands[i]
        return self.read.get((node, i)) or self.orders.get(x) or default(x)


def default(x: Node) -> Order:
    return tuple(range(len(x.shape)))


def by_columns(x: Node) -> Order:
    """The order in which a matrix lies column by column."""
    n = len(x.shape)
    return (*range(n - 2), n - 1, n - 2)


#: the orders of a body's parameters and results that are given
Ends = tuple[Sequence[Order | None], Sequence[Order | None]]


def assign_layouts(graph: Graph, given: Ends | None = None) -> Layouts:
    """The layouts of a program or a branch, or of a body with ``given`` orders of parameters and results."""
    return _Assigner(graph, given).run()


def keeps(node: Node) -> bool:
    """Whether operands of the same rank lie like the result."""
    return len(node.avals) == 1 and (node.elementwise or node.op in _KEEP)


class _Assigner:
    def __init__(self, graph: Graph, given: Ends | None) -> None:
        self.nodes = graph.post_order()
        self.layouts = Layouts(graph)
        self.graph = graph
        self.parameters, self.results = given or (
            [default(x) for x in graph.parameters],
            [default(x) for x in graph.results],
        )
        self.users: dict[Node, list[tuple[Node, int]]] = defaultdict(list)
        for node in self.nodes:
            for i, x in enumerate(node.operands):
                self.users[x].append((node, i))
        self._must: set[Place] = set()
        self._changes: dict[Place, int] = defaultdict(int)
        #: places to spread from, and what was added last: at the front, or at the back
        self._queue: deque[Place] = deque()
        self._added: list[tuple[Place, bool]] = []

    def run(self) -> Layouts:
        for x, order in zip(self.graph.parameters, self.parameters):
            if order is not None:
                self._set(x, order, True)
        for node in self.nodes:
            if node.regions:
                self.layouts.inside[node] = self._inside(node)
        for x, order in zip(self.graph.results, self.results):
            if order is not None:
                self._set(x, order, False)
        for node in reversed(self.nodes):
            self._constrain(node)
        self._spread()
        # What a loop does not change comes last in what it carries.
        kept = {x for x, y in zip(self.graph.parameters, self.graph.results) if x is y}
        changed = [x for x in self.graph.parameters if x not in kept]
        for node in (*changed, *self.nodes):
            if len(node.avals) == 1 and node not in self.layouts.orders:
                self._set(node, default(node), False)
                self._spread()
        orders = self.layouts.orders
        self.layouts.results = [o or orders.get(x) or default(x) for x, o in zip(self.graph.results, self.results)]
        return self.layouts

    def _inside(self, node: Node) -> list[Layouts]:
        """The layouts of regions. A body that is planned alone says in which orders its loop carries arrays."""
        if node.op != "while":
            return [assign_layouts(region) for region in node.regions]
        condition, body = node.regions
        free = [None] * len(body.parameters)
        carried = assign_layouts(body, (free, free)).results
        for i, order in enumerate(carried):
            self._want(node, i, order, True)
        return [assign_layouts(condition, (carried, [()])), assign_layouts(body, (carried, carried))]

    # --- what operations ask for ----------------------------------------------------------------------------
    def _constrain(self, node: Node) -> None:
        """The orders that an operation has, and those in which it needs its operands."""
        if node.op == "matmul":
            self._constrain_product(node)
            return
        if node.op == "transpose" and node.operands[0].op == "matmul" and len(self.users[node.operands[0]]) == 1:
            if len(node.shape) > 2 and _is_written(node.attributes["permutation"]):
                self._want(node, 0, node.attributes["permutation"], True)
            return
        if node.op == "get":
            (source,), i = node.operands, node.attributes["index"]
            carried = self.layouts.inside[source][-1].results if source.op == "while" else ()
            self._set(node, carried[i] if i < len(carried) else default(node), True)
            return
        dim = next((node.attributes[d] for d in _FIRST_DIMENSION if d in node.attributes), None)
        if node.op in ("all_gather", "reduce_scatter", "all_to_all") and len(node.avals) == 1 and dim is not None:
            order = (dim, *(d for d in range(len(node.shape)) if d != dim))
            self._set(node, order, True)
            for i in range(len(node.operands)):
                self._want(node, i, order, True)
        elif not keeps(node) and node.op not in _ANY and node.op != "while":
            needed = by_columns if node.op == "triangular_solve" else default
            if len(node.avals) == 1:
                self._set(node, needed(node), True)
            for i, x in enumerate(node.operands):
                if len(x.avals) == 1:
                    self._want(node, i, needed(x), True)

    def _constrain_product(self, node: Node) -> None:
        """Matrices lie in either order. Several pairs lie in the default one, or in which their product is read."""
        if len(node.shape) < 3:
            return
        for i, x in enumerate(node.operands):
            self._want(node, i, default(x), True)
        order = next((o for user in self.users[node] if (o := self.layouts.read.get(user)) and _is_written(o)), None)
        self._set(node, order or default(node), True)

    # --- setting orders -------------------------------------------------------------------------------------
    def _set(self, node: Node, order: Order, must: bool, first: bool = True) -> None:
        if len(node.avals) == 1:
            self._update(node, self.layouts.orders, order, must, first)

    def _want(self, node: Node, i: int, order: Order, must: bool, first: bool = True) -> None:
        if not must and (
            (node.op == "dynamic_update_slice" and i > 0)
            or (node.op == "reshape" and node.operands[0].op == "dynamic_slice")
        ):
            first = False
        if order and len(node.operands[i].avals) == 1:
            self._update((node, i), self.layouts.read, order, must, first)

    def _update(self, place: Place, known: dict[Any, Order], order: Order, must: bool, first: bool) -> None:
        old = known.get(place)
        if old == order:
            if place in self._must or not must or not isinstance(place, Node):
                return
        elif old is not None and (not must or self._changes[place] > _CHANGES):
            return
        self._changes[place] += old is not None
        known[place] = order
        if must:
            self._must.add(place)
        else:
            self._must.discard(place)
        self._added.append((place, first))

    def _spread(self) -> None:
        self._enqueue()
        while self._queue:
            place = self._queue.popleft()
            if isinstance(place, Node):
                self._spread_array(place)
            else:
                self._spread_operand(*place)
            self._enqueue()

    def _enqueue(self) -> None:
        for place, first in self._added:
            if first:
                self._queue.appendleft(place)
            else:
                self._queue.append(place)
        self._added = []

    def _spread_array(self, node: Node) -> None:
        """From an array's order to the operands that it is computed from, and to its users."""
        order = self.layouts.orders[node]
        if len(node.shape) > 1:
            for i, x in enumerate(node.operands):
                if len(x.avals) == 1 and len(x.shape) > 1:
                    its = operand_order(node, i, order)
                    if its is not None:
                        must = keeps(node) or node.op == "broadcast_in_dim"
                        self._want(node, i, its, must, keeps(node) or _soon(node))
        for user, i in self.users[node]:
            self._want(user, i, order, False)

    def _spread_operand(self, user: Node, i: int) -> None:
        """From the order in which an operand is read to that array, to other operands, and to the result."""
        x, order = user.operands[i], self.layouts.read[user, i]
        if len(x.shape) < 2:
            return
        self._set(x, order, False)
        if len(user.avals) != 1:
            return
        if keeps(user):
            if user.op == "concatenate":
                d = user.attributes["dimension"]
                if any(y.shape[d] > x.shape[d] for y in user.operands if y is not x):
                    return
            for j, y in enumerate(user.operands):
                if y is not x and len(y.shape) == len(x.shape):
                    self._want(user, j, order, True)
            if len(user.shape) == len(x.shape):
                self._set(user, order, True)
        elif len(user.shape) > 1:
            its = result_order(user, order)
            if its is not None:
                self._set(user, its, user.op == "transpose", _soon(user))


def _is_written(order: Order) -> bool:
    """Whether the library writes products of several pairs of matrices in an order: the pairs together, not fastest."""
    pairs = [d for d in order if d < len(order) - 2]
    at = order.index(pairs[0])
    return order[-1] != pairs[-1] and order[at : at + len(pairs)] == tuple(sorted(pairs))


def _soon(node: Node) -> bool:
    """Whether its order spreads before others: transposes, and reshapes that add or drop dimensions of one element."""
    if node.op == "reshape":
        before, after = node.operands[0].shape, node.shape
        return len(before) == 1 or [n for n in before if n != 1] == [n for n in after if n != 1]
    return node.op in _FIRST


def operand_order(node: Node, i: int, order: Order) -> Order | None:
    """The order of operand ``i`` for which a result has ``order`` and nothing is moved; None if any will do."""
    x = node.operands[i]
    if keeps(node):
        return order if len(x.shape) == len(order) else None
    if node.op == "reshape":
        return regrouped(node.shape, order, x.shape)
    if node.op == "transpose":
        return tuple(node.attributes["permutation"][d] for d in order)
    if node.op == "broadcast_in_dim":
        where = {d: j for j, d in enumerate(node.attributes["broadcast_dimensions"])}
        return tuple(where[d] for d in order if d in where)
    if node.op == "reduce" and i == 0:
        dims = node.attributes["dimensions"]
        if prod(x.shape[d] for d in dims) >= _ROWS:
            left = [d for d in range(len(x.shape)) if d not in dims]
            return (*(left[d] for d in order), *dims)
    return None


def result_order(user: Node, order: Order) -> Order | None:
    """The order of a result for which nothing is moved if the operand has ``order``; None if any will do."""
    (x, *_) = user.operands
    if user.op == "reshape":
        return regrouped(x.shape, order, user.shape)
    if user.op == "transpose":
        where = {d: j for j, d in enumerate(user.attributes["permutation"])}
        return tuple(where[d] for d in order)
    return None


def regrouped(before: Sequence[int], order: Order, after: Sequence[int]) -> Order | None:
    """The order after a reshape in which elements follow each other as before; None if there is none.

    There is none to ask for between arrays of one dimension, up to those of one element.
    """
    wide = [sum(n != 1 for n in shape) for shape in (before, after)]
    if wide == [1, 1] or 0 in before:
        return None
    found = followed(before, order, after)
    if found is None:
        return None
    for d, n in enumerate(after):  # dimensions of one element stay beside those before them
        if n == 1:
            found.insert(found.index(d - 1) + 1 if d else 0, d)
    return tuple(found)


def same_memory(shape: Sequence[int], a: Order, b: Order) -> bool:
    """Whether two orders of an array are the same, but for dimensions of one element."""
    return [d for d in a if shape[d] != 1] == [d for d in b if shape[d] != 1]
