"""Undoes the splitting of contractions over virtual axes: ``psum(op(x, y))`` becomes ``op`` of the gathered tiles.

On a virtual mesh, an all-gather is a reshape, so a partitioned matrix product becomes one large product again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.op import Op
from meshwright.ir.rewrite import producers_of, use_counts
from meshwright.ops.collective.base import Collective
from meshwright.ops.collective.tiles import AllGather
from meshwright.ops.control.regions import RegionOp
from meshwright.sharding.rule import REDUCTION
from meshwright.spmd.rules import eqn_rule
from meshwright.spmd.varying import region_inputs, varying


def merge_reductions(jaxpr: ClosedJaxpr, inputs: Sequence[frozenset[str]], virtual: Sequence[str]) -> ClosedJaxpr:
    """Replace ``psum(op(x, y))``, where ``op`` contracts a factor, by ``op(all_gather(x), all_gather(y))`` along it.

    Only for sums over ``virtual`` axes; ``inputs`` are the axes along which the parameters vary. Valid for every op
    that is unchanged on local shapes (a sum of products of blocks is the product of the concatenated blocks).
    """
    return _MergeReductions(jaxpr, inputs, virtual).run()


class _MergeReductions:
    def __init__(self, jaxpr: ClosedJaxpr, inputs: Sequence[frozenset[str]], virtual: Sequence[str]) -> None:
        self.closed = jaxpr
        self.virtual = virtual
        inner = jaxpr.jaxpr
        self.varying = varying(inner, inputs)
        self.producers = producers_of(inner)
        self.uses = use_counts(inner.eqns, inner.outvars)

    def run(self) -> ClosedJaxpr:
        inner = self.closed.jaxpr
        replaced: dict[int, list[JaxprEqn]] = {}
        for eqn in inner.eqns:
            op = eqn.op
            if isinstance(op, RegionOp):
                replaced[id(eqn)] = [self._regions(eqn, op)]
                continue
            left = op.of_sum() if isinstance(op, Collective) and set(op.axes).issubset(self.virtual) else None
            if left is not None and isinstance(eqn.invars[0], Var):
                chain = self._producer(eqn.invars[0], frozenset(op.axes))  # type: ignore[attr-defined]
                if chain is not None:
                    self._merge(eqn, left, chain, replaced)
        if not replaced:
            return self.closed
        eqns = [new for eqn in inner.eqns for new in replaced.get(id(eqn), [eqn])]
        return self.closed.replace(jaxpr=inner.replace(eqns=eqns))

    def _regions(self, eqn: JaxprEqn, op: RegionOp) -> JaxprEqn:
        """Apply the rewrite in the regions of an op."""
        inputs = region_inputs(eqn, self.varying)
        merged = [merge_reductions(r, i, self.virtual) for r, i in zip(op.regions(), inputs)]
        return eqn.replace(op=op.with_regions(merged))

    def _producer(self, var: Var, axes: frozenset[str]) -> list[JaxprEqn] | None:
        """The equations from a contraction to ``var``, if each result is used once.

        After the contraction come ops that commute with a sum over ``axes``: linear in this operand, with other
        operands that are equal along ``axes``.
        """
        chain: list[JaxprEqn] = []
        while True:
            eqn = self.producers.get(var)
            if eqn is None or self.uses[var] != 1 or eqn.op.multiple_results:
                return None
            chain.append(eqn)
            through = None if isinstance(eqn.op, Collective) else self._linear_operand(eqn, axes)
            if through is None:
                return chain[::-1]
            var = through

    def _linear_operand(self, eqn: JaxprEqn, axes: frozenset[str]) -> Var | None:
        """The only operand that varies along ``axes``, if the op is linear in it and does not contract a factor."""
        differing = [
            i for i, a in enumerate(eqn.invars) if isinstance(a, Var) and self.varying.get(a, frozenset()) & axes
        ]
        linear = eqn.op.linear_groups(*(a.aval for a in eqn.invars))
        if len(differing) != 1 or tuple(differing) not in linear:
            return None
        if any(f.kind == REDUCTION for f in eqn_rule(eqn).factors):
            return None
        operand = eqn.invars[differing[0]]
        return operand if isinstance(operand, Var) else None

    def _merge(self, psum: JaxprEqn, left: Op, chain: list[JaxprEqn], replaced: dict[int, list[JaxprEqn]]) -> None:
        source = chain[0]
        axes = psum.op.axes  # type: ignore[attr-defined]
        sizes = psum.op.sizes  # type: ignore[attr-defined]
        if isinstance(source.op, Collective) or source.op.holds_jaxprs or id(source) in replaced:
            return
        rule = eqn_rule(source)
        # An op that overrides ``localize`` may depend on the position of its blocks (a dynamic slice does).
        if rule.reduction != "sum" or not source.op.is_same_on_tiles:
            return
        for f, factor in enumerate(rule.factors):
            if factor.kind == REDUCTION:
                gathered = self._gather_operands(source, rule, f, axes, sizes)
                if gathered is not None:
                    new_eqns, operands = gathered
                    replaced[id(source)] = [*new_eqns, source.replace(invars=operands)]
                    replaced[id(psum)] = [psum.replace(op=left, note=None)]
                    return

    def _gather_operands(
        self, eqn: JaxprEqn, rule: Any, f: int, axes: tuple[str, ...], sizes: tuple[int, ...]
    ) -> tuple[list[JaxprEqn], list[Any]] | None:
        new_eqns, operands = [], []
        for atom, dims in zip(eqn.invars, rule.operands):
            where = [d for d, fs in enumerate(dims) if fs == (f,)]
            all_axes = self.varying.get(atom, frozenset()) if isinstance(atom, Var) else frozenset()
            varies = all_axes & set(axes)
            if len(where) != 1:
                if varies or any(f in fs for fs in dims):
                    return None
                operands.append(atom)
                continue
            if len(varies) != len(axes):
                return None  # gathering replicas would only multiply the work
            op = AllGather(axes, sizes, where[0])
            out = Var(op.infer(atom.aval))
            new_eqns.append(JaxprEqn(op, [atom], [out], eqn.source))
            operands.append(out)
        out_aval = eqn.op.infer(*(a.aval for a in operands))
        return (new_eqns, operands) if out_aval == eqn.outvars[0].aval else None
