"""The graph of the memory model: one node per array operation, with HLO's opcodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from meshwright.core.avals import ShapedArray
from meshwright.core.source import UNKNOWN, SourceLocation
from meshwright.ir.contract import Emitted
from meshwright.ir.jaxpr import Var

T = TypeVar("T")
_NUMBERS = count()
#: ``make(name, operands, aval, attributes)`` returns a simplified node
Make = Callable[[str, Sequence["Node"], ShapedArray, Mapping[str, Any]], "Node"]

_LIST = re.compile(r"(\w+) = \[([\d, ]*)\]")
#: names of elementwise operations
ELEMENTWISE = frozenset(
    """abs add and atan2 bitcast_convert cbrt ceil clamp compare complex convert copy cosine count_leading_zeros divide
    exponential exponential_minus_one floor imag is_finite log log_plus_one logistic maximum minimum multiply negate not
    or popcnt power real reduce_precision remainder round_nearest_afz round_nearest_even rsqrt select shift_left
    shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh xor""".split()
)
#: operations too expensive to duplicate (XLA's ``InstructionFusion::IsExpensive``), besides CHLO's special functions
EXPENSIVE = frozenset(
    """atan2 cbrt divide exponential exponential_minus_one gather log log_plus_one logistic power reduce remainder rsqrt
    sqrt tan tanh""".split()
)
#: those of them that are cheap for real numbers
WAVES = frozenset(["cosine", "sine"])
#: non-elementwise operations that a loop over the result's elements can compute
_LOOPS = frozenset(
    """broadcast_in_dim concatenate dynamic_slice dynamic_update_slice gather iota pad reduce reorder reshape reverse
    slice transpose""".split()
)
#: operations that are constant-folded
FOLDED = (ELEMENTWISE | _LOOPS | {"sort", "scatter"}) - {"broadcast_in_dim", "iota"}
#: number of elements of a row from which its concatenated parts are copied, and the most parts that are not
_LONG, _PARTS = 128, 8
COLLECTIVES = frozenset("all_gather all_reduce all_to_all collective_permute reduce_scatter".split())


@dataclass(eq=False, slots=True)
class Node(Emitted):
    """One operation: its name without dialect, operands, result types and attributes.

    ``get`` nodes select result ``attributes["index"]`` of their operand. ``reorder`` nodes hold the operand in another
    memory layout. ``parameter`` and ``constant`` nodes have no operands.
    """

    op: str
    operands: tuple[Node, ...]
    avals: tuple[ShapedArray, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    source: SourceLocation = UNKNOWN
    #: a loop's condition and body, or a conditional's branches
    regions: tuple[Graph, ...] = ()
    #: an elementwise CHLO function, which the compiler expands to many operations
    special: bool = False
    #: the first program variable that this node represents
    var: Var | None = None
    #: its place in the order of the graph that kernels are made of
    number: int = 0
    #: on TPUs, its dimensions as they lie in memory, the fastest first
    order: tuple[int, ...] | None = None
    #: its place in the order in which all nodes were made
    made: int = field(default_factory=_NUMBERS.__next__)
    #: whether another operation needs it as a copy of an operand
    inserted: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.avals[0].shape

    @property
    def elementwise(self) -> bool:
        return self.special or self.op in ELEMENTWISE

    @property
    def expensive(self) -> bool:
        if self.op in ("divide", "remainder") and self.avals[0].dtype.kind in "iu":
            return not self.operands[1].is_splat()  # division by a constant becomes multiplications and shifts
        if self.op in WAVES:
            return self.avals[0].dtype.kind == "c"
        return self.special or self.op in EXPENSIVE

    @property
    def fusible(self) -> bool:
        """Whether a loop over result elements can compute it; parts that are long rows, or many, are copied instead."""
        if self.op == "concatenate":
            long = self.attributes["dimension"] == len(self.shape) - 1 > 0 and self.shape[-1] >= _LONG
            return not long and len(self.operands) <= _PARTS
        return self.special or self.op in ELEMENTWISE or self.op in _LOOPS

    @property
    def view(self) -> bool:
        """Whether the result is the operand's buffer with another type."""
        return self.op in ("reshape", "get")

    def read(self, instead: Mapping[Node, Node]) -> None:
        """Read other values instead of some, also where branches take these from outside."""
        own = self.operands[: len(self.operands) - len(captured(self.regions))]
        for parameter in (p for region in self.regions for p in region.parameters if "outside" in p.attributes):
            outside = parameter.attributes["outside"]
            parameter.attributes = {"outside": instead.get(outside, outside)}
        self.operands = (*(instead.get(x, x) for x in own), *captured(self.regions))

    def is_splat(self) -> bool:
        """Whether every element is the same known scalar constant."""
        if self.op == "broadcast_in_dim":
            return self.operands[0].is_splat()
        return self.op == "constant" and "value" in self.attributes


@dataclass(frozen=True)
class Graph:
    """A program: parameters in order, results, and nodes with side effects, which are kept even if unused."""

    parameters: tuple[Node, ...]
    results: tuple[Node, ...]
    effects: tuple[Node, ...] = ()

    def post_order(self) -> list[Node]:
        """The nodes that are used, operands before users, starting from the first result."""
        return post_order((*self.parameters, *self.results, *self.effects), lambda node: node.operands)


def captured(regions: Iterable[Graph]) -> dict[Node, None]:
    """The values that branches take from outside. They are the last operands of the node that has the branches."""
    return dict.fromkeys(p.attributes["outside"] for g in regions for p in g.parameters if "outside" in p.attributes)


def computed_from(x: Node) -> Node:
    """The one array that a value is computed from element by element, or the value itself."""
    before = {x}
    ends, left = set[Node](), [x]
    while left:
        node = left.pop()
        if node.op != "reshape" and not node.elementwise:
            ends.add(node)
            continue
        new = {y for y in node.operands if y.shape and not y.is_splat()} - before
        before |= new
        left += new
    return ends.pop() if len(ends) == 1 else x


def post_order(roots: Sequence[T], operands: Callable[[T], Iterable[T]]) -> list[T]:
    """All nodes that ``roots`` depend on, in depth-first post-order, first operand first."""
    done: dict[T, None] = {}
    for root in roots:
        if root in done:
            continue
        stack: list[tuple[T, Iterator[T]]] = [(root, iter(operands(root)))]
        while stack:
            node, rest = stack[-1]
            for operand in rest:
                if operand not in done:
                    stack.append((operand, iter(operands(operand))))
                    break
            else:
                stack.pop()
                done[node] = None
    return list(done)


def lists_of(numbers: Any) -> dict[str, list[int]]:
    """The lists of dimensions in the text of an attribute of dimension numbers, by name."""
    return {name: [int(d) for d in dims.split(",") if d.strip()] for name, dims in _LIST.findall(str(numbers))}
