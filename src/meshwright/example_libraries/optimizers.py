"""``jax.example_libraries.optimizers``. An optimizer is a triple of functions: the first makes a state from
parameters, the second updates the state with gradients, and the third returns the parameters in a state. New programs
should use ``meshwright.optim``.

Update rules are written for a single array; :func:`optimizer` extends them to pytrees, with one state for each leaf.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import meshwright.numpy as mnp
from meshwright.core import pytree
from meshwright.core.absent import absent as _absent
from meshwright.core.pytree_classes import register_pytree_node
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError
from meshwright.optim.clipping import global_norm as l2_norm

__all__ = [
    "JoinPoint", "Optimizer", "OptimizerState", "adagrad", "adam", "adamax", "clip_grads", "constant",
    "exponential_decay", "inverse_time_decay", "l2_norm", "make_schedule", "momentum", "nesterov", "optimizer",
    "pack_optimizer_state", "piecewise_constant", "polynomial_decay", "rmsprop", "rmsprop_momentum", "sgd", "sm3",
    "unpack_optimizer_state",
]  # fmt: skip

#: A function from the step number to the step size.
Schedule = Callable[[Any], Any]


@dataclass(frozen=True)
class OptimizerState:
    """The flattened state of each leaf of the parameters, and the tree structures of the parameters and each state."""

    packed_state: tuple[tuple[Any, ...], ...]
    tree_def: Any
    subtree_defs: tuple[Any, ...]


register_pytree_node(
    OptimizerState,
    lambda s: ((s.packed_state,), (s.tree_def, s.subtree_defs)),
    lambda static, children: OptimizerState(children[0], *static),
)


class Optimizer(NamedTuple):
    """The functions ``init_fn(params) -> state``, ``update_fn(step, grads, state) -> state`` and
    ``params_fn(state) -> params``. ``step`` is the step number, from 0."""

    init_fn: Callable[[Any], OptimizerState]
    update_fn: Callable[[Any, Any, OptimizerState], OptimizerState]
    params_fn: Callable[[OptimizerState], Any]


def _packed(states: list[Any], tree: Any) -> OptimizerState:
    flat = [pytree.flatten(s) for s in states]
    return OptimizerState(tuple(tuple(leaves) for leaves, _ in flat), tree, tuple(t for _, t in flat))


def _states(state: OptimizerState) -> list[Any]:
    return [pytree.unflatten(t, leaves) for t, leaves in zip(state.subtree_defs, state.packed_state)]


def optimizer(opt_maker: Callable[..., Any]) -> Callable[..., Optimizer]:
    """Decorator that extends an optimizer for a single array to pytrees of arrays.

    Args:
      opt_maker: a function that returns ``(init, update, get_params)`` for one array, with the signatures of
        :class:`Optimizer`.

    Returns:
      A function of the same arguments that returns an :class:`Optimizer`. Its ``update_fn`` raises
      ``ArgumentError`` if the gradients have another tree structure than the parameters.

    Example:
      >>> from meshwright.example_libraries import optimizers
      >>> init, update, get_params = optimizers.sgd(0.5)
      >>> state = update(0, {"w": mnp.ones(2)}, init({"w": mnp.zeros(2)}))
      >>> get_params(state)
      {'w': Array([-0.5, -0.5], dtype=float32)}
    """

    @functools.wraps(opt_maker)
    def made(*args: Any, **kwargs: Any) -> Optimizer:
        init, update, get_params = opt_maker(*args, **kwargs)

        def init_fn(params: Any) -> OptimizerState:
            leaves, tree = pytree.flatten(params)
            return _packed([init(x) for x in leaves], tree)

        def update_fn(i: Any, grads: Any, state: OptimizerState) -> OptimizerState:
            leaves, tree = pytree.flatten(grads)
            if tree != state.tree_def:
                raise ArgumentError(
                    f"optimizer: the gradients have structure {pytree.show(tree)}, the parameters "
                    f"{pytree.show(state.tree_def)}; they must be alike"
                )
            return _packed([update(i, g, s) for g, s in zip(leaves, _states(state))], tree)

        def params_fn(state: OptimizerState) -> Any:
            return pytree.unflatten(state.tree_def, [get_params(s) for s in _states(state)])

        return Optimizer(init_fn, update_fn, params_fn)

    return made


# --- rules --------------------------------------------------------------------------------------------------
def _first(state: Any) -> Any:
    return state[0]


def _with_slots(count: int) -> Callable[[Any], Any]:
    return lambda x: (x, *(mnp.zeros_like(x) for _ in range(count)))


def _inverse_root(x: Any) -> Any:
    """``1 / sqrt(x)`` where ``x > 0``, else 0."""
    there = x > 0
    return mnp.where(there, 1 / mnp.sqrt(mnp.where(there, x, 1)), 0)


@optimizer
def sgd(step_size: Any) -> Any:
    """Gradient descent: ``x - step_size * g``. ``step_size`` is a number or a schedule, here and below."""
    step = make_schedule(step_size)
    return (lambda x: x), (lambda i, g, x: x - step(i) * g), (lambda x: x)


@optimizer
def momentum(step_size: Any, mass: float) -> Any:
    """Gradient descent with momentum: the velocity is ``mass * velocity + g``."""
    step = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, velocity = state
        velocity = mass * velocity + g
        return x - step(i) * velocity, velocity

    return _with_slots(1), update, _first


@optimizer
def nesterov(step_size: Any, mass: float) -> Any:
    """Gradient descent with Nesterov momentum: steps along ``mass * velocity + g``, with the updated velocity."""
    step = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, velocity = state
        velocity = mass * velocity + g
        return x - step(i) * (mass * velocity + g), velocity

    return _with_slots(1), update, _first


@optimizer
def adagrad(step_size: Any, momentum: float = 0.9) -> Any:
    """Adagrad: gradients divided by the root of the sum of all squared gradients so far, then averaged with
    ``momentum``. Duchi, Hazan and Singer, 2011."""
    step = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, squares, mean = state
        squares = squares + mnp.square(g)
        mean = (1 - momentum) * (g * _inverse_root(squares)) + momentum * mean
        return x - step(i) * mean, squares, mean

    return _with_slots(2), update, _first


@optimizer
def rmsprop(step_size: Any, gamma: float = 0.9, eps: float = 1e-8) -> Any:
    """RMSProp: gradients divided by the root of the moving average (decay ``gamma``) of their squares."""
    step = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, squares = state
        squares = squares * gamma + mnp.square(g) * (1 - gamma)
        return x - step(i) * g / mnp.sqrt(squares + eps), squares

    return _with_slots(1), update, _first


@optimizer
def rmsprop_momentum(step_size: Any, gamma: float = 0.9, eps: float = 1e-8, momentum: float = 0.9) -> Any:
    """:func:`rmsprop` with momentum applied to its steps."""
    step = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, squares, velocity = state
        squares = squares * gamma + mnp.square(g) * (1 - gamma)
        velocity = momentum * velocity + step(i) * g / mnp.sqrt(squares + eps)
        return x - velocity, squares, velocity

    return _with_slots(2), update, _first


@optimizer
def adam(step_size: Any, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Any:
    """Adam. ``b1`` and ``b2`` are the decays of the averages of gradients and of their squares. Kingma and Ba, 2015."""
    step = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, mean, squares = state
        mean = (1 - b1) * g + b1 * mean
        squares = (1 - b2) * mnp.square(g) + b2 * squares
        unbiased = mean / (1 - mnp.asarray(b1, mean.dtype) ** (i + 1))
        spread = squares / (1 - mnp.asarray(b2, mean.dtype) ** (i + 1))
        return x - step(i) * unbiased / (mnp.sqrt(spread) + eps), mean, squares

    return _with_slots(2), update, _first


@optimizer
def adamax(step_size: Any, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Any:
    """Adamax: :func:`adam` with the decayed maximum of absolute gradients in place of the average of their squares."""
    step = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, mean, largest = state
        mean = (1 - b1) * g + b1 * mean
        largest = mnp.maximum(b2 * largest, mnp.abs(g))
        return x - step(i) / (1 - mnp.asarray(b1, mean.dtype) ** (i + 1)) * mean / (largest + eps), mean, largest

    return _with_slots(2), update, _first


@optimizer
def sm3(step_size: Any, momentum: float = 0.9) -> Any:
    """SM3: :func:`adagrad` with an accumulator of one vector for each dimension instead of a full array. Anil, Gupta,
    Koren and Singer, 2019."""
    step = make_schedule(step_size)

    def init(x: Any) -> Any:
        return x, mnp.zeros_like(x), [mnp.zeros(n, x.dtype) for n in x.shape or (1,)]

    def update(i: Any, g: Any, state: Any) -> Any:
        x, mean, largest = state
        dims = range(len(largest))  # a scalar has one vector, of size 1
        along = [v.reshape([-1 if d == e else 1 for e in dims]) for d, v in enumerate(largest)]
        squares = functools.reduce(mnp.minimum, along) + mnp.square(g)
        g = g * _inverse_root(squares).reshape(g.shape)
        mean = (1 - momentum) * g + momentum * mean
        return x - step(i) * mean, mean, [squares.max([e for e in dims if e != d]) for d in dims]

    return init, update, _first


# --- step sizes ---------------------------------------------------------------------------------------------
def make_schedule(scalar_or_schedule: Any) -> Schedule:
    """Return the schedule given, or a constant schedule for a number.

    Raises:
      ArgumentError: the argument is an array of one or more dimensions.
    """
    if callable(scalar_or_schedule):
        return scalar_or_schedule  # type: ignore[no-any-return]
    if mnp.ndim(scalar_or_schedule):
        raise ArgumentError(f"make_schedule: expected a number or a function of the step, got {scalar_or_schedule!r}")
    return constant(scalar_or_schedule)


def constant(step_size: Any) -> Schedule:
    """The schedule with the same step size at every step."""
    return lambda i: step_size


def exponential_decay(step_size: Any, decay_steps: float, decay_rate: float) -> Schedule:
    """The schedule ``step_size * decay_rate ** (i / decay_steps)``."""
    return lambda i: step_size * decay_rate ** (i / decay_steps)


def inverse_time_decay(step_size: Any, decay_steps: float, decay_rate: float, staircase: bool = False) -> Schedule:
    """The schedule ``step_size / (1 + decay_rate * i / decay_steps)``. With ``staircase``, ``i / decay_steps`` is
    rounded down, so the step size changes once every ``decay_steps`` steps."""
    whole = mnp.floor if staircase else lambda x: x
    return lambda i: step_size / (1 + decay_rate * whole(i / decay_steps))


def polynomial_decay(step_size: Any, decay_steps: float, final_step_size: Any, power: float = 1.0) -> Schedule:
    """The schedule that goes from ``step_size`` to ``final_step_size`` in ``decay_steps`` steps, along a polynomial of
    degree ``power`` (1: linear), and then stays there."""
    return lambda i: (
        (1 - mnp.minimum(i, decay_steps) / decay_steps) ** power * (step_size - final_step_size) + final_step_size
    )


def piecewise_constant(boundaries: Any, values: Any) -> Schedule:
    """The schedule whose step size at step ``i`` is ``values[k]``, where ``k`` is the number of boundaries below ``i``.

    Raises:
      ArgumentError: ``boundaries`` is not one-dimensional, or ``values`` does not have exactly one element more.
    """
    limits, steps = mnp.asarray(boundaries), mnp.asarray(values)
    if limits.ndim != 1 or steps.shape != (limits.size + 1,):
        raise ArgumentError(
            f"piecewise_constant: expected a value more than boundaries, got shapes {steps.shape} and {limits.shape}"
        )
    return lambda i: steps[mnp.sum(i > limits)]


# --- gradients and states -----------------------------------------------------------------------------------
def clip_grads(grad_tree: Any, max_norm: Any) -> Any:
    """Scale gradients so that the norm of the whole pytree is at most ``max_norm``."""
    norm = l2_norm(grad_tree)
    return pytree.map(lambda g: mnp.where(norm < max_norm, g, g * (max_norm / norm)), grad_tree)


class JoinPoint:
    """A leaf of the result of :func:`unpack_optimizer_state`; holds the optimizer's state of one parameter."""

    def __init__(self, subtree: Any) -> None:
        self.subtree = subtree


def unpack_optimizer_state(opt_state: OptimizerState) -> Any:
    """Convert a state to a pytree with the structure of the parameters, whose leaves are a :class:`JoinPoint` each. For
    saving."""
    return pytree.unflatten(opt_state.tree_def, [JoinPoint(s) for s in _states(opt_state)])


def pack_optimizer_state(marked_pytree: Any) -> OptimizerState:
    """Inverse of :func:`unpack_optimizer_state`.

    Raises:
      ArgumentError: a leaf is not a :class:`JoinPoint`.
    """
    leaves, tree = pytree.flatten(marked_pytree)
    if not all(isinstance(x, JoinPoint) for x in leaves):
        raise ArgumentError("pack_optimizer_state: expected what unpack_optimizer_state gives, of JoinPoints")
    return _packed([x.subtree for x in leaves], tree)


__getattr__ = _absent("example_libraries.optimizers")
