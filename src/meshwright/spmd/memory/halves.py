"""float32 values that TPUs store as bfloat16: those that only matrix products read.

A float32 product rounds its operands to bfloat16, unless a precision is requested. XLA moves this conversion to the op
that writes the operand. The conversion moves past ops that only move data, such as collectives, and into loops: what a
loop carries is bfloat16 if all that read it, in the loop and after it, round it. Source: XLA's ``BFloat16Propagation``.

What is compared with a number, or summed up, is so in 32 bits in the kernel that writes the value, which may then be a
bfloat16 all the same. Derived from programs that libtpu 0.0.42 compiled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.graph import Graph, Node

_PRODUCTS = ("matmul", "convolution")
#: operations that the conversion moves past
_MOVES = frozenset(
    """abs all_gather all_to_all clamp collective_permute concatenate copy dynamic_slice dynamic_update_slice gather
    maximum minimum negate pad relayout reorder reshape reverse select slice transpose""".split()
)
#: the dimensions along tiles
_TILED = 0, 1
#: what stays as it is given, or is computed in 32 bits
_STAYS = frozenset("all_reduce constant convert custom_call get parameter reduce_scatter scatter while case if".split())


def halve(graph: Graph) -> None:
    """Change float32 values that only products read to bfloat16, in place, also in bodies of loops and branches."""
    halves = _Halves()
    while True:
        halves.search(graph)
        apart = set(halves.conflicts())
        if not apart:
            break
        halves.stays |= apart
    halves.apply()


def halve_invariants(graph: Graph) -> None:
    """Convert loop invariants that only products read to bfloat16, in the body. XLA hoists such conversions."""
    for node in graph.post_order():
        for region in node.regions:
            halve_invariants(region)
        if node.op == "while":
            _convert_invariants(node.regions[1])


def _convert_invariants(body: Graph) -> None:
    users = _users(body)
    rounded = _Halves().rounded(body)
    for x, after in zip(body.parameters, body.results):
        if x is after and _is_single(x) and users[x] and all(_rounds(user, rounded) for user in users[x]):
            half = Node("convert", (x,), (x.avals[0].update(dtype=dtypes.bfloat16),), {}, x.source)
            for user in users[x]:
                user.operands = tuple(half if operand is x else operand for operand in user.operands)


@dataclass
class _Halves:
    """The values that are halved, and the numbers of those that loops carry."""

    #: what cannot be: updates, and what loops carry, because they are written over a value that is not
    stays: set[Node | tuple[Node, int]] = field(default_factory=set)
    found: set[Node] = field(default_factory=set)
    carried: dict[Node, set[int]] = field(default_factory=dict)
    users: dict[Graph, dict[Node, list[Node]]] = field(default_factory=dict)

    def search(self, graph: Graph) -> None:
        """Find them."""
        self.found, self.carried = set(), {}
        self._keep(graph, self.rounded(graph))

    def rounded(self, graph: Graph, results: Collection[int] = ()) -> set[Node]:
        """The values that only products read, which round them; and ``results``, by their numbers."""
        users = self.users.get(graph) or self.users.setdefault(graph, _users(graph))
        after = {x for i, x in enumerate(graph.results) if i in results}
        kept = {*graph.effects, *(x for i, x in enumerate(graph.results) if i not in results)}
        rounded: set[Node] = set()
        for node in reversed(graph.post_order()):
            if node.op == "while":
                self.carried[node] = self._carried(node, users[node], rounded)
            read = users.get(node, ())
            if node in kept or node in self.stays or not (read or node in after):
                continue
            others = [user for user in read if not _is_computed_beside(user, node)]
            if (others or node in after) and all(self._takes(user, node, rounded, users) for user in others):
                rounded.add(node)
        return rounded

    def _takes(self, user: Node, x: Node, rounded: set[Node], users: Mapping[Node, Sequence[Node]]) -> bool:
        """Whether an operation rounds a value, or hands it on to others that do."""
        if user.op not in ("while", "optimization_barrier"):
            return _rounds(user, rounded)
        ours = self.carried.get(user)
        if ours is None:
            ours = {i for i, value in _values(user, users[user]) if value in rounded}
        return all(i in ours for i, operand in enumerate(user.operands) if operand is x)

    def _carried(self, loop: Node, taken: list[Node], rounded: set[Node]) -> set[int]:
        """The numbers of the values that a loop may carry in 16 bits."""
        condition, body = loop.regions
        whole = {i for i, value in _values(loop, taken) if value not in rounded}
        read = {x for node in condition.post_order() for x in node.operands}
        ours = {
            place
            for i, place in _places(loop)
            if _is_single(body.parameters[place]) and i not in whole and condition.parameters[place] not in read
            if (loop, place) not in self.stays
        }
        while True:
            inner = self.rounded(body, ours)
            fit = {i for i in ours if body.parameters[i] in inner and self._changes(body.results[i], inner, body, ours)}
            if fit == ours:
                return ours
            ours = fit

    def _changes(self, node: Node, rounded: set[Node], graph: Graph, carried: Collection[int] = ()) -> bool:
        """Whether a value of a graph becomes a half; ``carried``: its parameters that do."""
        if node not in rounded or not _is_single(node):
            return False
        if node.op == "parameter":
            return any(graph.parameters[i] is node for i in carried)
        if node.op == "get" and node.operands[0].op == "while":
            loop = node.operands[0]
            return dict(_places(loop))[node.attributes["index"]] in self.carried[loop]
        if node.op == "get" and node.operands[0].op == "optimization_barrier":
            return self._changes(node.operands[0].operands[node.attributes["index"]], rounded, graph, carried)
        if node.op == "optimization_barrier":
            return self._changes(node.operands[0], rounded, graph, carried)
        return node.op not in _STAYS

    def _keep(self, graph: Graph, rounded: set[Node], carried: Collection[int] = ()) -> None:
        """Note what becomes a half in a graph, and in those inside."""
        for node in graph.post_order():
            if self._changes(node, rounded, graph, carried):
                self.found.add(node)
            for region in node.regions:
                ours = self.carried.get(node, set()) if node.op == "while" and region is node.regions[1] else set()
                self._keep(region, self.rounded(region, ours), ours)

    def conflicts(self) -> Iterator[Node | tuple[Node, int]]:
        """What was found although it is written over a value that is not."""
        for node in self.found:
            if node.op == "dynamic_update_slice" and not self._is_half(node.operands[0]):
                yield node
        for loop, places in self.carried.items():
            yield from ((loop, i) for i in places if not self._is_half(loop.operands[i]))

    def _is_half(self, x: Node) -> bool:
        return x in self.found or x.is_splat()

    def apply(self) -> None:
        """Change the types, in place."""
        for node in self.found:
            node.attributes = {**node.attributes, "halved": True}
            node.avals = _halved(node)
            if node.op == "get" and (source := node.operands[0]).op == "optimization_barrier":
                i = node.attributes["index"]
                source.avals = (*source.avals[:i], *node.avals, *source.avals[i + 1 :])
        for loop, places in self.carried.items():
            condition = loop.regions[0]
            for i in places:
                condition.parameters[i].avals = _halved(condition.parameters[i])
            loop.operands = tuple(_again(x) if i in places else x for i, x in enumerate(loop.operands))
            halved = {i for i, place in _places(loop) if place in places}
            loop.avals = tuple(a.update(dtype=dtypes.bfloat16) if i in halved else a for i, a in enumerate(loop.avals))
        for user in {user for users in self.users.values() for node in self.found for user in users.get(node, ())}:
            if user.op == "convert":
                user.op, user.attributes = "reshape", {}
        for node in self.found:
            if node.op == "dynamic_update_slice":
                node.operands = (_again(node.operands[0]), _as_half(node.operands[1]), *node.operands[2:])


def _values(node: Node, users: Sequence[Node]) -> list[tuple[int, Node]]:
    """The results of an operation that are used, by their numbers: an only one is the operation itself."""
    gets = [(user.attributes["index"], user) for user in users if user.op == "get"]
    return gets if gets or len(node.avals) > 1 else [(0, node)]


def _places(loop: Node) -> list[tuple[int, int]]:
    """The numbers of a loop's results, and where they are among those that are used."""
    used = loop.attributes.get("used")
    return [(i, i) for i in range(len(loop.operands))] if used is None else list(used.items())


def _halved(node: Node) -> tuple[ShapedArray, ...]:
    return (node.avals[0].update(dtype=dtypes.bfloat16),)


def _again(x: Node) -> Node:
    """An array of one number in bfloat16; others are returned."""
    if not _is_single(x):
        return x
    return Node(x.op, x.operands, _halved(x), x.attributes, x.source, order=x.order)


def _as_half(x: Node) -> Node:
    """A value in bfloat16."""
    return Node("convert", (x,), _halved(x), {}, x.source, order=x.order) if _is_single(x) else x


def _is_single(node: Node) -> bool:
    return len(node.avals) == 1 and node.avals[0].dtype == dtypes.float32


def _users(graph: Graph) -> dict[Node, list[Node]]:
    users: dict[Node, list[Node]] = defaultdict(list)
    for node in graph.post_order():
        for operand in node.operands:
            users[operand].append(node)
    return users


def _rounds(user: Node, rounded: Collection[Node]) -> bool:
    """Whether an operation rounds its operands to bfloat16, or may take operands that are rounded."""
    if user.op in _PRODUCTS:
        if len(user.shape) < max(len(x.shape) for x in user.operands):
            return False  # with a vector, it is multiplied and summed elementwise
        return user.operands[0].avals[0].dtype == dtypes.float32 and "HIGH" not in str(user.attributes)
    if user.op == "convert":
        return bool(user.avals[0].dtype == dtypes.bfloat16)
    return user.op in _MOVES and user in rounded


def _is_computed_beside(user: Node, x: Node) -> bool:
    """Whether the kernel that writes a value for products also computes what is compared with it, or its sums."""
    if user.op == "reduce":
        return x is user.operands[0] and len(user.operands) == 2 and (x.elementwise or _is_product(x))
    return _is_mask(user)


def _is_mask(node: Node) -> bool:
    """Whether a product, or one with a bias, is compared with a number: it also writes what that says, in bits.

    XLA packs them along a dimension that is not along tiles, so that there are three or more. They are not counted.
    """
    x, *other = node.operands or (node,)
    if node.op != "compare" or sum(n > 1 for n in node.shape) <= len(_TILED) or not all(y.is_splat() for y in other):
        return False
    return any(map(_is_product, x.operands if x.op == "add" else (x,)))


def _is_product(x: Node) -> bool:
    return x.op in _PRODUCTS or (x.op == "reshape" and x.operands[0].op in _PRODUCTS)
