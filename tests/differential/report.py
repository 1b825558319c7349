"""Prints how our functions differ from JAX's: ``python report.py [numpy|...] [function ...]``."""

from __future__ import annotations

import faulthandler
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
import importlib

import arguments
import conftest  # noqa: F401
import jax
from outcomes import difference

import meshwright as mw


def main() -> None:
    args = sys.argv[1:]
    if "x64" in args:
        args.remove("x64")
        mw.config.update("enable_x64", True)
        jax.config.update("jax_enable_x64", True)
    at_most, part = next(((int(a.split(":")[0][1:]), int(a.split(":")[1])) for a in args if a[0] == "@"), (10**9, 0))
    library, *wanted = [a for a in args if a[0] != "@"]
    table = importlib.import_module(library.replace(".", "_") + "_table")
    ours, theirs = (importlib.import_module(f"{p}.numpy" if library == "numpy" else p) for p in ("meshwright", "jax"))
    for module in ("linalg", "special", "stats"):
        importlib.import_module(f"jax.scipy.{module}")
    total = bad = 0
    faulthandler.register(signal.SIGUSR1)
    for name, kind in table.TABLE.items():
        if wanted and name != wanted[1] if wanted[:1] == ["from"] else wanted and name not in wanted:
            continue
        if wanted[:1] == ["from"]:
            wanted = []
        print(name, file=sys.stderr, flush=True)
        start, seen, found, count = time.time(), {}, 0, 0
        calls = list(kind.calls(arguments.OF_64_BITS if mw.config.enable_x64 else arguments.OF_32_BITS))
        step = max(1, -(-len(calls) // at_most))
        for call in calls[part % step :: step]:
            f, g = ours, theirs
            for attribute in name.split("."):
                f, g = getattr(f, attribute), getattr(g, attribute)
            d = difference(f, g, call)
            count += 1
            if d:
                found += 1
                key = d.split(":")[0].split(" at")[0]
                seen.setdefault(key, []).append(f"    {name}({call})\n        {d}")
        total += count
        bad += found
        if found or time.time() - start > 20:
            print(f"{name}: {found} of {count} differ ({time.time() - start:.1f} s)", flush=True)
            for key, lines in seen.items():
                print(f"  [{key}] x{len(lines)}")
                for line in lines[: 3 if not wanted else 12]:
                    print(line[:700])
    print(f"TOTAL {bad} of {total} differ")


main()
