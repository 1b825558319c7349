"""Sharding rules in the user's notation: ``"... i k, ... k j -> ... i j"``, or built from mappings.

A name is a factor, ``(a b)`` is a dimension of several factors, major to minor, and a leading ``...`` stands for any
number of leading dimensions. ``...1`` and ``...2`` stand for other leading dimensions; ``...0`` is the same as ``...``.
A rule has no sizes until it is applied to values (:meth:`SdyShardingRule.rule`).

Source: the rules of ``jax.experimental.custom_partitioning``, whose notation is that of ``einops``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from meshwright.core.words import counted
from meshwright.errors import ShardingError, ShardingSyntaxError, ShardingTypeError
from meshwright.sharding.rule import REDUCTION, REPLICATED, WINDOW, ShardingRule, make_rule

#: stands for leading dimensions in an :class:`ArrayMapping`; with a number appended, for other ones
BATCHING = "..."
_FACTOR = re.compile(r"[A-Za-z]\w*")
_BATCHING = re.compile(r"\.\.\.\d*")
_TOKEN = re.compile(r"\s*(\.\.\.\d*|[A-Za-z]\w*|[()])\s*")


class CompoundFactor(tuple[str, ...]):
    """A dimension of several factors, major to minor: ``CompoundFactor("a", "b")``.

    Raises:
      ShardingTypeError: a factor is not a string.
      ShardingError: there are fewer than two factors, or one is not a valid name.
    """

    __slots__ = ()

    def __new__(cls, *factors: str) -> CompoundFactor:
        if len(factors) < 2:
            raise ShardingError(f"CompoundFactor{factors}: give two factors or more; one is written by its name alone")
        for factor in factors:
            _check_name(factor, "CompoundFactor")
        return super().__new__(cls, factors)


class ArrayMapping(tuple[str | CompoundFactor, ...]):
    """The dimensions of an operand or result: factor names and :class:`CompoundFactor`, optionally ``BATCHING`` first.

    Raises:
      ShardingTypeError: a dimension is of another type.
      ShardingError: ``BATCHING`` is not first, or a factor is not a valid name.
    """

    __slots__ = ()

    def __new__(cls, *dims: str | CompoundFactor) -> ArrayMapping:
        for place, dim in enumerate(dims):
            if isinstance(dim, str) and _BATCHING.fullmatch(dim):
                if place:
                    raise ShardingError(f"ArrayMapping{dims}: put {dim!r}, which is leading dimensions, first")
            elif not isinstance(dim, CompoundFactor):
                _check_name(dim, "ArrayMapping")
        return super().__new__(cls, dims)


def _check_name(factor: object, where: str) -> None:
    if not isinstance(factor, str):
        raise ShardingTypeError(f"{where}: expected names of factors, got {factor!r} of type {type(factor).__name__}")
    if not _FACTOR.fullmatch(factor):
        raise ShardingError(f"{where}: {factor!r} is no name of a factor; use a letter, then letters, digits and _")


class SdyShardingRule:
    """How the dimensions of operands and results correspond, for operands of any rank and size.

    Factors are parallel, unless they are among ``reduction_factors`` (summed over), ``need_replication_factors`` (not
    to be split) or ``permutation_factors`` (devices exchange data along them). ``factor_sizes`` are the sizes of
    factors that are not a whole dimension anywhere.

    Raises:
      ShardingError: an option names a factor that is not used, a factor has two kinds, or a size is missing or not
        needed.
    """

    def __init__(
        self,
        operand_mappings: Sequence[Sequence[str | CompoundFactor]],
        result_mappings: Sequence[Sequence[str | CompoundFactor]],
        *,
        reduction_factors: Sequence[str] = (),
        need_replication_factors: Sequence[str] = (),
        permutation_factors: Sequence[str] = (),
        **factor_sizes: int,
    ) -> None:
        self.operand_mappings = tuple(ArrayMapping(*m) for m in operand_mappings)
        self.result_mappings = tuple(ArrayMapping(*m) for m in result_mappings)
        self.reduction_factors = tuple(reduction_factors)
        self.need_replication_factors = tuple(need_replication_factors)
        self.permutation_factors = tuple(permutation_factors)
        self.factor_sizes = factor_sizes
        self._check()

    def __repr__(self) -> str:
        names = "reduction_factors", "need_replication_factors", "permutation_factors"
        kinds = [f"{n}={getattr(self, n)}" for n in names if getattr(self, n)]
        parts = [str(self), *kinds, *(f"{f}={n}" for f, n in self.factor_sizes.items())]
        return f"SdyShardingRule({', '.join(parts)})"

    def __str__(self) -> str:
        sides = self.operand_mappings, self.result_mappings
        return " -> ".join(", ".join(" ".join(map(_dim_text, m)) for m in side) for side in sides)

    def _check(self) -> None:
        dims = [d for m in (*self.operand_mappings, *self.result_mappings) for d in m]
        whole = {d for d in dims if isinstance(d, str)}
        used = whole.union(*(d for d in dims if isinstance(d, CompoundFactor)))
        kinds = (*self.reduction_factors, *self.need_replication_factors, *self.permutation_factors)
        for factor in (*kinds, *self.factor_sizes):
            if factor not in used:
                raise ShardingError(f"sharding rule {self}: there is no factor {factor!r}; there are {sorted(used)}")
        for factor in {f for f in kinds if kinds.count(f) > 1}:
            raise ShardingError(f"sharding rule {self}: {factor!r} is named twice; a factor has one kind")
        for factor in sorted(used - whole - self.factor_sizes.keys()):
            raise ShardingError(f"sharding rule {self}: {factor!r} is no whole dimension; give its size, {factor}=...")
        for factor in sorted(whole & self.factor_sizes.keys()):
            raise ShardingError(f"sharding rule {self}: {factor!r} is a whole dimension; leave out its size")

    def rule(self, operands: Sequence[Sequence[int]], results: Sequence[Sequence[int]]) -> ShardingRule:
        """The rule for values of these shapes.

        Raises:
          ShardingError: the number of values or dimensions differs, or sizes conflict or are not the product of
            factors.
        """
        sizes = dict(self.factor_sizes)
        ins = self._named("operand", self.operand_mappings, operands, sizes)
        outs = self._named("result", self.result_mappings, results, sizes)
        for dims, shape in zip((*ins, *outs), (*operands, *results)):
            for factors, size in zip(dims, shape):
                if prod(sizes[f] for f in factors) != size:
                    text = " x ".join(f"{f}={sizes[f]}" for f in factors)
                    raise ShardingError(f"sharding rule {self}: {text} is not {size}, as a dimension of {shape} has")
        kinds = dict.fromkeys(self.reduction_factors, REDUCTION)
        kinds |= dict.fromkeys(self.need_replication_factors, REPLICATED)
        kinds |= dict.fromkeys(self.permutation_factors, WINDOW)
        return make_rule(ins, outs, sizes, {f: k for name, k in kinds.items() for f in _expanded(name, sizes)})

    def _named(
        self, what: str, mappings: Sequence[ArrayMapping], shapes: Sequence[Sequence[int]], sizes: dict[str, int]
    ) -> list[list[tuple[str, ...]]]:
        if len(mappings) != len(shapes):
            raise ShardingError(
                f"sharding rule {self}: it has {len(mappings)} {what}s, the function {len(shapes)}; separate them by "
                "commas"
            )
        named = []
        for number, (mapping, shape) in enumerate(zip(mappings, shapes)):
            batch = mapping[0] if mapping and _is_batching(mapping[0]) else None
            rest = mapping if batch is None else mapping[1:]
            more = len(shape) - len(rest)
            if more < 0 or (more and batch is None):
                raise ShardingError(
                    f"sharding rule {self}: {what} {number} has {counted(len(rest), 'dimension')} there, and "
                    f"{len(shape)} in the function; '...' at the start takes any number"
                )
            dims: list[tuple[str, ...]] = [(f"{batch}_{n}",) for n in range(more)]
            dims += [(d,) if isinstance(d, str) else tuple(d) for d in rest]
            for factors, size in zip(dims, shape):
                if len(factors) == 1:
                    sizes.setdefault(factors[0], size)
            named.append(dims)
        return named


def _is_batching(dim: str | CompoundFactor) -> bool:
    return isinstance(dim, str) and _BATCHING.fullmatch(dim) is not None


def _expanded(name: str, sizes: Mapping[str, int]) -> list[str]:
    """The factors that a name stands for: itself, or those of the leading dimensions."""
    return [f for f in sizes if f.rpartition("_")[0] == name] if _is_batching(name) else [name]


def _dim_text(dim: str | CompoundFactor) -> str:
    return dim if isinstance(dim, str) else f"({' '.join(dim)})"


def parse_sharding_rule(text: str, **options: object) -> SdyShardingRule:
    """Parse a sharding rule; ``options`` are the factors of other kinds, and sizes, as in :class:`SdyShardingRule`.

    Raises:
      ShardingSyntaxError: ``text`` is not a rule.
      ShardingTypeError: it is not text.
      ShardingError: as :class:`SdyShardingRule`.
    """
    if not isinstance(text, str):
        raise ShardingTypeError(f"sharding rule: expected text or an SdyShardingRule, got {type(text).__name__}")
    sides = text.split("->")
    if len(sides) != 2:
        raise ShardingSyntaxError(f"sharding rule {text!r}: expected operands, one '->', and results")
    ins, outs = ([ArrayMapping(*_dims(value, text)) for value in side.split(",")] for side in sides)
    return SdyShardingRule(ins, outs, **options)  # type: ignore[arg-type]


def _dims(value: str, text: str) -> Iterator[str | CompoundFactor]:
    group: list[str] | None = None
    for token in _tokens(value, text):
        if token == "(" and group is None:
            group = []
        elif token == ")" and group is not None:
            yield CompoundFactor(*group)
            group = None
        elif token in "()":
            raise ShardingSyntaxError(f"sharding rule {text!r}: parentheses must come in pairs, not nested")
        elif group is None:
            yield token
        else:
            group.append(token)
    if group is not None:
        raise ShardingSyntaxError(f"sharding rule {text!r}: parentheses must come in pairs, not nested")


def _tokens(value: str, text: str) -> Iterator[str]:
    at = 0
    value = value.strip()
    while at < len(value):
        match = _TOKEN.match(value, at)
        if match is None:
            raise ShardingSyntaxError(
                f"sharding rule {text!r}: {value[at:]!r} begins with no name; write names of factors with spaces "
                "between, '(a b)' for a dimension of several, '...' first for leading dimensions"
            )
        yield BATCHING if match[1] == f"{BATCHING}0" else match[1]
        at = match.end()
