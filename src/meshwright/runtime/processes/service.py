"""Runs the coordination service in a separate process, so that it outlives the process that started it.

If the service ends, so does the job.
"""

from __future__ import annotations

import subprocess
import sys
import time

from meshwright.errors import DistributedError
from meshwright.runtime.pjrt import coordination
from meshwright.runtime.processes.rendezvous import Rendezvous, own_token

#: seconds for which the service outlives its starter, so that the other processes can find out what happened
LINGER = 120.0
_READY, _DONE = "ready\n", "done\n"


class Service:
    """The service, kept alive as long as this object; ``stop()`` ends it."""

    def __init__(self, address: str, count: int, wait: float) -> None:
        program = f"import sys; from {__name__} import main; main(*sys.argv[1:])"
        command = [sys.executable, "-c", program, address, str(count), str(wait)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line != _READY:
            self._process.wait()
            raise DistributedError(line.strip() or f"the coordinator could not be started at {address}")

    def stop(self) -> None:
        """End the service, once all processes have left."""
        if self._process.poll() is None:
            self._process.communicate(_DONE, timeout=10)


def main(address: str, count: str, wait: str) -> None:
    """Serve ``count`` processes, which have ``wait`` seconds to arrive.

    Ends when the starter says so, or some time after it has ended.
    """
    try:
        rendezvous = Rendezvous(address, int(count), own_token())
    except DistributedError as error:
        print(str(error).replace("\n", " "), flush=True)
        raise SystemExit(1) from None
    sys.stdout.write(_READY)
    sys.stdout.flush()
    try:
        service = rendezvous.gather(float(wait), lambda: coordination.serve(address, int(count), float(wait)))
    except DistributedError:
        raise SystemExit(1) from None  # the processes report it
    if sys.stdin.readline() != _DONE:
        time.sleep(LINGER)
    rendezvous.end()
    del service
