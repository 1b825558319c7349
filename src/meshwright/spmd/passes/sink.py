"""Moves collectives to later equations where that sends less.

A value is *pending* if it is a collective of something local. An op that commutes with the collective may be done on
the local values, with the collective after it: a sum of two all-reduced values needs one all-reduce, and ops that
shrink a gathered value (slices, reductions, conversions to narrower types) are better done before the gather. Pending
values with a single use form trees. For every node, the bytes of a collective there are compared with those of the
cheapest collectives above it (dynamic programming, leaves first). A collective moves only if fewer bytes are sent, or
as many by fewer collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn, Var
from meshwright.ir.rewrite import uses_of
from meshwright.ops.collective.base import Collective
from meshwright.spmd.passes.rewrite import merged_note
from meshwright.spmd.report import wire_bytes
from meshwright.spmd.varying import Variance

#: bytes and number of collectives, compared in this order
Price = tuple[int, int]
#: the most equations that a collective moves across
_DEPTH = 100


@dataclass(frozen=True)
class Moved:
    """An equation on local values, and the collective that turns its ``value`` into the original equation's result.

    ``before`` are slices of its other operands. At the original collective, ``local`` is None.
    """

    local: JaxprEqn | None
    before: tuple[JaxprEqn, ...]
    value: ShapedArray
    collective: Collective


@dataclass
class Node:
    """A pending value."""

    eqn: JaxprEqn
    children: dict[int, Node]
    moved: Moved
    here: Price
    best: Price
    depth: int = 0

    @property
    def leaves(self) -> Iterator[Node]:
        """The original collectives of its tree."""
        if not self.children:
            yield self
        for child in self.children.values():
            yield from child.leaves


#: the form of an equation whose operands (by number) are pending; None if it needs them complete
Rule = Callable[[JaxprEqn, Mapping[int, Moved], Variance], Moved | None]
#: the bytes of a pending value's collective, given its reader if there is exactly one
Pricing = Callable[[Collective, ShapedArray, JaxprEqn | None], int]


def plain_price(collective: Collective, value: ShapedArray, user: JaxprEqn | None) -> int:
    """The bytes of the collective."""
    return wire_bytes(collective.kind, collective.group_size, value, collective.infer(value))


def _total(children: Mapping[int, Node]) -> Price:
    return sum(c.best[0] for c in children.values()), sum(c.best[1] for c in children.values())


def is_simple(eqn: JaxprEqn) -> bool:
    """Whether an equation may be computed from local values: one result, no regions, no effects."""
    return not (eqn.op.multiple_results or eqn.op.has_effects or eqn.op.holds_jaxprs)


@dataclass(eq=False)
class Sinking:
    """The pending values of one jaxpr, and where to do their collectives. Those of types ``starts`` may move."""

    jaxpr: Jaxpr
    variance: Variance
    starts: tuple[type[Collective], ...]
    rule: Rule
    price: Pricing = plain_price
    uses: dict[Var, list[JaxprEqn | None]] = field(default_factory=dict, init=False)
    nodes: dict[Var, Node] = field(default_factory=dict, init=False)
    moves: dict[int, Node] = field(default_factory=dict, init=False)
    #: the bytes of all these collectives at their best places
    price_of_all: int = field(default=0, init=False)

    def run(self) -> Jaxpr:
        """The jaxpr with each collective where the fewest bytes are sent."""
        if not any(isinstance(e.op, self.starts) for e in self.jaxpr.eqns):
            return self.jaxpr
        self.uses = uses_of(self.jaxpr)
        followed: set[Var] = set()
        for eqn in self.jaxpr.eqns:
            node = self._node(eqn)
            if node is not None:
                self.nodes[eqn.outvars[0]] = node
                followed.update(c.eqn.outvars[0] for c in node.children.values())
        for var, node in self.nodes.items():
            if var not in followed:
                self.price_of_all += node.best[0]
                self._settle(node)
        return self._rewritten() if self.moves else self.jaxpr

    # --- which values are pending, and at what price -----------------------------------------------------------
    def _node(self, eqn: JaxprEqn) -> Node | None:
        if not is_simple(eqn):
            return None
        children = {i: self.nodes[a] for i, a in enumerate(eqn.invars) if isinstance(a, Var) and self._movable(a)}
        if children:
            moved = self.rule(eqn, {i: c.moved for i, c in children.items()}, self.variance)
            if moved is not None:
                here = self._price(eqn, moved), 1
                depth = 1 + max(c.depth for c in children.values())
                return Node(eqn, children, moved, here, min(here, _total(children)), depth)
        if isinstance(eqn.op, self.starts):
            moved = Moved(None, (), eqn.invars[0].aval, eqn.op)
            here = self._price(eqn, moved), 1
            return Node(eqn, {}, moved, here, here)
        return None

    def _movable(self, var: Var) -> bool:
        node = self.nodes.get(var)
        return node is not None and node.depth < _DEPTH and len(self.uses.get(var, ())) == 1

    def _price(self, eqn: JaxprEqn, moved: Moved) -> int:
        users = self.uses.get(eqn.outvars[0], ())
        return self.price(moved.collective, moved.value, users[0] if len(users) == 1 else None)

    # --- what moves --------------------------------------------------------------------------------------------
    def _settle(self, node: Node) -> None:
        """Record the nodes at which to do a collective; everything below them is done on local values."""
        if not node.children:
            return
        if node.here < _total(node.children):
            self.moves[id(node.eqn)] = node
        else:
            for child in node.children.values():
                self._settle(child)

    def _rewritten(self) -> Jaxpr:
        replaced: dict[int, list[JaxprEqn]] = {}
        for node in self.moves.values():
            local = self._local(node, replaced)
            leaves = [leaf.eqn for leaf in node.leaves]
            out = node.eqn.outvars[0]
            last = JaxprEqn(node.moved.collective, [local], [out], leaves[0].source, merged_note(leaves))
            replaced[id(node.eqn)].append(last)
        eqns = [new for eqn in self.jaxpr.eqns for new in replaced.get(id(eqn), [eqn])]
        return self.jaxpr.replace(eqns=eqns)

    def _local(self, node: Node, replaced: dict[int, list[JaxprEqn]]) -> Atom:
        """The local value of a node. Puts its equations in place of the node's."""
        eqn = node.moved.local
        if eqn is None:
            replaced[id(node.eqn)] = []
            return node.eqn.invars[0]
        operands = {i: self._local(child, replaced) for i, child in node.children.items()}
        value = Var(node.moved.value)
        invars = [operands.get(i, a) for i, a in enumerate(eqn.invars)]
        replaced[id(node.eqn)] = [*node.moved.before, eqn.replace(invars=invars, outvars=[value])]
        return value
