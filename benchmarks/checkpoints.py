"""Checkpoints against plain copies of the same bytes, and loading programs from the disk cache against compiling."""

from __future__ import annotations

import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import meshwright as mw

ROOT = Path(__file__).parents[1]
MEBIBYTES, TRIALS = 256, 9


def seconds(work: Callable[[], Any]) -> float:
    """The seconds that ``work()`` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def copied(source: Path, target: Path) -> None:
    """Copy a file; the copy is on disk when this returns."""
    with source.open("rb") as a, target.open("wb") as b:
        shutil.copyfileobj(a, b, 1 << 24)
        b.flush()
        os.fsync(b.fileno())


def files(format: str) -> None:
    """Time writing and reading, each against a plain copy, in alternating order. Files are on disk when timing ends."""
    array = mw.numpy.asarray(np.random.default_rng(0).normal(size=(MEBIBYTES, 1 << 18)).astype(np.float32))
    array.block_until_ready()
    ratios: dict[str, list[float]] = {"write": [], "read": []}
    with tempfile.TemporaryDirectory() as name:
        folder, data, other = Path(name) / "a", Path(name) / "data", Path(name) / "copy"
        np.asarray(array).tofile(data)
        contenders: dict[str, Callable[[], Any]] = {
            "copy": lambda: copied(data, other),
            "write": lambda: mw.checkpoint_io.save(folder, {"a": array}, format=format),
            "plain": lambda: np.fromfile(data, np.uint8),
            "read": lambda: mw.checkpoint_io.restore(folder, {"a": array})["a"].block_until_ready(),
        }
        for trial in range(TRIALS):
            np.fromfile(data, np.uint8)  # brings its pages into memory
            shutil.rmtree(folder, ignore_errors=True)
            other.unlink(missing_ok=True)
            taken = {}
            for pair in (("copy", "write"), ("plain", "read")):
                for what in pair if trial % 2 else pair[::-1]:
                    os.sync()  # no pages are left to be written while timing
                    taken[what] = seconds(contenders[what])
            ratios["write"].append(taken["copy"] / taken["write"])
            ratios["read"].append(taken["plain"] / taken["read"])
    for what, found in ratios.items():
        listed = ", ".join(f"{r:.2f}" for r in found)
        print(f"{format} {what}: {statistics.median(found):.2f} of plain file access ({listed}), {MEBIBYTES} MiB")


def compile_gpt(layers: int) -> float:
    """Seconds from the partitioned step of ``examples/gpt.py`` to one that is ready to run."""
    spec = importlib.util.spec_from_file_location("gpt", ROOT / "examples" / "gpt.py")
    assert spec is not None and spec.loader is not None
    gpt: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpt)
    gpt.LAYERS = layers
    mesh = mw.make_mesh((2, 4), ("data", "model"))
    weights, batch = gpt.placements(mesh)
    params = gpt.init(mw.random.key(0))
    tokens = mw.ShapeDtypeStruct((gpt.BATCH, gpt.LENGTH), "int32")
    run = mw.jit(gpt.step, in_shardings=(weights, weights, weights, batch, batch, None))
    lowered = run.lower(params, params, params, tokens, tokens, np.float32(1))
    part = lowered.partition()
    return seconds(lambda: part.executable)


def warm_start() -> None:
    """Run two processes: the first one compiles, the second one finds the program on disk."""
    pairs = [_cold_and_warm() for _ in range(5)]
    cold, warm = map(statistics.median, zip(*pairs))
    ratios = [c / w for c, w in pairs]
    print(
        f"a 4-layer GPT step: compiled in {cold:.2f} s, from the cache in {warm:.2f} s: "
        f"{statistics.median(ratios):.1f} times faster ({', '.join(f'{r:.1f}' for r in ratios)})"
    )


def _cold_and_warm() -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "MESHWRIGHT_COMPILATION_CACHE_DIR": folder, "MESHWRIGHT_NUM_DEVICES": "8",
               "PYTHONPATH": str(ROOT / "src")}  # fmt: skip
        command = [sys.executable, __file__, "4"]
        return [float(subprocess.check_output(command, env=env, text=True).split()[-1]) for _ in range(2)]


def main() -> None:
    """Print both comparisons."""
    for format in ("safetensors", "tensorstore"):
        files(format)
    warm_start()


if __name__ == "__main__":
    print(compile_gpt(int(sys.argv[1])))
