"""``meshwright.checkify``: checks inside traced functions; the function returns an error value.

``checkify(f)`` traces ``f`` and threads an error state through its jaxpr and the bodies of control flow: the number of
the first failed check, and the arguments of the messages. Source: ``jax.experimental.checkify`` for the interface.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.core import dtypes, pytree, source
from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.core.key_types import is_key
from meshwright.core.naming import wraps
from meshwright.core.pytree_classes import register_pytree_node
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, ArgumentTypeError, CheckError
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn
from meshwright.ir.op import Op
from meshwright.ir.passes import inline_calls
from meshwright.ir.rewrite import Interpreter, in_regions, replaced, written_out
from meshwright.ir.tracing import Tracer, typeof
from meshwright.ops.composite import Composite
from meshwright.ops.control.check import Check
from meshwright.ops.control.guards import checked_for
from meshwright.ops.control.regions import RegionOp
from meshwright.ops.elementwise.table import and_, eq, ne, not_, or_, scalar_like, select
from meshwright.ops.indexing.dynamic_slice import dynamic_index_in_dim
from meshwright.ops.random.keys import unwrap_keys
from meshwright.ops.reduce.reductions import argmax, reduce_or
from meshwright.ops.shape.broadcast_reduce import match_shape
from meshwright.transforms.autodiff import closed_call
from meshwright.transforms.wrapped import name_of, require_callable

#: values for ``errors`` of :func:`checkify`; combine them with ``|``
user_checks = frozenset({"user"})
nan_checks = frozenset({"nan"})
index_checks = frozenset({"index"})
div_checks = frozenset({"div"})
float_checks = nan_checks | div_checks
automatic_checks = float_checks | index_checks
all_checks = automatic_checks | user_checks


@dataclass(frozen=True)
class Site:
    """A check in a program; ``first`` is the index of its first message argument in the error's values."""

    number: int
    check: Check
    values: tuple[ShapedArray, ...]
    first: int


#: the elements of the sets of checks
ErrorCategory = str
#: JAX's name of the error that a failed check raises
JaxRuntimeError = CheckError


class Error:
    """The error value of a checked function. A pytree, so that ``jit`` and ``vmap`` can return it."""

    def __init__(self, code: Any, values: Sequence[Any], sites: tuple[Site, ...]) -> None:
        self.code = code
        self.values = tuple(values)
        self.sites = sites

    def get(self) -> str | None:
        """The message of the first failed check, or None. Under ``vmap``, one line per failing batch entry."""
        codes = np.asarray(self.code)
        return "\n".join(self._message(codes, tuple(at)) for at in np.argwhere(codes).tolist()) or None

    def _message(self, codes: np.ndarray, at: tuple[int, ...]) -> str:
        site = self.sites[int(codes[at]) - 1]
        values = self.values[site.first : site.first + len(site.values)]
        return site.check.text([np.asarray(v)[at] for v in values], at)

    def throw(self) -> None:
        """Raise if a check failed.

        Raises:
          CheckError: a check failed.
        """
        message = self.get()
        if message is not None:
            raise CheckError(message)

    def __repr__(self) -> str:
        return "Error(traced)" if isinstance(self.code, Tracer) else f"Error({self.get()!r})"


register_pytree_node(
    Error, lambda e: ((e.code, e.values), e.sites), lambda sites, parts: Error(parts[0], parts[1], sites)
)


#: the error value without a failed check
init_error = Error(np.int32(0), (), ())


def check(pred: Any, msg: str, *args: Any, debug: bool = False, **kwargs: Any) -> None:
    """Check that the bool scalar ``pred`` is True, in a function transformed by :func:`checkify`.

    On concrete values, a failed check raises at once. Under ``vmap``, the message ends with the first failing entry.

    Args:
      msg: a format string for ``args`` and ``kwargs``, which are pytrees of arrays. Of random keys it shows the words.
      debug: if True, the check has no effect in functions that are not transformed by :func:`checkify`.

    Raises:
      CheckError: ``pred`` is False. ArgumentTypeError: ``pred`` is not a bool scalar.

    Example:
      >>> @mw.checkify.checkify
      ... def inverse(x):
      ...     mw.checkify.check(x != 0, "x must not be 0, got {}", x)
      ...     return 1 / x
      >>> error, _ = mw.jit(inverse)(0.0)
      >>> error.get()
      'x must not be 0, got 0.0'
    """
    aval = typeof(pred)
    if aval.shape != () or not dtypes.is_bool(aval.dtype):
        raise ArgumentTypeError(f"checkify.check: pred must be a bool scalar, got {aval}; reduce it with .all()")
    leaves, structure = pytree.flatten((args, kwargs))
    Check(msg, structure, debug=bool(debug)).bind(pred, *map(_shown, leaves))


def _shown(x: Any) -> Any:
    """An argument of a message: an array, or the words of random keys."""
    return unwrap_keys(x) if is_key(typeof(x).dtype) else x


def debug_check(pred: Any, msg: str, *args: Any, **kwargs: Any) -> None:
    """:func:`check` with ``debug=True``: no effect in functions that are not transformed by :func:`checkify`.

    Example:
      >>> def inverse(x):
      ...     mw.checkify.debug_check(x != 0, "x must not be 0")
      ...     return 1 / x
      >>> mw.jit(inverse)(0.0).item(), mw.checkify.checkify(inverse)(0.0)[0].get()
      (inf, 'x must not be 0')
    """
    check(pred, msg, *args, debug=True, **kwargs)


def check_error(error: Error) -> None:
    """Raise the error that a checked function returned; under tracing, turn it into checks of the enclosing function.

    Raises:
      CheckError: a check failed.
    """
    if not isinstance(error.code, Tracer):
        error.throw()
        return
    for site in error.sites:
        values = error.values[site.first : site.first + len(site.values)]
        replace(site.check, debug=False).bind(ne(error.code, np.int32(site.number)), *values)


def checkify(f: Callable[..., Any] | None = None, errors: frozenset[str] = user_checks) -> Any:
    """A function that returns ``(error, f(...))`` instead of raising when a check fails.

    Args:
      errors: the checks to make: ``user_checks`` (calls of :func:`check`), ``nan_checks`` (an op that does more than
        move elements returns a NaN), ``index_checks`` (an index is out of bounds), ``div_checks`` (a division by zero),
        or several, combined with ``|``.

    Raises:
      ArgumentError: ``errors`` is not made of these sets.

    Example:
      >>> checked = mw.checkify.checkify(lambda x, i: mnp.log(x)[i], errors=mw.checkify.index_checks)
      >>> error, _ = mw.jit(checked)(mnp.ones(3), 5)
      >>> error.get()[:44]
      'out-of-bounds indexing for array of shape (3'
    """
    if f is None:
        return functools.partial(checkify, errors=errors)
    require_callable(f, "checkify")
    if not isinstance(errors, frozenset) or not errors <= all_checks:
        raise ArgumentError(f"checkify: errors must be made of user_checks, nan_checks, ..., got {errors!r}")

    @wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> tuple[Error, Any]:
        flat, in_tree = pytree.flatten((args, kwargs))

        def call(*leaves: Any) -> Any:
            given, named = pytree.unflatten(in_tree, leaves)
            return f(*given, **named)

        with config.within("automatic_checks", errors - user_checks):
            jaxpr, hoisted, out_tree = closed_call(call, flat, name_of(f))
        jaxpr = _spread(inline_calls(jaxpr))
        checker = _Checker(errors)
        checker.collect(jaxpr.jaxpr)
        outs, (code, *values) = checker.run(jaxpr, [*hoisted, *flat], checker.start())
        return Error(code, values, tuple(checker.sites)), pytree.unflatten(out_tree, outs)

    return wrapped


class _Checker:
    """Runs a jaxpr with its checks.

    The state is the number of the first failed check (0: none), followed by the message arguments of all checks.
    """

    def __init__(self, errors: frozenset[str]) -> None:
        self.errors = errors
        self.sites: list[Site] = []
        self.of: dict[tuple[int, str], Site] = {}
        self.count = 0

    # --- what there is to check -----------------------------------------------------------------------------
    def collect(self, jaxpr: Jaxpr) -> None:
        """Number the checks of a jaxpr and of the bodies in it."""
        for eqn in jaxpr.eqns:
            op = eqn.op
            for region in _threaded_regions(op):
                self.collect(region.jaxpr)
            where = _literally(f"at {eqn.source}")
            if isinstance(op, Check) and "user" in self.errors:
                self.add(eqn, "user", op, [a.aval for a in eqn.invars[1:]])
            starts = [eqn.invars[i].aval for i in op.index_operands(len(eqn.invars))]
            kinds = checked_for(eqn) & self.errors
            if "index" in kinds:
                of = _literally(f"array of shape {eqn.invars[0].aval.shape}: {op.name} of {eqn.invars[0].aval}")
                places = ", ".join(["{}"] * len(starts))
                check = Check(f"out-of-bounds indexing for {of} at index {places} {where}")
                self.add(eqn, "index", check, starts)
            if "div" in kinds:
                self.add(eqn, "div", Check(f"division by zero {where}"), ())
            if "nan" in kinds:
                self.add(eqn, "nan", Check(f"nan generated by primitive: {op.name} {where}"), ())

    def add(self, eqn: JaxprEqn, kind: str, check: Check, values: Sequence[ShapedArray]) -> None:
        site = Site(len(self.sites) + 1, check, tuple(values), self.count)
        self.sites.append(site)
        self.of[id(eqn), kind] = site
        self.count += len(values)

    def start(self) -> list[Any]:
        """The initial state: no failed check."""
        return [np.int32(0), *(np.zeros(a.shape, a.dtype) for s in self.sites for a in s.values)]

    def concerns(self, jaxpr: Jaxpr) -> bool:
        """Whether a jaxpr contains a check."""
        for eqn in jaxpr.eqns:
            if any((id(eqn), kind) in self.of for kind in self.errors):
                return True
            if any(self.concerns(r.jaxpr) for r in _threaded_regions(eqn.op)):
                return True
        return False

    # --- running --------------------------------------------------------------------------------------------
    def run(self, jaxpr: ClosedJaxpr, args: Sequence[Any], state: list[Any]) -> tuple[list[Any], list[Any]]:
        running = _Running(self, state)
        return running.run(jaxpr, args), running.state

    def equation(self, eqn: JaxprEqn, args: list[Any], state: list[Any]) -> tuple[list[Any], list[Any]]:
        op = eqn.op
        if isinstance(op, Check):
            return [], self.note(eqn, "user", lambda: not_(args[0]), args[1:], state)
        if isinstance(op, RegionOp) and any(self.concerns(r.jaxpr) for r in _threaded_regions(op)):
            return op.threaded(args, state, self.run, _first_failed)
        starts = [args[i] for i in op.index_operands(len(args))]
        state = self.note(eqn, "index", lambda: op.out_of_bounds(*args), starts, state)
        state = self.note(eqn, "div", lambda: _any(eq(args[1], scalar_like(0, args[1]))), (), state)
        result = op.bind(*args)
        outs = list(result) if op.multiple_results else [result]
        return outs, self.note(eqn, "nan", lambda: _has_nan(outs), (), state)

    def note(
        self, eqn: JaxprEqn, kind: str, failed: Callable[[], Any], values: Sequence[Any], state: list[Any]
    ) -> list[Any]:
        """The state after the check of this kind of an equation; unchanged if it has none."""
        site = self.of.get((id(eqn), kind))
        if site is None:
            return state
        code, *rest = state
        first = and_(failed(), eq(code, np.int32(0)))
        for i, value in enumerate(values):
            at = site.first + i
            rest[at] = select(match_shape(first, typeof(value).update(dtype=dtypes.bool_)), value, rest[at])
        return [select(first, np.int32(site.number), code), *rest]


def _spread(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr with the ops that apply a body in an order of their own written out, so that it can be checked."""

    def rule(eqn: JaxprEqn) -> JaxprEqn | list[JaxprEqn]:
        if isinstance(eqn.op, Composite) and eqn.op.holds_jaxprs:
            return written_out(eqn, eqn.op.expand)
        return in_regions(eqn, _spread)

    return replaced(jaxpr, rule)


class _Running(Interpreter[Any]):
    """Evaluates a jaxpr equation by equation and updates the error state."""

    def __init__(self, checker: _Checker, state: list[Any]) -> None:
        self.checker, self.state = checker, state

    def equation(self, eqn: JaxprEqn, args: list[Any]) -> Sequence[Any]:
        with source.at(eqn.source):
            outs, self.state = self.checker.equation(eqn, args, self.state)
        return outs


def _literally(text: str) -> str:
    """A format string for the text itself."""
    return text.replace("{", "{{").replace("}", "}}")


def _threaded_regions(op: Op) -> Sequence[ClosedJaxpr]:
    """The bodies of an op through which an error state can go."""
    return op.regions() if isinstance(op, RegionOp) and op.threads else ()


def _first_failed(states: Sequence[Any]) -> list[Any]:
    """The state of the first device that failed."""
    at = argmax(ne(states[0], np.int32(0)), 0)
    return [dynamic_index_in_dim(x, at, 0, keepdims=False) for x in states]


# --- what may be wrong --------------------------------------------------------------------------------------
def _any(x: Any) -> Any:
    return reduce_or(x, range(typeof(x).ndim))


def _has_nan(outs: Sequence[Any]) -> Any:
    flags = [_any(ne(x, x)) for x in outs if dtypes.is_inexact(typeof(x).dtype)]
    return functools.reduce(or_, flags)
