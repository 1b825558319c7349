"""``python -m benchmarks``: runs all comparisons, or those given by name."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks

#: modules that are no comparisons: what these use, and a sweep that is run by itself
_HELPERS = (
    "__main__", "common", "examined_programs", "field_programs", "fourth_examined_programs", "later_programs",
    "more_programs", "second_examined_programs", "shapes", "third_examined_programs", "torch_ops",
    "torchvision_kernels",
)  # fmt: skip


def main() -> None:
    names = (m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name not in _HELPERS)
    known = sorted(names)
    wanted = sys.argv[1:] or known
    for name in wanted:
        if name not in known:
            sys.exit(f"benchmarks: unknown comparison {name!r}; there are {', '.join(known)}")
    for name in wanted:
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main()
