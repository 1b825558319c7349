"""Runs of many random cases, of one kind after the other: ``make fuzz``.

    python tests/long_runs.py [KIND[:COUNT[:FIRST]] ...] [--folder .fuzz]

Cases are numbers. They run in a process of their own, which a crash or a hang ends and nothing else; what was done and
found stands in ``<folder>/<kind>.json``, so that a run goes on where it was stopped. Findings go to ``<kind>.txt``
beside it and, like how far a run has come, to standard output; what differs as it is meant to goes to
``<kind>.meant.txt``, with its reason. The exit status says whether anything was found.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Kind:
    """Cases of one kind: ``found_in(number)`` of ``module``, in ``folder``, says what is wrong, or ""."""

    folder: str
    module: str
    count: int
    #: seconds after which a case that says nothing hangs
    patience: float = 300.0
    #: how many cases are done before a line says so
    told: int = 50


KINDS = {
    "interrupts": Kind("runtime", "test_interrupts", 200),
    "damaged": Kind("executable", "test_damaged_programs", 20_000, told=500),
    "regions": Kind("regions", "test_region_fuzz", 3_000),
    "partitions": Kind("executable", "test_fuzz", 200, patience=1800, told=2),  # each is 25 programs
    "against_xla": Kind("executable", "against_xla", 1_000, told=25),
    "programs": Kind("fuzz", "fuzz_checks", 20_000),
    "faults": Kind("processes", "faults", 100, patience=900, told=5),
    "kills": Kind("checkpoints", "kills", 500),
    "indexes": Kind("checkpoints", "changed_indexes", 20_000, told=2000),
}
#: with which the text of a case begins that differs as it is meant to; and where somebody else says what we do
MEANT, SAID = "[meant", "[meant: as "
#: cases that one process does: those after it find its memory given back
BATCH = 1000
#: what both libraries are told: code made fast, not fast code
XLA_FLAGS = (
    "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)


@dataclass
class Record:
    """What a run has done: the numbers from ``first`` to before ``next``, on which trees, in how many seconds."""

    first: int
    next: int
    trees: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    findings: int = 0
    meant: int = 0
    #: of those that are meant: where JAX, or NumPy, says the same in another way
    said: int = 0


class Run:
    """A run of one kind, which may have begun before."""

    def __init__(self, name: str, count: int, first: int, folder: Path) -> None:
        self.name, self.kind, self.end = name, KINDS[name], first + count
        self.state, self.log = folder / f"{name}-{first}.json", folder / f"{name}-{first}.txt"
        folder.mkdir(parents=True, exist_ok=True)
        self.record = Record(**json.loads(self.state.read_text())) if self.state.exists() else Record(first, first)

    def __call__(self) -> int:
        """Do what is left; the number of findings of the whole run."""
        while self.record.next < self.end:
            self._batch(min(BATCH - self.record.next % BATCH, self.end - self.record.next))
        self._say("done")
        return self.record.findings

    def _batch(self, count: int) -> None:
        command = [sys.executable, __file__, "--child", self.name, str(self.record.next), str(count)]
        tree, before, told = _tree(), time.monotonic(), self.record.next
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                number, text = json.loads(line)
                if text.startswith(MEANT):
                    self._meant(number, text)
                elif text:
                    self._found(number, text)
                self._done(number, tree, time.monotonic() - before)
                before = time.monotonic()
                if number - told >= self.kind.told:
                    told = number
                    self._say("")
        if child.returncode:
            self._found(self.record.next, f"the process ended with status {child.returncode}")
            self._done(self.record.next, tree, 0)

    def _meant(self, number: int, text: str) -> None:
        self.record.meant += 1
        self.record.said += text.startswith(SAID)
        with self.log.with_suffix(".meant.txt").open("a") as file:
            file.write(f"--- {self.name} {number}: {text}\n\n")

    def _found(self, number: int, text: str) -> None:
        self.record.findings += 1
        with self.log.open("a") as file:
            file.write(f"--- {self.name} {number}: {text}\n\n")
        print(f"{self.name} {number}: {text}\n", flush=True)

    def _done(self, number: int, tree: str, seconds: float) -> None:
        record = self.record
        record.next, record.seconds = number + 1, record.seconds + seconds
        record.trees[tree] = record.trees.get(tree, 0) + 1
        new = self.state.with_suffix(".new")
        new.write_text(json.dumps(asdict(record)))
        new.replace(self.state)

    def _say(self, how: str) -> None:
        r = self.record
        done = r.next - r.first
        each = f"{done / r.seconds:.2f} a second" if r.seconds else ""
        print(
            f"{self.name}: {done} of {self.end - r.first}, {each}, {r.findings} findings, {r.meant} meant"
            f"{f' ({r.said} as JAX or NumPy says in another way)' * bool(r.said)} {how}",
            flush=True,
        )


def _tree() -> str:
    """The commit at work, with a sign for what is not committed."""
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(["git", "describe", "--always", "--dirty"], cwd=HERE, text=True).strip()
    return "unknown"


# --- the process that does them -----------------------------------------------------------------------------
def _child(name: str, first: int, count: int) -> None:
    import signal

    kind = KINDS[name]
    sys.path[:0] = [str(HERE / folder) for folder in (kind.folder, "registry")]
    sys.path.insert(0, str(HERE))
    import conftest

    found_in: Callable[[int], str] = importlib.import_module(kind.module).found_in
    signal.signal(signal.SIGALRM, _hangs)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed meanwhile is no result
    for number in range(first, first + count):
        signal.setitimer(signal.ITIMER_REAL, kind.patience)
        faulthandler.dump_traceback_later(kind.patience + 60, exit=True)  # of what Python cannot interrupt
        try:
            text = found_in(number)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps([number, text]), file=out, flush=True)
        if number % 50 == 0:
            conftest.forget_programs()


def _hangs(*_: object) -> None:
    raise TimeoutError("it does not end")


def _wanted(words: list[str]) -> Iterator[tuple[str, int, int]]:
    for word in words or KINDS:
        name, *numbers = word.split(":")
        count, first, *_ = (*map(int, numbers), *((KINDS[name].count, 0)[len(numbers) :]))
        yield name, count, first


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        _child(sys.argv[2], *map(int, sys.argv[3:]))
        return 0
    os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="KIND[:COUNT[:FIRST]]", help=f"of {', '.join(KINDS)}; all")
    parser.add_argument("--folder", type=Path, default=Path(".fuzz"))
    options = parser.parse_args()
    return int(sum(Run(*one, options.folder)() for one in _wanted(options.runs)) > 0)


if __name__ == "__main__":
    sys.exit(main())
