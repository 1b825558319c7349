"""On an accelerator: measured against predicted times of programs, and a GPT-2 step against JAX's.

``MESHWRIGHT_PLATFORM=cuda python -m benchmarks accelerator`` runs on one device. Times are predicted twice: with the
figures of the chip table, and with those measured on the device (``hardware.machine("this")``).
"""

from __future__ import annotations

import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks import gpt2
from benchmarks.common import in_process, median, milliseconds, ratio, seconds_per_call, table

#: sides of square matrix products, elements of arrays in memory-bound programs, and sides of decomposed matrices
SIDES, ELEMENTS, MATRIX = (2048, 8192), 1 << 28, 2048
#: makes JAX use the GPU even if the environment says otherwise, without preallocating its memory
_ENV = {"JAX_PLATFORMS": "cuda", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
STEPS, ROUNDS = 30, 2


# --- single programs ----------------------------------------------------------------------------------------
def _random(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    import meshwright as mw

    return mw.jit(lambda k: mw.random.normal(k, shape, np.float32).astype(dtype))(mw.random.key(0))


def _products() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    from meshwright import lax

    for n in SIDES:
        for dtype in ("bfloat16", "float16", "float32"):
            yield f"product, {dtype}, {n}", lambda a: a @ a, (_random((n, n), dtype),)
        yield f"product, float32 exactly, {n}", lambda a: lax.dot(a, a, precision="highest"), (_random((n, n)),)


def _memory() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    import meshwright.numpy as mnp
    from meshwright import nn, random

    x = _random((ELEMENTS // 1024, 1024))
    rows = mnp.asarray(np.random.default_rng(0).integers(0, x.shape[0], x.shape[0] // 4, np.int32))
    yield "x + 1", lambda x: x + 1, (x,)
    yield "tanh, bfloat16", mnp.tanh, (x.astype("bfloat16"),)
    yield "sum of columns", lambda x: x.sum(0), (x,)
    yield "transposed, + 1", lambda x: x.T + 1, (x,)
    yield "softmax", nn.softmax, (x,)
    yield "standardize", lambda x: nn.standardize(x, -1), (x,)
    yield "running sums of rows", lambda x: mnp.cumsum(x, 1), (x,)
    yield "sorted rows", mnp.sort, (x[:16384],)
    yield "gathered rows", lambda x, i: x[i], (x, rows)
    yield "added to rows", lambda x, i: mnp.zeros_like(x).at[i].add(x[: len(i)]), (x, rows)
    yield "normal numbers", lambda k: random.normal(k, x.shape), (random.key(1),)
    yield "FFT of rows", lambda x: mnp.fft.rfft(x), (x[:65536],)


def _layers() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    import meshwright as mw
    import meshwright.numpy as mnp
    from meshwright import lax, nn

    q = _random((4, 2048, 16, 128), "bfloat16")
    attention = lambda q: nn.dot_product_attention(q, q, q, is_causal=True)  # noqa: E731
    yield "convolution, 3 × 3, bfloat16", nn.conv, (_random((64, 56, 56, 256), "bfloat16"),
                                                    _random((3, 3, 256, 256), "bfloat16"))  # fmt: skip
    yield "attention, bfloat16", attention, (q,)
    yield "its gradient", mw.grad(lambda q: attention(q).astype(np.float32).sum()), (q,)
    a = _random((MATRIX, MATRIX))
    symmetric = a @ a.T + MATRIX * mnp.eye(MATRIX)
    yield "Cholesky", mnp.linalg.cholesky, (symmetric,)
    yield "LU", lambda a: lax.linalg.lu(a)[0], (a,)
    yield "QR", mnp.linalg.qr, (a,)
    yield "eigenvalues of a Hermitian", lambda a: mnp.linalg.eigh(a)[0], (symmetric[:512, :512],)
    yield "singular values", lambda a: mnp.linalg.svd(a, compute_uv=False), (a[:512, :512],)
    yield "loop of 1,000 small steps", lambda x: lax.fori_loop(0, 1000, lambda i, x: x * 0.5 + 1, x), (_random((8,)),)


def programs() -> dict[str, list[float]]:
    """Seconds of each program: measured, predicted by the chip table, and predicted with the measured figures."""
    import meshwright as mw

    machines = [mw.hardware.machine(name, devices=1) for name in (mw.devices()[0].device_kind, "this")]
    found = {}
    for group in (_products, _memory, _layers):
        for name, f, args in group():
            run = mw.jit(f)
            try:
                seconds = seconds_per_call(partial(run, *args), mw.block_until_ready, 0.3, 3)
            except mw.errors.RuleError as error:
                print(f"{name}: {error}", file=sys.stderr)  # this platform has no kernel for it
                continue
            parts = [run.lower(*args).partition(mw.AbstractMesh((1,), ("x",), machine=m)) for m in machines]
            found[name] = [seconds, *(part.time().seconds for part in parts)]
    return found


# --- a training step ----------------------------------------------------------------------------------------
def step(library: str) -> dict[str, float]:
    """GPT-2's training step: its seconds, compile time, loss after :data:`STEPS`, and XLA's count of live bytes."""
    mod, xp, nn = _library(library)
    run = mod.jit(gpt2.make_step(mod, xp, nn), donate_argnums=(0, 1, 2))
    rng = np.random.default_rng(0)
    shapes = gpt2.parameter_shapes()
    params = gpt2.map_shapes(lambda s: (0.02 * rng.normal(size=s)).astype(np.float32), shapes)
    state = [mod.device_put(t) for t in (params, *[gpt2.map_shapes(lambda s: np.zeros(s, np.float32), shapes)] * 2)]
    text = [
        mod.device_put(rng.integers(0, gpt2.VOCABULARY, (gpt2.BATCH, gpt2.SEQUENCE)).astype(np.int32)) for _ in range(2)
    ]
    start = time.perf_counter()
    compiled = run.lower(*state, *text).compile()
    compiling = time.perf_counter() - start
    for count in range(STEPS + 3):
        if count == 3:
            mod.block_until_ready(state)
            start = time.perf_counter()
        loss, *state = run(*state, *text)
    mod.block_until_ready(state)
    figures = {"seconds": (time.perf_counter() - start) / STEPS, "compiling": compiling, "loss": float(loss)}
    memory = compiled.memory_analysis()
    peak = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes
    figures["peak"] = peak - memory.alias_size_in_bytes
    return figures | (_predicted(run, state, text) if library == "meshwright" else {})


def _library(name: str) -> tuple[Any, Any, Any]:
    root = importlib.import_module(name)
    return root, importlib.import_module(f"{name}.numpy"), importlib.import_module(f"{name}.nn")


def _predicted(run: Any, state: Any, text: Any) -> dict[str, float]:
    import meshwright as mw
    from meshwright.api.targets import memory_on

    name = mw.devices()[0].device_kind
    found = {}
    for label, machine in (("chip", name), ("this", "this")):
        mesh = mw.AbstractMesh((1,), ("x",), machine=mw.hardware.machine(machine, devices=1))
        part = run.lower(*state, *text).partition(mesh)
        found[label] = part.time().seconds
    chip = mw.hardware.chip(name).name
    return found if chip == "this" else found | {"predicted peak": memory_on(part, mw.target(f"{chip}:1")).live_bytes}


def main() -> None:
    if os.environ.get("MESHWRIGHT_PLATFORM", "cpu") == "cpu":
        print("accelerator: set MESHWRIGHT_PLATFORM=cuda on a machine with a GPU (pip install 'meshwright[cuda]')")
        return
    found = in_process("benchmarks.accelerator", "programs", env=_ENV, limit=500)
    if isinstance(found, str):
        print(f"accelerator: {found}")
        return
    rows = [[name, *map(milliseconds, t), ratio(t[0], t[1]), ratio(t[0], t[2])] for name, t in found.items()]
    off = [statistics.median(max(t[0] / t[k], t[k] / t[0]) for t in found.values()) for k in (1, 2)]
    table(
        "Programs on one device: time of a run, and as predicted",
        ["program", "measured", "of the table's chip", "of the chip as measured", "ratio", "ratio"],
        rows,
        f"off by a factor of {off[0]:.2f} and {off[1]:.2f} in the median",
    )
    steps = {
        name: median([in_process("benchmarks.accelerator", "step", name, env=_ENV) for _ in range(ROUNDS)])
        for name in ("meshwright", "jax")
    }
    rows = [
        [name, *(milliseconds(s.get(k, "")) for k in ("seconds", "chip", "this")), f"{s['compiling']:.1f} s",
         f"{s['loss']:.6f}", f"{s['peak'] / 1e9:.3f} GB", f"{s.get('predicted peak', 0) / 1e9:.3f} GB"]
        if isinstance(s, dict) else [name, s] for name, s in steps.items()
    ]  # fmt: skip
    table(
        f"GPT-2's training step, {gpt2.LAYERS} layers, {gpt2.BATCH} × {gpt2.SEQUENCE} tokens, float32, Adam",
        [
            "",
            "a step",
            "predicted",
            "as measured",
            "compiling",
            f"loss, step {STEPS + 3}",
            "alive at once",
            "predicted",
        ],
        rows,
    )
