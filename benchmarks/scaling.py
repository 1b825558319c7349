"""Scaling of partitioning time with the number of devices (ideally constant) and of layers (linear)."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import meshwright as mw
from benchmarks.common import table
from benchmarks.programs import FOLDER
from benchmarks.targets import llama_step


def _lowered(layers: int, mesh_shape: tuple[int, int]) -> Any:
    import meshwright as mw
    import meshwright.numpy as mnp
    from meshwright import NamedSharding
    from meshwright import PartitionSpec as P

    mesh = mw.AbstractMesh(mesh_shape, ("data", "model"))

    def of(shape: tuple[int, ...], *spec: Any) -> Any:
        return mw.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, P(*spec)))

    def loss(params: Any, x: Any) -> Any:
        for w1, w2, b in params:
            x = x + mnp.tanh(x @ w1 + b) @ w2
        return (x * x).sum()

    def step(params: Any, x: Any) -> Any:
        value, grads = mw.value_and_grad(loss)(params, x)
        return value, mw.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    width, hidden = 4096, 16384
    layer = (of((width, hidden), None, "model"), of((hidden, width), "model"), of((hidden,), "model"))
    return mw.jit(step).lower([layer] * layers, of((4096, width), "data"))


def _measure(cases: Sequence[tuple[int, tuple[int, int]]], rounds: int) -> list[tuple[int, int, float]]:
    """Ops before and after partitioning, and median CPU seconds, of (layers, mesh shape) in alternating rounds."""
    lowered = [_lowered(*case) for case in cases]
    seconds: list[list[float]] = [[] for _ in cases]
    local = [0] * len(cases)
    for _ in range(rounds):
        for i, program in enumerate(lowered):
            start = time.process_time()
            part = program.partition()
            seconds[i].append(time.process_time() - start)
            local[i] = len(part.jaxpr.eqns)
    return [(len(p.program.jaxpr.eqns), n, statistics.median(s)) for p, n, s in zip(lowered, local, seconds)]


def _once(name: str, program: Any) -> list[str]:
    """The row of a program that is partitioned once."""
    start = time.process_time()
    part = program.partition()
    seconds = time.process_time() - start
    return [name, str(len(part.part.source.eqns)), str(len(part.jaxpr.eqns)), f"{seconds:.2f} s", "-"]


def _llama() -> list[str]:
    mesh = mw.AbstractMesh((8192, 8), ("data", "model"))
    start = time.process_time()
    lowered = llama_step(mesh, 32, 8192)
    traced = time.process_time() - start
    return _once(f"32 layers of LLaMA, 65,536 devices (traced in {traced:.1f} s)", lowered)


def main() -> None:
    small, large = _measure([(16, (4, 2)), (16, (64, 32))], 15)
    rows = [
        ["16 layers, 8 devices", str(small[0]), str(small[1]), f"{small[2]:.3f} s", "1.00"],
        ["16 layers, 2,048 devices", str(large[0]), str(large[1]), f"{large[2]:.3f} s", f"{large[2] / small[2]:.2f}"],
    ]
    depths = (1, 4, 16, 64)
    found = _measure([(layers, (4, 2)) for layers in depths], 9)
    for layers, (ops, local, seconds) in zip(depths, found):
        exponent = math.log(seconds / found[0][2]) / math.log(ops / found[0][0]) if ops > found[0][0] else 1.0
        rows.append([f"{layers} layers", str(ops), str(local), f"{seconds:.3f} s", f"n^{exponent:.2f}"])
    ((ops, local, seconds),) = _measure([(4400, (4, 2))], 1)
    rows.append(["4,400 layers", str(ops), str(local), f"{seconds:.1f} s", "-"])
    rows += [_once("clip_train, 8 devices", mw.load(str(FOLDER / "clip_train.mlir"))), _llama()]
    table(
        "Propagate and partition a residual MLP's training step",
        ["", "ops", "ops of a device", "time", "growth"], rows,
        "seconds of CPU; targets: same ops and ≤ 1.2 times the time on 2,048 devices; at most n^1.1; 100,000 ops in "
        "60 s; clip_train in 1.5 s, 32 layers of LLaMA in 10 s",
    )  # fmt: skip
