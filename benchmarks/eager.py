"""Eager evaluation: the cost of a warm op on small arrays, and of an op at a new shape."""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np

from benchmarks.common import alternate, in_process, milliseconds, ratio, seconds_per_call, table

#: calls that are measured warm, on f32[8,8]
WARM = ("x + y", "x * 2.0", "sum", "x[3]", "x[1, 2]", "reshape", "floor_divide")
#: calls that are measured at twelve new shapes
FRESH = ("x + y", "x[3]", "floor_divide", "var")


def _functions(xp: Any) -> dict[str, Any]:
    return {
        "x + y": lambda x, y: x + y,
        "x * 2.0": lambda x, y: x * 2.0,
        "sum": lambda x, y: xp.sum(x),
        "x[3]": lambda x, y: x[3],
        "x[1, 2]": lambda x, y: x[1, 2],
        "reshape": lambda x, y: x.reshape(4, -1),
        "floor_divide": lambda x, y: xp.floor_divide(x, y),
        "var": lambda x, y: xp.var(x),
    }


def seconds(module: str) -> dict[str, float]:
    """Seconds of each warm call, and (``new …``) of each first call at a new shape."""
    xp = importlib.import_module(module)
    functions = _functions(xp)
    x, y = (xp.asarray(np.random.default_rng(i).random((8, 8), np.float32) + 1) for i in (0, 1))
    found = {
        name: seconds_per_call(lambda f=functions[name]: f(x, y), lambda out: out.block_until_ready(), budget=0.3)
        for name in WARM
    }
    for name in FRESH:
        pairs = [[xp.asarray(np.ones((n, n + 1), np.float32)) for _ in range(2)] for n in range(9, 21)]
        start = time.perf_counter()
        for pair in pairs:
            functions[name](*pair).block_until_ready()
        found[f"new {name}"] = (time.perf_counter() - start) / len(pairs)
    return found


def main() -> None:
    contenders = {
        module: lambda m=module: in_process("benchmarks.eager", "seconds", m, env={"JAX_PLATFORMS": "cpu"})
        for module in ("meshwright.numpy", "jax.numpy")
    }
    ours, theirs = alternate(contenders, rounds=3).values()
    if isinstance(ours, str) or isinstance(theirs, str):
        print(f"eager: meshwright.numpy {ours}; jax.numpy {theirs}")
        return
    for title, names, show in (
        ("One warm op on f32[8,8], nothing jitted", WARM, lambda v: f"{v * 1e6:.1f} µs"),
        ("One op at a shape it has not had before", [f"new {n}" for n in FRESH], milliseconds),
    ):
        rows = [[n.removeprefix("new "), show(ours[n]), show(theirs[n]), ratio(ours[n], theirs[n])] for n in names]
        table(title, ["", "meshwright.numpy", "jax.numpy", "ours / JAX"], rows, "target: x + y at most 2.5")


if __name__ == "__main__":
    main()
