"""Checks that all processes run the same program, by comparing its hash before the first run.

Different programs would crash the processes, or make them wait for each other forever.
"""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from meshwright.core.config import config
from meshwright.core.key_types import is_key
from meshwright.errors import DistributedError, ProgramMismatchError
from meshwright.ir.jaxpr import all_eqns
from meshwright.lowering.lower import DeviceProgram
from meshwright.ops.collective.base import Collective
from meshwright.runtime.pjrt.world import CAUSE, WORLD
from meshwright.runtime.processes import heartbeats

#: the number of programs that each group of processes has begun
_begun: Counter[tuple[int, ...]] = Counter()
#: the number of exchanges of each group of processes
_said_before: Counter[tuple[int, ...]] = Counter()


def agree(
    name: str, program: Callable[[], DeviceProgram], ranks: tuple[int, ...], mark: str = "", is_ready: bool = False
) -> bool:
    """Wait until the processes ``ranks`` are about to run ``program()``, called ``name``.

    Processes with the same ``mark``, a hash of everything that determines the program, need not compare equations.
    Returns whether that is the case and all processes are ready (have the program compiled).

    Raises:
      ProgramMismatchError: a process is about to run another program; names it, and the first equation that differs.
      DistributedError: a process does not arrive within ``config.collective_timeout`` seconds.
    """
    table = heartbeats.LIVING.table
    if table is None or len(ranks) < 2:
        return is_ready
    key = f"meshwright/program/{'-'.join(map(str, ranks))}/{_begun[ranks]}"
    _begun[ranks] += 1
    lines = [] if mark else _lines(program())
    said = _by_all(f"{mark} {is_ready}" if mark else _hash_of(lines), key, "hash", ranks, name)
    if mark and len({text.partition(" ")[0] for text in said.values()}) == 1:
        return all(text.endswith(" True") for text in said.values())
    if any(" " in text for text in said.values()):  # marks may differ although the programs are equal
        lines = lines or _lines(program())
        said = _by_all(_hash_of(lines), key, "lines' hash", ranks, name)
    if len(set(said.values())) > 1:
        table.put(f"{key}/{WORLD.rank}/lines", zlib.compress(json.dumps(lines).encode()))
        _differ(name, key, said, lines)
    return False


def _by_all(text: str, key: str, what: str, ranks: tuple[int, ...], name: str) -> dict[int, str]:
    """Publish ``text`` under ``what`` for a program, and collect the texts of all processes."""
    table = heartbeats.LIVING.table
    if table is not None:
        table.put(f"{key}/{WORLD.rank}/{what}", text.encode())
    others = {r: _wait_for(f"{key}/{r}/{what}", r, repr(name)).decode() for r in ranks if r != WORLD.rank}
    return {WORLD.rank: text, **others}


def _hash_of(lines: Sequence[tuple[str, str]]) -> str:
    return hashlib.sha256("\n".join(text for text, _ in lines).encode()).hexdigest()


def agree_on_value(x: Any, target: Any) -> None:
    """Check that all processes are about to place the same value with the sharding ``target``.

    Each process places its own part. If not all of them have devices of it, nothing is checked, as the others may not
    take part.

    Raises:
      DistributedError: a process has another value, or does not arrive within ``config.collective_timeout`` seconds.
    """
    if len({d.process_index for d in getattr(target, "devices", ()) if hasattr(d, "process_index")}) < WORLD.count:
        return
    mine = _said(x)
    for rank, theirs in exchanged(mine, tuple(range(WORLD.count)), "device_put").items():
        if theirs != mine:
            raise DistributedError(
                f"device_put: rank {rank} gives {theirs}, rank {WORLD.rank} {mine}; all processes must give the same "
                "value, of which each takes its part. make_array_from_process_local_data takes the parts that "
                "processes have"
            )


def exchanged(text: str, ranks: tuple[int, ...], what: str) -> dict[int, str]:
    """Exchange texts between the processes ``ranks``, which include this one, at the same point (``what``) in all.

    Raises:
      DistributedError: a process does not arrive within ``config.collective_timeout`` seconds.
    """
    table = heartbeats.LIVING.table
    if table is None:
        return {WORLD.rank: text}
    key, number = f"meshwright/said/{'-'.join(map(str, ranks))}", _said_before[ranks]
    _said_before[ranks] += 1
    table.put(f"{key}/{number}/{WORLD.rank}", text.encode())
    said = {rank: _wait_for(f"{key}/{number}/{rank}", rank, what).decode() for rank in ranks}
    table.remove(f"{key}/{number - 1}/{WORLD.rank}")  # all have read it, as they have published again
    return said


def _lines(program: DeviceProgram) -> list[tuple[str, str]]:
    """Each equation as text, which must be equal in all processes, with its source line, which need not be."""
    target = program.target
    head = [(f"the mesh {target.mesh} on devices {[d.id for d in target.assignment]}", "")]
    head += [(f"argument {i} of type {a}", "") for i, a in enumerate(program.in_avals)]
    head += [(f"the donated arguments {sorted(program.donated)}", "")]
    constants = [*program.constants, *program.jaxpr.consts]
    head += [(f"the closed-over array {i}, {_said(c)}", "") for i, c in enumerate(constants)]
    numbers: dict[Any, int] = {}

    def name(atom: Any) -> str:
        if hasattr(atom, "val"):
            return str(atom.val)
        return f"v{numbers.setdefault(atom, len(numbers))}:{atom.aval}"

    body = [
        (f"{', '.join(map(name, e.outvars))} = {e.op!r} {', '.join(map(name, e.invars))}", str(e.source))
        for e in program.jaxpr.eqns
    ]
    body += [(f"the results {', '.join(map(name, program.jaxpr.jaxpr.outvars))}", "")]
    return [*head, *body]


def _said(constant: Any) -> str:
    """The type and a hash of the values of an array; without values if other processes hold parts of it."""
    if not getattr(constant, "is_fully_addressable", True):
        return f"{constant.dtype.name}{list(constant.shape)} on {constant.sharding!r}"
    value = np.asarray(constant.words() if is_key(constant.dtype) else constant)
    digest = hashlib.sha256(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data).hexdigest()
    return f"{value.dtype.name}{list(value.shape)} of values with the hash {digest[:16]}"


def _wait_for(key: str, rank: int, what: str) -> bytes:
    started = time.monotonic()
    received = heartbeats.told(key, rank, config.collective_timeout)
    if received is not None:
        return received
    raise blamed(
        f"rank {WORLD.rank} waited {time.monotonic() - started:.0f} s for rank {rank} to run {what}",
        heartbeats.suspects((rank,)) or {rank: f"is late: it lives, but has not begun {what}"},
    )


def _differ(name: str, key: str, hashes: dict[int, str], lines: list[tuple[str, str]]) -> None:
    """Raise, naming the processes in the minority (of two processes, the later one).

    Raises:
      ProgramMismatchError: names the processes, and the first line that differs.
    """
    usual = Counter(hashes[r] for r in sorted(hashes)).most_common(1)[0][0]
    odd = sorted(r for r, h in hashes.items() if h != usual)
    other = odd[0] if hashes[WORLD.rank] == usual else min(r for r, h in hashes.items() if h == usual)
    theirs = json.loads(zlib.decompress(_wait_for(f"{key}/{other}/lines", other, repr(name))))
    pairs = zip_longest(lines, map(tuple, theirs), fillvalue=("nothing more", ""))
    where = next(((a, b) for a, b in pairs if a[0] != b[0]), (lines[0], lines[0]))
    (here, here_at), (there, there_at) = where
    error = ProgramMismatchError(
        f"rank {', '.join(map(str, odd))} is about to run another program than the others of {sorted(hashes)} in place "
        f"of {name!r}. They first differ here: rank {WORLD.rank} has\n    {here}{_at(here_at)}\n  rank {other} "
        f"has\n    {there}{_at(there_at)}\nAll processes must run the same programs in the same order, on values of "
        "the same shapes"
    )
    error.ranks = tuple(odd)
    raise error


def _at(source: str) -> str:
    return f"  at {source}" if source else ""


def blamed(what: str, suspects: dict[int, str]) -> DistributedError:
    """The error for a failure of other processes, which it names."""
    reasons = "; ".join(f"rank {rank} {text}" for rank, text in suspects.items())
    error = DistributedError(f"{reasons}. {what}")
    error.ranks = tuple(suspects)
    heartbeats.note_blame(error.ranks)
    return error


# --- failed runs --------------------------------------------------------------------------------------------
def explain(error: Exception, maker: Any) -> DistributedError | None:
    """The error for a failed run if another process is the cause; None if not.

    ``maker`` is the program that failed, if known, or a description of it.
    """
    try:
        suspects = heartbeats.suspects()
    except DistributedError as lost:
        return lost
    if not suspects:
        return None
    what = f"Rank {WORLD.rank} waited in {_waited_in(maker, str(error))}"
    return blamed(f"{what}. XLA says: {str(error).splitlines()[0][:300]}", suspects)


def _waited_in(maker: Any, message: str) -> str:
    if isinstance(maker, str):
        return maker
    lowered = getattr(maker, "lowered", None)
    if lowered is None:
        return "a program that all run together"
    program = lowered()
    known = collectives(program)
    named = [c for c in known if c[0].replace("_", "-") in message or c[0].replace("_", "") in message.lower()]
    places = list(dict.fromkeys(f"{name} at {source}" for _, name, source in named or known))
    listed = " or ".join(places[:3]) + (f" or {len(places) - 3} more" if len(places) > 3 else "")
    return f"{program.name!r}, in {listed}" if places else repr(program.name)


def collectives(program: DeviceProgram) -> Sequence[tuple[str, str, str]]:
    """The kind, name and source line of each collective between devices, in program order."""
    eqns = [e for e in all_eqns(program.jaxpr.jaxpr) if isinstance(e.op, Collective) and e.op.kind]
    return [(type(e.op).kind, e.op.name, str(e.source)) for e in eqns]  # type: ignore[attr-defined]


CAUSE.fill(explain)
