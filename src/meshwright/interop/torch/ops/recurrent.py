"""Recurrent layers, a scan each: thousands of steps are one loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright import numpy as mnp
from meshwright.api.tracing import eval_shape
from meshwright.errors import RuleError
from meshwright.interop.torch.ops.loops import scan
from meshwright.interop.torch.ops.products import linear
from meshwright.interop.torch.ops.randomness import dropped
from meshwright.interop.torch.registry import register
from meshwright.nn.activations import relu, sigmoid

#: of the input's product and the state's: the new state
Cell = Callable[[Any, tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    """A product of the weight's type, which may be narrower than a state's (``torch.autocast``)."""
    return linear(x.astype(weight.dtype), weight, bias)


def _lstm(given: Any, state: tuple[Any, ...], weights: tuple[Any, ...]) -> tuple[Any, ...]:
    h, c = state
    gates = given + linear(h, *weights[:2])
    i, f, g, o = mnp.split(gates, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * mnp.tanh(g)
    h = sigmoid(o) * mnp.tanh(c)
    return (h if len(weights) == 2 else linear(h, weights[2])), c


def _gru(given: Any, state: tuple[Any, ...], weights: tuple[Any, ...]) -> tuple[Any, ...]:
    (h,) = state
    r, z, n = mnp.split(given, 3, -1)
    hr, hz, hn = mnp.split(_linear(h, *weights[:2]), 3, -1)
    update = sigmoid(z + hz)
    new = mnp.tanh(n + sigmoid(r + hr) * hn)
    return (new + update * (h - new),)


def _elman(function: Callable[[Any], Any]) -> Cell:
    return lambda given, state, weights: (function(given + _linear(state[0], *weights[:2])),)


def _direction(
    cell: Cell, x: Any, state: tuple[Any, ...], weights: Sequence[Any], reverse: bool, running: Any
) -> tuple[Any, Any]:
    """One layer in one direction: outputs ``[time, batch, features]`` and the last state.

    Where it is not ``running`` (``[time, batch, 1]``, None for everywhere), states stay and outputs are 0.
    """
    w_in, w_state, b_in, b_state, *projection = weights
    given = _linear(x, w_in, b_in)  # of all steps at once
    cell_weights = (w_state, b_state, *projection)
    if any(s.dtype != w_state.dtype for s in state):
        types = eval_shape(lambda row: cell(row, state, cell_weights), given[0])
        state = tuple(s.astype(t.dtype) for s, t in zip(state, types))

    def step(carry: tuple[Any, ...], rows: Any) -> tuple[Any, Any]:
        row, runs = rows
        new = cell(row, carry, cell_weights)
        if runs is None:
            return new, new[0]
        return tuple(mnp.where(runs, n, c) for n, c in zip(new, carry)), mnp.where(runs, new[0], 0)

    last, outs = scan(step, state, (given, running), reverse=reverse)
    return outs, last


def _split_weights(params: Sequence[Any], has_biases: bool, count: int) -> list[list[Any]]:
    """For each layer and direction: the weights of input and state, their biases or None, and a projection if any."""
    size = len(params) // count
    parts = [list(params[i * size : (i + 1) * size]) for i in range(count)]
    return [p if has_biases else [p[0], p[1], None, None, *p[2:]] for p in parts]


def layers(
    cell: Cell, input: Any, states: Sequence[Any], params: Sequence[Any], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool, draw: Callable[[], Any], running: Any = None,
) -> tuple[Any, list[Any]]:  # fmt: skip
    """Layers upon each other; ``states`` are ``[layers * directions, batch, features]`` each."""
    ways = 2 if bidirectional else 1
    single = input.ndim == 2
    x = input[:, None] if single else mnp.swapaxes(input, 0, 1) if batch_first else input
    states = [s[:, None] if single else s for s in states]
    weights = _split_weights(params, has_biases, num_layers * ways)
    lasts = []
    for layer in range(num_layers):
        runs = []
        for way in range(ways):
            n = layer * ways + way
            runs.append(_direction(cell, x, tuple(s[n] for s in states), weights[n], way == 1, running))
        x = mnp.concatenate([outs for outs, _ in runs], -1) if ways == 2 else runs[0][0]
        lasts += [last for _, last in runs]
        if train and dropout > 0 and layer < num_layers - 1:
            x = dropped(x, dropout, draw)
    finals = [mnp.stack(list(values)) for values in zip(*lasts)]
    if single:
        return x[:, 0], [f[:, 0] for f in finals]
    return mnp.swapaxes(x, 0, 1) if batch_first else x, finals


@register("aten.lstm.input", random=True)
def lstm(
    input: Any, hx: Sequence[Any], params: Sequence[Any], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool, draw: Callable[[], Any],
) -> tuple[Any, ...]:  # fmt: skip
    args = has_biases, num_layers, dropout, train, bidirectional, batch_first, draw
    out, finals = layers(_lstm, input, hx, params, *args)
    return out, *finals


@register("aten.mkldnn_rnn_layer")
def mkldnn_layer(
    input: Any, weight0: Any, weight1: Any, weight2: Any, weight3: Any, hx_: Any, cx_: Any, reverse: bool,
    batch_sizes: Sequence[int], mode: int, hidden_size: int, num_layers: int, has_biases: bool, bidirectional: bool,
    batch_first: bool, train: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """One direction of one layer of an LSTM, time first: what torch's is made of in types of 16 bits."""
    if mode != 2:
        raise RuleError(f"a layer of mode {mode}; torch makes those of LSTMs, of mode 2")
    biases = (weight2, weight3) if has_biases else (None, None)
    state = tuple(s.reshape(s.shape[-2:]) for s in (hx_, cx_))
    outs, (h, c) = _direction(_lstm, input, state, (weight0, weight1, *biases), reverse, None)
    return outs, h.reshape(hx_.shape), c.reshape(cx_.shape), mnp.zeros(0, mnp.uint8)


def _one_state(cell: Cell) -> Callable[..., Any]:
    def rule(
        input: Any, hx: Any, params: Sequence[Any], has_biases: bool, num_layers: int, dropout: float, train: bool,
        bidirectional: bool, batch_first: bool, draw: Callable[[], Any],
    ) -> tuple[Any, ...]:  # fmt: skip
        args = has_biases, num_layers, dropout, train, bidirectional, batch_first, draw
        out, finals = layers(cell, input, [hx], params, *args)
        return out, finals[0]

    return rule


register("aten.gru.input", random=True)(_one_state(_gru))
register("aten.rnn_tanh.input", random=True)(_one_state(_elman(mnp.tanh)))
register("aten.rnn_relu.input", random=True)(_one_state(_elman(relu)))


@register("aten.lstm_cell")
def lstm_cell(
    input: Any, hx: Sequence[Any], w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> tuple[Any, ...]:
    return _lstm(linear(input, w_ih, b_ih), tuple(hx), (w_hh, b_hh))


def _cell(cell: Cell) -> Callable[..., Any]:
    def rule(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        return cell(linear(input, w_ih, b_ih), (hx,), (w_hh, b_hh))[0]

    return rule


register("aten.gru_cell")(_cell(_gru))
register("aten.rnn_tanh_cell")(_cell(_elman(mnp.tanh)))
register("aten.rnn_relu_cell")(_cell(_elman(relu)))


# --- sequences of different lengths -------------------------------------------------------------------------
_CELLS = {"lstm": _lstm, "gru": _gru, "rnn_tanh": _elman(mnp.tanh), "rnn_relu": _elman(relu)}


@register("meshwright.recurrent", random=True)
def recurrent(
    kind: str, input: Any, running: Any, states: Sequence[Any], params: Sequence[Any], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, draw: Callable[[], Any],
) -> list[Any]:  # fmt: skip
    """Layers of one kind on ``[time, batch, features]``, of which sequence ``b`` has the steps ``running[:, b]``,
    or all."""
    args = has_biases, num_layers, dropout, train, bidirectional, False, draw
    running = None if running is None else running[..., None]
    # what is past an end, NaN maybe, has no say in a gradient either
    given = input if running is None else mnp.where(running, input, 0)
    out, finals = layers(_CELLS[kind], given, states, params, *args, running)
    return [out, *finals]
