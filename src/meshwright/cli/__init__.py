"""The ``meshwright`` command. Each module here adds subcommands."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from meshwright.cli import compiling, demo, hardware, profiles, programs, run
from meshwright.core.version import __version__
from meshwright.errors import MeshwrightError

app = typer.Typer(no_args_is_help=True, add_completion=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"meshwright {__version__} (jaxlib {version('jaxlib')}, Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def options(
    wanted: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the versions and exit.")
    ] = False,
) -> None:
    """Array programs for one device, run by every device of a mesh."""


app.command()(demo.demo)
app.command()(programs.partition)
app.command()(programs.explain)
app.command()(programs.compare)
app.command()(compiling.compile)
app.command()(programs.passes)
app.command()(hardware.hardware)
app.command()(profiles.profile)
app.command()(profiles.smi)
app.command(context_settings={"allow_interspersed_args": False})(run.run)


def main() -> None:
    """Run the command line. Our errors print one message without a traceback, and exit with status 1.

    So does output that cannot be written; a closed pipe prints no message. Characters that the terminal's encoding
    lacks are written as question marks.
    """
    sys.stdout = sys.stdout or open(os.devnull, "w")  # closed before the start
    sys.stderr = sys.stderr or open(os.devnull, "w")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except MeshwrightError as error:
        _fail(str(error))
    except BrokenPipeError:
        _fail()
    except OSError as error:
        _fail(f"the output cannot be written: {error.strerror}")
    except SystemExit as end:
        if _is_interrupt(end):
            sys.last_type = KeyboardInterrupt  # as Python sets it: running compilations are then not waited for
        raise


def _fail(message: str = "") -> NoReturn:
    if message:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {message}", markup=False, style="red")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at exit
    sys.exit(1)


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an error was caused by Ctrl-C."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
