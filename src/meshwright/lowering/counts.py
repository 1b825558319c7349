"""Rewrites 64-bit counters as 32-bit words.

JAX's random generators count in 64 bits, whatever ``jax_enable_x64`` says, and use only the lower and upper word of
each count. Here a 64-bit integer is represented by its lower word and an interval that contains its value. The lower
words of sums, products and bitwise ops depend only on the lower words of the operands. Comparisons, upper words and
conversions to float can be computed from the lower word if the interval fits into 32 bits. Two words that are bitcast
to one 64-bit integer, as in the state of a generator, are kept as a pair of words.

Either all 64-bit values of a program are rewritten, or none. The types of arguments and results do not change, and
neither do the values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.constants import known_values
from meshwright.ir.interval import ANYWHERE, Interval, common_bits, hull
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, all_eqns
from meshwright.ir.op import Op
from meshwright.ir.passes import Pass, dead_code
from meshwright.ir.rewrite import in_jaxprs, rebuilt, renamed
from meshwright.ir.tracing import infer_cached
from meshwright.ops.elementwise.conversion import ConvertElementType
from meshwright.ops.elementwise.table import BitcastConvert
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim


@dataclass(frozen=True)
class _Word:
    """The lower words of 64-bit integers, and an interval that contains the integers."""

    atom: Atom
    range: Interval


@dataclass(frozen=True)
class _Pair:
    """64-bit integers as pairs of words along the last dimension, lower word first."""

    atom: Atom


class _Stays(Exception):
    """The program has 64-bit values that cannot be rewritten as 32-bit words."""


def without_counts(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program without 64-bit values; the same object if it has none, or if one of them cannot be rewritten."""
    if not has_wide(jaxpr.jaxpr):
        return jaxpr
    done: dict[int, ClosedJaxpr] = {}

    def apply(inner: ClosedJaxpr) -> ClosedJaxpr:
        if id(inner) not in done:
            done[id(inner)] = _Words(inner, apply).result()
        return done[id(inner)]

    try:
        return apply(jaxpr)
    except _Stays:
        return jaxpr


def has_wide(jaxpr: Jaxpr) -> bool:
    """Whether a program has 64-bit values, including those in inner jaxprs."""
    return any(map(_is_wide, (*jaxpr.invars, *jaxpr.outvars))) or any(map(_meets_wide, all_eqns(jaxpr)))


def _meets_wide(eqn: JaxprEqn) -> bool:
    return any(map(_is_wide, (*eqn.invars, *eqn.outvars)))


def _is_wide(atom: Atom) -> bool:
    return dtypes.is_wide(atom.aval.dtype)


class _Words:
    """Rewrites one jaxpr; ``apply`` rewrites the jaxprs that its ops hold."""

    def __init__(self, closed: ClosedJaxpr, apply: Callable[[ClosedJaxpr], ClosedJaxpr]) -> None:
        self.closed, jaxpr = closed, closed.jaxpr
        self.consts: dict[Var, Any] = {}
        self.wide: dict[Atom, _Word | _Pair] = {}
        self.names: dict[Var, Atom] = {}
        self.eqns: list[JaxprEqn] = []
        for var, constant in zip(jaxpr.constvars, closed.consts):
            self._add(var, constant)
        for old in jaxpr.eqns:
            self.eqn = renamed(old, self.names)
            if _meets_wide(old):
                self._rewrite(_RULES.get(old.op.name, _refuse))
            else:
                self.eqns.append(in_jaxprs(self.eqn, apply))

    def _add(self, var: Var, constant: Any) -> None:
        """Add a constant of the program; of 64-bit integers, their lower words."""
        values = known_values(constant) if dtypes.is_integer(var.aval.dtype) and _is_wide(var) else None
        if values is not None and values.size:
            new = Var(var.aval.update(dtype=dtypes.uint32))
            self.wide[var] = _Word(new, Interval(int(values.min()), int(values.max())))
            var, constant = new, values.astype(np.uint32)
        self.consts[var] = constant

    def result(self) -> ClosedJaxpr:
        """The rewritten jaxpr."""
        inner = self.closed.jaxpr
        if any(map(_is_wide, (*inner.invars, *inner.outvars))):
            raise _Stays
        jaxpr = rebuilt(inner, self.eqns, self.names).replace(constvars=[*self.consts])
        return dead_code(ClosedJaxpr(jaxpr, [*self.consts.values()]))

    def _rewrite(self, rule: _Rule) -> None:
        eqn = self.eqn
        for var, new in zip(eqn.outvars, rule(self, eqn)):
            if isinstance(new, _Pair):
                self.wide[var] = new
            elif isinstance(new, _Word):
                self.wide[var] = self._typed(new, var.aval)
            else:
                self.names[var] = new

    def _typed(self, word: _Word, aval: ShapedArray) -> _Word:
        """A word for values of type ``aval``, whose range sums and products may exceed; constants become literals."""
        whole = _all_of(aval.dtype)
        ranging = word.range if whole.holds(word.range) else whole
        if ranging.low != ranging.high:
            return _Word(word.atom, ranging)
        return _Word(self.put(BroadcastInDim(aval.shape, ()), _literal(int(ranging.low))), ranging)

    def word(self, atom: Atom) -> _Word:
        """The word and interval of a 64-bit operand."""
        if isinstance(atom, Literal) and dtypes.is_integer(atom.aval.dtype):
            value = int(atom.val)
            return _Word(_literal(value), Interval(value, value))
        word = self.wide.get(atom)
        if not isinstance(word, _Word):
            raise _Stays
        return word

    def numbers(self, words: Sequence[_Word]) -> list[Atom]:
        """The values of 64-bit operands as 32-bit integers of one dtype."""
        if all(_all_of(dtypes.uint32).holds(w.range) for w in words):
            return [w.atom for w in words]
        if all(_all_of(dtypes.int32).holds(w.range) for w in words):
            return [self.put(BitcastConvert(dtypes.int32), w.atom) for w in words]
        raise _Stays

    def counted(self, atom: Atom) -> _Word:
        """An operand whose values fit into an unsigned 32-bit integer, so that it equals its lower word."""
        word = self.word(atom)
        if not _all_of(dtypes.uint32).holds(word.range):
            raise _Stays
        return word

    def put(self, op: Op, *operands: Atom) -> Atom:
        """Append an op in the place of the current equation; returns its result."""
        return self.put_all(op, *operands)[0]

    def put_all(self, op: Op, *operands: Atom) -> list[Var]:
        """:meth:`put` for an op that may have several results."""
        avals = infer_cached(op, tuple(a.aval for a in operands))
        outvars = [Var(a) for a in (avals if op.multiple_results else [avals])]
        self.eqns.append(self.eqn.replace(op=op, invars=operands, outvars=outvars))
        return outvars


def _literal(value: int) -> Literal:
    return Literal(np.array(value & 0xFFFFFFFF, np.uint32), ShapedArray((), dtypes.uint32))


@functools.cache
def _all_of(dtype: np.dtype) -> Interval:
    return Interval(int(dtypes.min_value(dtype)), int(dtypes.max_value(dtype)))


# --- rules --------------------------------------------------------------------------------------------------
#: a rule for an equation with 64-bit values: for each result, its word or pair, or the atom that replaces it
_Rule = Callable[[_Words, JaxprEqn], Sequence[Any]]


def _refuse(to: _Words, eqn: JaxprEqn) -> Sequence[Any]:
    raise _Stays


def _of_words(ranges: Callable[..., Interval]) -> _Rule:
    """The rule of ops whose lower words only depend on lower words; ``ranges`` computes the interval of the result."""

    def rule(to: _Words, eqn: JaxprEqn) -> list[_Word]:
        given = [to.word(a) if _is_wide(a) else a for a in eqn.invars]
        words = [x for x in given if isinstance(x, _Word)]
        out = to.put(eqn.op, *(x.atom if isinstance(x, _Word) else x for x in given))
        return [_Word(out, ranges(*(w.range for w in words)))]

    return rule


def _all_bits(a: Interval, b: Interval) -> Interval:
    return Interval(0, 2 ** int(max(a.high, b.high)).bit_length() - 1) if min(a.low, b.low) >= 0 else ANYWHERE


def _shift_left(to: _Words, eqn: JaxprEqn) -> list[_Word]:
    x, by = to.word(eqn.invars[0]), to.counted(eqn.invars[1])
    factors = Interval(1, 2 ** min(int(by.range.high), 64))
    return [_Word(to.put(eqn.op, x.atom, by.atom), x.range * factors)]


def _shift_right(to: _Words, eqn: JaxprEqn) -> list[_Word]:
    x, by = map(to.counted, eqn.invars)
    return [_Word(to.put(eqn.op, x.atom, by.atom), Interval(0, int(x.range.high) >> int(by.range.low)))]


def _compare(to: _Words, eqn: JaxprEqn) -> list[Atom]:
    return [to.put(eqn.op, *to.numbers([to.word(a) for a in eqn.invars]))]


def _iota(to: _Words, eqn: JaxprEqn) -> list[_Word]:
    op: Any = eqn.op
    count = op.shape[op.dimension]
    if count > 2**32 or not dtypes.is_integer(op.dtype):
        raise _Stays
    return [_Word(to.put(replace(op, dtype=dtypes.uint32)), Interval(0, max(count - 1, 0)))]


def _convert(to: _Words, eqn: JaxprEqn) -> list[Any]:
    (x,), (out,) = eqn.invars, eqn.outvars
    if not _is_wide(x):
        if dtypes.is_inexact(x.aval.dtype) or not dtypes.is_integer(out.aval.dtype):
            raise _Stays
        return [_Word(to.put(ConvertElementType(dtypes.uint32), x), _all_of(x.aval.dtype))]
    word = to.word(x)
    if _is_wide(out) and dtypes.is_integer(out.aval.dtype):
        return [word]
    if out.aval == word.atom.aval:
        return [word.atom]
    is_part = dtypes.is_integer(out.aval.dtype)
    return [to.put(eqn.op, *([word.atom] if is_part else to.numbers([word])))]


def _bitcast(to: _Words, eqn: JaxprEqn) -> list[Any]:
    """Convert two words to a pair, or a pair back to its words."""
    (x,), (out,) = eqn.invars, eqn.outvars
    words = to.wide.get(x) if _is_wide(x) else _Pair(x)
    if not isinstance(words, _Pair) or dtypes.uint32 not in (x.aval.dtype, out.aval.dtype):
        raise _Stays
    return [words if _is_wide(out) else words.atom]


def _same_bits(to: _Words, eqn: JaxprEqn) -> list[Any]:
    """Pairs have no sign."""
    (x,), (out,) = eqn.invars, eqn.outvars
    words = to.wide.get(x) if _is_wide(x) else None
    if not isinstance(words, _Pair) or not dtypes.is_integer(out.aval.dtype):
        raise _Stays
    return [words]


def _generate(to: _Words, eqn: JaxprEqn) -> list[Any]:
    state = to.wide.get(eqn.invars[0])
    if not isinstance(state, _Pair) or _is_wide(eqn.outvars[1]):
        raise _Stays
    after, bits = to.put_all(eqn.op, state.atom)
    return [_Pair(after), bits]


_RULES: dict[str, _Rule] = {
    "add": _of_words(Interval.__add__),
    "sub": _of_words(lambda a, b: a + -b),
    "mul": _of_words(Interval.__mul__),
    "neg": _of_words(Interval.__neg__),
    "and": _of_words(common_bits),
    **dict.fromkeys(("or", "xor"), _of_words(_all_bits)),
    "shift_left": _shift_left,
    "shift_right_logical": _shift_right,
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _compare),
    **dict.fromkeys(
        ("broadcast_in_dim", "concatenate", "reshape", "rev", "select_n", "sharding_annotation", "slice", "squeeze",
         "transpose"),
        _of_words(hull),
    ),
    "iota": _iota,
    "convert_element_type": _convert,
    "bitcast_width": _bitcast,
    "bitcast_convert_type": _same_bits,
    "rng_bit_generator": _generate,
}  # fmt: skip

COUNTS = Pass(
    "counts in 32 bits",
    without_counts,
    "64-bit integers that are only used as counters become 32-bit words.",
)
