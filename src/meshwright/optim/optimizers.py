"""First-order optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.core import pytree
from meshwright.core.records import dataclass
from meshwright.numpy.arithmetic import add, divide, multiply, power, sign, sqrt, square, subtract
from meshwright.numpy.creation import full_like, zeros_like
from meshwright.numpy.functions import astype
from meshwright.numpy.promotion import promotes_freely

#: a number, or a function of the step number
Schedule = Any


@dataclass(frozen=True)
class Optimizer:
    """A pair of pure functions: ``init(params) -> state``, ``update(grads, state, params) -> (params, state)``."""

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], tuple[Any, Any]]


def _rate(schedule: Schedule, step: Any) -> Any:
    return schedule(step) if callable(schedule) else schedule


def _zeros(params: Any) -> Any:
    return pytree.map(zeros_like, params)


def _start() -> Any:
    return np.zeros((), np.int32)


def _step(params: Any, direction: Any, rate: Any) -> Any:
    """``params - rate * direction``, each leaf in its dtype."""
    return pytree.map(lambda p, d: astype(subtract(p, multiply(rate, d)), p.dtype), params, direction)


def _averaged(decay: float, old: Any, new: Any) -> Any:
    """Exponential moving averages: ``decay`` times the old ones plus ``1 - decay`` times the new values."""
    return pytree.map(lambda m, x: astype(add(multiply(decay, m), multiply(1 - decay, x)), m.dtype), old, new)


def sgd(learning_rate: Schedule, momentum: float = 0.0, nesterov: bool = False) -> Optimizer:
    """Stochastic gradient descent, optionally with (Nesterov) momentum.

    >>> tune = sgd(0.5)
    >>> tune.update({"w": np.float32(2.0)}, tune.init({"w": np.float32(1.0)}), {"w": np.float32(1.0)})[0]["w"].item()
    0.0
    """

    def init(params: Any) -> Any:
        return {"step": _start(), "momentum": _zeros(params) if momentum else None}

    @promotes_freely()  # parameters of several dtypes share scalars in float32
    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        velocity, direction = state["momentum"], grads
        if momentum:
            velocity = pytree.map(lambda v, g: add(multiply(momentum, v), g), velocity, grads)
            direction = velocity
            if nesterov:
                direction = pytree.map(lambda v, g: add(multiply(momentum, v), g), velocity, grads)
        new = _step(params, direction, _rate(learning_rate, state["step"]))
        return new, {"step": add(state["step"], 1), "momentum": velocity}

    return Optimizer(init, update)


def adamw(
    learning_rate: Schedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, weight_decay: float = 1e-4
) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    >>> tune = adamw(0.5, weight_decay=0.0)
    >>> new, _ = tune.update({"w": np.float32(2.0)}, tune.init({"w": np.float32(1.0)}), {"w": np.float32(1.0)})
    >>> round(new["w"].item(), 3)
    0.5
    """

    def init(params: Any) -> Any:
        return {"step": _start(), "mean": _zeros(params), "square": _zeros(params)}

    @promotes_freely()
    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        step = add(state["step"], 1)
        mean = _averaged(b1, state["mean"], grads)
        squares = _averaged(b2, state["square"], pytree.map(square, grads))
        # Both corrections are scalars, so they are applied to the rate and eps instead of each array.
        count = astype(step, np.float32)
        root = sqrt(subtract(1, power(b2, count)))
        rate = _rate(learning_rate, state["step"])
        scaled = divide(multiply(rate, root), subtract(1, power(b1, count)))
        floor = multiply(eps, root)

        def new_value(p: Any, m: Any, v: Any) -> Any:
            new = subtract(p, multiply(scaled, divide(m, add(sqrt(v), floor))))
            if weight_decay:
                new = subtract(new, multiply(multiply(rate, weight_decay), p))
            return astype(new, p.dtype)

        return pytree.map(new_value, params, mean, squares), {"step": step, "mean": mean, "square": squares}

    return Optimizer(init, update)


def adam(learning_rate: Schedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Optimizer:
    """Adam (Kingma and Ba 2015): :func:`adamw` without weight decay.

    >>> sorted(adam(1e-3).init({"w": np.float32(1.0)}))
    ['mean', 'square', 'step']
    """
    return adamw(learning_rate, b1, b2, eps, 0.0)


def rmsprop(learning_rate: Schedule, decay: float = 0.9, eps: float = 1e-8, momentum: float = 0.0) -> Optimizer:
    """RMSProp (Hinton 2012): gradients divided by a running root mean square, with momentum on the quotient.

    >>> sorted(rmsprop(1e-3).init({"w": np.float32(1.0)}))
    ['momentum', 'square', 'step']
    """

    def init(params: Any) -> Any:
        return {"step": _start(), "square": _zeros(params), "momentum": _zeros(params) if momentum else None}

    @promotes_freely()
    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        squares = _averaged(decay, state["square"], pytree.map(square, grads))
        rate, velocity = _rate(learning_rate, state["step"]), state["momentum"]
        direction = pytree.map(lambda g, v: divide(g, sqrt(add(v, eps))), grads, squares)
        if momentum:
            velocity = pytree.map(lambda m, d: add(multiply(momentum, m), d), velocity, direction)
            direction = velocity
        new = {"step": add(state["step"], 1), "square": squares, "momentum": velocity}
        return _step(params, direction, rate), new

    return Optimizer(init, update)


def adagrad(learning_rate: Schedule, eps: float = 1e-7, initial: float = 0.1) -> Optimizer:
    """Adagrad (Duchi et al. 2011): gradients divided by the square root of the sum of all previous squares.

    Args:
      initial: the initial value of the sum.

    >>> sorted(adagrad(1e-3).init({"w": np.float32(1.0)}))
    ['step', 'sum']
    """

    def init(params: Any) -> Any:
        return {"step": _start(), "sum": pytree.map(lambda p: full_like(p, initial), params)}

    @promotes_freely()
    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        total = pytree.map(lambda s, g: add(s, square(g)), state["sum"], grads)
        direction = pytree.map(lambda g, s: divide(g, sqrt(add(s, eps))), grads, total)
        new = {"step": add(state["step"], 1), "sum": total}
        return _step(params, direction, _rate(learning_rate, state["step"])), new

    return Optimizer(init, update)


def lion(learning_rate: Schedule, b1: float = 0.9, b2: float = 0.99, weight_decay: float = 1e-3) -> Optimizer:
    """Lion (Chen et al. 2023): steps of constant size, in the direction of the sign of a running mean.

    >>> tune = lion(0.5, weight_decay=0.0)
    >>> tune.update({"w": np.float32(2.0)}, tune.init({"w": np.float32(1.0)}), {"w": np.float32(1.0)})[0]["w"].item()
    0.5
    """

    def init(params: Any) -> Any:
        return {"step": _start(), "mean": _zeros(params)}

    @promotes_freely()
    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        direction = pytree.map(
            lambda d, p: add(sign(d), multiply(weight_decay, p)), _averaged(b1, state["mean"], grads), params
        )
        new = {"step": add(state["step"], 1), "mean": _averaged(b2, state["mean"], grads)}
        return _step(params, direction, _rate(learning_rate, state["step"])), new

    return Optimizer(init, update)
