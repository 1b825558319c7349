"""What the package offers: every public name exists, is listed once and says what it is."""

import ast
import builtins
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import meshwright
from meshwright import errors

ROOT = Path(meshwright.__file__).parent
LIBRARIES = ("numpy", "numpy.linalg", "numpy.fft", "nn", "random", "optim", "lax", "debug")


def test_what_is_imported_late():
    """All parts are attributes of the package; importing it loads no partitioner and nothing that few programs need."""
    parts = {p.stem for p in ROOT.glob("[a-z]*.py")} | {p.parent.name for p in ROOT.glob("[a-z]*/__init__.py")}
    code = "import meshwright, sys; print(*dir(meshwright)); print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    names, loaded = map(str.split, out.splitlines())
    assert parts <= set(names)
    late = ("spmd", "verification", "targets", "interop", "checkpoint_io", "optim", "scipy", "api.load", "cli")
    assert not [m for m in loaded if m.removeprefix("meshwright.").startswith(late)]


def public_names(module):
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return listed
    own = {n: v for n, v in vars(module).items() if not n.startswith("_") and not inspect.ismodule(v)}
    return [n for n, v in own.items() if getattr(v, "__module__", "").startswith("meshwright")]


def module_of(name):
    if name == "lax":
        return meshwright.lax
    return meshwright.debug if name == "debug" else importlib.import_module(f"meshwright.{name}")


def test_all_names_exist_once_and_in_order():
    names = meshwright.__all__
    assert [n for n in names if not hasattr(meshwright, n)] == []
    assert list(names) == sorted(set(names))


@pytest.mark.parametrize("name", meshwright.__all__)
def test_public_names_are_documented(name):
    value = getattr(meshwright, name)
    doc = inspect.getdoc(value if inspect.ismodule(value) or callable(value) else type(value))
    assert doc and doc.strip(), f"meshwright.{name} has no docstring"


@pytest.mark.parametrize("library", LIBRARIES)
def test_functions_of_the_libraries_are_documented(library):
    module = module_of(library)
    values = {n: getattr(module, n) for n in public_names(module)}
    missing = [
        n
        for n, v in values.items()
        if (inspect.isfunction(v) or inspect.isclass(v) or hasattr(v, "bind")) and not (inspect.getdoc(v) or "").strip()
    ]
    assert not missing, f"meshwright.{library}: without docstring: {', '.join(missing)}"


CLASSES = ["Array", "PartitionedProgram", "Mesh", "AbstractMesh", "NamedSharding", "PartitionSpec"]


@pytest.mark.parametrize("name", CLASSES)
def test_public_methods_of_classes_are_documented(name):
    """Methods that take arguments; what a property or a method without any gives, its name says."""
    methods = {n: v for n, v in vars(getattr(meshwright, name)).items() if inspect.isfunction(v) and n[0] != "_"}
    missing = [n for n, v in methods.items() if len(inspect.signature(v).parameters) > 1 and not inspect.getdoc(v)]
    assert not missing, f"{name}: without docstring: {', '.join(missing)}"


def test_modules_say_what_they_are():
    files = sorted(ROOT.rglob("*.py"))
    missing = [str(p.relative_to(ROOT)) for p in files if not ast.get_docstring(ast.parse(p.read_text()))]
    assert not missing, missing


def test_one_tree_of_errors():
    kinds = [v for v in vars(errors).values() if inspect.isclass(v) and issubclass(v, BaseException)]
    for kind in kinds:
        assert issubclass(kind, (errors.MeshwrightError, errors.MeshwrightWarning)), kind
        assert inspect.getdoc(kind)
    assert issubclass(errors.MeshwrightWarning, UserWarning)


def raised_names(tree):
    """Names of exceptions that are raised by calling them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            yield node.lineno, node.exc.func.id


#: what Python's own protocols ask for, and what no user can reach
BUILTIN = {"AssertionError", "AttributeError", "KeyError", "NotImplementedError", "RuntimeError", "StopIteration"}


def test_only_errors_of_our_tree_are_raised_on_purpose():
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        for line, name in raised_names(ast.parse(path.read_text())):
            builtin = getattr(builtins, name, None)
            if inspect.isclass(builtin) and issubclass(builtin, Exception) and name not in BUILTIN:
                wrong.append(f"{path.relative_to(ROOT)}:{line} raises {name}")
    assert not wrong, "\n".join(wrong)
