"""Tracing, differentiating and lowering three programs: training steps of GPT-2 and ResNet-50, and a long scan."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks import gpt2
from benchmarks.common import alternate, in_process, ratio, table

BATCH, IMAGE, CLASSES = 32, 224, 1000
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
"""Bottleneck blocks and inner width of each stage (He et al., "Deep Residual Learning", table 1)."""

SCAN_STEPS, SCAN_WIDTH = 1000, 128


def _conv_bn(inputs: int, outputs: int, size: int) -> dict[str, Any]:
    return {"kernel": (size, size, inputs, outputs), "scale": (outputs,), "bias": (outputs,)}


def resnet_shapes() -> dict[str, Any]:
    """The shapes of ResNet-50's parameters, by name."""
    blocks, width = [], 64
    for count, inner in STAGES:
        for i in range(count):
            block = {
                "a": _conv_bn(width, inner, 1), "b": _conv_bn(inner, inner, 3), "c": _conv_bn(inner, 4 * inner, 1),
            }  # fmt: skip
            if i == 0:
                block["shortcut"] = _conv_bn(width, 4 * inner, 1)
            blocks.append(block)
            width = 4 * inner
    return {"stem": _conv_bn(3, 64, 7), "blocks": blocks, "head": {"kernel": (width, CLASSES), "bias": (CLASSES,)}}


def resnet_step(mod: Any, xp: Any, nn: Any) -> Any:
    """Loss, gradient and SGD with momentum of ResNet-50 in training mode (batch statistics)."""
    lax = mod.lax

    def conv_bn(x: Any, p: Any, stride: int = 1) -> Any:
        y = lax.conv_general_dilated(
            x, p["kernel"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        mean = y.mean((0, 1, 2))
        centred = y - mean
        variance = (centred * centred).mean((0, 1, 2))
        return centred * lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]

    def bottleneck(x: Any, p: Any, stride: int) -> Any:
        y = nn.relu(conv_bn(x, p["a"]))
        y = nn.relu(conv_bn(y, p["b"], stride))
        y = conv_bn(y, p["c"])
        return nn.relu(y + (conv_bn(x, p["shortcut"], stride) if "shortcut" in p else x))

    def forward(params: Any, images: Any) -> Any:
        x = nn.relu(conv_bn(images, params["stem"], 2))
        x = lax.reduce_window(x, -float("inf"), lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        blocks = iter(params["blocks"])
        for stage, (count, _) in enumerate(STAGES):
            for i in range(count):
                x = bottleneck(x, next(blocks), 2 if i == 0 and stage else 1)
        return x.mean((1, 2)) @ params["head"]["kernel"] + params["head"]["bias"]

    def loss(params: Any, images: Any, labels: Any) -> Any:
        logp = nn.log_softmax(forward(params, images), axis=-1)
        return -xp.take_along_axis(logp, labels[:, None], axis=-1).mean()

    def step(params: Any, momentum: Any, images: Any, labels: Any) -> Any:
        value, grads = mod.value_and_grad(loss)(params, images, labels)
        momentum = mod.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return value, mod.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum

    return step


def scan_step(mod: Any, xp: Any, nn: Any) -> Any:
    """The gradient of a gated recurrence of a thousand steps."""

    def cell(params: Any, state: Any, x: Any) -> Any:
        gates = nn.sigmoid(x @ params["wx"] + state @ params["wh"] + params["b"])
        update, reset = xp.split(gates, 2, axis=-1)
        proposed = xp.tanh((reset * state) @ params["wc"])
        new = update * state + (1 - update) * proposed
        return new, new.sum(-1)

    def loss(params: Any, state: Any, inputs: Any) -> Any:
        final, sums = mod.lax.scan(lambda s, x: cell(params, s, x), state, inputs)
        return (final**2).sum() + xp.cos(sums).mean()

    return mod.value_and_grad(loss)


def _gpt2_arguments(struct: Any) -> tuple[Any, ...]:
    return gpt2.arguments(struct)


def _resnet_arguments(struct: Any) -> tuple[Any, ...]:
    params = gpt2.map_shapes(lambda s: struct(s, np.float32), resnet_shapes())
    return params, params, struct((BATCH, IMAGE, IMAGE, 3), np.float32), struct((BATCH,), np.int32)


def _scan_arguments(struct: Any) -> tuple[Any, ...]:
    d = SCAN_WIDTH
    shapes = {"wx": (d, 2 * d), "wh": (d, 2 * d), "b": (2 * d,), "wc": (d, d)}
    params = gpt2.map_shapes(lambda s: struct(s, np.float32), shapes)
    return params, struct((BATCH, d), np.float32), struct((SCAN_STEPS, BATCH, d), np.float32)


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "gpt2": (gpt2.make_step, _gpt2_arguments, f"GPT-2 step, {gpt2.LAYERS} layers"),
    "resnet50": (resnet_step, _resnet_arguments, "ResNet-50 step"),
    "scan": (scan_step, _scan_arguments, f"gradient of a scan of {SCAN_STEPS:,} steps"),
}


def seconds(name: str, library: str) -> dict[str, float]:
    """Seconds of tracing and lowering one program, after warming up with a small one."""
    mod, xp = importlib.import_module(library), importlib.import_module(f"{library}.numpy")
    nn = importlib.import_module(f"{library}.nn")
    make, arguments, _ = PROGRAMS[name]
    step, args = make(mod, xp, nn), arguments(mod.ShapeDtypeStruct)
    mod.jit(lambda x: xp.sin(x) @ x).lower(mod.ShapeDtypeStruct((2, 2), np.float32)).as_text()
    start = time.perf_counter()
    traced = mod.jit(step).trace(*args)
    traced_at = time.perf_counter()
    lowered = traced.lower()
    _ = lowered.module if library == "meshwright" else lowered.compiler_ir("stablehlo")
    return {
        "trace": traced_at - start,
        "lower": time.perf_counter() - traced_at,
    }


def main() -> None:
    rows = []
    for name, (_, _, title) in PROGRAMS.items():
        found = alternate(
            {
                library: partial(
                    in_process, "benchmarks.lowering", "seconds", name, library, env={"JAX_PLATFORMS": "cpu"}
                )
                for library in ("meshwright", "jax")
            },
            rounds=5,
        )
        ours, peer = found["meshwright"], found["jax"]
        if isinstance(ours, str) or isinstance(peer, str):
            rows.append([title, str(ours), str(peer), "-"])
            continue
        for stage in ("trace", "lower"):
            rows.append(
                [f"{title}: {stage}", f"{ours[stage]:.3f} s", f"{peer[stage]:.3f} s", ratio(ours[stage], peer[stage])]
            )
        both, theirs = sum(ours.values()), sum(peer.values())
        rows.append([f"{title}: both", f"{both:.3f} s", f"{theirs:.3f} s", ratio(both, theirs)])
    table("Trace, differentiate and lower", ["", "Meshwright", "JAX", "ratio to JAX"], rows, "target: both ≤ 1")
