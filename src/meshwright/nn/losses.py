"""Losses: of each example, without the mean over the batch."""

from __future__ import annotations

from typing import Any

from meshwright.core import dtypes
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.nn.activations import log_sigmoid
from meshwright.nn.layers import pick_class
from meshwright.nn.normalization import log_softmax, logsumexp
from meshwright.numpy.arithmetic import square, subtract
from meshwright.numpy.logic import equal
from meshwright.numpy.promotion import operands, scalar_like
from meshwright.numpy.reductions import argmax, mean, sum
from meshwright.ops import elementwise as ops
from meshwright.ops.elementwise import select


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
    """Half the squared error up to ``delta``, linear beyond, elementwise.

    >>> huber_loss(3.0, 1.0).item()
    1.5
    """
    (error,) = operands("huber_loss", (subtract(predictions, targets),), to_inexact=True)
    size = ops.abs_(error)
    bound = scalar_like(delta, size)
    near = ops.mul(scalar_like(0.5, size), ops.square(error))
    far = ops.mul(bound, ops.sub(size, scalar_like(delta / 2, size)))
    return select(ops.le(size, bound), near, far)


def accuracy(logits: Any, labels: Any) -> Any:
    """The part of examples whose largest logit is the label's.

    >>> accuracy(np.array([[0.0, 1.0], [2.0, 1.0]]), np.array([1, 1])).item()
    0.5
    """
    return mean(equal(argmax(logits, -1), labels))
