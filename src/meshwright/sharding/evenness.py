"""How evenly tiles divide a dimension, and which dimensions divide well enough that the library itself splits them.

Users may split any dimension by any number of devices. Where the library chooses, an uneven split gives some devices
more than others, so dimensions that divide evenly come first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

#: the greatest unevenness that is chosen
MOST_UNEVEN = 1.25

T = TypeVar("T")


def unevenness(size: int, tiles: int) -> float:
    """The rows of the largest tile divided by the mean: 1 if a dimension divides evenly, infinite if it is empty."""
    return -(-size // tiles) * tiles / size if size else math.inf


def well_divided(ways: Mapping[T, tuple[int, int]]) -> list[T]:
    """Of ways to split something, each with the size of a dimension and the number of tiles, those that are even, in
    their order; if there are none, those that are nearly even, the most even first."""
    uneven = {way: unevenness(*into) for way, into in ways.items()}
    even = [way for way, much in uneven.items() if much == 1]
    return even or sorted((way for way, much in uneven.items() if much <= MOST_UNEVEN), key=uneven.__getitem__)
