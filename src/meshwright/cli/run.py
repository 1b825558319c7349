"""``meshwright run``: runs a program in several processes on this machine."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from meshwright.core.words import counted
from meshwright.runtime.processes.launching import Launch, described, environment
from meshwright.runtime.processes.stopping import Terminated, heed_signals

_writing = threading.Lock()


def _write(stream: str, rank: int, line: str) -> None:
    if line.startswith("[Gloo] Rank "):
        return  # drop this message about the number of connected processes, which is always printed
    out = getattr(sys, stream)
    try:
        with _writing:
            out.write(f"[{rank}] {line if line.endswith(chr(10)) else line + chr(10)}")
            out.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            _say(f"what rank {rank} prints cannot be written: {error.strerror}")
        raise


def _say(text: str) -> None:
    with suppress(OSError):  # if the output is closed, the exit status remains
        print(f"meshwright run: {text}", file=sys.stderr, flush=True)


def _positive(seconds: float | None) -> float | None:
    if seconds is not None and not seconds > 0:  # not a number either
        raise typer.BadParameter(f"expected a positive number of seconds, got {seconds:g}")
    return seconds


def run(
    script: Annotated[Path, typer.Argument(help="A Python program that calls mw.distributed.initialize().")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    processes: Annotated[int, typer.Option("-n", "--processes", min=1, help="How many processes.")] = 1,
    devices: Annotated[int | None, typer.Option(min=1, help="Devices of each process; virtual ones.")] = None,
    real_devices: Annotated[int | None, typer.Option(min=1, help="Real devices of each process.")] = None,
    restarts: Annotated[int, typer.Option(min=0, help="How often to start again after a process failed.")] = 0,
    min_processes: Annotated[
        int | None, typer.Option(min=1, help="Start again with those that did not die, down to so many.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds after which a collective fails.", callback=_positive)
    ] = None,
) -> None:
    """Run a program in several cooperating processes.

    Lines printed by process 1 begin with [1]. If a process fails, the others raise errors that name it, and all end;
    with --restarts they are started again, and resume from their last checkpoint.
    """
    if min_processes is not None and min_processes > processes:
        raise typer.BadParameter(f"--min-processes {min_processes} is more than the {processes} of -n")
    command = [sys.executable, str(script), *(arguments or [])]
    env, count = environment(devices, real_devices, timeout), processes
    heed_signals()
    for attempt in range(restarts + 1):
        launch = Launch(command, count, env, _write)
        if timeout is not None:
            launch.grace = timeout + 4
        try:
            ends = launch.run(attempt)
        except KeyboardInterrupt as stop:
            _say("interrupted; all processes have ended")
            raise typer.Exit(128 + (stop.signum if isinstance(stop, Terminated) else signal.SIGINT)) from None
        failed = {rank: status for rank, status in ends.items() if status}
        if not failed:
            return
        first = next(iter(failed))
        _say(f"rank {first} {described(failed[first])}{_others(ends, count)}")
        if attempt < restarts:
            killed = sum(status < 0 for status in failed.values())
            count = max(count - max(killed, 1), min_processes) if min_processes is not None else count
            _say(f"restart {attempt + 1} of {restarts}, with {counted(count, 'process', 'processes')}")
    raise typer.Exit(failed[first] if failed[first] > 0 else 128 - failed[first])


def _others(ends: dict[int, int], count: int) -> str:
    """What happened to the processes other than the first one that failed."""
    order = list(ends)
    first = next(i for i, rank in enumerate(order) if ends[rank])
    groups = [
        ("; before it rank {} had ended, with status 0", order[:first]),
        ("; then rank {} failed too", [rank for rank in order[first + 1 :] if ends[rank]]),
        ("; rank {} still ran, and was ended", [rank for rank in range(count) if rank not in ends]),
    ]
    return "".join(text.format(", ".join(map(str, ranks))) for text, ranks in groups if ranks)
