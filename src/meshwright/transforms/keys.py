"""Programs on the words of keys: what is compiled has no dtype of keys.

A key of ``n`` words is a ``uint32`` that differs along an axis of ``n`` positions, so that a program on words is the
program on keys, batched: every op that moves, selects or carries keys has a rule for that already.
"""

from __future__ import annotations

from meshwright.core.key_types import KeyType
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import BatchAxis
from meshwright.ops.random.keys import key_types_of
from meshwright.transforms.jaxprs import TRANSFORMS


def on_words(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with ``uint32[..., words]`` in place of keys, in arguments and results too."""
    for key in sorted(key_types_of(jaxpr.jaxpr), key=lambda k: k.name):
        jaxpr = _of_one_kind(jaxpr, key)
    return jaxpr


def _of_one_kind(jaxpr: ClosedJaxpr, key: KeyType) -> ClosedJaxpr:
    axis = BatchAxis(key.words, key.name, key=key)
    dims = tuple(a.ndim if a.dtype is key else None for a in jaxpr.in_avals)
    out_dims = tuple(a.ndim if a.dtype is key else None for a in jaxpr.out_avals)
    result, places = TRANSFORMS.batch(jaxpr, axis, dims, out_dims)
    assert places == out_dims, "only keys have words"
    return result
