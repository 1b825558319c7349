"""A program that keeps replacing a checkpoint, ended at some moment: there is always a whole one, the old or the new.

``make fuzz`` ends 500 (``tests/long_runs.py``). Each is forked from a process that has imported everything.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from meshwright.checkpoint_io import restore
from meshwright.checkpoint_io.index import FORMATS
from meshwright.errors import CheckpointError

_FORMATS = [f for f in FORMATS if f != "tensorstore" or find_spec("tensorstore")]
#: seconds after the first checkpoint until which a program may live
_LONGEST = 0.08


def found_in(number: int) -> str:
    """What is wrong with the checkpoint that case ``number`` leaves, or ""."""
    draw = random.Random(number)
    with tempfile.TemporaryDirectory() as name:
        folder, parent = Path(name) / "a", _parent()
        parent.stdin.write(f"{folder} {_FORMATS[number % len(_FORMATS)]}\n")
        parent.stdin.flush()
        pid = int(parent.stdout.readline())
        time.sleep(draw.uniform(0, _LONGEST))
        os.kill(pid, signal.SIGKILL)
        assert parent.stdout.readline() == "ended\n"
        try:
            got = restore(folder, verify=True)
        except CheckpointError as error:
            return str(error)
        values = np.unique(np.concatenate([got["a"], got["b"]]))
        return "" if len(values) == 1 else f"of several checkpoints: {values}"


@cache
def _parent() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _keep_saving(folder: str, form: str) -> None:
    from meshwright.checkpoint_io import save

    step = 0
    while True:
        save(folder, {"a": np.full(50_000, step), "b": np.full(3, step)}, overwrite=True, format=form)
        if step == 0:
            print(os.getpid(), flush=True)
        step += 1


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            _keep_saving(*line.split())
        os.waitpid(pid, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main()
