"""Ends a child process with its parent, so that no compiler goes on working for a program that was killed.

Imports nothing of ours: processes that only have the standard library run this file.
"""

import ctypes
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1
_libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent() -> None:
    """Has the kernel kill this process when the thread that started it ends; called in the child. Linux only."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
