"""Products of which an operand is gathered, so that devices would repeat them, are split along another dimension."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshwright as mw
from meshwright import NamedSharding, nn
from meshwright import PartitionSpec as P

MESH = mw.AbstractMesh((2, 4), ("d", "t"))
RNG = np.random.default_rng(7)


def test_a_head_whose_vocabulary_no_axis_divides():
    """Sums over the features would be larger than anything else, so the head is gathered; the vocabulary is split."""
    batch, width, vocabulary = 2048, 64, 1001

    def loss(head: Any, x: Any, y: Any) -> Any:
        logits = x @ head
        return (nn.logsumexp(logits, 1) - (logits * nn.one_hot(y, vocabulary)).sum(1)).mean()

    args = (
        RNG.normal(size=(width, vocabulary)).astype(np.float32),
        RNG.normal(size=(batch, width)).astype(np.float32),
        RNG.integers(0, vocabulary, batch, dtype=np.int32),
    )
    specs = P("t"), P("d", "t"), P("d")
    on = tuple(NamedSharding(MESH, s) for s in specs)
    part = mw.jit(mw.value_and_grad(loss), in_shardings=on).lower(*args).partition()
    part.verify(*args)
    assert part.work.redundancy < 1.03
    assert part.bytes_sent < 1.5 * args[0].nbytes
