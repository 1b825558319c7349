"""Taylor-mode differentiation: tracers carry a value and its higher derivatives along a curve.

Ops that are linear or bilinear in the varying operands use the Leibniz rule. For any other op, the derivative of the
result along the curve is ``jvp(x, x')``, and its higher derivatives are found by applying the same method to that
expression with one order less. Results are cached by op and operands, so this takes polynomial time for functions whose
derivatives are expressed in each other (Griewank and Walther, *Evaluating Derivatives*, chapter 13).

Source: ``jax.experimental.jet`` for the interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb, factorial
from typing import Any

import numpy as np

from meshwright.core import dtypes, pytree
from meshwright.core.avals import Typed
from meshwright.core.source import name_scope
from meshwright.core.tracebacks import boundary
from meshwright.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from meshwright.ir.derivatives import jvp_of
from meshwright.ir.op import Op, Zero
from meshwright.ir.state import STATE, set_trace
from meshwright.ir.tracing import Trace, Tracer, check_alive, eval_jaxpr, typeof
from meshwright.ops.control.call import CallOp
from meshwright.ops.elementwise.table import (
    ConvertElementType,
    add,
    convert,
    div,
    materialize,
    mul,
    scalar_like,
    sub,
)
from meshwright.transforms.jaxprs import TRANSFORMS
from meshwright.transforms.wrapped import name_of, require_callable

#: a value and its first derivatives along the curve
Terms = tuple[Any, ...]


class JetTracer(Tracer):
    """A value that varies along a curve: ``terms[k]`` is its k-th derivative (``terms[0]`` the value)."""

    __slots__ = ("derivative", "shorter", "terms")

    def __init__(self, trace: JetTrace, terms: Terms) -> None:
        self.owner = trace
        self.aval = typeof(terms[0])
        self.terms = terms
        #: caches: this value truncated by one order, and its derivative
        self.shorter: Any = None
        self.derivative: Any = None

    def concrete(self) -> Any:
        value = self.terms[0]
        return value.concrete() if isinstance(value, Tracer) else value

    def origin(self) -> str:
        return self.terms[0].origin() if isinstance(self.terms[0], Tracer) else ""


class JetTrace(Trace):
    """Computes the derivatives of results under the parent trace."""

    __slots__ = ("done", "parent")

    def __init__(self, parent: Trace) -> None:
        super().__init__()
        self.parent = parent
        #: operands and results by op and operand ids; keeping the operands alive keeps their ids valid
        self.done: dict[Any, tuple[Sequence[Any], Any]] = {}

    def wrap(self, terms: Terms) -> Any:
        """A tracer for ``terms``, or the value itself if there are no derivatives."""
        return JetTracer(self, terms) if len(terms) > 1 else terms[0]

    def varies(self, x: Any) -> bool:
        return type(x) is JetTracer and x.owner is self

    def terms(self, x: Any, order: int) -> Terms:
        """The value and its derivatives up to ``order``, as arrays."""
        if self.varies(x):
            return tuple(x.terms[: order + 1])
        check_alive(x)
        return x, *(materialize(Zero(typeof(x))) for _ in range(order))

    def process(self, op: Op, args: Sequence[Any]) -> Any:
        moving = [i for i, x in enumerate(args) if self.varies(x)]
        if not moving and any(typeof(x).ndim for x in args):
            return self.parent.process(op, args)
        if moving and op.plain_call and (body := op.body()) is not None:
            return eval_jaxpr(body, body.consts, *args)
        key = (op, *map(_identity, args))
        if op.has_effects or key not in self.done:
            outs = self._applied(op, args, moving) if moving else self.parent.process(op, args)
            self.done[key] = args, outs
        outs = self.done[key][1]
        return list(outs) if op.multiple_results else outs

    def _applied(self, op: Op, args: Sequence[Any], moving: Sequence[int]) -> Any:
        order = min(len(args[i].terms) for i in moving) - 1
        if op == div and 1 in moving:
            with set_trace(self.parent):
                return self.wrap(_quotient(*(self.terms(x, order) for x in args)))
        groups = [] if isinstance(op, CallOp) else op.linear_groups(*map(typeof, args))
        concerned = [g for g in groups if not set(g).isdisjoint(moving)]
        if len(concerned) in (1, 2) and set(moving).issubset(i for g in concerned for i in g):
            with set_trace(self.parent):
                return self._product(op, [self.terms(x, order) for x in args], concerned, order)
        return self._by_derivative(op, args, order)

    def _product(self, op: Op, terms: Sequence[Terms], groups: Sequence[Sequence[int]], order: int) -> Any:
        """The Leibniz rule, for an op that is linear in one group of operands or bilinear in two groups."""

        def of(k: int, *orders: int) -> list[Any]:
            at = {i: o for group, o in zip(groups, orders) for i in group}
            outs = op.bind(*(t[at.get(i, 0)] for i, t in enumerate(terms)))
            factor, outs = comb(k, orders[0]), outs if op.multiple_results else [outs]
            return [y if factor == 1 else mul(y, scalar_like(factor, y)) for y in outs]

        def term(k: int) -> list[Any]:
            parts = [of(k, j, k - j) for j in range(k + 1)] if len(groups) == 2 else [of(k, k)]
            return [_sum(column) for column in zip(*parts)]

        outs = [self.wrap(column) for column in zip(*map(term, range(order + 1)))]
        return outs if op.multiple_results else outs[0]

    def _by_derivative(self, op: Op, args: Sequence[Any], order: int) -> Any:
        """The result from its first derivative along the curve, which the op's ``jvp`` gives."""
        values, tangents = [self._shorter(x) for x in args], [self._derivative(x) for x in args]
        outs: Any
        touts: Any  # one of each, or lists, as ``multiple_results`` says
        with set_trace(self):
            if isinstance(op, CallOp):
                outs, touts = op.jvp_call(TRANSFORMS, values, tangents)
            else:
                outs, touts = jvp_of(op, values, tangents)
        if op.multiple_results:
            return [self._joined(y, t, order) for y, t in zip(outs, touts)]
        return self._joined(outs, touts, order)

    def _shorter(self, x: Any) -> Any:
        if not self.varies(x):
            return x
        if x.shorter is None:
            x.shorter = self.wrap(x.terms[:-1])
        return x.shorter

    def _derivative(self, x: Any) -> Any:
        if not self.varies(x):
            return Zero(typeof(x))
        if x.derivative is None:
            x.derivative = self.wrap(x.terms[1:])
        return x.derivative

    def _joined(self, y: Any, t: Any, order: int) -> Any:
        """The curve with the value of ``y`` and the derivative ``t``."""
        if isinstance(t, Zero):
            return y
        return self.wrap((y.terms[0] if self.varies(y) else y, *self.terms(t, order - 1)))


def _identity(x: Any) -> Any:
    """A cache key for an operand: scalars by dtype and value, others by id."""
    if isinstance(x, (np.ndarray, np.generic)) and not x.ndim:
        return x.dtype, x.tobytes()
    return (type(x), repr(x)) if isinstance(x, (bool, int, float, complex)) else id(x)


def _sum(values: Sequence[Any]) -> Any:
    total = values[0]
    for x in values[1:]:
        total = add(total, x)
    return total


def _quotient(xs: Terms, ys: Terms) -> Terms:
    """The derivatives of ``q = x / y``, found by solving the Leibniz expansion of ``x = q * y`` for those of ``q``."""
    quotients: list[Any] = []
    for k, x in enumerate(xs):
        for j in range(k):
            x = sub(x, mul(mul(quotients[j], ys[k - j]), scalar_like(comb(k, j), ys[0])))
        quotients.append(div(x, ys[0]))
    return tuple(quotients)


@boundary
def jet(
    fun: Callable[..., Any], primals: Sequence[Any], series: Sequence[Any], factorial_scaled: bool = True
) -> tuple[Any, Any]:
    """The value of ``fun`` at ``primals`` and its derivatives along a curve, to the order to which the curve is given.

    For a function of one variable, ``series=((1.0, 0.0, …),)`` gives the derivatives of the function.

    Args:
      series: for each argument, a list of the derivatives of its curve in ascending order, each with the structure of
        the argument. All lists have the same length.
      factorial_scaled: if False, the given and returned terms are Taylor coefficients: the k-th derivative divided by
        ``k!``.

    Returns:
      The value, and a tree of its structure whose leaves are lists of derivatives.

    Raises:
      ArgumentError: lists of different lengths. ArgumentTypeError: ``primals`` is not a tuple or list, or ``series``
        not a tuple or list of such. ShapeError: a term differs from its argument in structure or shape. DTypeError: an
        argument has an integer dtype.

    Example:
      >>> from meshwright.experimental.jet import jet
      >>> value, (first, second, third) = jet(lambda x: x**3, (2.0,), ((1.0, 0.0, 0.0),))
      >>> float(value), float(first), float(second), float(third)
      (8.0, 12.0, 12.0, 6.0)
    """
    require_callable(fun, "jet")
    flat, tree = pytree.flatten(tuple(primals))
    curves = _curves(primals, series, flat)
    order = len(curves[0]) - 1 if curves else 0
    scale = [1 if factorial_scaled else factorial(k) for k in range(order + 1)]
    trace = JetTrace(STATE.trace)
    with trace:
        wrapped = [trace.wrap(tuple(map(_scaled, terms, scale))) for terms in curves]
        with set_trace(trace), name_scope(f"jet({name_of(fun)})"):
            leaves, out_tree = pytree.flatten(fun(*pytree.unflatten(tree, wrapped)))
        outs = [list(map(_array, trace.terms(x, order))) for x in leaves]
    derivatives = [list(map(_scaled, terms[1:], [1 / s for s in scale[1:]])) for terms in outs]
    return pytree.unflatten(out_tree, [terms[0] for terms in outs]), pytree.unflatten(out_tree, derivatives)


def _array(x: Any) -> Any:
    """``x`` as a Meshwright array, if it is a Python number or a NumPy array."""
    aval = typeof(x)
    return x if isinstance(x, Typed) else ConvertElementType(aval.dtype, aval.weak_type).bind(x)


def _scaled(x: Any, by: float) -> Any:
    return x if by == 1 else mul(x, scalar_like(by, x))


def _curves(primals: Any, series: Any, flat: Sequence[Any]) -> list[Terms]:
    """The value and derivatives of each leaf of the arguments.

    Raises:
      ArgumentTypeError, ArgumentError: ``primals`` and ``series`` do not match; see :func:`jet`.
    """
    given = [series, *series] if isinstance(series, (tuple, list)) else [series]
    if not isinstance(primals, (tuple, list)) or not all(isinstance(s, (tuple, list)) for s in given):
        raise ArgumentTypeError(
            "jet: primals must be a tuple or list of the arguments, series of a tuple or list of terms for each, got "
            f"{primals!r} and {series!r}"
        )
    lengths = [len(s) for s in series]
    if len(lengths) != len(primals) or len(set(lengths)) > 1:
        raise ArgumentError(
            f"jet: expected as many terms for each of {len(primals)} arguments, got {lengths}; add zeros at the end"
        )
    leaves = iter(flat)
    curves = []
    for i, (primal, terms) in enumerate(zip(primals, series)):
        columns = [_leaves(primal, term, i) for term in terms]
        curves += [_curve(next(leaves), [c[j] for c in columns]) for j in range(len(pytree.leaves(primal)))]
    return curves


def _leaves(primal: Any, term: Any, i: int) -> list[Any]:
    leaves, tree = pytree.flatten(term)
    if tree != (want := pytree.flatten(primal)[1]):
        raise ShapeError(
            f"jet: a term of argument {i} has structure {pytree.show(tree)}, the argument {pytree.show(want)}; they "
            "must be alike"
        )
    return leaves


def _curve(x: Any, terms: Sequence[Any]) -> Terms:
    aval = typeof(x)
    if not dtypes.is_inexact(aval.dtype):
        raise DTypeError(
            f"jet: an argument of type {aval} runs along no curve; convert it with .astype, or close over it"
        )
    for t in terms:
        if typeof(t).shape != aval.shape:
            raise ShapeError(f"jet: a term has type {typeof(t)}, its argument {aval}; they must have one shape")
    return x, *(convert(t, aval.dtype, aval.weak_type) for t in terms)
