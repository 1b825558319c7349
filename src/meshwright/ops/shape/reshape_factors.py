"""The factors of reshapes: which parts of their dimensions are the same on both sides."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwright.core.records import dataclass
from meshwright.sharding.rule import REPLICATED, ShardingRule, make_rule


def reshape_groups(src: Sequence[int], dst: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The smallest groups of consecutive dimensions of ``src`` and ``dst`` with equal products, in order.

    Dimensions of size 1 are groups of their own, with nothing on the other side.
    """
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(src) or j < len(dst):
        if i < len(src) and src[i] == 1:
            groups.append(((i,), ()))
            i += 1
            continue
        if j < len(dst) and dst[j] == 1:
            groups.append(((), (j,)))
            j += 1
            continue
        left, right = [i], [j]
        a, b = src[i], dst[j]
        while a != b:
            if a < b:
                i += 1
                left.append(i)
                a *= src[i]
            else:
                j += 1
                right.append(j)
                b *= dst[j]
        i, j = i + 1, j + 1
        groups.append((tuple(left), tuple(right)))
    return groups


@dataclass
class _Cutting:
    """The dimensions of one side of a reshape group, being divided into factors from the major end."""

    sizes: list[int]
    parts: list[list[str]]
    at: int = 0

    def __post_init__(self) -> None:
        self.left = self.sizes[0]

    def cut(self, size: int, name: str) -> None:
        """Split a factor off the current dimension; go to the next one if nothing of it is left."""
        self.parts[self.at].append(name)
        self.left //= size

    def advance(self) -> None:
        while self.left == 1 and self.at + 1 < len(self.sizes):
            self.at += 1
            self.left = self.sizes[self.at]

    def rest(self) -> list[tuple[int, int]]:
        """The remainder, as (dimension, size)."""
        remaining = [(self.at, self.left)] if self.left > 1 else []
        return remaining + [(i, n) for i, n in enumerate(self.sizes) if i > self.at]


def reshape_rule(src: Sequence[int], dst: Sequence[int]) -> ShardingRule:
    """The factors of a reshape: a dimension that is split or merged consists of several factors, major first.

    If boundaries do not nest (``[6, 4]`` to ``[8, 3]``), greatest common divisors split off the major parts that do;
    the remainders are factors that cannot be split.
    """
    if 0 in src:
        return make_rule([[None] * len(src)], [[None] * len(dst)], {})
    src_names: list[list[str]] = [[] for _ in src]
    dst_names: list[list[str]] = [[] for _ in dst]
    sizes: dict[str, int] = {}
    kinds: dict[str, str] = {}
    for left, right in reshape_groups(src, dst):
        if left and right:
            one = _Cutting([src[i] for i in left], [src_names[i] for i in left])
            two = _Cutting([dst[j] for j in right], [dst_names[j] for j in right])
            while (size := math.gcd(one.left, two.left)) > 1:
                name = f"d{len(sizes)}"
                sizes[name] = size
                one.cut(size, name)
                two.cut(size, name)
                if one.left > 1 and two.left > 1:
                    break
                one.advance()
                two.advance()
            for side in (one, two):
                for at, size in side.rest():
                    name = f"d{len(sizes)}"
                    sizes[name], kinds[name] = size, REPLICATED
                    side.parts[at].append(name)
    return make_rule([src_names], [dst_names], sizes, kinds)
