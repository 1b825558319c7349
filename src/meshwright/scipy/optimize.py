"""Minimization by BFGS (Nocedal and Wright 2006, "Numerical optimization", algorithm 6.1), as a loop that can be jitted
and batched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from meshwright.core import dtypes
from meshwright.errors import ArgumentError, ShapeError
from meshwright.lax import while_loop
from meshwright.numpy.creation import asarray
from meshwright.numpy.linear import dot, outer
from meshwright.numpy.logic import isfinite, where
from meshwright.numpy.ranges import eye
from meshwright.transforms.autodiff import value_and_grad

#: the constants of Wolfe's conditions, for sufficient decrease (Armijo) and for curvature
_DECREASE, _CURVATURE = 1e-4, 0.9
_MOST_TRIALS = 40


class OptimizeResults(NamedTuple):
    """The result of a minimization.

    ``x`` is the minimum, and ``success`` tells whether the gradient vanishes there. ``status`` is 0, or 1 after too
    many steps, or 3 if no further descent was found. ``fun``, ``jac`` and ``hess_inv`` are the value, the gradient and
    the approximate inverse Hessian; the other fields count evaluations and steps.
    """

    x: Any
    success: Any
    status: Any
    fun: Any
    jac: Any
    hess_inv: Any
    nfev: Any
    njev: Any
    nit: Any


class _State(NamedTuple):
    x: Any
    value: Any
    slope: Any
    inverse: Any
    calls: Any
    steps: Any
    #: the number of steps since the curvature was reset
    known: Any
    stuck: Any


class _Trial(NamedTuple):
    step: Any
    low: Any
    high: Any
    value: Any
    slope: Any
    count: Any
    accepted: Any


def _search(evaluate: Callable[[Any], Any], state: _State, direction: Any) -> _Trial:
    """A step length that satisfies Wolfe's conditions: doubled until it is beyond the minimum, then bisected.

    Where the decrease of the value is lost in rounding, the slope is used instead (the approximate conditions of Hager
    and Zhang 2005). There, the gradient must become smaller, so that the search ends.
    """
    fall = dot(state.slope, direction)
    hidden = state.value + float(ml_dtypes.finfo(state.value.dtype).eps) * abs(state.value)

    def body(t: _Trial) -> _Trial:
        value, slope = evaluate(state.x + t.step * direction)
        along = dot(slope, direction)
        flat = (value <= hidden) & (along <= (2 * _DECREASE - 1) * fall) & (abs(slope).max() < abs(state.slope).max())
        far = ~((value <= state.value + _DECREASE * t.step * fall) | flat)
        near = ~far & (along < _CURVATURE * fall)
        low, high = where(near, t.step, t.low), where(far, t.step, t.high)
        step = where(isfinite(high), (low + high) / 2, 2 * t.step)
        done = ~far & ~near
        return _Trial(where(done, t.step, step), low, high, value, slope, t.count + 1, done)

    zero = state.value * 0
    start = _Trial(zero + 1, zero, zero + np.inf, state.value, state.slope, np.int32(0), np.False_)
    return while_loop(lambda t: ~t.accepted & (t.count < _MOST_TRIALS), body, start)


def _step(evaluate: Callable[[Any], Any], state: _State) -> _State:
    """A step along the quasi-Newton direction.

    If no step is found, the curvature is reset, and the next step is along the steepest descent, with an initial length
    of one. The new inverse Hessian is scaled accordingly (Nocedal and Wright, 6.20).
    """
    size = abs(state.slope).max()
    unit = eye(state.x.shape[0], dtype=state.x.dtype)
    direction = where(state.known > 0, -(state.inverse @ state.slope), -state.slope / where(size > 0, size, 1.0))
    trial = _search(evaluate, state, direction)
    moved, change = trial.step * direction, trial.slope - state.slope
    product, length = dot(change, moved), dot(change, change)
    rho = where(product > 0, 1 / where(product > 0, product, 1.0), 0.0)
    scale = where(product > 0, product / where(length > 0, length, 1.0), 1.0)
    before = where(state.known > 0, state.inverse, scale * unit)
    left = unit - rho * outer(moved, change)
    inverse = left @ before @ left.T + rho * outer(moved, moved)
    keep = trial.accepted
    return _State(
        where(keep, state.x + moved, state.x), where(keep, trial.value, state.value),
        where(keep, trial.slope, state.slope), where(keep & (rho > 0), inverse, state.inverse),
        state.calls + trial.count, state.steps + 1, where(keep, where(rho > 0, state.known + 1, state.known), 0),
        ~keep & (state.known == 0),
    )  # fmt: skip


def minimize(
    fun: Callable[..., Any], x0: Any, args: tuple[Any, ...] = (), *, method: str, tol: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> OptimizeResults:  # fmt: skip
    """Find a local minimum of a function of a vector.

    Args:
      fun: ``fun(x, *args)``, a differentiable scalar function.
      x0: the starting point, shape (n,).
      args: further arguments.
      method: ``BFGS``.
      tol: the maximum magnitude of the elements of the gradient at the minimum. By default, it is about the square root
        of the dtype's precision; in addition, the expected further decrease must be negligible compared to the value or
        to the decrease so far, so that the criterion does not depend on the function's unit.
      options: ``maxiter``, the maximum number of steps (200 n), and ``gtol``, another name for ``tol``.

    Raises:
      ArgumentError: another ``method``, or an unknown option.
      ShapeError: ``x0`` is not a vector.

    >>> found = minimize(lambda x: ((x - 3) ** 2).sum(), np.zeros(2), method="BFGS")
    >>> bool(found.success), [round(v, 3) for v in found.x.tolist()]
    (True, [3.0, 3.0])
    """
    given = dict(options or {})
    most, gtol = given.pop("maxiter", None), given.pop("gtol", tol)
    if method.lower() != "bfgs" or given:
        raise ArgumentError(
            f"minimize: method must be BFGS and options maxiter and gtol, got {method!r} and {sorted(given)}"
        )
    x = asarray(x0)
    x = x if dtypes.is_float(x.dtype) else x.astype(dtypes.default_float())
    if x.ndim != 1:
        raise ShapeError(f"minimize: x0 must be a vector, got shape {x.shape}; flatten it, and reshape in the function")
    n = x.shape[0]
    most = 200 * n if most is None else most
    slope_of = value_and_grad(lambda v: fun(v, *args))
    value, slope = slope_of(x)
    start = _State(x, value, slope, eye(n, dtype=x.dtype), np.int32(1), np.int32(0), np.int32(0), np.False_)

    eps = float(ml_dtypes.finfo(x.dtype).eps)
    enough = 10 * eps**0.5 if gtol is None else gtol

    def unfinished(s: _State) -> Any:
        going = abs(s.slope).max() > enough
        if gtol is None:
            going |= dot(s.slope, s.inverse @ s.slope) / 2 > eps * (abs(s.value) + eps * (value - s.value))
        return going & (s.steps < most) & ~s.stuck

    end = while_loop(unfinished, lambda s: _step(slope_of, s), start)
    success = abs(end.slope).max() <= enough
    status = where(success, 0, where(end.stuck, 3, 1))
    return OptimizeResults(
        end.x, success, status, end.value, end.slope, end.inverse, end.calls, end.calls, end.steps
    )  # fmt: skip
