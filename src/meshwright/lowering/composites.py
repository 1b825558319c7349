"""Ops that consist of matrix products are written out before these are brought into faster forms."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.core.config import config
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.passes import Pass
from meshwright.ir.rewrite import replaced_in_all, written_out
from meshwright.ops.composite import Composite


def write_products_out(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Replace ops :attr:`~.Composite.of_products` by their expansions."""
    return replaced_in_all(jaxpr, lambda _: _expansion)


def _expansion(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
    op = eqn.op
    return written_out(eqn, op.expand) if isinstance(op, Composite) and op.of_products else ()


WRITTEN_OUT_PRODUCTS = Pass(
    "write out products",
    lambda j: write_products_out(j) if config.platform == "cpu" else j,
    "On CPUs, products with groups of rows become loops of products over the tiles of groups.",
)
