"""einsum: Einstein summation, contracted pairwise in the cheapest order (``opt_einsum``), one ``dot_general`` per
pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from meshwright.api.placement import made_as
from meshwright.core import dtypes
from meshwright.core.late import LateModule
from meshwright.errors import ArgumentError, ArgumentTypeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.axes import no_out
from meshwright.numpy.creation import asarray
from meshwright.numpy.linear import contract
from meshwright.numpy.promotion import converted, dtypes_of, scalar_like
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import select
from meshwright.ops.reduce.reductions import reduce_or
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota, reduce_sum
from meshwright.ops.shape.rearrange import squeeze, transpose

opt_einsum = LateModule("opt_einsum")


@lru_cache(maxsize=1024)
def _path(subscripts: str, shapes: tuple[tuple[int, ...], ...], optimize: Any) -> list[tuple[tuple[int, ...], str]]:
    """Contraction steps ``(operand numbers, "ab,bc->ac")``; each result is appended to the list of operands."""
    try:
        _, info = opt_einsum.contract_path(subscripts, *shapes, shapes=True, optimize=optimize)
    except ValueError as error:
        raise ArgumentError(f"einsum: {subscripts!r} does not fit operands of shapes {list(shapes)}: {error}") from None
    return [(tuple(step[0]), step[2]) for step in info.contraction_list]


def einsum(
    subscripts: str,
    /,
    *operands: Any,
    out: None = None,
    optimize: Any = "auto",
    precision: Any = None,
    preferred_element_type: Any = None,
    _dot_general: Callable[..., Any] | None = None,
    out_sharding: Any = None,
) -> Any:
    """Sum of products over named dimensions.

    Args:
      subscripts: one letter per dimension for each operand, "..." for any others, and after "->" those of the result;
        all others are summed. A letter repeated within an operand takes its diagonal.
      operands: arrays; dtypes are promoted.
      optimize: the method by which ``opt_einsum`` finds the contraction order, or an order from :func:`einsum_path`.
      _dot_general: what contracts two operands in place of ``lax.dot_general``, and is called as it is, as layers do
        that quantize their operands.
      out_sharding: a constraint on the result, as by :func:`meshwright.with_sharding_constraint`.

    Raises:
      ArgumentError: the subscripts do not fit the operands.

    >>> einsum("ij,jk->ik", np.ones((2, 3)), np.ones((3, 4))).shape
    (2, 4)
    """
    if not isinstance(subscripts, str):
        subscripts, operands = _from_lists((subscripts, *operands))
    no_out(out, "einsum")
    if not operands:
        raise ArgumentError(f"einsum: {subscripts!r} needs operands, got none")
    arrays = [asarray(x) for x in operands]
    dtype, weak = dtypes.promote(dtypes_of(*arrays))
    weak = weak and preferred_element_type is None
    arrays = [converted(x, dtype) for x in arrays]
    shapes = tuple(typeof(x).shape for x in arrays)
    product = partial(_product, precision, preferred_element_type, _dot_general)
    path = _path(subscripts.replace(" ", ""), shapes, _hashable(optimize))

    def make() -> Any:
        for numbers, step in path:
            terms, kept = step.split("->")
            chosen = [arrays[i] for i in numbers]
            for i in sorted(numbers, reverse=True):
                del arrays[i]
            arrays.append(_step(list(zip(terms.split(","), chosen)), kept, product, preferred_element_type))
        return ops.convert(arrays[0], dtype, weak) if weak else arrays[0]

    return made_as(out_sharding, make)


def einsum_path(subscripts: str, /, *operands: Any, optimize: Any = "auto") -> tuple[list[Any], Any]:
    """The order in which :func:`einsum` would contract: ``([operand numbers of each step, …], report)``.

    The list can be passed as its ``optimize``.

    >>> einsum_path("ij,jk,kl->il", np.ones((2, 3)), np.ones((3, 4)), np.ones((4, 5)))[0]
    [(0, 1), (0, 1)]
    """
    if not isinstance(subscripts, str):
        subscripts, operands = _from_lists((subscripts, *operands))
    shapes = [typeof(asarray(x)).shape for x in operands]
    path, report = opt_einsum.contract_path(subscripts, *shapes, shapes=True, optimize=_hashable(optimize))
    return list(path), report


def _hashable(optimize: Any) -> Any:
    """A hashable contraction method or order; NumPy's form of an order begins with a name, which is dropped."""
    if not isinstance(optimize, (list, tuple)):
        return "auto" if optimize is True else optimize
    return tuple(tuple(step) for step in optimize if not isinstance(step, str))


def _from_lists(args: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Convert NumPy's other form: operand, dimensions, operand, dimensions, …, dimensions of the result."""
    pairs = list(zip(args[0::2], args[1::2]))
    labels = {d for _, dims in pairs for d in dims if d is not Ellipsis}
    try:  # in their order, in which the dimensions of the result are where they are not given
        symbols = {d: opt_einsum.get_symbol(i) for i, d in enumerate(sorted(labels))}
    except TypeError:
        raise ArgumentTypeError(
            f"einsum: labels of dimensions must be of one type that has an order, got {', '.join(map(repr, labels))}"
        ) from None

    def word(dims: Sequence[Any]) -> str:
        if missing := [d for d in dims if d is not Ellipsis and d not in symbols]:
            raise ArgumentError(f"einsum: the result has a dimension {missing[0]!r} that no operand has")
        return "".join("..." if d is Ellipsis else symbols[d] for d in dims)

    text = ",".join(word(dims) for _, dims in pairs)
    if len(args) % 2:
        text += "->" + word(args[-1])
    return text, tuple(x for x, _ in pairs)


def _product(precision: Any, preferred: Any, dot_general: Callable[..., Any] | None, x: Any, y: Any, dims: Any) -> Any:
    """Two operands contracted, by ``dot_general`` if the user gave one."""
    if dot_general is None:
        return contract("einsum", x, y, dims, precision, preferred)
    return dot_general(x, y, dims, precision, preferred_element_type=preferred)


def _step(terms: list[tuple[str, Any]], out: str, product: Callable[..., Any], preferred: Any) -> Any:
    """One contraction, of one operand or two, by ``product(x, y, dims)``."""
    if len(terms) > 2:  # no order was asked for: pairwise from the left
        (a, x), (b, y), *rest = terms
        needed = set(out).union(*(t for t, _ in rest))
        middle = "".join(dict.fromkeys(c for c in a + b if c in needed))
        return _step([(middle, _pair(a, x, b, y, middle, product)), *rest], out, product, preferred)
    if len(terms) == 2:
        (a, x), (b, y) = terms
        return _pair(a, x, b, y, out, product)
    ((a, x),) = terms
    if preferred is not None:
        preferred = dtypes.requested(preferred, "einsum")
        x = converted(x, dtypes.product_dtype([(typeof(x).dtype, False), (preferred, False)]))  # the dtype of the sums
    a, x = _alone(a, x, set(out))
    x = transpose(x, [a.index(c) for c in out])
    return x if preferred is None else converted(x, preferred)


def _alone(letters: str, x: Any, needed: set[str]) -> tuple[str, Any]:
    """Take diagonals of one operand and sum over letters that nothing else needs."""
    while len(set(letters)) < len(letters):
        letters, x = _diagonal(letters, x)
    summed = [d for d, c in enumerate(letters) if c not in needed]
    if summed:
        x = _summed(x, summed)
        letters = "".join(c for c in letters if c in needed)
    return letters, x


def _diagonal(letters: str, x: Any) -> tuple[str, Any]:
    """Take the diagonal of the first repeated letter: mask the rest with zeros, then sum over one of the dimensions."""
    twice = next(c for c, n in Counter(letters).items() if n > 1)
    i = letters.index(twice)
    j = letters.index(twice, i + 1)
    shape = typeof(x).shape
    mask = ops.eq(iota(dtypes.int32, shape, i), iota(dtypes.int32, shape, j))
    x = _summed(select(mask, x, scalar_like(0, x)), (i,))
    return letters[:i] + letters[i + 1 :], x


def _summed(x: Any, axes: Sequence[int]) -> Any:
    """The sum over some dimensions; for bools, whether any element is true."""
    return (reduce_or if dtypes.is_bool(typeof(x).dtype) else reduce_sum)(x, axes)


def _pair(a: str, x: Any, b: str, y: Any, out: str, product: Callable[..., Any]) -> Any:
    """Contract two operands: shared letters in the result are batch dimensions, other shared letters are contracted."""
    a, x = _alone(a, x, set(b) | set(out))
    b, y = _alone(b, y, set(a) | set(out))
    a, x, b, y = _drop_ones(a, x, b, y)
    a, x = _alone(a, x, set(b) | set(out))
    b, y = _alone(b, y, set(a) | set(out))
    shared = [c for c in a if c in b]
    batch = [c for c in shared if c in out]
    summed = [c for c in shared if c not in out]
    dims = (
        (tuple(a.index(c) for c in summed), tuple(b.index(c) for c in summed)),
        (tuple(a.index(c) for c in batch), tuple(b.index(c) for c in batch)),
    )
    free_a = [c for c in a if c not in shared]
    free_b = [c for c in b if c not in shared]
    letters = [c for c in out if c in a or c in b]
    # dot_general puts free letters of its first operand first: choose the order that needs no transpose.
    if [*batch, *free_b, *free_a] == letters != [*batch, *free_a, *free_b]:
        (ca, cb), (ba, bb) = dims
        result, order = product(y, x, ((cb, ca), (bb, ba))), letters
    else:
        result, order = product(x, y, dims), [*batch, *free_a, *free_b]
    result = transpose(result, [order.index(c) for c in letters])
    if len(letters) == len(out):
        return result
    # Restore dimensions of size 1 that both operands had dropped.
    shape = [typeof(result).shape[letters.index(c)] if c in letters else 1 for c in out]
    return broadcast_in_dim(result, shape, [out.index(c) for c in letters])


def _drop_ones(a: str, x: Any, b: str, y: Any) -> tuple[str, Any, str, Any]:
    """Drop dimensions of size 1 that broadcast against another size."""
    sizes_a, sizes_b = dict(zip(a, typeof(x).shape)), dict(zip(b, typeof(y).shape))
    ones_a = [c for c in a if c in sizes_b and sizes_a[c] == 1 != sizes_b[c]]
    ones_b = [c for c in b if c in sizes_a and sizes_b[c] == 1 != sizes_a[c]]
    x = squeeze(x, [a.index(c) for c in ones_a])
    y = squeeze(y, [b.index(c) for c in ones_b])
    return "".join(c for c in a if c not in ones_a), x, "".join(c for c in b if c not in ones_b), y
