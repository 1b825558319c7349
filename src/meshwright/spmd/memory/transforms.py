"""Complex numbers and Fourier transforms of TPUs, which have neither.

Real and imaginary parts are arrays of their own. Complex arguments are split into them, and complex results are made
of them, by kernels that do nothing else. A transform is a product with a matrix of cosines and sines. A long row is a
matrix of up to 128 rows, and is transformed in two stages: along the rows, from copies of the parts with another
dimension along the lanes, and along the columns. Products of sums are three instead of four: they take the parts and
their sum. What is real has a full spectrum, too. The rules were derived from programs that libtpu 0.0.42 compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.graph import Graph, Make, Node
from meshwright.spmd.memory.kernels import Kernel
from meshwright.spmd.memory.order_rules import Order, default, led, ordered_bytes
from meshwright.spmd.memory.parts import sliced
from meshwright.spmd.memory.tiles import tiled_bytes

#: the most rows of a long row, and the fewest; powers of two
_ROWS, _FEWEST = 128, 32
#: columns of a row from which on the stages are kernels of their own; of fewer, the first one runs with factors of the
#: second
_APART = 8
#: arrays of real numbers that are alive in a transform of one stage, of real numbers, and in the second of two stages;
#: one less where the parts are given out, or, of the second stage, where what reads them does not run with the
#: last product
_ONE_STAGE, _OF_REAL, _SECOND = 5, 3, 6


def in_full(make: Make, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any]) -> Node | None:
    """A transform between real numbers and half a spectrum, as one with all of the spectrum."""
    (x,), (*outer, n) = operands, given["fft_length"]
    if outer:
        return None
    zeros = [0] * aval.ndim
    if x.shape[-1] == n != aval.shape[-1]:
        spectrum = make("fft", operands, aval.update(shape=(*aval.shape[:-1], n)), given)
        return sliced(make, spectrum, zeros, aval.shape)
    if x.shape[-1] != n and _columns(n) is not None:  # a single product mirrors what it reads
        first, last = [*zeros[:-1], 1], (*x.shape[:-1], (n + 1) // 2)
        rest = sliced(make, x, first, last)
        back = make("reverse", (rest,), rest.avals[0], {"dimensions": (aval.ndim - 1,)})
        mirrored = make("negate", (back,), back.avals[0], {})
        whole = x.avals[0].update(shape=aval.shape)
        return make("fft", (make("concatenate", (x, mirrored), whole, {"dimension": aval.ndim - 1}),), aval, given)
    return None


def operand_order(node: Node) -> Order | None:
    """The order in which the first of two stages reads: along the lanes is the dimension before the row, or a part of
    the row, whichever is padded less."""
    (x,), (*outer, n) = node.operands, node.attributes["fft_length"]
    columns = _columns(n)
    if outer or columns is None or len(x.shape) < 2:
        return None
    usual = default(len(x.shape))
    return led(usual, (usual[1], usual[0])) if _before(x.avals[0], columns) else usual


def parts_apart(graph: Graph) -> Graph:
    """A program with kernels that split complex arguments and make complex results; nodes are changed in place."""
    split = {p: Node("split", (p,), p.avals, {}, p.source) for p in graph.parameters if _is_complex(p)}
    if not split and not any(map(_is_complex, graph.results)):
        return graph
    for node in graph.post_order():
        node.read(split)
    made = {x: Node("combine", (split.get(x, x),), x.avals, {}, x.source) for x in graph.results if _is_complex(x)}
    return replace(graph, results=tuple(made.get(x, x) for x in graph.results))


def transform_bytes(kernel: Kernel) -> int:
    """The most bytes that are live in a Fourier transform. It transforms one dimension after the other."""
    node = kernel.root
    longest = max(node.operands[0].avals[0], node.avals[0], key=lambda aval: aval.size)
    x = longest.update(dtype=dtypes.real_of(longest.dtype))
    readers = [reader for user in kernel.users for reader in user.members if node in reader.operands]
    joined = any(reader.elementwise and reader.op not in ("real", "imag") for reader in readers)
    lengths = node.attributes["fft_length"]
    if len(lengths) > 1:
        return max(_along(x, d, joined, None) for d in range(x.ndim - len(lengths), x.ndim))
    half = node.operands[0].avals[0].update(dtype=x.dtype)
    if half.shape != x.shape:  # one product, of the parts of half a spectrum and of the other half
        return 4 * tiled_bytes(half) + 3 * tiled_bytes(x)
    given_out = bool(readers) and all(reader.op == "combine" for reader in readers)
    return _along(x, x.ndim - 1, joined or not _is_complex(node), _is_complex(node.operands[0]), given_out)


def _along(x: ShapedArray, d: int, joined: bool, parts: bool | None, given_out: bool = False) -> int:
    """The bytes that are live while a dimension is transformed.

    ``joined``: what reads the result runs with the last product. ``parts``: whether it is of complex numbers, if it is
    the only dimension. ``given_out``: it is a result of the program.
    """
    columns = _columns(x.shape[d])
    if columns is None:
        return (_OF_REAL if parts is False else _ONE_STAGE - given_out) * tiled_bytes(x)
    one = tiled_bytes(_split(x, d, columns))
    if parts is None:
        return (_SECOND - (not joined)) * one
    given = _read_bytes(x, columns) if parts else one
    # the sum of the parts is written where it is copied, too
    summed = given if parts and _before(x, columns) else one * parts
    first = (1 + parts) * given + summed + one
    if columns < _APART:
        return max(first, (_SECOND - 1) * one + given)
    return max(first, (_SECOND - (not joined)) * one)


def _columns(n: int) -> int | None:
    """The columns of a row that is transformed in two stages; None for other lengths."""
    rows = min(n & -n, _ROWS)
    return n // rows if n > _ROWS and rows >= _FEWEST else None


def _split(x: ShapedArray, d: int, columns: int) -> ShapedArray:
    return x.update(shape=(*x.shape[:d], *x.shape[d + 1 :], x.shape[d] // columns, columns))


def _tilings(x: ShapedArray, columns: int) -> list[int]:
    """The bytes of rows along whose lanes there is the dimension before them, and those of rows with columns there."""
    whole = _split(x, x.ndim - 1, columns)
    n = whole.ndim
    return [ordered_bytes(whole, led(default(n), tiles)) for tiles in ((n - 3, n - 1), (n - 1, n - 2)) if n > 2]


def _before(x: ShapedArray, columns: int) -> bool:
    """Whether the dimension before the row is along the lanes."""
    tilings = _tilings(x, columns)
    return len(tilings) > 1 and tilings[0] <= tilings[1]


def _read_bytes(x: ShapedArray, columns: int) -> int:
    """The bytes of a part as the first stage reads it."""
    return min(_tilings(x, columns), default=tiled_bytes(x))


def _is_complex(x: Node) -> bool:
    return len(x.avals) == 1 and dtypes.is_complex(x.avals[0].dtype)
