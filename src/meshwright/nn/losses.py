"""Losses per example, not averaged over the batch unless stated."""

from __future__ import annotations

from typing import Any

from meshwright.core import dtypes
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.nn.activations import log_sigmoid, relu
from meshwright.nn.layers import pick_class
from meshwright.nn.normalization import log_softmax, logsumexp
from meshwright.numpy.arithmetic import maximum, square, subtract
from meshwright.numpy.logic import equal
from meshwright.numpy.promotion import operands, scalar_like
from meshwright.numpy.reductions import argmax, mean, sum
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import select


def softmax_cross_entropy(logits: Any, labels: Any, axis: int = -1) -> Any:
    """Cross entropy of ``softmax(logits)`` with probabilities ``labels``, over ``axis``.

    Args:
      logits, labels: shape (..., classes).

    >>> round(float(softmax_cross_entropy(np.zeros(2), np.array([1.0, 0.0]))), 4)
    0.6931
    """
    logp, labels = operands("softmax_cross_entropy", (log_softmax(logits, axis), labels))
    return ops.neg(sum(ops.mul(logp, labels), axis))


def softmax_cross_entropy_with_integer_labels(logits: Any, labels: Any) -> Any:
    """Cross entropy of ``softmax(logits)`` with the classes ``labels``.

    Args:
      logits: shape (..., classes).
      labels: integers of shape (...).

    Raises:
      DTypeError: labels are not integers. ShapeError: shapes do not fit.

    >>> round(float(softmax_cross_entropy_with_integer_labels(np.zeros(2), np.array(1))), 4)
    0.6931
    """
    (logits,) = operands("softmax_cross_entropy_with_integer_labels", (logits,), to_inexact=True)
    (labels,) = operands("softmax_cross_entropy_with_integer_labels", (labels,))
    got = typeof(labels)
    if not dtypes.is_integer(got.dtype):
        raise DTypeError(
            f"softmax_cross_entropy_with_integer_labels: labels must be integers, got {got}; for probabilities use "
            "softmax_cross_entropy"
        )
    if got.shape != typeof(logits).shape[:-1]:
        raise ShapeError(
            f"softmax_cross_entropy_with_integer_labels: logits of shape {typeof(logits).shape} need labels of shape "
            f"{typeof(logits).shape[:-1]}, got {got.shape}"
        )
    return ops.sub(logsumexp(logits, -1), pick_class(logits, labels))


def sigmoid_binary_cross_entropy(logits: Any, labels: Any) -> Any:
    """Binary cross entropy of ``sigmoid(logits)`` with ``labels`` in [0, 1], elementwise.

    >>> round(float(sigmoid_binary_cross_entropy(0.0, 1.0)), 4)
    0.6931
    """
    logits, labels = operands("sigmoid_binary_cross_entropy", (logits, labels), to_inexact=True)
    yes = ops.mul(labels, log_sigmoid(logits))
    no = ops.mul(ops.sub(scalar_like(1, labels), labels), log_sigmoid(ops.neg(logits)))
    return ops.neg(ops.add(yes, no))


def squared_error(predictions: Any, targets: Any) -> Any:
    """``(predictions - targets)**2``, elementwise.

    >>> squared_error(3.0, 1.0).item()
    4.0
    """
    return square(subtract(predictions, targets))


def mse(predictions: Any, targets: Any) -> Any:
    """Mean squared error over all elements.

    >>> mse(np.array([3.0, 1.0]), np.array([1.0, 1.0])).item()
    2.0
    """
    return mean(squared_error(predictions, targets))


def mae(predictions: Any, targets: Any) -> Any:
    """Mean absolute error over all elements.

    >>> mae(np.array([3.0, 1.0]), np.array([1.0, 1.0])).item()
    1.0
    """
    return mean(ops.abs_(subtract(predictions, targets)))


def huber_loss(predictions: Any, targets: Any, delta: float = 1.0) -> Any:
    """Half the squared error up to ``delta`` and linear beyond, elementwise.

    >>> huber_loss(3.0, 1.0).item()
    1.5
    """
    (error,) = operands("huber_loss", (subtract(predictions, targets),), to_inexact=True)
    size = ops.abs_(error)
    bound = scalar_like(delta, size)
    near = ops.mul(scalar_like(0.5, size), ops.square(error))
    far = ops.mul(bound, ops.sub(size, scalar_like(delta / 2, size)))
    return select(ops.le(size, bound), near, far)


def kl_divergence(log_predictions: Any, targets: Any, axis: int = -1) -> Any:
    """Kullback-Leibler divergence of ``exp(log_predictions)`` from the probabilities ``targets``, over ``axis``.

    >>> kl_divergence(np.log([0.5, 0.5]), np.array([0.5, 0.5])).item()
    0.0
    """
    logp, targets = operands("kl_divergence", (log_predictions, targets), to_inexact=True)
    positive = ops.gt(targets, scalar_like(0, targets))
    # 0 log 0 is 0, with derivative 0.
    logs = ops.log(select(positive, targets, scalar_like(1, targets)))
    return sum(ops.mul(targets, ops.sub(logs, logp)), axis)


def hinge_loss(predictions: Any, targets: Any) -> Any:
    """``max(0, 1 - predictions * targets)`` for targets -1 and 1, elementwise.

    >>> hinge_loss(0.25, 1.0).item()
    0.75
    """
    p, t = operands("hinge_loss", (predictions, targets), to_inexact=True)
    return relu(ops.sub(scalar_like(1, p), ops.mul(p, t)))


def cosine_similarity(predictions: Any, targets: Any, axis: int = -1, epsilon: float = 1e-8) -> Any:
    """The cosine of the angle between vectors along ``axis``; their lengths are clamped to at least ``epsilon``.

    >>> round(cosine_similarity(np.array([1.0, 0.0]), np.array([2.0, 0.0])).item(), 4)
    1.0
    """
    p, t = operands("cosine_similarity", (predictions, targets), to_inexact=True)
    lengths = [ops.sqrt(maximum(sum(ops.square(v), axis), epsilon**2)) for v in (p, t)]
    return ops.div(sum(ops.mul(p, t), axis), ops.mul(*lengths))


def accuracy(logits: Any, labels: Any) -> Any:
    """The fraction of examples whose largest logit is that of the label.

    >>> accuracy(np.array([[0.0, 1.0], [2.0, 1.0]]), np.array([1, 1])).item()
    0.5
    """
    return mean(equal(argmax(logits, -1), labels))
