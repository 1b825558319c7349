"""Symbolic sizes of dimensions: polynomials of variables with integer coefficients, for exported programs.

A *term* is a sorted tuple of atoms with their powers; an atom is the name of a variable, or a function (``floordiv``,
``mod``, ``max``, ``min``) of two expressions. Variables are positive integers.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from meshwright.errors import InconclusiveDimensionOperation, ShapeError

_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv, "max": max, "min": min, "mod": operator.mod,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], tuple[str, Callable[[int, int], bool]]] = {
    ast.GtE: (">=", operator.ge), ast.LtE: ("<=", operator.le), ast.Gt: (">", operator.gt),
    ast.Lt: ("<", operator.lt), ast.Eq: ("==", operator.eq),
}  # fmt: skip

Atom = str | tuple[str, "DimExpr", "DimExpr"]
Term = tuple[tuple[Any, int], ...]


class SymbolicScope:
    """Where names of sizes belong together, with what is known of them.

    Example: ``SymbolicScope(["b >= 4", "mod(c, 2) == 0"])``.

    Raises:
      ShapeError: a constraint does not parse.
    """

    def __init__(self, constraints_str: Sequence[str] = ()) -> None:
        self.texts = tuple(constraints_str)
        self._checks = [self._parsed(text) for text in self.texts]

    def _parsed(self, text: str) -> tuple[DimExpr, Callable[[int, int], bool], DimExpr]:
        node = _tree(text)
        if not isinstance(node, ast.Compare) or len(node.ops) != 1 or type(node.ops[0]) not in _COMPARISONS:
            raise ShapeError(f"symbolic sizes: the constraint {text!r} does not parse; write it as 'b >= 4'")
        return (
            _expression(node.left, text, self), _COMPARISONS[type(node.ops[0])][1],
            _expression(node.comparators[0], text, self),
        )  # fmt: skip

    def broken_by(self, sizes: Mapping[str, int]) -> str | None:
        """A constraint that the sizes do not satisfy, if there is one; those of other variables are not asked."""
        for text, (left, holds, right) in zip(self.texts, self._checks):
            known = left.variables | right.variables <= sizes.keys()
            if known and not holds(left.evaluate(sizes), right.evaluate(sizes)):
                return text
        return None


class DimExpr:
    """An expression of symbolic sizes. Comparisons that sizes may decide either way raise
    :class:`InconclusiveDimensionOperation <meshwright.errors.InconclusiveDimensionOperation>`."""

    __slots__ = ("scope", "terms")

    def __init__(self, terms: Mapping[Term, int], scope: SymbolicScope) -> None:
        self.terms = {t: c for t, c in terms.items() if c}
        self.scope = scope

    @staticmethod
    def variable(name: str, scope: SymbolicScope) -> DimExpr:
        return DimExpr({((name, 1),): 1}, scope)

    def _lifted(self, x: Any) -> DimExpr | None:
        if isinstance(x, DimExpr):
            return x
        return DimExpr({(): operator.index(x)}, self.scope) if hasattr(x, "__index__") else None

    @property
    def constant(self) -> int | None:
        """The number that it is, if it has no variables."""
        return self.terms.get((), 0) if not self.terms.keys() - {()} else None

    @property
    def variables(self) -> frozenset[str]:
        """The names of its variables."""
        found: set[str] = set()
        for atom in self._atoms():
            found |= {atom} if isinstance(atom, str) else atom[1].variables | atom[2].variables
        return frozenset(found)

    def _atoms(self) -> Iterator[Any]:
        return (atom for term in self.terms for atom, _ in term)

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Its value for sizes of all its variables."""

        def value(atom: Any) -> int:
            if isinstance(atom, str):
                return sizes[atom]
            return _FUNCTIONS[atom[0]](atom[1].evaluate(sizes), atom[2].evaluate(sizes))

        return sum(c * math.prod(value(a) ** p for a, p in term) for term, c in self.terms.items())

    # --- arithmetic -----------------------------------------------------------------------------------------
    def _plus(self, other: Any, factor: int) -> Any:
        if (right := self._lifted(other)) is None:
            return NotImplemented
        terms = dict(self.terms)
        for term, c in right.terms.items():
            terms[term] = terms.get(term, 0) + factor * c
        return _number_or(DimExpr(terms, self.scope))

    def __add__(self, other: Any) -> Any:
        return self._plus(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._plus(other, -1)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> Any:
        return self * -1

    def __mul__(self, other: Any) -> Any:
        if (right := self._lifted(other)) is None:
            return NotImplemented
        terms: dict[Term, int] = {}
        for a, x in self.terms.items():
            for b, y in right.terms.items():
                powers = dict(a)
                for atom, p in b:
                    powers[atom] = powers.get(atom, 0) + p
                term = tuple(sorted(powers.items(), key=lambda entry: str(entry[0])))
                terms[term] = terms.get(term, 0) + x * y
        return _number_or(DimExpr(terms, self.scope))

    __rmul__ = __mul__

    def __pow__(self, power: int) -> Any:
        return math.prod([self] * power, start=1)

    def _function(self, name: str, left: Any, right: Any) -> Any:
        a, b = self._lifted(left), self._lifted(right)
        if a is None or b is None:
            return NotImplemented
        if a.constant is not None and b.constant is not None:
            return _FUNCTIONS[name](a.constant, b.constant)
        return DimExpr({(((name, a, b), 1),): 1}, self.scope)

    def __floordiv__(self, other: Any) -> Any:
        right = self._lifted(other)
        if right is not None and right.constant and all(c % right.constant == 0 for c in self.terms.values()):
            return _number_or(DimExpr({t: c // right.constant for t, c in self.terms.items()}, self.scope))
        return self._function("floordiv", self, other)

    def __mod__(self, other: Any) -> Any:
        right = self._lifted(other)
        if right is not None and right.constant and all(c % right.constant == 0 for c in self.terms.values()):
            return 0
        return self._function("mod", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._function("floordiv", other, self)

    def __rmod__(self, other: Any) -> Any:
        return self._function("mod", other, self)

    # --- comparisons ----------------------------------------------------------------------------------------
    def __eq__(self, other: object) -> bool:
        right = self._lifted(other)
        return right is not None and self.terms == right.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def _least(self) -> int | None:
        """A number that it is at least, as variables are positive; None if it may be anything."""
        rest = {t: c for t, c in self.terms.items() if t}
        plain = all(c > 0 and all(isinstance(a, str) for a, _ in t) for t, c in rest.items())
        return sum(self.terms.values()) if plain else None

    def _at_least(self, other: Any, sign: str) -> bool:
        right = self._lifted(other)
        for bound, answer in ((self._lifted(self - right), True), (self._lifted(right - self - 1), False)):
            least = bound._least() if bound is not None else None
            if least is not None and least >= 0:
                return answer
        raise InconclusiveDimensionOperation(
            f"'{self}' {sign} '{other}' is true for some sizes and false for others; compare sizes that are known, or "
            "use max and min of them"
        )

    def __ge__(self, other: Any) -> bool:
        return self._at_least(other, ">=")

    def __gt__(self, other: Any) -> bool:
        return self._at_least(other + 1, ">=")

    def __le__(self, other: Any) -> bool:
        return not self._at_least(other + 1, ">=")

    def __lt__(self, other: Any) -> bool:
        return not self._at_least(other, ">=")

    def __bool__(self) -> bool:
        return self._at_least(1, ">=") or self.constant != 0

    def __index__(self) -> int:
        """Always raises, unless it is a number.

        Raises:
          InconclusiveDimensionOperation: its value depends on sizes.
        """
        if self.constant is not None:
            return self.constant
        raise InconclusiveDimensionOperation(
            f"the size '{self}' is asked for as a number, and depends on how the exported program is called; symbolic "
            "sizes are for the types that export is given"
        )

    __int__ = __index__

    def __repr__(self) -> str:
        def factor(atom: Any, power: int) -> str:
            text = atom if isinstance(atom, str) else f"{atom[0]}({atom[1]}, {atom[2]})"
            return text if power == 1 else f"{text}^{power}"

        def degree(term: Term) -> tuple[int, str]:
            return sum(p for _, p in term), str(term)

        out = ""
        for term in sorted(self.terms, key=degree, reverse=True):
            c = self.terms[term]
            product = "*".join(factor(a, p) for a, p in term)
            size = product if abs(c) == 1 and product else f"{abs(c)}*{product}" if product else str(abs(c))
            out += (" + " if c > 0 else " - ") + size if out else ("" if c > 0 else "-") + size
        return out or "0"


def _number_or(x: DimExpr) -> Any:
    return x.constant if x.constant is not None else x


def is_symbolic(dim: Any) -> bool:
    """Whether a size is symbolic."""
    return isinstance(dim, DimExpr)


def _tree(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip().replace("^", "**"), mode="eval").body
    except SyntaxError:
        raise ShapeError(f"symbolic sizes: {text!r} does not parse; write sizes as in 'b, 2*b, b + 1'") from None


def _expression(node: ast.expr, text: str, scope: SymbolicScope) -> Any:
    """The expression of a node, a ``DimExpr`` also where it is a number."""
    match node:
        case ast.Constant(value=int() as number):
            return DimExpr({(): number}, scope)
        case ast.Name(id=name):
            return DimExpr.variable(name, scope)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _lift(-_expression(operand, text, scope), scope)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            a, b = _expression(left, text, scope), _expression(right, text, scope)
            return _lift(_OPERATORS[type(op)](a, operator.index(b) if isinstance(op, ast.Pow) else b), scope)
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _FUNCTIONS:
            a, b = _expression(left, text, scope), _expression(right, text, scope)
            if name in ("floordiv", "mod"):
                return _lift((operator.floordiv if name == "floordiv" else operator.mod)(a, b), scope)
            return _lift(a._function(name, a, b), scope)
    raise ShapeError(
        f"symbolic sizes: {text!r} does not parse; sizes are made of names, integers, +, -, *, ^, floordiv, mod, max "
        "and min, as in 'b, 2*b, b + 1'"
    )


def _lift(x: Any, scope: SymbolicScope) -> DimExpr:
    return x if isinstance(x, DimExpr) else DimExpr({(): x}, scope)


def parsed_sizes(text: str, scope: SymbolicScope, like: Sequence[int | None] | None = None) -> tuple[Any, ...]:
    """The sizes in ``text``, separated by commas; ``_`` and ``...`` stand for those of ``like``.

    Raises:
      ShapeError: it does not parse, or does not fit ``like``.
    """
    node = _tree(text.strip() or "()")
    entries = list(node.elts) if isinstance(node, ast.Tuple) else [node]
    rest = [i for i, e in enumerate(entries) if isinstance(e, ast.Constant) and e.value is ...]
    if rest and (like is None or len(rest) > 1):
        raise ShapeError(f"symbolic sizes: {text!r} has '...', which stands for sizes of the argument once; give it")
    sizes: list[Any] = []
    for i, entry in enumerate(entries):
        if i in rest:
            assert like is not None
            sizes += like[i : len(like) - (len(entries) - i - 1)]
        elif isinstance(entry, ast.Name) and entry.id == "_":
            sizes.append(like[len(sizes)] if like is not None and len(sizes) < len(like) else None)
        else:
            sizes.append(_number_or(_expression(entry, text, scope)))
    known = like is None or (len(like) == len(sizes) and all(
        is_symbolic(s) or s == n or n is None for s, n in zip(sizes, like)
    ))  # fmt: skip
    if not known or any(s is None for s in sizes):
        raise ShapeError(f"symbolic sizes: {text!r} does not fit an argument of shape {like}")
    return tuple(sizes)


def solved(pairs: Sequence[tuple[Any, int, str]], scope: SymbolicScope) -> dict[str, int]:
    """The variables' sizes for which expressions have values: ``(expression, value, its place)``.

    Raises:
      ShapeError: there are none, or a variable's size does not follow.
    """
    sizes: dict[str, int] = {}
    open_ = list(pairs)
    while True:
        left = []
        for expr, value, place in open_:
            unknown = expr.variables - sizes.keys() if is_symbolic(expr) else frozenset()
            if not unknown:
                if (found := expr.evaluate(sizes) if is_symbolic(expr) else expr) != value:
                    raise ShapeError(f"{place} is {value}, expected '{expr}' = {found}{_where(sizes)}")
            elif len(unknown) > 1 or (size := _root(expr, value, next(iter(unknown)), sizes, place)) is None:
                left.append((expr, value, place))
            else:
                sizes[next(iter(unknown))] = size
        if len(left) == len(open_):
            break
        open_ = left
    if open_:
        expr, value, place = open_[0]
        raise ShapeError(f"{place} is {value}, from which '{expr}' does not follow; give a size for each of its names")
    if (broken := scope.broken_by(sizes)) is not None:
        raise ShapeError(f"the constraint {broken} does not hold{_where(sizes)}")
    return sizes


def _root(expr: DimExpr, value: int, name: str, sizes: Mapping[str, int], place: str) -> int | None:
    """The size of a variable that occurs once, as a factor; None if it occurs otherwise."""
    terms = {t: c for t, c in expr.terms.items() if any(a == name for a, _ in t)}
    if len(terms) != 1 or any(
        not isinstance(a, str) and name in (a[1].variables | a[2].variables) for a in expr._atoms()
    ):
        return None
    ((term, _),) = terms.items()
    if dict(term)[name] != 1:
        return None
    at = [expr.evaluate({**sizes, name: n}) for n in (0, 1)]
    slope = at[1] - at[0]
    size, rest = divmod(value - at[0], slope) if slope else (0, 1)
    if rest or size < 1:
        raise ShapeError(f"{place} is {value}, expected '{expr}' for a positive integer {name}{_where(sizes)}")
    return size


def _where(sizes: Mapping[str, int]) -> str:
    return f", where {', '.join(f'{n} = {s}' for n, s in sorted(sizes.items()))}" if sizes else ""
