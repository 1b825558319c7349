"""The arithmetic of a window that slides along one dimension, for convolution and pooling.

Result row ``o`` sees, for ``k`` in ``range(size)``, row ``o * stride + k * window_dilation - low`` of the operand
dilated by ``base_dilation``. Terms follow XLA's ``Window`` (https://openxla.org/xla/operation_semantics).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError, ShapeError
from meshwright.ir.contract import Localizer
from meshwright.ir.tracing import typeof
from meshwright.ops.shape.slice_pad import Pad
from meshwright.sharding.window import Window, plan_window

Pads = tuple[tuple[int, int], ...]


def dilate(size: int, dilation: int) -> int:
    """The number of rows when ``size`` rows have ``dilation - 1`` others between neighbours."""
    return (size - 1) * dilation + 1 if size else 0


@dataclass(frozen=True)
class WindowDim:
    """A window along one dimension. ``low`` and ``high`` are rows of padding; negative ones crop."""

    size: int
    stride: int = 1
    low: int = 0
    high: int = 0
    base_dilation: int = 1
    window_dilation: int = 1

    @property
    def extent(self) -> int:
        """The number of rows from the first to the last in a window."""
        return dilate(self.size, self.window_dilation)

    @property
    def is_trivial(self) -> bool:
        """Whether the window is an identity: each result row sees the operand row with its number."""
        return (self.size, self.stride, self.low, self.high, self.base_dilation) == (1, 1, 0, 0, 1)

    def padded_size(self, n: int) -> int:
        """The size of an operand of ``n`` rows after dilation and padding."""
        return dilate(n, self.base_dilation) + self.low + self.high

    def output_size(self, n: int) -> int:
        """The number of result rows for an operand of ``n`` rows."""
        room = self.padded_size(n) - self.extent
        return room // self.stride + 1 if room >= 0 else 0

    def covers(self, n: int) -> bool:
        """Whether there is a single window that contains all ``n`` rows of the operand."""
        plain = self.base_dilation == self.window_dilation == 1
        return plain and self.output_size(n) == 1 and self.low >= 0 and self.size >= n + self.low

    def in_step(self, n: int) -> bool:
        """Whether windows and the ``n`` rows of an operand advance alike, so that tiles of both lie on each other."""
        return self.output_size(n) == -(-n * self.base_dilation // self.stride)

    def seen(self, n: int, rows: int) -> Window:
        """The window of a dilated operand of ``n`` rows that each tile of ``rows`` result rows sees."""
        length, last = (rows - 1) * self.stride + self.extent, (self.output_size(n) - 1) * self.stride
        return Window(lambda tile: tile * rows * self.stride - self.low, length, last + self.extent - self.low)

    def adjoint(self, n: int) -> WindowDim:
        """The window that maps a cotangent of the result to one of the operand's ``n`` rows.

        Weight ``k`` is then at ``size - 1 - k``.
        """
        low = self.extent - 1 - self.low
        high = dilate(n, self.base_dilation) + self.low - dilate(self.output_size(n), self.stride)
        return WindowDim(self.size, self.base_dilation, low, high, self.stride, self.window_dilation)

    def adjoint_weights(self, n: int) -> WindowDim:
        """The window of a result cotangent, used as weights, that slides over the operand to give the weights'
        cotangent."""
        m = self.output_size(n)
        high = self.extent - 1 + dilate(m, self.stride) - dilate(n, self.base_dilation) - self.low
        return WindowDim(m, self.window_dilation, self.low, high, self.base_dilation, self.stride)

    def check(self, op: str, dim: int, n: int) -> None:
        """Raise unless the window fits a dimension of ``n`` rows.

        Raises:
          ShapeError: a size, stride or dilation is below 1, or padding crops more than there is.
        """
        values = {"window size": self.size, "stride": self.stride, "base (lhs) dilation": self.base_dilation,
                  "window (rhs) dilation": self.window_dilation}  # fmt: skip
        for what, value in values.items():
            if value < 1:
                raise ShapeError(f"{op}: {what} of window dimension {dim} is {value}, expected at least 1")
        if self.padded_size(n) < 0:
            raise ShapeError(
                f"{op}: padding ({self.low}, {self.high}) of window dimension {dim} cuts more than its "
                f"{counted(dilate(n, self.base_dilation), 'row')}; make it less negative"
            )


@dataclass(frozen=True)
class SentHalos:
    """The :data:`~meshwright.sharding.rule.Passes` of an op that fetches the windows of its tiles from ``size``
    rows."""

    window: WindowDim
    size: int

    def __call__(self, tiles: int) -> float:
        seen = self.window.seen(self.size, -(-self.window.output_size(self.size) // tiles))
        rows, _ = _undilated(seen, self.window.base_dilation, tiles)
        plan = plan_window(self.size, tiles, *rows)
        return (tiles - 1) if plan.gather else plan.sent / -(-self.size // tiles)


def make_windows(
    sizes: Sequence[int], strides: Sequence[int], padding: Pads, base: Sequence[int], window: Sequence[int]
) -> tuple[WindowDim, ...]:
    """Windows from the parameters of an op, one entry per dimension."""
    return tuple(WindowDim(k, s, lo, hi, b, w) for k, s, (lo, hi), b, w in zip(sizes, strides, padding, base, window))


# --- what users write ---------------------------------------------------------------------------------------
def padtype_to_pads(
    in_shape: Sequence[int], window_shape: Sequence[int], window_strides: Sequence[int], padding: str
) -> list[tuple[int, int]]:
    """The ``(low, high)`` pairs for ``"SAME"``, ``"SAME_LOWER"`` or ``"VALID"``.

    ``"SAME"`` gives results of ``ceil(size / stride)`` rows; if the padding is odd, the larger part comes after (with
    ``"SAME_LOWER"``, before).

    Raises:
      ArgumentError: another word. ShapeError: a stride below 1.

    Example:
      >>> lax.padtype_to_pads((5, 8), (3, 3), (1, 2), "SAME")
      [(1, 1), (0, 1)]
    """
    word = padding.upper() if isinstance(padding, str) else padding
    if word == "VALID":
        return [(0, 0)] * len(in_shape)
    if word not in ("SAME", "SAME_LOWER"):
        raise ArgumentError(f"padding: expected 'SAME', 'SAME_LOWER', 'VALID' or (low, high) pairs, got {padding!r}")
    pads = []
    for dim, (n, k, stride) in enumerate(zip(in_shape, window_shape, window_strides)):
        if stride < 1:
            raise ShapeError(f"padding {word!r}: stride of window dimension {dim} is {stride}, expected at least 1")
        total = max((-(-n // stride) - 1) * stride + k - n, 0)
        low = total // 2 if word == "SAME" else total - total // 2
        pads.append((low, total - low))
    return pads


def int_tuple(op: str, what: str, value: Any, rank: int, default: int | None = None) -> tuple[int, ...]:
    """``value`` as ``rank`` ints; ``None`` means ``default`` everywhere.

    Raises:
      ArgumentTypeError: not ints. ShapeError: not ``rank`` of them.
    """
    if value is None and default is not None:
        return (default,) * rank
    try:
        ints = tuple(int(v.__index__()) for v in value)
    except (TypeError, AttributeError):
        raise ArgumentTypeError(f"{op}: {what} must be a sequence of ints, got {value!r}") from None
    if len(ints) != rank:
        raise ShapeError(f"{op}: {what} needs {counted(rank, 'entry', 'entries')}, one a window dimension, got {ints}")
    return ints


def pad_pairs(op: str, padding: Any, in_shape: Sequence[int], windows: Sequence[int], strides: Sequence[int]) -> Pads:
    """``padding`` as ``(low, high)`` pairs, from pairs or a word (see :func:`padtype_to_pads`)."""
    if isinstance(padding, str):
        return tuple(padtype_to_pads(in_shape, windows, strides, padding))
    try:
        pairs = tuple(padding)
    except TypeError:
        pairs = ()
    if len(pairs) != len(windows):
        raise ArgumentError(
            f"{op}: padding must be 'SAME', 'SAME_LOWER', 'VALID' or {len(windows)} (low, high) pairs, one a window "
            f"dimension, got {padding!r}"
        )
    return tuple(int_tuple(op, "each pair of padding", pair, 2) for pair in pairs)  # type: ignore[misc]


# --- on split dimensions ------------------------------------------------------------------------------------
def _undilated(window: Window, dilation: int, tiles: int) -> tuple[Window, list[int]]:
    """The window of an operand in terms of its rows before dilation, and for each tile the number of dilation zeros
    before the first of these rows."""

    def first(tile: int) -> int:
        return -(-window.start(tile) // dilation)

    phases = [first(t) * dilation - window.start(t) for t in range(tiles)]
    low = phases[0] if len(set(phases)) == 1 and phases[0] < window.length else 0
    stop = None if window.stop is None else -(-window.stop // dilation)
    return Window(first, -(-(window.length - low) // dilation), stop), phases


def fetch_dilated(
    ctx: Localizer, x: Any, operand: int, dim: int, window: Window, dilation: int, fill: Any = None
) -> tuple[Any, tuple[int, int], int]:
    """Fetch the rows of an operand's dimension that tiles need after it is dilated.

    Returns ``(rows, (low, high), dilation)``: the rows must still be dilated and padded accordingly. If tiles begin at
    different offsets within the dilation, this has been done already.
    """
    rows, phases = _undilated(window, dilation, ctx.num_tiles(operand, dim))
    x = ctx.fetch_window(x, operand, dim, rows, fill)
    if dilation == 1:
        return x, (0, 0), 1
    if len(set(phases)) == 1 and phases[0] < window.length:
        return x, (phases[0], window.length - phases[0] - dilate(rows.length, dilation)), dilation
    value = typeof(x).dtype.type(0) if fill is None else fill
    spread = [(0, 0, 0)] * typeof(x).ndim
    spread[dim] = (0, 0, dilation - 1)
    x = Pad(tuple(spread)).bind(x, value)
    return ctx.cut(x, operand, dim, [-p for p in phases], window.length, fill=value), (0, 0), 1


def fetch_for_result(
    ctx: Localizer, x: Any, operand: int, dim: int, window: WindowDim, rows: int, fill: Any = None
) -> tuple[Any, WindowDim]:
    """Fetch the rows that ``rows`` result rows of each tile see; returns them and the window to slide over them."""
    seen = window.seen(ctx.in_avals[operand].shape[dim], rows)
    x, pads, dilation = fetch_dilated(ctx, x, operand, dim, seen, window.base_dilation, fill)
    return x, dataclasses.replace(window, low=pads[0], high=pads[1], base_dilation=dilation)
