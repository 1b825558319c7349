"""``jax.example_libraries.stax``. A layer is a pair of functions,
``init_fun(key, input_shape) -> (output_shape, params)`` and ``apply_fun(params, inputs, rng=key) -> outputs``. New
programs should use ``meshwright.nn``.

A size of -1 in a shape is unknown, such as the batch. Output shapes are found by abstract evaluation (``eval_shape``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import meshwright.numpy as mnp
from meshwright import lax, nn, random
from meshwright.api.shape_dtype import ShapeDtypeStruct
from meshwright.api.tracing import eval_shape
from meshwright.core import pytree
from meshwright.core.absent import absent as _absent
from meshwright.errors import ArgumentError
from meshwright.nn.initializers import glorot_normal, normal, ones, zeros

__all__ = [
    "AvgPool", "BatchNorm", "Conv", "Conv1DTranspose", "ConvTranspose", "Dense", "Dropout", "Elu", "Exp", "FanInConcat",
    "FanInSum", "FanOut", "Flatten", "Gelu", "GeneralConv", "GeneralConvTranspose", "Identity", "LeakyRelu",
    "LogSoftmax", "MaxPool", "Relu", "Selu", "Sigmoid", "Softmax", "Softplus", "SumPool", "Tanh", "elementwise",
    "parallel", "serial", "shape_dependent",
]  # fmt: skip

Shape = tuple[int, ...]
Layer = tuple[Callable[..., Any], Callable[..., Any]]
Initializer = Callable[..., Any]
_WEIGHTS, _BIASES, _SMALL = glorot_normal(), normal(), normal(1e-6)


def _is_shape(x: Any) -> bool:
    return isinstance(x, tuple) and all(isinstance(n, (int, np.integer)) for n in x)


def _after(apply: Callable[..., Any], params: Any, shape: Any) -> Any:
    """The shape or shapes of the outputs. Output sizes that depend on an input size of -1 are -1; they are found by
    evaluating the layer with two different sizes."""

    def evaluated(size: int) -> Any:
        types = pytree.map(
            lambda s: ShapeDtypeStruct([size if n == -1 else n for n in s], np.float32), shape, is_leaf=_is_shape
        )
        outs = eval_shape(lambda p, x: apply(p, x, rng=random.key(0)), params, types)
        return pytree.map(lambda y: y.shape, outs)

    first, second = evaluated(2), evaluated(3)
    return pytree.map(lambda a, b: tuple(-1 if m != n else m for m, n in zip(a, b)), first, second, is_leaf=_is_shape)


def _layer(apply: Callable[..., Any], parameters: Callable[[Any, Any], Any] = lambda key, shape: ()) -> Layer:
    def init_fun(rng: Any, input_shape: Any) -> tuple[Any, Any]:
        params = parameters(rng, input_shape)
        return _after(apply, params, input_shape), params

    return init_fun, apply


def Dense(out_dim: int, W_init: Initializer = _WEIGHTS, b_init: Initializer = _BIASES) -> Layer:
    """Layer ``x @ W + b``; ``W`` has shape ``(inputs, out_dim)``, ``b`` ``(out_dim,)``.

    Example:
      >>> from meshwright.example_libraries import stax
      >>> init, apply = stax.serial(stax.Dense(8), stax.Relu, stax.Dense(2), stax.LogSoftmax)
      >>> shape, params = init(mw.random.key(0), (-1, 3))
      >>> shape, apply(params, mnp.ones((5, 3))).shape
      ((-1, 2), (5, 2))
    """

    def parameters(rng: Any, shape: Shape) -> Any:
        k1, k2 = random.split(rng)
        return W_init(k1, (shape[-1], out_dim)), b_init(k2, (out_dim,))

    return _layer(lambda params, x, **_: mnp.dot(x, params[0]) + params[1], parameters)


def _convolution(
    apply: Callable[..., Any], dimension_numbers: Any, out_chan: int, filter_shape: Sequence[int],
    W_init: Initializer | None, b_init: Initializer,
) -> Layer:  # fmt: skip
    lhs, rhs, out = dimension_numbers
    make = W_init or glorot_normal(rhs.index("I"), rhs.index("O"))

    def parameters(rng: Any, shape: Shape) -> Any:
        sizes = iter(filter_shape)
        channels = {"O": out_chan, "I": shape[lhs.index("C")]}
        kernel = tuple(channels[c] if c in channels else next(sizes) for c in rhs)
        k1, k2 = random.split(rng)
        return make(k1, kernel), b_init(k2, tuple(out_chan if c == "C" else 1 for c in out))

    return _layer(lambda params, x, **_: apply(x, params[0]) + params[1], parameters)


def GeneralConv(
    dimension_numbers: Any, out_chan: int, filter_shape: Sequence[int], strides: Sequence[int] | None = None,
    padding: Any = "VALID", W_init: Initializer | None = None, b_init: Initializer = _SMALL,
) -> Layer:  # fmt: skip
    """Convolution layer with a bias for each output channel.

    Args:
      dimension_numbers: layouts of the input, kernel and output, such as ``("NHWC", "HWIO", "NHWC")``.
      out_chan: number of output channels.
      filter_shape: spatial sizes of the kernel.
      strides: one for each spatial dimension; default 1.
      padding: ``"SAME"``, ``"VALID"`` or pairs of sizes.
      W_init: initializer of the kernel; default Glorot normal.
      b_init: initializer of the bias.
    """
    steps = strides or (1,) * len(filter_shape)

    def apply(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(x, kernel, steps, padding, dimension_numbers=dimension_numbers)

    return _convolution(apply, dimension_numbers, out_chan, filter_shape, W_init, b_init)


def GeneralConvTranspose(
    dimension_numbers: Any, out_chan: int, filter_shape: Sequence[int], strides: Sequence[int] | None = None,
    padding: Any = "VALID", W_init: Initializer | None = None, b_init: Initializer = _SMALL,
) -> Layer:  # fmt: skip
    """Transposed convolution layer with a bias. Arguments as for :func:`GeneralConv`."""
    steps = strides or (1,) * len(filter_shape)

    def apply(x: Any, kernel: Any) -> Any:
        return lax.conv_transpose(x, kernel, steps, padding, dimension_numbers=dimension_numbers)

    return _convolution(apply, dimension_numbers, out_chan, filter_shape, W_init, b_init)


Conv = functools.partial(GeneralConv, ("NHWC", "HWIO", "NHWC"))
ConvTranspose = functools.partial(GeneralConvTranspose, ("NHWC", "HWIO", "NHWC"))
Conv1DTranspose = functools.partial(GeneralConvTranspose, ("NHC", "HIO", "NHC"))


def BatchNorm(
    axis: int | Sequence[int] = (0, 1, 2), epsilon: float = 1e-5, center: bool = True, scale: bool = True,
    beta_init: Initializer = zeros, gamma_init: Initializer = ones,
) -> Layer:  # fmt: skip
    """Batch normalization layer: standardizes over the dimensions ``axis`` with the statistics of the batch (there is
    no moving average), then multiplies by the parameter gamma (if ``scale``) and adds beta (if ``center``)."""
    along = (axis,) if isinstance(axis, int) else tuple(axis)

    def parameters(rng: Any, shape: Shape) -> Any:
        kept = tuple(n for d, n in enumerate(shape) if d not in along)
        k1, k2 = random.split(rng)
        return beta_init(k1, kept) if center else (), gamma_init(k2, kept) if scale else ()

    def apply(params: Any, x: Any, **_: Any) -> Any:
        beta, gamma = params
        there = tuple(None if d in along else slice(None) for d in range(mnp.ndim(x)))
        z = nn.standardize(x, along, epsilon=epsilon)
        z = gamma[there] * z if scale else z
        return z + beta[there] if center else z

    return _layer(apply, parameters)


def elementwise(fun: Callable[..., Any], **fun_kwargs: Any) -> Layer:
    """Layer without parameters that applies ``fun(x, **fun_kwargs)``."""
    return _layer(lambda params, x, **_: fun(x, **fun_kwargs))


Tanh = elementwise(mnp.tanh)
Relu = elementwise(nn.relu)
Exp = elementwise(mnp.exp)
LogSoftmax = elementwise(nn.log_softmax, axis=-1)
Softmax = elementwise(nn.softmax, axis=-1)
Softplus = elementwise(nn.softplus)
Sigmoid = elementwise(nn.sigmoid)
Elu = elementwise(nn.elu)
LeakyRelu = elementwise(nn.leaky_relu)
Selu = elementwise(nn.selu)
Gelu = elementwise(nn.gelu)
Identity = elementwise(lambda x: x)
Flatten = elementwise(lambda x: mnp.reshape(x, (x.shape[0], -1)))
FanInSum = elementwise(sum)


def _pooling(reducer: Callable[..., Any], initial: float, rescaled: bool = False) -> Callable[..., Layer]:
    def pool(
        window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Any = "VALID",
        spec: str | None = None,
    ) -> Layer:  # fmt: skip
        """Pooling layer over the spatial dimensions: all but N and C in ``spec``, such as ``"NHWC"``. By default, N
        comes first and C last."""
        letters = spec or f"N{'.' * len(window_shape)}C"

        def full(sizes: Sequence[int]) -> Shape:
            given = iter(sizes)
            return tuple(1 if c in "NC" else next(given) for c in letters)

        window, steps = full(window_shape), full(strides or (1,) * len(window_shape))

        def apply(params: Any, x: Any, **_: Any) -> Any:
            out = lax.reduce_window(x, np.array(initial, x.dtype), reducer, window, steps, padding)
            if not rescaled:
                return out
            return out / lax.reduce_window(mnp.ones_like(x), np.zeros((), x.dtype), reducer, window, steps, padding)

        return _layer(apply)

    return pool


MaxPool = _pooling(lax.max, -np.inf)
SumPool = _pooling(lax.add, 0.0)
AvgPool = _pooling(lax.add, 0.0, rescaled=True)


def FanOut(num: int) -> Layer:
    """Layer that returns a list of ``num`` copies of its input."""
    return _layer(lambda params, x, **_: [x] * num)


def FanInConcat(axis: int = -1) -> Layer:
    """Layer that concatenates a sequence of inputs along ``axis``."""
    return _layer(lambda params, xs, **_: mnp.concatenate(xs, axis))


def Dropout(rate: float, mode: str = "train") -> Layer:
    """Dropout layer. As in JAX, ``rate`` is the probability that an element is *kept*; kept elements are divided by it.
    The identity if ``mode`` is not "train".

    Raises (when applied):
      ArgumentError: no ``rng`` is given, whatever the mode.
    """

    def apply(params: Any, x: Any, **kwargs: Any) -> Any:
        rng = kwargs.get("rng")
        if rng is None:
            raise ArgumentError("Dropout: apply_fun needs a key, as apply_fun(params, inputs, rng=key)")
        if mode != "train":
            return x
        return mnp.where(random.bernoulli(rng, rate, x.shape), x / rate, 0)

    return _layer(apply)


# --- layers of layers ---------------------------------------------------------------------------------------
def _keys(rng: Any, count: int) -> Any:
    return [None] * count if rng is None else random.split(rng, count)


def serial(*layers: Layer) -> Layer:
    """Compose layers: each is applied to the output of the one before. The parameters are a list."""
    inits, applies = zip(*layers) if layers else ((), ())

    def init_fun(rng: Any, input_shape: Any) -> tuple[Any, list[Any]]:
        params = []
        for init in inits:
            rng, mine = random.split(rng)
            input_shape, made = init(mine, input_shape)
            params.append(made)
        return input_shape, params

    def apply_fun(params: Any, inputs: Any, *, rng: Any = None, **kwargs: Any) -> Any:
        for apply, mine, key in zip(applies, params, _keys(rng, len(applies))):
            inputs = apply(mine, inputs, rng=key, **kwargs)
        return inputs

    return init_fun, apply_fun


def parallel(*layers: Layer) -> Layer:
    """Apply the i-th layer to the i-th of a sequence of inputs, such as the output of :func:`FanOut`."""
    inits, applies = zip(*layers) if layers else ((), ())

    def init_fun(rng: Any, input_shape: Any) -> tuple[Any, Any]:
        made = [init(key, s) for init, key, s in zip(inits, _keys(rng, len(inits)), input_shape)]
        return tuple(s for s, _ in made), tuple(p for _, p in made)

    def apply_fun(params: Any, inputs: Any, *, rng: Any = None, **kwargs: Any) -> Any:
        keys = _keys(rng, len(applies))
        return [f(p, x, rng=key, **kwargs) for f, p, x, key in zip(applies, params, inputs, keys)]

    return init_fun, apply_fun


def shape_dependent(make_layer: Callable[[Shape], Layer]) -> Layer:
    """Layer that calls ``make_layer(input_shape)`` to make the layer to use, both in ``init_fun`` and ``apply_fun``."""

    def init_fun(rng: Any, input_shape: Shape) -> tuple[Any, Any]:
        return make_layer(input_shape)[0](rng, input_shape)  # type: ignore[no-any-return]

    def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> Any:
        return make_layer(inputs.shape)[1](params, inputs, **kwargs)

    return init_fun, apply_fun


__getattr__ = _absent("example_libraries.stax")
