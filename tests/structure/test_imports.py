"""Who may import whom, read from the source: imports point one way.

    errors, core -> hardware -> sharding -> ir -> ops -> {transforms, stablehlo, spmd} -> lowering -> runtime ->
    verification -> api -> numpy, nn, random, optim -> scipy -> inspect, interop -> modules of names -> cli

``meshwright/__init__`` gathers the public names of all layers and belongs to none.
"""

import ast
import statistics
from functools import cache
from pathlib import Path

import pytest

import meshwright

ROOT = Path(meshwright.__file__).parent
#: modules that give JAX's names to what the others define
NAMES = {
    "ad", "ad_checkpoint", "api_util", "checkpoint_io", "config", "custom_batching", "custom_derivatives", "data",
    "debug", "distributed", "dlpack", "dtypes", "example_libraries", "experimental", "export", "extend", "ffi",
    "interpreters", "lib", "memory", "monitoring", "ref", "stages", "tree", "tree_util", "typing", "version",
}  # fmt: skip
LAYERS = (
    {"errors", "core"},
    {"hardware"},
    {"sharding"},
    {"ir"},
    {"ops"},
    {"transforms", "stablehlo", "spmd"},
    {"lowering"},
    {"runtime"},
    {"verification", "targets"},
    {"api"},
    {"lax"},
    {"numpy", "nn", "random", "optim", "linalg", "fft"},
    {"flatten_util"},
    {"image", "ode", "scipy", "test_util", "testing"},
    {"inspect", "interop", "builder"},
    {"profiler", "smi"},
    NAMES,
    {"cli"},
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
#: parts of one layer that may import each other
NEIGHBOURS = ({"errors", "core"}, {"numpy", "nn", "random", "optim", "linalg", "fft"})
#: third parties and the only parts that may import them
ONLY_IN = {
    "jaxlib": ("stablehlo/", "runtime/pjrt/"), "typer": ("cli/",),
    **dict.fromkeys(("jax", "torch", "safetensors", "transformers"), ("interop/",)),
}  # fmt: skip
#: where a function may import: optional third parties
LATE_IMPORTS = {"interop", "cli"}

FILES = sorted(ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    """``ops`` for ``ops/products/dot.py``, ``errors`` for ``errors.py``, ``__init__`` for the package itself."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path, for_types: bool = False) -> list[tuple[int, str]]:
    """Line and full name of every import of a file; those for type checkers alone only if asked for."""
    tree = parsed(path)
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not for_types
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [(node.lineno, name.name) for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write the full name"
            found += [(node.lineno, f"{node.module}.{name.name}") for name in node.names]
    return found


def ours(name: str) -> str | None:
    """The part of our package that an imported name belongs to."""
    parts = name.split(".")
    return parts[1] if parts[0] == "meshwright" and len(parts) > 1 else None


def test_every_part_has_its_place():
    found = {part_of(path) for path in FILES} - {"__init__", "__main__"}
    assert found <= set(LEVEL), f"not in the list of layers: {sorted(found - set(LEVEL))}"


@pytest.mark.parametrize("part", sorted(LEVEL))
def test_imports_point_downwards(part):
    wrong = []
    for path in FILES:
        if part_of(path) != part:
            continue
        for line, name in imports_of(path):
            target = ours(name)
            if target is None or target == part or target not in LEVEL:
                continue
            same_layer = LEVEL[target] == LEVEL[part] and not any({part, target} <= group for group in NEIGHBOURS)
            if LEVEL[target] > LEVEL[part] or same_layer:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_nobody_imports_the_package_itself():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in FILES
        for line, name in imports_of(path)
        if name == "meshwright" and part_of(path) not in ("__init__", "__main__", "cli", "interop")
    ]
    assert not wrong, wrong


def test_third_parties_stay_in_their_parts():
    wrong = []
    for path in FILES:
        for line, name in imports_of(path):
            allowed = ONLY_IN.get(name.split(".")[0])
            if allowed is not None and not path.relative_to(ROOT).as_posix().startswith(allowed):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_no_imports_inside_functions():
    wrong = []
    for path in FILES:
        if part_of(path) in LATE_IMPORTS:
            continue
        for function in ast.walk(parsed(path)):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                for node in ast.walk(function):
                    if isinstance(node, (ast.Import, ast.ImportFrom)):
                        wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not wrong, wrong


def test_packages_import_without_cycles():
    """Every module can be the first one that a program imports of its part; modules do not import in a circle."""
    assert not (circle := circle_in(graph_of(FILES))), " -> ".join(circle)


#: each is defined by the other: an equation has an op, and rules of ops are given jaxprs
ONE_IN_TWO = "meshwright.ir.jaxpr", "meshwright.ir.op"


def test_modules_do_not_know_each_other_in_a_circle():
    """Not by types either."""
    graph = graph_of(FILES, for_types=True)
    assert ONE_IN_TWO[1] in graph[ONE_IN_TWO[0]] and ONE_IN_TWO[0] in graph[ONE_IN_TWO[1]]
    graph[ONE_IN_TWO[0]].remove(ONE_IN_TWO[1])
    assert not (circle := circle_in(graph)), " -> ".join(circle)


def test_parts_of_the_partitioner_do_not_know_each_other_in_a_circle():
    """``memory`` or ``propagate``, say."""
    modules = graph_of([path for path in FILES if part_of(path) == "spmd"], for_types=True)
    parts: dict[str, set[str]] = {}
    for module, targets in modules.items():
        parts.setdefault(spmd_part(module), set()).update(spmd_part(t) for t in targets if t.startswith(SPMD))
    assert not (circle := circle_in(parts)), " -> ".join(circle)


SPMD = "meshwright.spmd."


def spmd_part(module: str) -> str:
    """``partition`` for ``meshwright.spmd.partition.choose``."""
    return module.removeprefix(SPMD).split(".")[0]


def graph_of(paths: list[Path], for_types: bool = False) -> dict[str, set[str]]:
    """The modules that each module imports."""
    named = {module_name(path): imports_of(path, for_types) for path in paths}
    return {module: {found for _, name in names if (found := module_in(name))} for module, names in named.items()}


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """The names of a circle in a graph; none if there is no circle. What has an edge to itself is not one."""
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done or name not in graph:
            return []
        path.append(name)
        for target in sorted(graph[name] - {name}):
            if circle := visit(target):
                return circle
        path.pop()
        done.add(name)
        return []

    return next((circle for name in sorted(graph) if (circle := visit(name))), [])


def module_name(path: Path) -> str:
    """``meshwright.ops.products.dot`` for its file."""
    parts = ("meshwright", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in FILES}


def module_in(name: str) -> str | None:
    """The module that an imported name is, or lies in."""
    if name in MODULES:
        return name
    parent = name.rpartition(".")[0]
    return parent if parent in MODULES else None


def test_files_and_functions_are_small():
    sizes = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in FILES}
    large = [f"{p}: {n} lines" for p, n in sizes.items() if n > 500]
    lengths = []
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef):
                lengths.append(node.end_lineno - node.lineno + 1)
                if lengths[-1] > 80:
                    large.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not large, "\n".join(large)
    assert statistics.median(sizes.values()) <= 140
    assert statistics.median(lengths) <= 7
    assert statistics.quantiles(lengths, n=10)[-1] <= 19


def test_files_of_tests_have_different_names():
    """Pytest imports test files by their names alone: of two with one name it takes one, and says so for the other."""
    tests = Path(__file__).parents[1]
    names = [path.name for path in tests.rglob("test_*.py")]
    assert not {name for name in names if names.count(name) > 1}
