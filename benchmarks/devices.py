"""One training run on virtual devices, on real devices, in several processes, and combined: losses and times.

Run as a script, ``devices.py MODEL STEPS``, it is the program of each process of a job.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import meshwright as mw
from meshwright import NamedSharding, nn, random
from meshwright import PartitionSpec as P

ROOT = Path(__file__).parents[1]
#: arguments of ``meshwright run``: processes, devices per process, real devices per process
SETTINGS = {
    "1 process, 8 virtual": (1, 8, None),
    "1 process, 8 real": (1, None, 8),
    "2 processes of 4 virtual": (2, 4, None),
    "2 processes of 4 real": (2, None, 4),
    "4 processes of 2 virtual": (4, 2, None),
    "8 processes": (8, 1, None),
}
STEPS = 50


# --- models -------------------------------------------------------------------------------------------------
def gpt() -> tuple[Any, Any]:
    """The training step of ``examples/gpt.py``, as a function of a state, and the initial state."""
    spec = importlib.util.spec_from_file_location("gpt", ROOT / "examples" / "gpt.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    mesh = mw.make_mesh((2, 4), ("data", "model"))
    weights, batch = module.placements(mesh)
    with mw.enable_x64(False):  # the same values for both precisions
        drawn = module.init(random.key(0))
    params = mw.device_put(mw.tree.map(lambda p: np.asarray(p, float), drawn), weights)
    zeros = mw.tree.map(lambda p: np.zeros(p.shape, p.dtype), params)
    state = (params, mw.device_put(zeros, weights), mw.device_put(zeros, weights))
    ins = (weights, weights, weights, batch, batch, None)
    run = mw.jit(module.step, in_shardings=ins, out_shardings=(None, weights, weights, weights))
    data = module.batches(np.random.default_rng(0))

    def step(state: Any, count: int) -> tuple[Any, Any]:
        tokens, targets = next(data)
        value, *new = run(*state, tokens, targets, np.float32(count))
        return value, tuple(new)

    return step, state


def cnn() -> tuple[Any, Any]:
    """A convolutional network that finds the brightest quarter of images, with batches and rows split."""
    mesh = mw.make_mesh((4, 2), ("batch", "rows"))
    keys = random.split(random.key(1), 3)
    normal, shapes = nn.initializers.normal(0.2), {"a": (8, 1, 3, 3), "b": (8, 8, 3, 3), "c": (8, 4)}
    with mw.enable_x64(False):  # the same values for both precisions
        drawn = {name: normal(key, shape) for key, (name, shape) in zip(keys, shapes.items())}
    params = mw.tree.map(lambda p: np.asarray(p, float), drawn)
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("batch", None, "rows"))

    def loss(params: Any, x: Any, y: Any) -> Any:
        for name in "ab":
            x = nn.relu(mw.lax.conv_general_dilated(x, params[name], (1, 1), "SAME"))
        logits = x.mean((2, 3)) @ params["c"] + x.reshape(*x.shape[:2], 2, 8, 2, 8).mean((1, 3, 5)).reshape(-1, 4)
        return nn.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def update(params: Any, x: Any, y: Any) -> Any:
        value, grads = mw.value_and_grad(loss)(params, x, y)
        return value, mw.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    run = mw.jit(update, in_shardings=(whole, split, NamedSharding(mesh, P("batch"))), out_shardings=(None, whole))
    rng = np.random.default_rng(0)

    def step(params: Any, count: int) -> tuple[Any, Any]:
        x = rng.normal(size=(16, 1, 16, 16)).astype(np.float32).astype(float)
        y = x.reshape(16, 2, 8, 2, 8).mean((2, 4)).reshape(16, 4).argmax(1).astype(np.int32)
        return run(params, x, y)

    return step, mw.device_put(params, whole)


# --- runs ---------------------------------------------------------------------------------------------------
def train(model: str, steps: int) -> None:
    """Train, and print losses and seconds per step as JSON."""
    mw.distributed.initialize()
    step, state = {"gpt": gpt, "cnn": cnn}[model]()
    value, state = step(state, 1)
    losses = [float(value)]
    started = time.perf_counter()
    found = []
    for count in range(2, steps + 1):
        value, state = step(state, count)
        found.append(value)
    losses += [float(v) for v in found]
    seconds = (time.perf_counter() - started) / max(steps - 1, 1)
    if mw.process_index() == 0:
        print("RESULT " + json.dumps([losses, seconds]), flush=True)


def measured(
    model: str, steps: int, setting: tuple[int, int | None, int | None], bits: int = 32
) -> tuple[list[float], float]:
    """Losses and seconds per step in one setting. With 64 bits, rounding does not hide errors."""
    count, devices, real = setting
    command = [sys.executable, "-m", "meshwright", "run", "-n", str(count)]
    command += ["--devices", str(devices)] if devices else []
    command += ["--real-devices", str(real)] if real else []
    command += ["--timeout", "120", __file__, model, str(steps)]
    env = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}",
        "PYTHONWARNINGS": "ignore",
        "MESHWRIGHT_ENABLE_X64": str(int(bits == 64)),
    }
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    line = next((part for part in done.stdout.splitlines() if "RESULT " in part), None)
    if done.returncode or line is None:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-4000:])
    losses, seconds = json.loads(line.partition("RESULT ")[2])
    return losses, seconds


def main() -> None:
    """Print a table for each model.

    Differences in float64 are errors. Those in float32 should be compared with the rounding of float32 itself, the
    difference of its losses on virtual devices from those in float64.
    """
    for model, bits in (("gpt", 64), ("gpt", 32), ("cnn", 64), ("cnn", 32)):
        print(f"{model} in float{bits}, {STEPS} steps: ms a step, largest difference of losses to virtual devices")
        first: list[float] = []
        for name, setting in SETTINGS.items():
            losses, seconds = measured(model, STEPS, setting, bits)
            first = first or losses
            shown = f"{1000 * seconds:8.1f}  {_largest(losses, first):.1e}"
            print(f"  {name:26} {shown}  (loss {losses[0]:.4f} to {losses[-1]:.4f})", flush=True)
        if bits == 64:
            exact = first
        else:
            print(f"  rounding of float32: {_largest(first, exact):.1e}")


def _largest(losses: list[float], others: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(losses, others))


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
