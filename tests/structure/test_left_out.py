"""Names of ``jax``: each is here, or is left out on purpose and says what to use instead."""

from __future__ import annotations
import __future__

import importlib
import inspect
import pickle
import re
import traceback
import warnings
from pathlib import Path

import pytest

from meshwright.core.absent import reason
from meshwright.core.left_out import MODULES, NAMES
from meshwright.errors import LeftOutError


def module_of(package, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = importlib.import_module(package)
        if name in ("debug", "ad"):  # of jax: no modules, but objects that hold names
            return getattr(base, name)
        return importlib.import_module(f"{package}.{name}") if name else base


def names_of(module, inner):
    """The public names of a module of ``jax``; of an inner one without the modules it happens to import."""
    found = []
    for name in dir(module):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = getattr(module, name, None)
        if name.startswith("_") or value is None or isinstance(value, __future__._Feature):
            continue
        if inspect.ismodule(value):
            is_theirs = value.__name__.startswith(module.__name__ if inner else "jax")
        else:
            is_theirs = not callable(value) or str(getattr(value, "__module__", "jax")).startswith("jax")
        if is_theirs:
            found.append(name)
    return found


@pytest.mark.parametrize(
    "module",
    [
        *NAMES,
        "dlpack",
        "api_util",
        "extend",
        "extend.linear_util",
        "interpreters",
        "monitoring",
        "scipy",
        "version",
        "tree",
        "numpy.linalg",
        "numpy.fft",
        "scipy.sparse.linalg",
        "flatten_util",
    ],
)
def test_every_name_is_here_or_left_out_on_purpose(module):
    theirs, ours = module_of("jax", module), module_of("meshwright", module)
    missing = [n for n in names_of(theirs, bool(module)) if not hasattr(ours, n)]
    assert [n for n in missing if reason(module, n) is None] == []
    for name in missing:
        with pytest.raises(AttributeError, match=re.escape(reason(module, name))):
            getattr(ours, name)


@pytest.mark.parametrize("module", NAMES)
def test_what_is_left_out_is_not_here(module):
    ours = module_of("meshwright", module)
    patterns = [p for entry in NAMES[module] for p in entry.split("|")]
    assert [p for p in patterns if p.isidentifier() and hasattr(ours, p)] == []


def test_a_name_that_nobody_has():
    import meshwright as mw

    for module in (mw, mw.lax, mw.numpy, mw.random):
        with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
            module.no_such_name  # noqa: B018


def test_the_error_of_an_absent_name_is_shown_and_pickled_as_any_other():
    import meshwright as mw

    with pytest.raises(AttributeError) as found:
        mw.lax.psend  # noqa: B018
    text = "module 'meshwright.lax' has no attribute 'psend': use all_to_all or ppermute"
    assert traceback.format_exception_only(found.value) == [f"AttributeError: {text}\n"]
    copied = pickle.loads(pickle.dumps(found.value))
    assert type(copied) is AttributeError and str(copied) == text and copied.name == "psend"


def test_every_module_is_here_or_left_out_on_purpose():
    import jax

    root = Path(jax.__file__).parent
    modules = [".".join(f.relative_to(root).with_suffix("").parts) for f in root.rglob("*.py")]
    public = {m.removesuffix(".__init__") for m in modules if not re.search(r"(^|\.)_(?!_init__$)", m)} - {"__init__"}
    assert len(public) > 150
    for module in public:
        try:
            importlib.import_module(f"meshwright.{module}")
        except LeftOutError as error:
            assert re.match(r"there is no meshwright\.\S+: \w+", str(error))


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("import meshwright.experimental.pallas.tpu", "ffi.ffi_call"),
        ("from meshwright.experimental import pallas", "ffi.ffi_call"),
        ("from meshwright.experimental.sparse import sparse_reduce", "use the sum of a BCOO"),
        ("from meshwright.export import symbolic_scope", "use SymbolicScope"),
        ("from meshwright.lax import psend", "use all_to_all or ppermute"),
    ],
)
def test_imports_of_what_is_left_out_say_why(statement, why):
    with pytest.raises(LeftOutError, match=why):
        exec(statement)


@pytest.mark.parametrize("name", ["no_such_name", "jit.no_such_name"])
def test_imports_of_what_nobody_has(name):
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(f"meshwright.{name}")
    assert not isinstance(caught.value, LeftOutError)


def test_each_module_explains_its_own_names():
    root = Path(importlib.import_module("meshwright").__file__).parent
    for file in root.rglob("*.py"):
        parts = file.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        assert set(re.findall(r"\b_?absent\(\"(.*)\"\)", file.read_text())) <= {name}


def test_no_module_that_is_left_out_is_here():
    assert [m for m in MODULES if m.isidentifier() and hasattr(module_of("meshwright", ""), m)] == []


def test_experimental():
    from meshwright import experimental

    for name in ("checkify", "mesh_utils", "multihost_utils", "shard_alike", "shard_map"):
        assert getattr(experimental, name).__doc__
    assert callable(experimental.io_callback)
    with pytest.raises(AttributeError, match="use io_callback, pure_callback"):
        _ = experimental.host_callback
