"""A convolutional network for handwritten digits, written for one device, and the shardings of its arrays."""

from __future__ import annotations

import csv
import gzip
import io
from importlib import resources
from typing import Any

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, nn, random
from meshwright import PartitionSpec as P

Params = dict[str, Any]


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """The UCI handwritten digits: images ``(1797, 8, 8, 1)`` in 0..1 and labels ``(1797,)``; see ``data/README.md``.

    The order is shuffled with a fixed seed, since in the file the last images are by other writers than the first.
    """
    packed = resources.files("meshwright").joinpath("data/digits.csv.gz").read_bytes()
    rows = np.array(list(csv.reader(io.StringIO(gzip.decompress(packed).decode()))), dtype=np.float32)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    images = (rows[:, :64] / 16).reshape(-1, 8, 8, 1)
    return images, rows[:, 64].astype(np.int32)


def init(key: Any) -> Params:
    """Parameters: conv 32, conv 64, dense 256, dense 10."""
    keys = random.split(key, 4)
    he = nn.initializers.he_normal()
    shapes = {"conv1": (3, 3, 1, 32), "conv2": (3, 3, 32, 64), "dense1": (256, 256), "dense2": (256, 10)}
    return {
        name: {"kernel": he(k, shape), "bias": mnp.zeros(shape[-1])} for k, (name, shape) in zip(keys, shapes.items())
    }


def forward(params: Params, images: Any) -> Any:
    """Log-probabilities ``(batch, 10)`` of images ``(batch, 8, 8, 1)``."""
    x = nn.relu(nn.conv(images, params["conv1"]["kernel"], params["conv1"]["bias"]))
    x = nn.avg_pool(x, 2)
    x = nn.relu(nn.conv(x, params["conv2"]["kernel"], params["conv2"]["bias"]))
    x = nn.avg_pool(x, 2)
    # Features first, so that splitting the features also splits the flattened dimension.
    x = x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1)
    x = nn.relu(nn.dense(x, params["dense1"]["kernel"], params["dense1"]["bias"]))
    return nn.log_softmax(nn.dense(x, params["dense2"]["kernel"], params["dense2"]["bias"]))


def loss(params: Params, images: Any, labels: Any) -> Any:
    """Mean cross entropy."""
    return -(forward(params, images) * nn.one_hot(labels, 10)).sum(-1).mean()


def train_step(params: Params, momentum: Params, images: Any, labels: Any) -> tuple[Any, Params, Params]:
    """One step of gradient descent with momentum."""
    value, grads = mw.value_and_grad(loss)(params, images, labels)
    momentum = mw.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    params = mw.tree.map(lambda p, m: p - 0.05 * m, params, momentum)
    return value, params, momentum


def accuracy(params: Params, images: Any, labels: Any) -> Any:
    """The fraction of images whose most likely digit is right."""
    return (forward(params, images).argmax(-1) == labels).mean()


def placements(mesh: mw.Mesh | mw.AbstractMesh) -> tuple[Any, NamedSharding]:
    """Shardings of the parameters and of a batch: wide layers over ``model``, the batch over ``data``."""

    def on(*spec: Any) -> NamedSharding:
        return NamedSharding(mesh, P(*spec))

    weights = {
        "conv1": {"kernel": on(), "bias": on()},
        "conv2": {"kernel": on(None, None, None, "model"), "bias": on("model")},
        "dense1": {"kernel": on("model"), "bias": on()},
        "dense2": {"kernel": on(None, None), "bias": on()},
    }
    return weights, on("data")


def step_on(mesh: mw.Mesh | mw.AbstractMesh, **options: Any) -> Any:
    """:func:`train_step`, jitted for a mesh, with additional ``options`` of :func:`meshwright.jit`."""
    weights, batch = placements(mesh)
    return mw.jit(
        train_step,
        in_shardings=(weights, weights, batch, batch),
        out_shardings=(NamedSharding(mesh, P()), weights, weights),
        **options,
    )


def like(images: int) -> tuple[Any, ...]:
    """The types of the arguments of a step."""
    params = mw.eval_shape(init, random.key(0))
    batch = mw.ShapeDtypeStruct((images, 8, 8, 1), np.float32), mw.ShapeDtypeStruct((images,), np.int32)
    return params, params, *batch
