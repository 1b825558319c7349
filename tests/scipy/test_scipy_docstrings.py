"""The examples in docstrings of ``meshwright.scipy`` are right, also where promotion is an error (what a function
mixes inside is its own), and every public function has one."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.scipy

MODULES = [name for _, name, _ in pkgutil.walk_packages(meshwright.scipy.__path__, "meshwright.scipy.")]


def own_functions(module: ModuleType) -> dict[str, Any]:
    """What is defined in a module (not in another one that it imports)."""
    return {
        n: f
        for n, f in vars(module).items()
        if not n.startswith("_") and isinstance(f, FunctionType) and f.__module__ == module.__name__
    }


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(verbose=False)
    for label, f in own_functions(module).items():
        assert ">>>" in (f.__doc__ or ""), f"{name}.{label} has no example"
        with mw.numpy_rank_promotion("raise"), mw.numpy_dtype_promotion("strict"):
            for test in finder.find(f, label, module=False, globs={**vars(module), "np": np}):
                runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
