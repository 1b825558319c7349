"""``meshwright hardware``: lists known chips, or measures this computer."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from meshwright.hardware import CHIPS, Chip, measure
from meshwright.hardware.this import kept_at


def hardware(
    this: Annotated[
        bool, typer.Option("--this", help="measure this computer, in seconds, and keep the figures")
    ] = False,
) -> None:
    """List the chips for which programs can be planned, with sources, or measure this computer."""
    console = Console(highlight=False)
    table = Table("chip", "bf16 TFLOP/s", "memory GB", "GB/s", "links GB/s", "source", box=None, padding=(0, 2, 0, 0))
    for chip in [measure()] if this else CHIPS.values():
        table.add_row(*_row(chip))
    console.print(table)
    if this:
        console.print(f"kept in {kept_at()}", markup=False)


def _row(chip: Chip) -> list[str]:
    links = f"{chip.link_bandwidth / 1e9:.4g} {f'{chip.torus}-D torus' if chip.torus else 'switch'}"
    return [
        chip.name,
        f"{chip.product_rate('bfloat16')[0] / 1e12:.4g}",
        f"{chip.memory_bytes / 1e9:.4g}",
        f"{chip.memory_bandwidth / 1e9:.4g}",
        links,
        chip.source,
    ]
