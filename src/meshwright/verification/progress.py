"""Progress on a terminal, for operations that take seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from meshwright.core.late import LateModule

rich_console = LateModule("rich.console")
rich_progress = LateModule("rich.progress")

#: called with the current step in words, the number of parts done, and of all parts
Report = Callable[[str, int, int], None]


@contextmanager
def on_terminal(what: str) -> Iterator[Report]:
    """Show the current step and the elapsed time on standard error while the block runs, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda step, done, total: None
        return
    rich = rich_progress
    columns = (rich.SpinnerColumn(), rich.TextColumn("{task.description}"), rich.BarColumn(), rich.TimeElapsedColumn())
    with rich.Progress(*columns, console=rich_console.Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda step, done, total: bar.update(task, description=f"{what}: {step}", completed=done, total=total)
