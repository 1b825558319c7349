"""First-order optimisers as pure functions over pytrees: ``init(params)`` and ``update(grads, state, params)``.

``update`` gives ``(new params, new state)``. States are pytrees of the shape of the parameters, so that they are
sharded as these are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.core import pytree
from meshwright.numpy.arithmetic import add, divide, maximum, multiply, power, sqrt, square, subtract
from meshwright.numpy.creation import zeros_like
from meshwright.numpy.functions import astype
from meshwright.numpy.reductions import sum

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


def sgd(learning_rate: Schedule, momentum: float = 0.0, nesterov: bool = False) -> Optimizer:
    """Stochastic gradient descent, with (Nesterov) momentum.

    >>> tune = sgd(0.5)
    >>> tune.update({"w": np.float32(2.0)}, tune.init({"w": np.float32(1.0)}), {"w": np.float32(1.0)})[0]["w"].item()
    0.0
    """

    def init(params: Any) -> Any:
        return {"step": _start(), "momentum": _zeros(params) if momentum else None}

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

    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        step = add(state["step"], 1)
        mean = pytree.map(lambda m, g: add(multiply(b1, m), multiply(1 - b1, g)), state["mean"], grads)
        squares = pytree.map(lambda v, g: add(multiply(b2, v), multiply(1 - b2, square(g))), state["square"], grads)
        # Both corrections are scalars: they go into the rate and eps, not into each array.
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


def global_norm(tree: Any) -> Any:
    """The Euclidean norm of all leaves together.

    >>> global_norm({"a": np.float32(3.0), "b": np.float32(4.0)}).item()
    5.0
    """
    parts = [sum(square(x)) for x in pytree.leaves(tree)]
    total = parts[0]
    for part in parts[1:]:
        total = add(total, part)
    return sqrt(total)


def clip_by_global_norm(grads: Any, limit: float) -> Any:
    """Gradients scaled down so that their :func:`global_norm` is at most ``limit``.

    >>> float(clip_by_global_norm({"a": np.float32(4.0)}, 1.0)["a"])
    1.0
    """
    norm = global_norm(grads)
    factor = divide(limit, maximum(norm, limit))
    return pytree.map(lambda g: astype(multiply(g, factor), g.dtype), grads)
