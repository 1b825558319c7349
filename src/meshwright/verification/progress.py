"""Progress on a terminal, for what takes seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from meshwright.core.late import LateModule

rich_console = LateModule("rich.console")
rich_progress = LateModule("rich.progress")

#: told what is being done, and how many of how many steps of it are
Report = Callable[[str, int, int], None]


@contextmanager
def on_terminal(what: str) -> Iterator[Report]:
    """While the block runs, a line on the standard error if that is a terminal: what is being done, for how long."""
    if not sys.stderr.isatty():
        yield lambda step, done, total: None
        return
    rich = rich_progress
    columns = (rich.SpinnerColumn(), rich.TextColumn("{task.description}"), rich.BarColumn(), rich.TimeElapsedColumn())
    with rich.Progress(*columns, console=rich_console.Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda step, done, total: bar.update(task, description=f"{what}: {step}", completed=done, total=total)
