"""Reading rules of products that become ``dot_general``: those by subscripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.ir.reading import Reader, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.products.dot import DotDimensionNumbers, DotGeneral, read_precision
from meshwright.ops.shape.broadcast_reduce import reduce_sum
from meshwright.ops.shape.rearrange import transpose


def _product(r: Reader, lhs: Any, rhs: Any, numbers: DotDimensionNumbers) -> Any:
    out = r.out_avals[0].dtype
    preferred = None if typeof(lhs).dtype == typeof(rhs).dtype == out else out
    return DotGeneral(numbers, read_precision(r), preferred).bind(lhs, rhs)


# --- einsum -------------------------------------------------------------------------------------------------
def _summed(r: Reader, x: Any, labels: str, kept: str) -> tuple[Any, str]:
    """``x`` summed over the dimensions whose label is not in ``kept``."""
    if len(set(labels)) != len(labels) or len(labels) != typeof(x).ndim:
        r.fail(f"subscripts {labels!r} of {typeof(x)} repeat a label or do not fit; write slices and a dot_general")
    gone = [d for d, label in enumerate(labels) if label not in kept]
    return reduce_sum(x, gone), "".join(label for label in labels if label in kept)


def _subscripts(r: Reader) -> tuple[list[str], str]:
    config = r.attr("einsum_config").replace(" ", "")
    inputs, arrow, out = config.partition("->")
    if not arrow or not config.replace(",", "").replace("->", "").isalpha():
        r.fail(f"einsum_config {config!r} is not letters with an arrow; write a dot_general")
    return inputs.split(","), out


def _places(labels: Sequence[str], left: str, right: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The positions of labels on either side."""
    return tuple(map(left.index, labels)), tuple(map(right.index, labels))


@reads("stablehlo.unary_einsum")
def _unary_einsum(r: Reader) -> Any:
    (labels,), out = _subscripts(r)
    x, labels = _summed(r, r.operands[0], labels, out)
    return transpose(x, [labels.index(label) for label in out])


@reads("stablehlo.einsum")
def _einsum(r: Reader) -> Any:
    (left, right), out = _subscripts(r)
    (x, left), (y, right) = (
        _summed(r, v, mine, out + other) for v, mine, other in zip(r.operands, (left, right), (right, left))
    )
    shared = [label for label in left if label in right]
    batch, contracted = ([c for c in shared if (c in out) == kept] for kept in (True, False))
    numbers = (_places(contracted, left, right), _places(batch, left, right))
    product_labels = "".join(batch) + "".join(c for side in (left, right) for c in side if c not in shared)
    return transpose(_product(r, x, y, numbers), [product_labels.index(c) for c in out])
