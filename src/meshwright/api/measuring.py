"""What the accelerator that programs run on can do, measured by programs that run there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.api.control_flow import fori_loop
from meshwright.api.jit import jit
from meshwright.core.config import config
from meshwright.core.dtypes import as_dtype
from meshwright.core.precision import Precision
from meshwright.hardware.this import ON_ACCELERATOR, Accelerator
from meshwright.ops.products.dot import dot_general
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.runtime.devices import devices

#: rows and columns of products, and steps of one kernel's arithmetic
_SIDE, _STEPS = 4096, 256
#: the largest array that is read and written: what caches hold is a small part of it
_BYTES = 1 << 30
#: whose programs are kernels that are started one by one, and steps of a loop of two
_STARTED, _LOOP = ("cuda", "rocm"), 1000
_PRODUCTS = ("bfloat16", "float16", "float32", "float64", "int8")


def figures() -> dict[str, Any]:
    """Rates of products, elementwise arithmetic and memory, in seconds; as :func:`meshwright.hardware.measure`."""
    limit = devices()[0].memory_stats()["bytes_limit"]
    nbytes = min(_BYTES, limit // 16)
    return {
        "products": {name: _products(name) for name in _PRODUCTS},
        "precise": {"highest": _products("float32", Precision.HIGHEST)},
        "vector": _vector(),
        "memory_bandwidth": 2 * nbytes / _seconds(lambda x: x + 1.0, _ones((nbytes // 4,), "float32")),
        "memory_bytes": limit,
        "link_latency": _seconds(lambda x: x + 1.0, _ones((8,), "float32")),
        "launch": _launch() if config.platform in _STARTED else 0.0,
    }


def _ones(shape: tuple[int, ...], name: str) -> Any:
    return jit(lambda: broadcast_in_dim(np.ones((), as_dtype(name)), shape, ()))()


def _seconds(f: Callable[..., Any], *args: Any, least: float = 0.1) -> float:
    """Of one run among many that are started one after the other."""
    run = jit(f)
    run(*args).block_until_ready()
    runs, spent = 1, 0.0
    while spent < least:
        runs = min(2 * runs, max(runs + 1, int(1.2 * runs * least / spent))) if spent else runs
        start = time.perf_counter()
        for _ in range(runs):
            out = run(*args)
        out.block_until_ready()
        spent = time.perf_counter() - start
    return spent / runs


def _products(name: str, precision: Precision | None = None) -> float:
    side = _SIDE if name != "float64" else _SIDE // 2
    a = _ones((side, side), name)
    result = np.int32 if name == "int8" else None
    by = (((1,), (0,)), ((), ()))
    return 2 * side**3 / _seconds(lambda a: dot_general(a, a, by, precision, result), a)


def _vector() -> float:
    """Of multiplications and additions in one kernel, whose operands stay in registers."""
    x = _ones((1 << 24,), "float32")

    def steps(x: Any) -> Any:
        y = x
        for _ in range(_STEPS):
            y = y * x + x
        return y

    return 2 * _STEPS * (1 << 24) / _seconds(steps, x)


def _launch() -> float:
    """From one kernel to the next: a step of a small loop is one, and one that counts."""
    steps = _seconds(lambda x: fori_loop(0, _LOOP, lambda i, x: x * 0.5 + 1.0, x), _ones((8,), "float32"))
    return steps / (2 * _LOOP)


ON_ACCELERATOR.fill(Accelerator(lambda: devices()[0].device_kind, figures))
