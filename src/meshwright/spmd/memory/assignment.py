"""Layout assignment for TPUs: in which order each value's dimensions lie in memory, and which values are copied.

XLA pads the two fastest dimensions of an array to whole tiles, so that the order decides the size. :func:`assign` plans
it. Some operations have orders of their own, or need their operands in some (``fixed_orders``): batched products and
convolutions come first, then other products, then a program's parameters, then sums of rows, then results, then
gathered rows, sorts and kernels that are loops, then, in bodies, vectors that are made columns, and the parameters.
What several gathers read, in whole or a single position each, comes before parameters. From each of them its order
spreads, to operands and to users, through operations that take any order (``order_rules``). Where two orders meet, the
operand is copied; also that of a reshape, which reads elements as they follow each other in its result. What no order
reaches has the one with the least padding.
Bodies of loops are planned before what is around them, which gives them the orders that they want; but parts of
arguments, and of what another loop has stacked, are read in the order that these have, and other arguments are only
given in the orders of products, and of numbers that are put in a row.
Based on XLA's ``LayoutAssignment``. The precedence was derived from programs that libtpu 0.0.42 compiled.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.spmd.memory.fixed_orders import Want, by_class, called_order, chosen, product_of, wants
from meshwright.spmd.memory.graph import Graph, Node, computed_from
from meshwright.spmd.memory.order_rules import (
    Order,
    alike,
    carried,
    compact,
    default,
    led,
    moves_nothing,
    passing,
    reshaped,
    wanted,
)
from meshwright.spmd.memory.stacks import PARTS, step_dimensions

#: results with other orders per result
_SEVERAL = ("while", "case", "if", "call", "custom_call", "top_k")
#: operations that leave elements as they are
_VIEWS = frozenset(["parameter", "reshape", *PARTS])
#: operations whose own order is not changed by what reads them
_FIXED = frozenset(
    "parameter get all_to_all gather scatter custom_call matmul convolution cholesky triangular_solve".split()
)


@dataclass(frozen=True)
class Copy:
    """A copy of operand ``i`` of a node, or of a result of the graph (``node`` is None), into an order."""

    node: Node | None
    i: int
    order: Order


@dataclass(frozen=True)
class Assignment:
    """The orders of a graph's nodes, the copies between them, and the same for the bodies inside."""

    graph: Graph
    orders: Mapping[Node, Order]
    copies: Sequence[Copy]
    inside: Mapping[Node, Sequence[Assignment]]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self, indent: str = "") -> Iterator[str]:
        numbers = {node: n for n, node in enumerate(self.graph.post_order())}
        copied = {(c.node, c.i): c.order for c in self.copies}
        for node, n in numbers.items():
            order = self.orders.get(node, ())
            given = [f"%{numbers[x]}" + _shown(copied.get((node, i))) for i, x in enumerate(node.operands)]
            kinds = ", ".join(map(str, node.avals))
            yield f"{indent}%{n} = {node.op}({', '.join(given)}): {kinds}{_shown(order)}"
            for inner in self.inside.get(node, ()):
                yield from inner._lines(indent + "  ")
        results = [f"%{numbers[x]}" + _shown(copied.get((None, i))) for i, x in enumerate(self.graph.results)]
        yield f"{indent}return {', '.join(results)}"

    def apply(self) -> Graph:
        """The graph with these orders and copies. Its nodes are changed in place."""
        for node, inner in self.inside.items():
            node.regions = tuple(a.apply() for a in inner)
        made: dict[tuple[Node, Order], Node] = {}
        results = list(self.graph.results)
        for copy in self.copies:
            x = results[copy.i] if copy.node is None else copy.node.operands[copy.i]
            new = made.get((x, copy.order))
            if new is None:
                new = made[x, copy.order] = Node("relayout", (x,), x.avals, {}, x.source, order=copy.order)
            if copy.node is None:
                results[copy.i] = new
            else:
                copy.node.operands = (*copy.node.operands[: copy.i], new, *copy.node.operands[copy.i + 1 :])
        for node in self._moved():
            node.op, node.attributes = "relayout", {}
        for node in [node for node in self.graph.post_order() if node.op == "relayout" and self._is_there(node)]:
            node.op, node.attributes = "reshape", {}
        for node, order in self.orders.items():
            node.order = order
            if (product := product_of(node)) is not None:
                product.attributes = {**product.attributes, "given": (node.avals[0], order)}
            if node.op == "transpose":
                node.op, node.attributes = "reshape", {}
        return replace(self.graph, results=tuple(results))

    def _is_there(self, node: Node) -> bool:
        """Whether what a node brings into an order is in it."""
        (x,), order = node.operands, node.order
        has = self.orders.get(x)
        if order is None or has is None or "tiles" in node.attributes:
            return False
        return moves_nothing(x.shape, has, node.shape, order)

    def _moved(self) -> list[Node]:
        """The reshapes that are kernels, because their operands have other tiles.

        Those around products are not in the program.
        """
        users: dict[Node, list[Node]] = defaultdict(list)
        nodes = self.graph.post_order()
        for node in nodes:
            for x in node.operands:
                users[x].append(node)
        found = []
        for node in nodes:
            if node.op != "reshape" or "start" in node.attributes or _is_around_products(node, users[node]):
                continue
            (x,) = node.operands
            has = default(1) if len(x.shape) == 1 else self.orders.get(x, x.order)
            its = self.orders.get(node)
            if has is None or its is None or _is_made(x):
                continue
            if not moves_nothing(x.shape, has, node.shape, its):
                found.append(node)
        return found


def _shown(order: Order | None) -> str:
    return f"{{{','.join(map(str, order))}}}" if order else ""


def assign(graph: Graph, given: Mapping[Node, Order] | None = None, arguments: Collection[Node] = ()) -> Assignment:
    """The layout assignment of a program; of a body with the orders of some of its parameters.

    ``arguments``: the parameters that are arguments of the program, of which a body reads the whole.
    """
    return _Assigner(graph, given, arguments).plan()


class _Assigner:
    def __init__(self, graph: Graph, given: Mapping[Node, Order] | None, arguments: Collection[Node]) -> None:
        self.graph, self.given, self.body = graph, dict(given or {}), given is not None
        self.nodes = graph.post_order()
        self.orders: dict[Node, Order] = {}
        self.users: dict[Node, list[tuple[Node, int]]] = defaultdict(list)
        self.inside: dict[Node, Sequence[Assignment]] = {}
        #: parameters that take no orders at the time
        self.closed: Collection[Node] = ()
        self.arguments = arguments
        #: whether arrays that loops use in parts take the orders that the parts need
        self.whole = False
        #: whether sums also say in which order they read
        self.last = False
        for node in self.nodes:
            for i, x in enumerate(node.operands):
                self.users[x].append((node, i))

    def plan(self) -> Assignment:
        for node in self.nodes:
            if node.regions:
                self.inside[node] = [assign(region, *self._outside(node, region)) for region in node.regions]
        for node in self.nodes:
            self._spread_from(node, node.order)
        *products, rows = by_class(self.nodes)
        self._choose_products([node for members in products for node in members])
        self.closed = self.arguments
        self._choose_rows(rows)
        self.last = True
        if self.body:
            self._choose_columns()
            self.closed = ()
            self._ask_for_rows()
        self._choose_parameters()
        self._take_from_bodies()
        for i, x in enumerate(self.graph.results):
            self._ask(x, self._of_result(i))
        for node in self.nodes:
            if len(node.avals) and node not in self.orders and node.op not in _SEVERAL:
                self._spread_from(node, compact(node.avals[0]))
        for node in self.nodes:
            if node.op == "reshape" and self._asks(node) and self._has_no_way(node):
                self.orders[node] = passing(node)
        return Assignment(self.graph, self.orders, list(self._copies()), self.inside)

    # --- in the order in which they are decided -------------------------------------------------------------
    def _choose_products(self, products: Sequence[Node]) -> None:
        """The orders of products, and those that they ask of their operands."""
        apart = {x for node in self.nodes if product_of(node) is not None for x in node.operands}
        for node in products:
            if node not in apart:
                self._spread_from(node, chosen(node))
            self._ask_for(node)

    def _choose_rows(self, rows: Sequence[Node]) -> None:
        """The orders of operations that need whole rows. They spread from sums first, from the others only after
        a program's results have asked."""
        self.whole = True
        fixed = {node: order for node in rows if (order := chosen(node)) is not None and node not in self.orders}
        self.orders.update(fixed)
        if not self.body:
            together = self._ask_together(rows)
            for result, order in self._results_of(fixed):
                self._spread_from(result, order)
            self._choose_parameters()
            for node in together:
                self._spread(node)
        for node in rows:
            self._ask_for(node)
        sums = [node for node in fixed if node.op == "scatter"]
        for node in sums:
            self._spread(node)
        if not self.body:
            for i, x in enumerate(self.graph.results):
                self._ask(x, self._of_result(i))
        for node in (node for node in fixed if node not in sums):
            self._spread(node)

    def _ask_together(self, rows: Sequence[Node]) -> list[Node]:
        """The arrays that several operations need in one order, in whole or a single position each, with that order."""
        asked = [(user.operands[i], order) for node in rows for user, i, order in self._wants(node)]
        times = Counter((_stack(x) or x, order) for x, order in asked)
        found = []
        for x, order in asked:
            if times[_stack(x) or x, order] > 1:
                for node, its in [(x, order), *_positions(x, order)]:
                    if self._takes(node):
                        self.orders[node] = its
                        found.append(node)
        return found

    def _results_of(self, rows: Mapping[Node, Order]) -> list[tuple[Node, Order]]:
        """The results that follow from rows that are found by number, with the orders that they take.

        In a program of several results these are computed in the order of the rows, and copied; in one with a single
        result they are computed in the order of its parameters.
        """
        if len(self.graph.results) < 2:
            return []
        reached = {node: order for node, order in rows.items() if node.op == "gather"}
        queue = deque(reached)
        while queue:
            node = queue.popleft()
            for user, i in self.users[node]:
                its = carried(user, i, reached[node]) if user not in reached and self._takes(user) else None
                if its is not None:
                    reached[user] = its
                    queue.append(user)
        return [(x, reached[x]) for x in self.graph.results if x in reached]

    def _choose_columns(self) -> None:
        """The orders of vectors that get dimensions of one element: elements are along the lanes, as they were."""
        for node in self.nodes:
            if node.op == "reshape" and len(node.operands[0].shape) == 1 < len(node.shape):
                if max(node.shape) == node.avals[0].size > 1:
                    self._spread_from(node, carried(node, 0, (0,)))

    def _ask_for_rows(self) -> None:
        """Ask for the orders of what a body reads in another one: its parameters are copied outside."""
        for node in self.nodes:
            if node.op == "relayout" and node.order is not None and "tiles" not in node.attributes:
                (x,) = node.operands
                if computed_from(x).op == "parameter":
                    self._ask(x, reshaped(node.shape, node.order, x.shape))

    def _choose_parameters(self) -> None:
        """The orders of parameters: given, or compact; parts that a loop uses are whole tiles of them."""
        steps = step_dimensions(self.graph) if self.body else {}
        for p in self.graph.parameters:
            if p in self.orders and p in steps and p not in self.given:
                self.orders[p] = _stepped(p, self.orders[p], steps[p])
            elif p not in self.orders:
                order = self.given.get(p) or compact(p.avals[0])
                self._spread_from(p, _stepped(p, order, steps.get(p)))

    def _take_from_bodies(self) -> None:
        """The orders that bodies of loops ask of operands, and those that bodies give results."""
        for node in self.nodes:
            if node.op == "while":
                self._ask_for(node)
        for node in self.nodes:
            if node.op == "get":
                self._spread_from(node, self._from_inside(node))

    def _from_inside(self, node: Node) -> Order | None:
        """The order of one of several results."""
        (source,) = node.operands
        if source.op in ("custom_call", "top_k"):
            return called_order(source, node.avals[0])
        if source.op == "sort":
            return self.orders.get(source)
        if source not in self.inside:
            return None
        inner = self.inside[source][-1]
        values = inner.graph.parameters if source.op == "while" else inner.graph.results
        i = node.attributes["index"]
        found = inner.orders.get(values[i]) if i < len(values) else None
        return found if found is not None and len(found) == len(node.shape) else None

    def _of_result(self, i: int) -> Order | None:
        """The order that a result must have: that of the parameter for a body, the one of arguments for a program."""
        x = self.graph.results[i]
        if len(x.avals) != 1:
            return None
        if not self.body:
            return compact(x.avals[0])
        order = self.orders.get(self.graph.parameters[i]) if i < len(self.graph.parameters) else None
        return order if order is not None and len(order) == len(x.shape) else None

    def _outside(self, node: Node, region: Graph) -> tuple[dict[Node, Order], set[Node]]:
        """The orders that a loop's parameters have because of what is outside, and the parameters that are arguments.

        Arguments that a loop reads in parts are not copied, nor is what another loop has stacked.
        """
        if node.op != "while":
            return {}, set()
        found, whole, steps = {}, set(), step_dimensions(region)
        for p, x in zip(region.parameters, node.operands):
            source = x.operands[0] if "start" in x.attributes else x
            order = self._from_inside(source) if source.op == "get" else None
            if source.op == "parameter" and p in steps:
                order = compact(source.avals[0])
            elif source.op == "parameter":
                whole.add(p)
            if order is not None and len(order) == len(p.shape):
                found[p] = order
        return found, whole

    # --- spreading ------------------------------------------------------------------------------------------
    def _spread_from(self, start: Node, order: Order | None) -> None:
        """Give a node an order, and others that follow from it, unless they have one."""
        if order is None or start in self.orders:
            return
        self.orders[start] = order
        self._spread(start)

    def _spread(self, start: Node) -> None:
        """Give others that follow from a node's order theirs, breadth first."""
        queue, direct = deque([start]), {start}
        while queue:
            node = queue.popleft()
            order = self.orders[node]
            back = node.op != "reduce" or self.last
            near = [(x, wanted(node, i, order)) for i, x in enumerate(node.operands) if back]
            near += [(user, carried(user, i, order)) for user, i in self.users[node] if len(user.avals) == 1]
            for other, its in near:
                if its is not None and self._takes(other, node in direct):
                    self.orders[other] = its
                    queue.append(other)
                    if node in direct and other.op in _VIEWS:
                        direct.add(other)

    def _takes(self, node: Node, direct: bool = True) -> bool:
        """Whether a node has no order yet, and takes any.

        An array that a loop uses in parts takes the order of rows and matrices that it has as they are (``direct``).
        """
        if node in self.orders or len(node.avals) != 1 or len(node.shape) < 1 or node.op == "relayout":
            return False
        if node.op in PARTS and node.operands[0].op == "parameter":
            (x, *_) = node.operands
            return x in self.orders if x in self.given else self.whole and direct
        free = self.body and node not in self.given and node not in self.closed
        return node.op not in _FIXED or (node.op == "parameter" and free)

    def _ask(self, x: Node, order: Order | None) -> None:
        if self._takes(x):
            self._spread_from(x, order)

    def _ask_for(self, node: Node) -> None:
        """Ask for the orders that a node needs its operands in."""
        asked = self._asked(node) if node.op == "while" else self._wants(node)
        for user, i, order in asked:
            self._ask(user.operands[i], order)

    def _reaches(self, node: Node, i: int, order: Order) -> int:
        """How many operations before operand ``i`` can take an order."""
        x, n = node.operands[i], 0
        while self._takes(x) and x.operands:
            n += 1
            its = [(y, wanted(x, j, order)) for j, y in enumerate(x.operands)]
            known = [(y, o) for y, o in its if o is not None and len(o) == len(y.shape) and len(o) > 1]
            if not known:
                break
            x, order = max(known, key=lambda pair: pair[0].avals[0].size)
        return n

    def _wants(self, node: Node) -> list[Want]:
        return wants(node, self._reaches, self.orders)

    # --- copies ---------------------------------------------------------------------------------------------
    def _copies(self) -> Iterator[Copy]:
        for node in self.nodes:
            for user, i, order in self._asked(node):
                x = user.operands[i]
                if self._must_be_copied(x, order) and (user.op == "while" or not _is_made(x)):
                    yield self._copy(user, i, order)
        for i, x in enumerate(self.graph.results):
            its = self._of_result(i)
            if its is not None and self._must_be_copied(x, its):
                yield Copy(None, i, its)

    def _copy(self, user: Node, i: int, order: Order) -> Copy:
        """A copy of an operand, or of what it is a transpose of, which may have other users that want the same."""
        x = user.operands[i]
        while x.op == "transpose" and len(self.users[x]) == 1:
            self.orders[x] = order
            order = tuple(x.attributes["permutation"][d] for d in order)
            user, i, x = x, 0, x.operands[0]
        return Copy(user, i, order)

    def _asked(self, node: Node) -> list[Want]:
        if node.op == "while":
            body = self.inside[node][-1]
            return [(node, i, body.orders[p]) for i, p in enumerate(body.graph.parameters) if p in body.orders]
        found = self._wants(node)
        order = self.orders.get(node)
        if order is not None and len(node.avals) == 1 and self._asks(node):
            taken = {i for user, i, _ in found if user is node}
            its = ((node, i, wanted(node, i, order)) for i in range(len(node.operands)) if i not in taken)
            found += [(node, i, o) for _, i, o in its if o is not None]
        return found

    def _asks(self, node: Node) -> bool:
        """Whether a node needs its operands in the order that its own one says.

        Also reshapes do, unless they are around products or compute parts: XLA moves elements within tiles only where
        they follow each other as before.
        """
        if node.op != "reshape" or "start" in node.attributes:
            return node.op not in ("reshape", "matmul", "convolution", "reduce")
        return not _is_around_products(node, [user for user, _ in self.users[node]])

    def _has_no_way(self, node: Node) -> bool:
        """Whether a reshape has an order that it cannot have from any of its operand."""
        (x,), order = node.operands, self.orders.get(node)
        if order is None or len(node.shape) < 2 or _is_made(x):
            return False
        return wanted(node, 0, order) is None

    def _must_be_copied(self, x: Node, order: Order) -> bool:
        has = self.orders.get(x)
        return has is not None and len(has) == len(order) and not alike(x.shape, has, order)


def _stack(x: Node) -> Node | None:
    """The array of which a value is a single position, without that dimension."""
    if x.op != "reshape" or x.operands[0].op != "slice":
        return None
    (part,) = x.operands
    (stack,) = part.operands
    kept = tuple(n for n, whole in zip(part.shape, stack.shape) if n == whole)
    return stack if len(kept) == len(stack.shape) - 1 and x.shape == kept and 1 in part.shape else None


def _positions(x: Node, order: Order) -> Iterator[tuple[Node, Order]]:
    """If a value is a single position of an array: that part of the array and the array, with the orders they need."""
    if (stack := _stack(x)) is not None and (whole := wanted(x, 0, order)) is not None:
        yield x.operands[0], whole
        yield stack, whole


def _is_around_products(node: Node, users: Sequence[Node]) -> bool:
    """Whether a reshape is of a product, or for products only."""
    return node.operands[0].op == "matmul" or (bool(users) and all(user.op == "matmul" for user in users))


def _is_made(x: Node) -> bool:
    """Whether a value is computed from nothing large, in any order."""
    return x.op in ("iota", "constant", "broadcast_in_dim") or x.is_splat()


def _stepped(x: Node, order: Order, step: int | None) -> Order:
    """The order of an array that a loop uses in parts: these are whole tiles."""
    if step is None or len(order) < 2:
        return order
    if len(order) == 2:
        return led((step,), (1 - step,))
    if step not in order[:2]:
        return order
    part = x.avals[0].update(shape=tuple(1 if d == step else n for d, n in enumerate(x.shape)))
    first = [d for d in compact(part) if d != step]
    return (*first, step)
