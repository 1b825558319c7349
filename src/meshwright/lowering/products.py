"""Matrix products in forms for which XLA's CPU compiler has fast kernels.

A product of operands that are split into tiles has several consecutive free (or contracting) dimensions. XLA's CPU
kernels expect matrices, so runs of such dimensions are merged by reshapes, which are free.

The kernel (Eigen's) packs the right operand. Packing is slow if the contracted dimension is the last one (``x @ w.T``),
and does not pay off if the left operand has few rows. With the operands exchanged, the small one is packed and the
result, which is also small, is transposed. Measured in float32, CPU time of one thread, speedup for ``rows`` of ``x``
and ``w`` of these sizes:

====  =======  =======  ========  ========  =========
rows  256×256  768×768  3072×768  768×3072  4096×1024
====  =======  =======  ========  ========  =========
   4     1.62     2.93     17.72     14.61      21.51
  64     1.35     2.08      8.19      6.64      10.09
 256     0.90     1.17      2.92      2.27       3.17
 512     0.83     0.97      1.92      1.48       1.95
2048     0.61     0.75      0.90      0.70       0.90
====  =======  =======  ========  ========  =========

The speedup is 1.7 for a batch of 8 products of 64 rows with 256 × 256, but 0.8 for a batch of 64 products of 32 rows
with 128 × 128. Hence the rule of :func:`_is_wide`.

The kernel is also slow for the gradient of a weight with few columns, ``x.T @ g``: it packs ``x`` for little
arithmetic. With the operands exchanged, it packs ``g``. The speedup for 512 rows of 256 and 4, 10, 16, 32, 64 columns
is 3.6, 1.8, 2.0, 1.5 and 1.1; for 4096 rows of 512 and 10 columns it is 4.7 (:func:`_is_tall`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.passes import Pass, dead_code
from meshwright.ir.rewrite import in_regions, replaced, replaced_in_all
from meshwright.ops.control.markers import OptimizationBarrier
from meshwright.ops.products.dot import DotGeneral
from meshwright.ops.shape.rearrange import Reshape, Transpose

Runs = list[tuple[int, ...]]

#: number of elements of the right operand below which packing it takes no noticeable time
_LARGE = 256 * 256
#: number of elements of the right operand from which it does not fit into the cache while it is packed
_UNCACHED = 1 << 21
#: number of elements of a transposed left operand from which packing it takes noticeable time
_TALL = 1 << 15
#: maximum number of columns of the right operand: with more, reading the transposed result costs as much as packing (a
#: step of an MLP of 1024 × 1024 × 4096 took 1.07 times as long)
_FEW = 32


def merge_dot_dims(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Merge adjacent dimensions of matrix products that have the same role (batch, contracting or free)."""

    def equation(eqn: JaxprEqn) -> JaxprEqn | list[JaxprEqn]:
        return _merged(eqn) if isinstance(eqn.op, DotGeneral) else in_regions(eqn, merge_dot_dims)

    return replaced(jaxpr, equation)


def _runs(dims: Sequence[int]) -> Runs:
    """Maximal runs of consecutive ascending numbers, in the order given."""
    runs: list[list[int]] = []
    for d in dims:
        if runs and d == runs[-1][-1] + 1:
            runs[-1].append(d)
        else:
            runs.append([d])
    return [tuple(r) for r in runs]


def _paired_runs(left: Sequence[int], right: Sequence[int]) -> tuple[Runs, Runs]:
    """Runs that are consecutive in both of two paired lists."""
    lruns: list[list[int]] = []
    rruns: list[list[int]] = []
    for a, b in zip(left, right):
        if lruns and a == lruns[-1][-1] + 1 and b == rruns[-1][-1] + 1:
            lruns[-1].append(a)
            rruns[-1].append(b)
        else:
            lruns.append([a])
            rruns.append([b])
    return [tuple(r) for r in lruns], [tuple(r) for r in rruns]


def _merged(eqn: JaxprEqn) -> list[JaxprEqn]:
    (lc, rc), (lb, rb) = eqn.op.dimension_numbers  # type: ignore[attr-defined]
    lhs, rhs = eqn.invars
    lc_runs, rc_runs = _paired_runs(lc, rc)
    lb_runs, rb_runs = _paired_runs(lb, rb)
    lf_runs = _runs([d for d in range(lhs.aval.ndim) if d not in lc and d not in lb])
    rf_runs = _runs([d for d in range(rhs.aval.ndim) if d not in rc and d not in rb])
    every = (lc_runs, lb_runs, lf_runs, rf_runs)
    if all(len(r) == 1 for runs in every for r in runs):
        return [eqn]
    eqns: list[JaxprEqn] = []
    new_lhs, left = _collapse(eqn, lhs, lc_runs, lb_runs, lf_runs, eqns)
    new_rhs, right = _collapse(eqn, rhs, rc_runs, rb_runs, rf_runs, eqns)
    numbers = (
        (tuple(left[r] for r in lc_runs), tuple(right[r] for r in rc_runs)),
        (tuple(left[r] for r in lb_runs), tuple(right[r] for r in rb_runs)),
    )
    op = replace(eqn.op, dimension_numbers=numbers)  # type: ignore[call-arg]
    small = Var(op.infer(new_lhs.aval, new_rhs.aval))
    out = eqn.outvars[0]
    eqns.append(eqn.replace(op=op, invars=[new_lhs, new_rhs], outvars=[small]))
    eqns.append(JaxprEqn(Reshape(out.aval.shape), [small], [out], eqn.source, eqn.note))
    return eqns


def _collapse(
    eqn: JaxprEqn, atom: Atom, contracting: Runs, batch: Runs, free: Runs, eqns: list[JaxprEqn]
) -> tuple[Atom, dict[tuple[int, ...], int]]:
    """The operand with each run merged into one dimension, and the dimension of each run."""
    order = sorted([*contracting, *batch, *free])
    place = {run: i for i, run in enumerate(order)}
    shape = tuple(prod(atom.aval.shape[d] for d in run) for run in order)
    if shape == atom.aval.shape:
        return atom, place
    merged = Var(atom.aval.update(shape=shape))
    eqns.append(JaxprEqn(Reshape(shape), [atom], [merged], eqn.source, eqn.note))
    return merged, place


def swap_products(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Exchange the operands of wide and tall products (:func:`_is_wide`, :func:`_is_tall`), in called functions too."""

    def rule_in(inner: ClosedJaxpr) -> Callable[[JaxprEqn], list[JaxprEqn]]:
        permuted = {e.outvars[0]: e for e in inner.eqns if isinstance(e.op, Transpose)}
        return lambda eqn: _in_its_place(eqn, permuted)

    after = replaced_in_all(jaxpr, rule_in)
    return jaxpr if after is jaxpr else dead_code(after)


def _in_its_place(eqn: JaxprEqn, permuted: Mapping[Var, JaxprEqn]) -> list[JaxprEqn]:
    """The equations that replace a product that is faster in another form; none for other equations."""
    if not isinstance(eqn.op, DotGeneral):
        return []
    eqns = _merged(_of_transposed(eqn, permuted))
    at = next(i for i, e in enumerate(eqns) if isinstance(e.op, DotGeneral))
    before, product, after = eqns[:at], eqns[at], eqns[at + 1 :]
    x, g = (a.aval for a in product.invars)
    if _is_wide(product) or _is_tall(product, x, g):
        return [*before, *_swapped(product), *after]
    return [*before, *_kept(product), *after] if _is_tall(product, g, x) else []


def _of_transposed(eqn: JaxprEqn, permuted: Mapping[Var, JaxprEqn]) -> JaxprEqn:
    """The product with the transpose of a right operand ``w.T`` folded into its dimension numbers."""
    producer = permuted.get(eqn.invars[1])  # type: ignore[arg-type]
    (contracted, of_right), batch = eqn.op.dimension_numbers  # type: ignore[attr-defined]
    if producer is None or batch != ((), ()) or producer.invars[0].aval.ndim != 2:
        return eqn
    order = producer.op.permutation  # type: ignore[attr-defined]
    numbers = (contracted, tuple(order[d] for d in of_right)), batch
    op = replace(eqn.op, dimension_numbers=numbers)  # type: ignore[call-arg]
    return eqn.replace(op=op, invars=[eqn.invars[0], producer.invars[0]])


def _is_wide(eqn: JaxprEqn) -> bool:
    """Whether a product is ``x @ w.T`` (possibly batched) with a large ``w`` and few rows of ``x``."""
    (contracted, rc), (batch, rb) = eqn.op.dimension_numbers  # type: ignore[attr-defined]
    lhs, rhs = (a.aval for a in eqn.invars)
    in_front = tuple(range(len(rb)))
    if lhs.dtype != rhs.dtype or lhs.dtype not in (np.float32, np.float64):
        return False
    if tuple(rc) != (rhs.ndim - 1,) or tuple(batch) != in_front or tuple(rb) != in_front:
        return False
    if lhs.ndim != rhs.ndim or rhs.ndim != len(in_front) + 2:
        return False
    rows = lhs.size // max(1, prod(lhs.shape[d] for d in (*batch, *contracted)))
    wide, deep = rhs.shape[-2:]
    times = 1 if wide * deep >= _UNCACHED else 2
    return rows > 1 and times * rows <= min(wide, deep) and wide * deep >= _LARGE


def _is_tall(eqn: JaxprEqn, x: ShapedArray, g: ShapedArray) -> bool:
    """Whether a product is ``x.T @ g`` (or its transpose) with a large ``x`` and few columns of ``g``."""
    numbers = eqn.op.dimension_numbers  # type: ignore[attr-defined]
    if numbers != (((0,), (0,)), ((), ())) or x.ndim != 2 or g.ndim != 2:
        return False
    columns = g.shape[1]
    kernel = x.dtype == g.dtype and x.dtype in (np.float32, np.float64)
    return kernel and 1 < columns <= min(_FEW, x.shape[1] // 4) and x.size >= _TALL


def _kept(eqn: JaxprEqn) -> list[JaxprEqn]:
    """The product, with a barrier after it: XLA would fold a transpose of the result by exchanging the operands."""
    (out,) = eqn.outvars
    product = Var(out.aval)
    return [
        eqn.replace(outvars=[product]),
        JaxprEqn(OptimizationBarrier(), [product], [out], eqn.source, eqn.note),
    ]


def _swapped(eqn: JaxprEqn) -> list[JaxprEqn]:
    """The product with its operands exchanged and its result transposed."""
    (lc, rc), (lb, rb) = eqn.op.dimension_numbers  # type: ignore[attr-defined]
    op = replace(eqn.op, dimension_numbers=((rc, lc), (rb, lb)))  # type: ignore[call-arg]
    (lhs, rhs), (out,) = eqn.invars, eqn.outvars
    order = (*range(len(lb)), len(lb) + 1, len(lb))
    product = Var(op.infer(rhs.aval, lhs.aval))
    return [
        *_kept(eqn.replace(op=op, invars=[rhs, lhs], outvars=[product])),
        JaxprEqn(Transpose(order), [product], [out], eqn.source, eqn.note),
    ]


MERGE_PRODUCTS = Pass(
    "merge dimensions of products", merge_dot_dims, "Adjacent dimensions with the same role in a product are merged."
)
SWAPPED_PRODUCTS = Pass(
    "swap products",
    lambda j: swap_products(j) if config.platform == "cpu" else j,
    "On CPUs, the operands of some products (few rows or columns) are exchanged for speed.",
)
