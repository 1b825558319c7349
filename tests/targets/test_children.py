"""Compilers in processes of their own end with the program that started them, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshwright.core import with_parent

#: starts a process that sleeps in a session of its own, as those of compilers do, and prints its number
_PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""
_CHILD = """
import runpy, sys, time
runpy.run_path(sys.argv[1])["end_with_parent"]()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends children on Linux only")
def test_a_child_ends_with_its_parent():
    command = [sys.executable, "-c", _PARENT, _CHILD, with_parent.__file__]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    lines = sorted(parent.stdout.readline().strip() for _ in range(2))
    assert lines[1] == "ready"
    child = int(lines[0])
    try:
        os.kill(child, 0)
        parent.kill()
        parent.wait()
        limit = time.monotonic() + 20
        while _runs(child) and time.monotonic() < limit:
            time.sleep(0.01)
        assert not _runs(child)
    finally:
        if _runs(child):
            os.kill(child, signal.SIGKILL)


def _runs(pid: int) -> bool:
    """Whether there is a process, and it has not ended (as one that nobody has waited for)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
