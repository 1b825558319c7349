"""What asks whether an op is of one class, outside of ``ops/``: the number is held, and each place says why.

An op's contract (:class:`meshwright.ir.op.Op`) says what passes, reports and interpreters need of it, so that a new op
is a class and nothing else. Families (collectives, calls, control flow, scatters) are part of that contract; what is
counted here is ``isinstance``, ``issubclass``, ``type(...) is`` and ``case`` of a class that stands for one op.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import meshwright
from meshwright.ir.op import REGISTRY, Op

ROOT = Path(meshwright.__file__).parent

#: how often a file may ask, and why no contract can say it
ALLOWED = {
    # Annotations and regions of imported programs are replaced here, by what they mean on the mesh that is then known.
    "api/binding.py": 6, "api/load.py": 4, "builder.py": 1, "stablehlo/manual_regions.py": 3,
    # The reader looks at what it has made itself.
    "stablehlo/parse.py": 1, "stablehlo/per_device.py": 2, "stablehlo/read_custom_calls.py": 1,
    # A constraint or a region says things of a mesh: places, propagation and the partitioner are what reads them.
    "api/shardings.py": 5, "api/shard_map.py": 1, "lowering/regions.py": 2, "spmd/flatten.py": 2,
    "spmd/partition/manual.py": 1, "spmd/partition/partitioner.py": 1, "spmd/propagate.py": 1,
    # Whoever asks to inspect a sharding is told by the stage that knows it.
    "api/partitioning.py": 1, "api/stages.py": 1,
    # What two collectives make together is a table of pairs, and belongs to neither.
    "spmd/passes/pairs.py": 16, "spmd/passes/combine.py": 1, "spmd/passes/partial_sums.py": 1,
    "spmd/passes/regather.py": 1, "spmd/passes/cuts.py": 5, "spmd/passes/untransposed.py": 2,
    "spmd/passes/unpadded.py": 1, "spmd/passes/narrow_sums.py": 2,
    # A table of the ops that move whole rows, and of the products and sums whose dimensions are merged.
    "spmd/partition/moves.py": 2, "lowering/products.py": 4, "lowering/joined.py": 2,
    # A table of the ops that can be done on dimensions in another order, and how.
    "lowering/channels_last.py": 6, "lowering/convolutions.py": 2,
    # A table of the ops that a mask of positions is made of, and how they are done at another rank.
    "lowering/masks.py": 4,
    # What a TPU's compiler does at length is written in another way.
    "lowering/lanes.py": 1, "lowering/tables.py": 1,
    # Patterns of these very ops, of which XLA makes one.
    "lowering/starts.py": 12,
    # A library has one op, and its calls are of one.
    "lowering/onednn.py": 2,
    "lowering/kernel_gradients.py": 1,
    # Of loops, scans alone stack rows beside the array that they read.
    "lowering/in_place.py": 1,
    # What XLA cannot convert is converted in steps.
    "lowering/narrow.py": 1,
    # What repeats along a merged dimension repeats along those that it is made of, in any order of their tiles.
    "spmd/partition/before_merging.py": 1, "spmd/partition/merged_order.py": 1,
    # Patterns of these very ops: what only a device at a position has, and only one at another selects or slices.
    "spmd/passes/one_reader.py": 3, "spmd/passes/own_tiles.py": 2, "spmd/positions.py": 2,
    # Which rows a device reads, only the products of its groups know, in this loop or in that of the derivative.
    "spmd/own_rows.py": 2,
    # What a loop stacks, the loop of its derivative takes, row by row: of loops, scans alone do.
    "spmd/passes/recompute.py": 2,
    # Patterns of these very ops: what is cut or joined is done in parts, a transform one dimension at a time.
    "spmd/partition/in_parts.py": 3, "spmd/partition/separate_ffts.py": 2, "spmd/partition/taken_apart.py": 5,
    # Nested calls lose arguments as the program does: they are made again with fewer.
    "api/pruning.py": 1,
    # ``checkify`` takes out the op that it is for.
    "transforms/checkify.py": 2,
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
    p
    for p in sorted(ROOT.rglob("*.py"))
    if p.relative_to(ROOT).parts[0] not in ("ops", "interop") and p.stem != "__main__"
]


def test_no_more_places_ask_which_op_it_is() -> None:
    found = {str(p.relative_to(ROOT)): len(list(places(p))) for p in FILES}
    more = {name: n for name, n in found.items() if n > ALLOWED.get(name, 0)}
    assert not more, (
        f"{more}: say it in the contract of ops (ir/op.py); ask for a family; or allow it here, and say why"
    )
    fewer = {name: (found[name], n) for name, n in ALLOWED.items() if found[name] < n}
    assert not fewer, f"{fewer}: fewer than allowed; lower the numbers"


def test_it_is_seen_who_asks() -> None:
    tree = ast.parse(
        "isinstance(op, (Scan, int)), issubclass(k, Jit), type(op) is Cond\nmatch op:\n case While(): pass"
    )
    asking = [ast.unparse(e) for e in map(asked, ast.walk(tree)) if e is not None]
    assert sorted(asking) == ["(Scan, int)", "Cond", "Jit", "While"]
    assert list(op_classes((REGISTRY["scan"], (int, REGISTRY["jit"])))) == [REGISTRY["scan"], REGISTRY["jit"]]
