"""Prints how our functions differ from JAX's: ``python report.py [x64] [all] [@AT_MOST] PREFIX ...``.

``lax.`` takes all functions of that name space; ``all`` shows what the tests excuse, too.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
import arguments
import conftest  # noqa: F401
import jax
from excuses import excused
from outcomes import difference
from tables import TABLES, function_of

import meshwright as mw


def main() -> None:
    options = {a for a in sys.argv[1:] if a in ("x64", "all")}
    most = next((int(a[1:]) for a in sys.argv[1:] if a[0] == "@"), None)
    prefixes = tuple(a for a in sys.argv[1:] if a not in options and a[0] != "@")
    with mw.enable_x64("x64" in options), jax.enable_x64("x64" in options):
        for name in TABLES:
            if name.startswith(prefixes) or any(p.endswith("$") and name == p[:-1] for p in prefixes):
                report(name, most, "all" in options, "x64" in options)
    print("done")


def report(name: str, most: int | None, everything: bool, wide: bool) -> None:
    kind, start = TABLES[name], time.time()
    calls = list(kind.calls(arguments.OF_64_BITS if wide else arguments.OF_32_BITS))
    if most:
        calls = calls[:: max(1, -(-len(calls) // most))]
    seen, ours, theirs = defaultdict(list), function_of(mw, name), function_of(jax, name)
    for call in calls:
        found = difference(ours, theirs, replace(call, loose=kind.loose))
        if found and (everything or not excused(name, call, found)):
            seen[found.split(":")[0].split(" at")[0]].append(f"    {call}\n        {found}"[:600])
    seconds = time.time() - start
    if seen or seconds > 20:
        print(f"{name}: {sum(map(len, seen.values()))} of {len(calls)} differ ({seconds:.1f} s)", flush=True)
    for key, lines in seen.items():
        print(f"  [{key}] x{len(lines)}", *lines[:3], sep="\n", flush=True)


main()
