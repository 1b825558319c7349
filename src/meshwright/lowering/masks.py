"""Masks that are computed from positions, at the rank of what they mask, on GPUs.

An attention mask depends on the positions of queries and keys, not on the batch or the head. If it is broadcast to
both, XLA's cost model for fused softmaxes assumes that a block of several heads computes it once. The model then
chooses blocks of 8 rows of 2,048 elements, which take 2.7 times as long as the blocks of one row that it chooses
without a mask. Here the broadcast moves up to the iotas that the mask is computed from. Measured on an H200, in
microseconds:

==================================  ======  ====  =======
scores, bfloat16                    before  here  no mask
==================================  ======  ====  =======
softmax of ``(4, 16, 2048, 2048)``     849   425      310
softmax of ``(8, 12, 1024, 1024)``     355   117      114
softmax of ``(2, 32, 512, 512)``        77    45       39
causal attention, 2,048 tokens        1236   759
its gradient                          3100  2420
==================================  ======  ====  =======

Only comparisons, selects and integer sums are computed more often, in the kernel that reads the mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.passes import dead_code
from meshwright.ir.rewrite import producers_of, replaced_in_all
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim, Iota
from meshwright.ops.shape.rearrange import Reshape, Squeeze

#: elementwise ops that cost no more than a fused multiply-add on any type
_CHEAP = frozenset({
    "add", "and", "convert_element_type", "eq", "ge", "gt", "le", "lt", "max", "min", "mul", "ne", "neg", "not", "or",
    "select_n", "sub", "xor",
})  # fmt: skip
_COMPARISONS = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})
#: the maximum number of equations that are computed at the higher rank
_MOST = 32

#: for each dimension of a value, that of the broadcast result; None for a dimension of size 1 that is left out
_Dims = tuple[int | None, ...]


def broadcast_positions(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with masks of positions computed at the rank to which they are broadcast.

    The same object if it has none.
    """
    after = replaced_in_all(jaxpr, _rule_in)
    return after if after is jaxpr else dead_code(after)


def _rule_in(jaxpr: ClosedJaxpr) -> Callable[[JaxprEqn], Sequence[JaxprEqn]]:
    producers = producers_of(jaxpr.jaxpr)

    def rule(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
        op = eqn.op
        if not isinstance(op, BroadcastInDim) or eqn.outvars[0].aval.size == eqn.invars[0].aval.size:
            return ()
        return _Raised(producers, op.shape).equations(eqn)

    return rule


class _Raised:
    """The equations of one mask, computed at the shape of a broadcast."""

    def __init__(self, producers: Mapping[Var, JaxprEqn], shape: tuple[int, ...]) -> None:
        self.producers, self.shape = producers, shape
        self.eqns: list[JaxprEqn] = []
        self.done: dict[tuple[Atom, _Dims], Var] = {}
        #: whether an iota, and a comparison, are among them
        self.is_counted = self.is_compared = False

    def equations(self, eqn: JaxprEqn) -> Sequence[JaxprEqn]:
        """The equations that replace the broadcast ``eqn``; none if its operand is not a mask of positions."""
        self.at_shape(eqn.outvars[0], tuple(range(len(self.shape))), eqn)
        if not (self.is_counted and self.is_compared) or len(self.eqns) > _MOST:
            return ()
        return [*self.eqns[:-1], self.eqns[-1].replace(outvars=eqn.outvars)]

    def at_shape(self, atom: Atom, dims: _Dims, of: JaxprEqn) -> Var:
        """``atom`` at the shape; ``of`` is the equation that uses it."""
        key = atom, dims
        if key not in self.done:
            eqn = self.producers.get(atom) if isinstance(atom, Var) and len(self.eqns) <= _MOST else None
            self.done[key] = (eqn and self._computed(eqn, dims)) or self._broadcast(atom, dims, of)
        return self.done[key]

    def _computed(self, eqn: JaxprEqn, dims: _Dims) -> Var | None:
        """The result of ``eqn``, computed at the shape; None for an op that stays where it is."""
        op, shape = eqn.op, eqn.outvars[0].aval.shape
        if isinstance(op, Iota):
            to = dims[op.dimension]
            if to is None or shape[op.dimension] != self.shape[to]:
                return None
            self.is_counted = True
            return self._write(eqn.replace(op=Iota(op.dtype, self.shape, to)))
        if isinstance(op, BroadcastInDim):
            return self.at_shape(eqn.invars[0], tuple(dims[d] for d in op.broadcast_dimensions), eqn)
        if isinstance(op, (Reshape, Squeeze)):
            before, kept = eqn.invars[0].aval.shape, [d for d, n in zip(dims, shape) if n != 1]
            if [n for n in before if n != 1] != [n for n in shape if n != 1]:
                return None
            large = iter(kept)
            return self.at_shape(eqn.invars[0], tuple(None if n == 1 else next(large) for n in before), eqn)
        if op.name not in _CHEAP or not shape:
            return None
        self.is_compared |= op.name in _COMPARISONS
        return self._write(eqn.replace(invars=[self.at_shape(a, dims, eqn) if a.aval.ndim else a for a in eqn.invars]))

    def _broadcast(self, atom: Atom, dims: _Dims, of: JaxprEqn) -> Var:
        if None in dims:
            squeezed = Squeeze(tuple(d for d, to in enumerate(dims) if to is None))
            rows = Var(squeezed.infer(atom.aval))
            self.eqns.append(of.replace(op=squeezed, invars=[atom], outvars=[rows]))
            atom = rows
        kept = tuple(d for d in dims if d is not None)
        return self._write(of.replace(op=BroadcastInDim(self.shape, kept), invars=[atom], outvars=[Var(atom.aval)]))

    def _write(self, eqn: JaxprEqn) -> Var:
        var = Var(eqn.outvars[0].aval.update(shape=self.shape))
        self.eqns.append(eqn.replace(outvars=[var]))
        return var
