"""The command ``meshwright``. Each module here adds commands of its own."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from meshwright.cli import demo, programs
from meshwright.errors import MeshwrightError

app = typer.Typer(
    help="Array programs for one device, run by every device of a mesh.", no_args_is_help=True, add_completion=False
)
app.command()(demo.demo)
app.command()(programs.partition)
app.command()(programs.explain)
app.command()(programs.compare)


def main() -> None:
    """Run the command line; errors of ours are one message, without a traceback, and exit status 1."""
    try:
        app()
    except MeshwrightError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {error}", markup=False, style="red")
        sys.exit(1)
