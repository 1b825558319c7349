"""Pictures of shardings, which show the devices that hold each part of an array.

Two dimensions are drawn as a grid, whose rows and columns are proportional to their share of the array. Every cell
names the devices that hold it. Dimensions that are not split are left out. If more than two are split, the last two
form a panel, and there is a panel for every tile of the others. Pictures are printed as plain text (``str``), in colour
in terminals (``rich``), and as HTML in notebooks.

Source: ``jax.debug.visualize_array_sharding`` for the interface.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from meshwright.core.late import LateModule
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, ArgumentTypeError
from meshwright.sharding import Sharding, tile_slice

if TYPE_CHECKING:
    from rich.text import Text

rich_console, rich_text = LateModule("rich.console"), LateModule("rich.text")

# Light backgrounds for black text; consecutive ones differ clearly.
COLOURS = (
    "#8dd3c7", "#ffed6f", "#bebada", "#fb8072", "#80b1d3", "#fdb462",
    "#b3de69", "#fccde5", "#d9d9d9", "#bc80bd", "#ccebc5", "#ffffb3",
)  # fmt: skip
MAX_ROWS, MAX_COLUMNS, MAX_PANELS = 10, 8, 8


class Segment(NamedTuple):
    """A piece of a line: a border (``colour`` -1), or a part of a cell."""

    text: str
    colour: int = -1


@dataclass(frozen=True)
class Cell:
    """One tile: its lines of text, and its colour as an index into ``COLOURS``."""

    lines: tuple[str, ...]
    colour: int


@dataclass(frozen=True)
class Grid:
    """A panel: its cells, the sizes of their rows and columns in the array, and the ``label`` of its part."""

    label: str
    cells: tuple[tuple[Cell, ...], ...]
    heights: tuple[int, ...]
    widths: tuple[int, ...]


@dataclass(frozen=True)
class ShardingPicture:
    """The picture of an array's sharding, for ``print``, ``rich.print`` and notebooks."""

    shape: tuple[int, ...]
    lines: tuple[tuple[Segment, ...], ...]

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return "\n".join("".join(segment.text for segment in line).rstrip() for line in self.lines)

    def __rich__(self) -> Text:
        text = rich_text.Text(no_wrap=True, overflow="ignore")
        for number, line in enumerate(self.lines):
            if number:
                text.append("\n")
            for segment in line:
                text.append(segment.text, _style(segment.colour))
        return text

    def _repr_html_(self) -> str:
        lines = ("".join(map(_span, line)) for line in self.lines)
        return '<pre style="line-height:1.2">' + "\n".join(lines) + "</pre>"


def picture_of(
    shape: Sequence[int], sharding: Sharding, *, scale: float = 1.0, min_width: int = 1, max_width: int = 80
) -> ShardingPicture:
    """The picture of an array of ``shape`` under ``sharding``.

    Args:
      shape: the shape of the array.
      sharding: its sharding.
      scale: the factor by which cells are wider and higher than necessary.
      min_width: the minimum width of a cell, in characters.
      max_width: the maximum width of a line; text that does not fit into its cell ends in ``…``.

    Raises:
      ShardingError: the sharding does not fit the shape.
      ArgumentError: the scale is not positive, or the widths leave no room for a cell.

    Example:
      >>> mesh = mw.make_mesh((2, 4), ("x", "y"))
      >>> print(mw.debug.picture_of((8, 6), mw.NamedSharding(mesh, P(None, "x"))))
      ┌─────────┬─────────┐
      │ CPU 0-3 │ CPU 4-7 │
      └─────────┴─────────┘
    """
    shape = tuple(shape)
    sharding.check_compatible(shape, "picture_of: an array")
    size = _Size(scale, min_width, max_width)
    grids = list(_grids(shape, sharding))
    lines: list[tuple[Segment, ...]] = []
    for grid in grids:
        if grid.label:
            lines.append((Segment(grid.label),))
        if grid.cells:
            lines += _draw(grid, size)
    return ShardingPicture(shape, tuple(lines))


def visualize_sharding(
    shape: Sequence[int],
    sharding: Sharding,
    *,
    use_color: bool = True,
    scale: float = 1.0,
    min_width: int = 1,
    max_width: int = 80,
) -> None:
    """Print the picture of an array of ``shape`` under ``sharding``.

    It is in colour if the output supports that and ``use_color`` is True. The other arguments, and the errors, are
    those of :func:`picture_of`.

    Example:
      >>> mesh = mw.make_mesh((2, 4), ("x", "y"))
      >>> mw.debug.visualize_sharding((8, 6), mw.NamedSharding(mesh, P("x", None)))
      ┌─────────┐
      │ CPU 0-3 │
      ├─────────┤
      │ CPU 4-7 │
      └─────────┘
    """
    picture = picture_of(shape, sharding, scale=scale, min_width=min_width, max_width=max_width)
    if use_color:
        rich_console.Console().print(picture, soft_wrap=True)
    else:
        print(picture)


def visualize_array_sharding(array: Any, **options: Any) -> None:
    """Print a picture of the devices that hold each part of ``array`` (anything with ``shape`` and ``sharding``).

    Raises:
      ArgumentTypeError: it has no shape or sharding.
    """
    if not hasattr(array, "shape") or not hasattr(array, "sharding"):
        raise ArgumentTypeError(
            f"visualize_array_sharding: expected an array with a sharding, got {array!r} of type "
            f"{type(array).__name__}; device_put makes one, visualize_sharding takes a shape and a sharding"
        )
    visualize_sharding(array.shape, array.sharding, **options)


# --- contents -----------------------------------------------------------------------------------------------
def _grids(shape: tuple[int, ...], sharding: Sharding) -> Iterator[Grid]:
    """One grid per panel."""
    ndim = len(shape)
    counts = sharding.tile_counts(ndim)
    holders = _holders(sharding, ndim)
    row_dim, column_dim, panel_dims = _drawn_dims(counts)
    panels = list(itertools.product(*(range(counts[dim]) for dim in panel_dims)))
    uneven = 0 in shape or any(size % count for size, count in zip(shape, counts))
    colours = {tile: number % len(COLOURS) for number, tile in enumerate(holders)}
    rows = _shown(counts[row_dim] if row_dim is not None else 1, MAX_ROWS)
    columns = _shown(counts[column_dim] if column_dim is not None else 1, MAX_COLUMNS)

    def cell(tile: list[int], row: int | None, column: int | None) -> Cell:
        if row is None or column is None:
            return Cell(("⋮" if column is not None else "…",), -1)
        for dim, number in ((row_dim, row), (column_dim, column)):
            if dim is not None:
                tile[dim] = number
        lines = _cell_lines(shape, counts, tuple(tile), holders[tuple(tile)], uneven)
        return Cell(lines, colours[tuple(tile)])

    for number, panel in enumerate(panels):
        if number == MAX_PANELS - 1 and len(panels) > MAX_PANELS:
            yield Grid(f"… {len(panels) - MAX_PANELS + 1} more", (), (), ())
            return
        tile = [0] * ndim
        for dim, index in zip(panel_dims, panel):
            tile[dim] = index
        cells = tuple(tuple(cell(list(tile), row, column) for column in columns) for row in rows)
        label = _label(shape, counts, dict(zip(panel_dims, panel)), row_dim, column_dim)
        yield Grid(label, cells, _sizes(shape, counts, row_dim, rows), _sizes(shape, counts, column_dim, columns))


def _holders(sharding: Sharding, ndim: int) -> dict[tuple[int, ...], list[Any]]:
    """The devices of each tile, with tiles in row-major order."""
    holders: dict[tuple[int, ...], list[Any]] = {}
    for device, tile in zip(sharding.devices, sharding.tile_table(ndim).tolist()):
        holders.setdefault(tuple(tile), []).append(device)
    return dict(sorted(holders.items()))


def _drawn_dims(counts: tuple[int, ...]) -> tuple[int | None, int | None, tuple[int, ...]]:
    """The dimensions drawn as rows and as columns, and those that enumerate panels."""
    if len(counts) <= 2:
        return (0, 1, ()) if len(counts) == 2 else (None, 0 if counts else None, ())
    split = [dim for dim, count in enumerate(counts) if count > 1]
    if len(split) >= 2:
        return split[-2], split[-1], tuple(split[:-2])
    only = split[0] if split else None
    return (None, only, ()) if only == len(counts) - 1 else (only, None, ())


def _label(
    shape: tuple[int, ...],
    counts: tuple[int, ...],
    fixed: dict[int, int],
    row_dim: int | None,
    column_dim: int | None,
) -> str:
    """For arrays of more than two dimensions, an index expression of the part that a panel shows; else empty."""
    if len(shape) <= 2:
        return ""
    names = {row_dim: "rows", column_dim: "columns"}
    parts = []
    for dim, size in enumerate(shape):
        rows = tile_slice(size, counts[dim], fixed.get(dim, 0))
        parts.append(f"{rows.start}:{rows.stop}" if dim in fixed else names.get(dim, ":"))
    return f"[{', '.join(parts)}]"


def _cell_lines(
    shape: tuple[int, ...], counts: tuple[int, ...], tile: tuple[int, ...], devices: list[Any], uneven: bool
) -> tuple[str, ...]:
    name = device_names(devices)
    if not uneven:
        return (name,)
    sizes = [len(range(*tile_slice(*dim).indices(dim[0]))) for dim in zip(shape, counts, tile)]
    return (name, "empty" if 0 in sizes else "×".join(map(str, sizes)))


def device_names(devices: Sequence[Any]) -> str:
    """The platform and the device numbers, as in ``CPU 0,1``; runs of four or more are shortened to ``0-7``."""
    platform = getattr(devices[0], "platform", None)
    prefix = platform.upper() if isinstance(platform, str) else "Dev"
    numbers = sorted(int(getattr(device, "id", device)) for device in devices)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 3 else ",".join(map(str, run)) for run in runs]
    if len(parts) > 8:
        parts = [*parts[:4], "…", parts[-1]]
    return f"{prefix} {','.join(parts)}"


def _shown(count: int, most: int) -> list[int | None]:
    """The numbers of the rows or columns to draw; None represents those left out."""
    if count <= most:
        return list(range(count))
    return [*range(most - 2), None, count - 1]


def _sizes(
    shape: tuple[int, ...], counts: tuple[int, ...], dim: int | None, shown: list[int | None]
) -> tuple[int, ...]:
    if dim is None:
        return (1,)
    tiles = (tile_slice(shape[dim], counts[dim], number) if number is not None else slice(0, 0) for number in shown)
    return tuple(len(range(*rows.indices(shape[dim]))) for rows in tiles)


# --- drawing ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Size:
    """The sizes of cells: see :func:`picture_of`."""

    scale: float
    min_width: int
    max_width: int

    def __post_init__(self) -> None:
        if self.scale <= 0 or self.min_width < 1 or self.max_width < self.min_width + 2:
            raise ArgumentError(
                f"a picture with scale={self.scale}, min_width={self.min_width}, max_width={self.max_width} has no "
                "room for a cell and its borders; give a positive scale and a larger max_width"
            )

    def widths(self, natural: Sequence[int]) -> list[int]:
        """The widths of columns: scaled, and reduced if together they are wider than a line."""
        scaled = [max(self.min_width, round(self.scale * width)) for width in natural]
        room = self.max_width - len(scaled) - 1
        if sum(scaled) <= room:
            return scaled
        return [max(1, width * room // sum(scaled)) for width in scaled]

    def heights(self, natural: Sequence[int]) -> list[int]:
        return [max(1, round(self.scale * height)) for height in natural]


def _draw(grid: Grid, size: _Size) -> Iterator[tuple[Segment, ...]]:
    columns = list(zip(*grid.cells))
    natural = [max(len(line) for cell in column for line in cell.lines) + 2 for column in columns]
    widths = size.widths(_extents(grid.widths, natural, size.max_width))
    needed = [max(len(cell.lines) for cell in row) for row in grid.cells]
    heights = size.heights(_extents(grid.heights, needed, 3 * len(needed)))
    yield (Segment(_border("┌┬┐", widths)),)
    for number, (row, height) in enumerate(zip(grid.cells, heights)):
        if number:
            yield (Segment(_border("├┼┤", widths)),)
        for line in range(height):
            segments = [Segment("│")]
            for cell, width in zip(row, widths):
                segments += [Segment(_fitted(_line_of(cell, line, height), width), cell.colour), Segment("│")]
            yield tuple(segments)
    yield (Segment(_border("└┴┘", widths)),)


def _extents(sizes: Sequence[int], needed: Sequence[int], total: int) -> list[int]:
    """The characters per row or column: in proportion to its size, and enough for its text.

    Rows or columns of equal size are as small as possible; they are only stretched to show different proportions.
    """
    largest = max(sizes)
    if largest == 0 or len({size for size in sizes if size}) == 1:
        widest = max(needed)
        return [widest if size else need for size, need in zip(sizes, needed)]
    scale = max(need / size for size, need in zip(sizes, needed) if size)
    scale = min(scale, max(total, sum(needed)) / sum(sizes))
    return [max(need, math.floor(size * scale + 0.5)) for size, need in zip(sizes, needed)]


def _border(corners: str, widths: Sequence[int]) -> str:
    return corners[0] + corners[1].join("─" * width for width in widths) + corners[2]


def _line_of(cell: Cell, line: int, height: int) -> str:
    top = (height - len(cell.lines)) // 2
    return cell.lines[line - top] if top <= line < top + len(cell.lines) else ""


def _fitted(text: str, width: int) -> str:
    return text.center(width) if len(text) <= width else text[: width - 1] + "…"


def _style(colour: int) -> str:
    return f"black on {COLOURS[colour]}" if colour >= 0 else ""


def _span(segment: Segment) -> str:
    text = html.escape(segment.text)
    if segment.colour < 0:
        return text
    return f'<span style="color:black;background:{COLOURS[segment.colour]}">{text}</span>'
