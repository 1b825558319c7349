"""The command as a shell runs it, in processes that start from one which has imported it."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["meshwright.cli"])


def run(*args: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """``meshwright`` with these arguments and no input."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = CONTEXT.Process(target=_command, args=(args, _Given(out.fileno()), _Given(err.fileno())))
        process.start()
        process.join(seconds)
        if process.is_alive():
            process.kill()
            raise subprocess.TimeoutExpired(args, seconds)
        out.seek(0), err.seek(0)
        return subprocess.CompletedProcess(args, process.exitcode or 0, out.read(), err.read())


class _Given:
    """An open file of the parent's, which goes with what is sent."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self):
        return _received, (multiprocessing.reduction.DupFd(self.number),)


def _received(given) -> int:
    return given.detach()


def _command(args: tuple[str, ...], out: int, err: int) -> None:
    from meshwright.cli import main

    for number, mine in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(number, mine)
    sys.argv[:] = ["meshwright", *args]
    main()
