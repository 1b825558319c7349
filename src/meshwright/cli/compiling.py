"""``meshwright compile FILE --target v5e:16x16``: compiles a program for hardware that need not be present."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from meshwright.api.load import load
from meshwright.cli.programs import DevicesOption, File, MeshOption, partitioned
from meshwright.targets import target as target_named


def compile(
    file: File,
    target: Annotated[str, typer.Option("--target", help="v5e:16x16, v5p:2x2x4, h100, h100:2x8 (nodes × GPUs), cpu:8")],
    mesh: MeshOption = "",
    devices: DevicesOption = 0,
    save: Annotated[Path | None, typer.Option("--save", help="write the executable to this file")] = None,
    text: Annotated[bool, typer.Option("--text", help="print the compiled program as HLO text")] = False,
) -> None:
    """Partition a program, compile it for a target that need not be present, and print a report. Exits with status 1 if
    it does not fit."""
    where = target_named(target)
    console = Console(stderr=True, highlight=False)
    if not mesh and not devices and file != Path("-") and load(file).num_partitions == 1:
        devices = where.size
    _, part = partitioned(file, mesh, devices, console)
    report = part.compile(where)
    if text:
        typer.echo(report.text)
        console.print(report.headline, markup=False, soft_wrap=True)
    else:
        typer.echo(str(report))
    if not report.fits:
        raise typer.Exit(1)
    if save is not None:
        console.print(f"the executable is in {report.save(save)}", markup=False, soft_wrap=True)
