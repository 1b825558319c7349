"""Random programs in ``shard_map``, here and in JAX: values, derivatives, and which are refused.

``make fuzz`` tries 3,000 (``tests/long_runs.py``).
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from region_programs import AXES, Backend, arguments, evaluated, tangents

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.errors import MeshwrightError

MESH = mw.make_mesh(tuple(AXES.values()), tuple(AXES))
OURS = Backend(mnp, lax, mw, MESH, mw.PartitionSpec, MESH)

Result = list[np.ndarray] | str


def of_jax(folder: Path, *ranges: tuple[int, int, str]) -> Iterator[tuple[int, str, Result]]:
    """JAX's results, from a process of its own with a device for each position of the mesh."""
    path = folder / "results"
    words = [str(word) for one in ranges for word in one]
    # Seldom, a collective of JAX's waits for a thread that a busy machine does not start: what is there then counts.
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("run_jax.py")), str(path), *words], check=False)
    with path.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                break
    assert done.returncode in (0, -6), done


def ours(seed: int, kind: str) -> Result:
    try:
        return evaluated(OURS, seed, kind)
    except MeshwrightError as error:
        return f"{type(error).__name__}: {error}"


def slopes(seed: int, kind: str, result: list[np.ndarray]) -> tuple[float, float, float]:
    """The derivative along the tangents by the gradient and by forward mode, and their scale."""
    directions = tangents(arguments(seed, kind))
    parts = [g.astype(np.float64) * d for g, d in zip(result[-5:-1], directions, strict=True)]
    return float(sum(p.sum() for p in parts)), float(result[-1]), 1 + float(sum(abs(p).sum() for p in parts))


def agree(seed: int, kind: str, result: list[np.ndarray]) -> bool:
    """Whether both modes agree, which they need not where a result that differs is taken to be the same."""
    backward, forward, scale = slopes(seed, kind, result)
    return kind == "unchecked" or abs(backward - forward) <= 1e-3 * scale


def problem(seed: int, kind: str, want: Result, got: Result) -> str | None:
    """What is wrong with our result, given JAX's; None if nothing."""
    if isinstance(got, str):
        return None if isinstance(want, str) else f"refused: {got}"
    if not agree(seed, kind, got):
        return "gradient {:.6g}, tangent {:.6g}, scale {:.3g}".format(*slopes(seed, kind, got))
    if isinstance(want, str):
        return f"accepted: {want}" if "given out_specs which require replication" in want else None
    wrong = [i for i, (x, y) in enumerate(zip(want, got, strict=True)) if not alike(x, y)]
    # Where devices take different branches, JAX sums cotangents inside of them: its gradients are wrong then.
    gradients = range(len(got) - 5, len(got) - 1)
    return f"results {wrong} differ" if wrong and (agree(seed, kind, want) or not set(wrong) <= {*gradients}) else None


def alike(x: np.ndarray, y: np.ndarray) -> bool:
    return x.shape == y.shape and np.allclose(x, y, rtol=2e-3, atol=2e-3 * max(1.0, float(abs(x).max(initial=0))))


def check(results: Iterator[tuple[int, str, Result]]) -> list[Any]:
    """Compare each; returns (kind, whether JAX ran it, whether we did) of each."""
    found: list[Any] = []
    wrong: list[str] = []
    for seed, kind, want in results:
        got = ours(seed, kind)
        text = problem(seed, kind, want, got)
        if text:
            wrong.append(f"{kind} program {seed}: {text}")
        found.append((kind, not isinstance(want, str), not isinstance(got, str)))
    assert not wrong, "\n".join(wrong)
    return found


def both_ran(found: Sequence[Any]) -> int:
    return sum(theirs and mine for _, theirs, mine in found)


def test_some_programs(tmp_path: Path) -> None:
    found = check(of_jax(tmp_path, (0, 1, "checked"), (0, 1, "nested"), (0, 1, "unchecked")))
    assert len(found) == 3 and both_ran(found) >= 1


# --- many ---------------------------------------------------------------------------------------------------
#: of six programs, how many are of which kind; and how many JAX does in one process
KINDS, BLOCK = ("checked",) * 4 + ("nested", "unchecked"), 60


@cache
def _of_block(block: int) -> dict[tuple[int, str], Result]:
    """JAX's results for so many numbers in a row."""
    first = 1000 + block * BLOCK
    with tempfile.TemporaryDirectory() as folder:
        ranges = [(first + i, first + i + 1, KINDS[i % len(KINDS)]) for i in range(BLOCK)]
        return {(seed, kind): want for seed, kind, want in of_jax(Path(folder), *ranges)}


def found_in(number: int) -> str:
    """What is wrong with program ``number``; "" if nothing, or if JAX did not come to it."""
    seed, kind = 1000 + number, KINDS[number % len(KINDS)]
    want = _of_block(number // BLOCK).get((seed, kind))
    text = None if want is None else problem(seed, kind, want, ours(seed, kind))
    return f"{kind} program {seed}: {text}" if text else ""
