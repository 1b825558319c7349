"""``jax.experimental.ode``: initial value problems, by the Dormand-Prince method with adaptive steps.

Steps end exactly at the requested times, so that nothing is interpolated. The derivative solves the adjoint problem
backward from time to time, and needs memory for the results only.

Sources: Dormand and Prince, "A family of embedded Runge-Kutta formulae" (1980); Hairer, Nørsett and Wanner, "Solving
Ordinary Differential Equations I", II.4 (control of the step); Chen et al., "Neural Ordinary Differential Equations"
(2018), for the adjoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from meshwright.api.control_flow import scan, while_loop
from meshwright.core import dtypes, pytree
from meshwright.core.expected import as_number
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.flatten_util import ravel_pytree
from meshwright.ir.tracing import Tracer, typeof
from meshwright.numpy import (
    abs as absolute,
)  # fmt: skip
from meshwright.numpy import (
    asarray,
    clip,
    concatenate,
    dot,
    full_like,
    isfinite,
    maximum,
    mean,
    minimum,
    real,
    sqrt,
    square,
    stack,
    where,
    zeros_like,
)
from meshwright.transforms.autodiff import vjp
from meshwright.transforms.custom_vjp import custom_vjp
from meshwright.transforms.jacobian import closure_convert
from meshwright.transforms.vmap import vmap
from meshwright.transforms.wrapped import require_callable

__all__ = ["odeint"]

#: the Butcher tableau: the nodes of the stages after the first, and the weights of the stages and of the result
_TIMES = (1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
_STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
#: the weights of the difference from the result of fourth order
_ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


@dataclass(frozen=True)
class _Control:
    """Tolerances, and limits of the steps."""

    rtol: float
    atol: float
    most_steps: float
    longest: float


def odeint(
    func: Callable[..., Any], y0: Any, t: Any, *args: Any, rtol: float = 1.4e-8, atol: float = 1.4e-8,
    mxstep: float = np.inf, hmax: float = np.inf,
) -> Any:  # fmt: skip
    """Solve ``dy/dt = func(y, t, *args)`` with the initial value ``y0``, at the times ``t``.

    The solution is NaN where it cannot be continued (a step would be shorter than the precision of times, or there were
    ``mxstep`` steps since the previous time), and at times that decrease or are infinite. Reverse mode solves the
    adjoint problem: gradients with respect to ``y0``, ``t``, ``args`` and values that ``func`` closes over are accurate
    to the same tolerances.

    Args:
      func: the derivative; returns a pytree like ``y0``.
      y0: a pytree of float or complex arrays.
      t: the times, shape ``(n,)``, in increasing order; ``y0`` is the state at the first.
      rtol, atol: the relative and absolute error of a step.
      mxstep: the maximum number of steps between two times.
      hmax: the maximum length of a step.

    Returns:
      a pytree like ``y0``, with the times as a new first dimension.

    Raises:
      ArgumentError: times decrease.
      ShapeError: ``t`` is not a vector, or the result of ``func`` has another structure or other shapes than ``y0``.
      DTypeError: the state is not float or complex, times are not floats, or a real state has a complex derivative.

    Example:
      >>> from meshwright.experimental.ode import odeint
      >>> odeint(lambda y, t, rate: -rate * y, 1.0, mnp.array([0.0, 0.5, 1.0]), 2.0).round(4)
      Array([1.    , 0.3679, 0.1353], dtype=float32)
    """
    require_callable(func, "odeint")
    limits = {"rtol": rtol, "atol": atol, "mxstep": mxstep, "hmax": hmax}
    control = _Control(*(as_number(f"odeint: {name}", limit) for name, limit in limits.items()))
    for path, leaf in zip(pytree.paths(y0), pytree.leaves(y0)):
        if not _has_derivatives(leaf):
            raise DTypeError(f"odeint: y0{path} is {typeof(leaf)}; expected floats or complex numbers")
    flat, unravel = ravel_pytree(y0)
    times = _times(t)
    leaves, tree = pytree.flatten(args)
    smooth = [_has_derivatives(x) for x in leaves]

    def derivative(y: Any, t: Any, given: Sequence[Any], fixed: Sequence[Any]) -> Any:
        parts = {True: iter(given), False: iter(fixed)}
        dy = func(unravel(y), t, *pytree.unflatten(tree, [next(parts[s]) for s in smooth]))
        return _like_state(dy, y0)

    given, fixed = ([x for x, s in zip(leaves, smooth) if s == kind] for kind in (True, False))
    converted, consts = closure_convert(derivative, flat, times[0], given, fixed)
    return vmap(unravel)(_odeint(converted, control, flat, times, given, fixed, consts))


def _has_derivatives(x: Any) -> bool:
    dtype = typeof(x).dtype
    return dtypes.is_float(dtype) or dtypes.is_complex(dtype)


def _times(t: Any) -> Any:
    times = asarray(t)
    if times.ndim != 1 or not times.shape[0]:
        raise ShapeError(f"odeint: t has shape {times.shape}; expected (n,), one time or more")
    if not dtypes.is_float(times.dtype):
        raise DTypeError(f"odeint: t is {times.dtype}; expected floats, such as those of linspace")
    if not isinstance(times, Tracer) and not bool(np.all(np.diff(np.asarray(times)) >= 0)):
        raise ArgumentError("odeint: t decreases or is NaN; for times that decrease solve -func(y, -t) at -t")
    return times


def _like_state(dy: Any, y0: Any) -> Any:
    """The result of ``func`` as a vector.

    Raises:
      ShapeError: its structure or shapes are not those of the state.
    """
    (got, got_tree), (want, want_tree) = pytree.flatten(dy), pytree.flatten(y0)
    shapes = [typeof(x).shape for x in want]
    if got_tree != want_tree or [typeof(x).shape for x in got] != shapes:
        raise ShapeError(
            f"odeint: func gives {pytree.show(got_tree)} of shapes {[typeof(x).shape for x in got]}, y0 is "
            f"{pytree.show(want_tree)} of shapes {shapes}; a derivative is like the state"
        )
    for x, y in zip(got, want):
        if dtypes.is_complex(typeof(x).dtype) and not dtypes.is_complex(typeof(y).dtype):
            raise DTypeError(f"odeint: func gives {typeof(x)} for a state of {typeof(y)}; make the state complex, too")
    return ravel_pytree([asarray(x).astype(typeof(y).dtype) for x, y in zip(got, want)])[0]


# --- the solution -------------------------------------------------------------------------------------------
@partial(custom_vjp, nondiff_argnums=(0, 1))
def _odeint(derivative: Any, control: _Control, y0: Any, times: Any, given: Any, fixed: Any, consts: Any) -> Any:
    """The states as rows; ``derivative(y, t, given, fixed, *consts)`` returns a vector."""
    return _solution(lambda y, t: derivative(y, t, given, fixed, *consts), control, y0, times)


def _solution(slope: Callable[[Any, Any], Any], control: _Control, y0: Any, times: Any) -> Any:
    first = slope(y0, times[0])
    step = _first_step(slope, control, y0, times[0], first)

    def to_next(state: Any, target: Any) -> tuple[Any, Any]:
        y, k, start, step = state
        begun = 0, y, k, start, step
        _, y, k, now, step = while_loop(
            partial(_goes_on, control, target), partial(_stepped, slope, control, target), begun
        )
        y = where((now == target) & (start <= target), y, np.nan)
        return (y, k, target, step), y

    _, rest = scan(to_next, (y0, first, times[0], step), times[1:])
    return concatenate([y0[None], rest])


def _goes_on(control: _Control, target: Any, state: Any) -> Any:
    count, _, _, now, step = state
    return (now < target) & isfinite(target) & (count < control.most_steps) & (now + minimum(step, target - now) > now)


def _stepped(slope: Callable[[Any, Any], Any], control: _Control, target: Any, state: Any) -> Any:
    """A step up to ``target``, which is accepted if its error is within the tolerance, and the next step's length."""
    count, y, k, now, wanted = state
    last = now + wanted >= target
    step = where(last, target - now, wanted)
    after, slopes = _dormand_prince(slope, y, k, now, step)
    wrong = step.astype(y.dtype) * _combined(_ERROR, slopes)
    scale = control.atol + control.rtol * maximum(absolute(y), absolute(after))
    ratio = _size(wrong / scale)
    done = ratio <= 1
    change = where(isfinite(ratio), clip(0.9 * maximum(ratio, 1e-10) ** -0.2, 0.2, 10.0), 0.2).astype(step.dtype)
    # A step that was cut to end at the target is no reason to keep the next ones short.
    longer = where(last & done, maximum(wanted, step * change), step * change)
    reached = where(last, target, now + step)
    return (
        count + 1, where(done, after, y), where(done, slopes[-1], k), where(done, reached, now),
        minimum(longer, control.longest).astype(step.dtype),
    )  # fmt: skip


def _dormand_prince(slope: Callable[[Any, Any], Any], y: Any, k: Any, now: Any, step: Any) -> tuple[Any, list[Any]]:
    """The state after a step, and the slopes at all stages; the last is the slope at the end of the step."""
    slopes, here = [k], y
    for place, weights in zip(_TIMES, _STAGES):
        here = y + step.astype(y.dtype) * _combined(weights, slopes)
        slopes.append(slope(here, now + place * step))
    return here, slopes


def _combined(weights: Sequence[float], slopes: Sequence[Any]) -> Any:
    return dot(np.asarray(weights, slopes[0].dtype), stack(slopes))


def _size(x: Any) -> Any:
    return sqrt(mean(square(absolute(x))))


def _first_step(slope: Callable[[Any, Any], Any], control: _Control, y: Any, now: Any, k: Any) -> Any:
    """The length of the first step, estimated from two slopes so that its error is a hundredth of the tolerance."""
    scale = control.atol + control.rtol * absolute(y)
    size, steep = (_size(v / scale) for v in (y, k))
    small = where((size < 1e-5) | (steep < 1e-5), 1e-6, 0.01 * size / maximum(steep, 1e-5))
    bent = _size((slope(y + small * k, now + small.astype(now.dtype)) - k) / scale) / small
    most = maximum(steep, bent)
    step = where(most <= 1e-15, maximum(1e-6, small * 1e-3), (0.01 / maximum(most, 1e-15)) ** 0.2)
    return minimum(minimum(100 * small, step), control.longest).astype(now.dtype)


# --- the adjoint --------------------------------------------------------------------------------------------
def _forward(derivative: Any, control: _Control, *operands: Any) -> tuple[Any, Any]:
    states = _odeint(derivative, control, *operands)
    return states, (states, operands)


def _backward(derivative: Any, control: _Control, residuals: Any, cts: Any) -> Any:
    """Integrate the state, its cotangent and the parameters' cotangents backward, from each time to the previous."""
    states, (_, times, given, fixed, consts) = residuals
    parameters = given, consts
    nothing = pytree.map(zeros_like, parameters)

    def of_time(ct: Any, y: Any, now: Any) -> Any:
        return real(dot(ct, derivative(y, now, given, fixed, *consts))).astype(now.dtype)

    def to_previous(carry: Any, row: Any) -> tuple[Any, Any]:
        ct, gathered = carry
        y, mine, now, before = row
        ct = ct + mine
        flat, unravel = ravel_pytree((y, ct, gathered))
        slope = partial(_adjoint, derivative, unravel)
        end = _odeint(slope, control, flat, stack([-now, -before]), parameters, fixed, ())[1]
        _, ct, gathered = unravel(end)
        return (ct, gathered), of_time(mine, y, now)

    rows = states[1:], cts[1:], times[1:], times[:-1]
    (ct, gathered), of_times = scan(to_previous, (full_like(cts[0], 0), nothing), rows, reverse=True)
    of_first = -of_time(ct, states[0], times[0])
    of_given, of_consts = gathered
    return ct + cts[0], concatenate([of_first[None], of_times]), of_given, None, of_consts


def _adjoint(derivative: Any, unravel: Any, state: Any, reversed_time: Any, parameters: Any, fixed: Any) -> Any:
    """The derivative of the state, its cotangent and the parameters' cotangents, in reversed time."""
    y, ct, _ = unravel(state)
    slope, pullback = vjp(lambda y, g, c: derivative(y, -reversed_time, g, fixed, *c), y, *parameters)
    of_state, *of_parameters = pullback(ct)
    return ravel_pytree((-slope, of_state, tuple(of_parameters)))[0]


_odeint.defvjp(_forward, _backward)
