"""``meshwright demo``: train the digits network on a mesh of 8 virtual devices, then show what the mesh did."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.rule import Rule

import meshwright as mw
from meshwright import random
from meshwright.cli import digits
from meshwright.core.words import counted
from meshwright.inspect.picture import picture_of
from meshwright.spmd.report import human_bytes

MESH = (4, 2)
TRAINING, BATCH = 1500, 100


def demo(epochs: int = typer.Option(20, help="passes over the 1,500 training images")) -> None:
    """Train a convolutional network on handwritten digits across 8 virtual devices, and explain the program."""
    console = Console()
    if mw.config.num_devices < 8:
        mw.config.update("num_devices", 8)
    mesh = mw.make_mesh(MESH, ("data", "model"))
    images, labels = digits.load_digits()
    weights, _ = digits.placements(mesh)
    console.print(
        f"[bold]Meshwright[/bold]: {TRAINING} handwritten digits, a convolutional network written for one device, "
        f"mesh data={MESH[0]} × model={MESH[1]}"
    )
    params = mw.device_put(digits.init(random.key(0)), weights)
    momentum = mw.device_put(mw.tree.map(lambda p: np.zeros(p.shape, p.dtype), params), weights)
    step = digits.step_on(mesh, donate_argnums=(0, 1))
    start = time.perf_counter()
    params, momentum = _train(console, step, params, momentum, images, labels, epochs)
    elapsed = time.perf_counter() - start
    test = mw.jit(digits.accuracy)(params, images[TRAINING:], labels[TRAINING:])
    console.print(
        f"test accuracy {100 * float(test):.1f} % on {len(images) - TRAINING} images, trained in {elapsed:.1f} s"
    )
    _report(console, mesh, step, params, momentum, images[:BATCH], labels[:BATCH])


def _train(
    console: Console, step: Any, params: Any, momentum: Any, images: np.ndarray, labels: np.ndarray, epochs: int
) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("training", total=epochs * (TRAINING // BATCH))
        for epoch in range(epochs):
            order = rng.permutation(TRAINING)
            for first in range(0, TRAINING - BATCH + 1, BATCH):
                chosen = order[first : first + BATCH]
                value, params, momentum = step(params, momentum, images[chosen], labels[chosen])
                progress.advance(bar)
            progress.update(bar, description=f"epoch {epoch + 1}, loss {float(value):.4f}")
    return params, momentum


def _report(
    console: Console, mesh: mw.Mesh, step: Any, params: Any, momentum: Any, images: np.ndarray, labels: np.ndarray
) -> None:
    _, batch = digits.placements(mesh)
    shown = {
        "a batch of images": (images.shape, batch),
        "conv2 kernel": (params["conv2"]["kernel"].shape, params["conv2"]["kernel"].sharding),
        "dense1 kernel": (params["dense1"]["kernel"].shape, params["dense1"]["kernel"].sharding),
    }
    for name, (shape, sharding) in shown.items():
        console.print(Rule(f"{name} {shape}: {sharding.spec}"))
        console.print(picture_of(shape, sharding))
    console.print(Rule("collectives of one training step"))
    part = step.lower(params, momentum, images, labels).partition()
    console.print(part.explain(), markup=False, highlight=False, soft_wrap=True)
    console.print(Rule("proof"))
    differences = part.verify(params, momentum, images, labels)
    worst = max(d.relative for d in differences)
    console.print(
        f"each device sends {human_bytes(part.bytes_sent)} a step; the partitioned step equals the unpartitioned one: "
        f"largest relative difference {worst:.1e} over {counted(len(differences), 'output')}"
    )
