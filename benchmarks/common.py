"""Measurement: each contender runs in a process of its own, in turns over several rounds, and medians are compared.

Machines are shared and noisy, so contenders alternate within a round, and only figures of the same run are compared. A
peer that hangs or aborts is reported as such.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

console = Console(width=130)


def seconds_per_call(run: Callable[[], Any], wait: Callable[[Any], Any], budget: float = 1.0, rounds: int = 5) -> float:
    """Median seconds per call. Calls are made back to back, and waited for at the end of each round."""
    wait(run())
    start = time.perf_counter()
    wait(run())
    once = max(time.perf_counter() - start, 1e-7)
    calls = max(1, min(20000, int(budget / rounds / once)))
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        out = None
        for _ in range(calls):
            out = run()
        wait(out)
        found.append((time.perf_counter() - start) / calls)
    return statistics.median(found)


def in_process(module: str, function: str, *args: Any, env: Mapping[str, str] | None = None, limit: float = 300) -> Any:
    """Run ``module.function(*args)`` in a new process; returns its JSON result, or a string that says how it failed."""
    code = (
        f"import json, sys; from {module} import {function}; "
        f"print('RESULT' + json.dumps({function}(*json.loads(sys.argv[1]))))"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(args)],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **(env or {})},
            capture_output=True,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return f"no result in {limit:.0f} s"
    for line in done.stdout.splitlines():
        if line.startswith("RESULT"):
            return json.loads(line[6:])
    lines = [line for line in done.stderr.splitlines() if "Error" in line or "Termination" in line] or ["no output"]
    return f"exit {done.returncode}: {lines[-1].strip()[:60]}"


def alternate(contenders: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Any]:
    """The median of each contender over alternating rounds, or the message of a failure."""
    found: dict[str, list[Any]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            found[name].append(run())
    return {name: median(values) for name, values in found.items()}


def median(values: Sequence[Any]) -> Any:
    """The median of numbers, or by key for dicts of numbers; the first failure's message if there is one."""
    failures = [v for v in values if isinstance(v, str)]
    if failures:
        return failures[0]
    if isinstance(values[0], dict):
        return {k: median([v[k] for v in values]) for k in values[0]}
    return statistics.median(values)


def ratio(a: Any, b: Any) -> str:
    """``a / b`` as text for a table, "-" if there is none."""
    return f"{a / b:.2f}" if isinstance(a, (int, float)) and isinstance(b, (int, float)) and b else "-"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> None:
    """Print a table."""
    shown = Table(title=title, title_justify="left", caption=note or None, caption_justify="left")
    for i, column in enumerate(columns):
        shown.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


def milliseconds(value: Any) -> str:
    """A time as text for a table, or the message of a failure."""
    return f"{value * 1e3:.3g} ms" if isinstance(value, (int, float)) else str(value)
