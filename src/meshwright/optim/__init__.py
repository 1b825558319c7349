"""Optimisers, schedules and clipping: pure functions over pytrees.

An optimiser is a pair of functions, ``init(params) -> state`` and ``update(grads, state, params) -> (params, state)``.
States hold arrays of the shapes of the parameters, so that they are sharded as these are.
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
