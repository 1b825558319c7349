"""What asks whether an op is of one class, outside of ``ops/``: the number is held, and each place says why.

An op's contract (:class:`meshwright.ir.op.Op`) says what passes, reports and interpreters need of it, so that a new op is
a class and nothing else. Families (collectives, calls, control flow, scatters) are part of that contract; what is counted
here is ``isinstance``, ``issubclass``, ``type(...) is`` and ``case`` of a class that stands for one op.
"""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import meshwright
from meshwright.ir.op import REGISTRY, Op

ROOT = Path(meshwright.__file__).parent

#: how often a file may ask, and why no contract can say it
ALLOWED = {
    # Which mesh there is, and what it makes of annotations, regions and device numbers, is known here alone.
    "api/binding.py": 6, "api/load.py": 3,
}  # fmt: skip


def op_classes(value: Any) -> Iterator[type[Op]]:
    """The classes of single ops in what ``isinstance`` is given: those that are registered themselves."""
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, tuple):
            yield from op_classes(item)
        elif isinstance(item, type) and issubclass(item, Op) and REGISTRY.get(vars(item).get("name", "")) is item:
            yield item


def asked(node: ast.AST) -> ast.expr | None:
    """The expression that says which classes are asked for."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]):
            return classes
        case ast.MatchClass(cls=classes):
            return classes
        case ast.Compare(left=ast.Call(func=ast.Name(id="type")), comparators=[classes]):
            return classes
    return None


def places(path: Path) -> Iterator[int]:
    """Lines of a file at which it is asked whether an op is of the class of a single op."""
    name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
    found = [(node.lineno, asked(node)) for node in ast.walk(ast.parse(path.read_text())) if asked(node) is not None]
    scope = vars(importlib.import_module(name)) if found else {}
    for line, expression in found:
        try:
            value = eval(compile(ast.Expression(expression), str(path), "eval"), dict(scope))
        except NameError:  # a local name
            continue
        if any(op_classes(value)):
            yield line


FILES = [
    p for p in sorted(ROOT.rglob("*.py")) if p.relative_to(ROOT).parts[0] not in ("ops", "interop") and p.stem != "__main__"
]


def test_no_more_places_ask_which_op_it_is():
    found = Counter({str(p.relative_to(ROOT)): len(list(places(p))) for p in FILES})
    print(+found, sum(found.values()))
    assert {k: v for k, v in found.items() if v} == ALLOWED
