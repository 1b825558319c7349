"""``meshwright profile FOLDER``: where time went; ``meshwright smi``: memory of processes on their devices."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from meshwright.inspect.profile import read_profile
from meshwright.smi import report


def profile(folder: Annotated[Path, typer.Argument(help="what profiler.trace wrote to")]) -> None:
    """Print the time in the newest profile of a folder by device, op, line of the program and collective."""
    typer.echo(str(read_profile(folder)))


def smi(
    interval: Annotated[float, typer.Option("--interval", "-n", help="seconds between refreshes")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="print once and end")] = False,
) -> None:
    """Show what processes hold on their devices, until Ctrl-C. Only those that called smi.initialise_tracking are
    shown."""
    while not once:
        typer.echo("\x1b[2J\x1b[H", nl=False)  # clear the screen
        typer.echo(report())
        time.sleep(max(interval, 0.1))
    typer.echo(report())
