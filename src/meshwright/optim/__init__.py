"""Optimizers, learning rate schedules and gradient clipping, as pure functions of pytrees.

An optimizer is a pair of functions, ``init(params) -> state`` and ``update(grads, state, params) -> (params, state)``.
The arrays in a state have the shapes of the parameters, and so get their shardings.
"""

from meshwright.optim.clipping import clip_by_global_norm, clip_by_value, global_norm
from meshwright.optim.optimizers import Optimizer, adagrad, adam, adamw, lion, rmsprop, sgd
from meshwright.optim.schedules import (
    constant,
    cosine_decay,
    exponential_decay,
    linear,
    piecewise_constant,
    warmup_cosine,
)

__all__ = [
    "Optimizer",
    "adagrad",
    "adam",
    "adamw",
    "clip_by_global_norm",
    "clip_by_value",
    "constant",
    "cosine_decay",
    "exponential_decay",
    "global_norm",
    "linear",
    "lion",
    "piecewise_constant",
    "rmsprop",
    "sgd",
    "warmup_cosine",
]
