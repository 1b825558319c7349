"""Lowers typed random keys to ``uint32`` words, so that no key dtype reaches the compiler.

A key of ``n`` words is treated as a ``uint32`` scalar batched along an axis of size ``n``. The lowered program is
therefore the batched program, and ops that move, select or carry keys need only their existing batching rule.
"""

from __future__ import annotations

from meshwright.core.key_types import KeyType
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.op import BatchAxis
from meshwright.ir.rewrite import in_jaxprs, replaced_in_all
from meshwright.ops.random.keys import key_types_of
from meshwright.ops.scalar_body import BodyOp
from meshwright.transforms.jaxprs import TRANSFORMS


def on_words(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with every key replaced by ``uint32[..., words]``, including its arguments and results."""
    kinds = key_types_of(jaxpr.jaxpr)
    if kinds:
        jaxpr = replaced_in_all(jaxpr, lambda _: _with_words_in_body)
    for key in sorted(kinds, key=lambda k: k.name):
        jaxpr = _of_one_kind(jaxpr, key)
    return jaxpr


def _with_words_in_body(eqn: JaxprEqn) -> list[JaxprEqn]:
    """A function of scalars that makes keys of its own: batching the op around it does not reach them."""
    op = eqn.op
    if not isinstance(op, BodyOp) or not key_types_of(op.computation.jaxpr):
        return []
    return [in_jaxprs(eqn, on_words)]


def _of_one_kind(jaxpr: ClosedJaxpr, key: KeyType) -> ClosedJaxpr:
    axis = BatchAxis(key.words, key.name, key=key)
    dims = tuple(a.ndim if a.dtype is key else None for a in jaxpr.in_avals)
    out_dims = tuple(a.ndim if a.dtype is key else None for a in jaxpr.out_avals)
    result, places = TRANSFORMS.batch(jaxpr, axis, dims, out_dims)
    assert places == out_dims, "only keys have words"
    return result
