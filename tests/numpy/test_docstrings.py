"""The examples in docstrings of the array library are right, with ``numpy_rank_promotion="raise"`` and
``numpy_dtype_promotion="strict"``, too: what a function mixes inside is its own."""

from __future__ import annotations

import doctest
from contextlib import ExitStack
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.image.resampling
import meshwright.nn
import meshwright.numpy
import meshwright.optim
import meshwright.random

MODULES = [
    meshwright.numpy, meshwright.numpy.linalg, meshwright.numpy.fft, meshwright.nn, meshwright.nn.initializers,
    meshwright.random, meshwright.optim, meshwright.image.resampling,
]  # fmt: skip

#: functions whose examples mix types or ranks, since that is what they are about
MIX = {"result_type", "promote_types", "vecdot"}

KINDS = (FunctionType, meshwright.numpy.ufunc)


def public_functions(module: ModuleType) -> dict[str, Any]:
    """What a user may call, without types and what comes from elsewhere."""
    names = {n: f for n, f in vars(module).items() if not n.startswith("_") and isinstance(f, KINDS)}
    return {n: f for n, f in names.items() if f.__module__.startswith(module.__name__)}


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_examples(module: ModuleType) -> None:
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(verbose=False)
    for name, f in public_functions(module).items():
        names = {
            **vars(module),
            "np": np,
            "mw": mw,
            "jnp": mw.numpy,
            "PRNGKey": meshwright.random.PRNGKey,
            f.__name__: f,
            name: f,
        }
        with ExitStack() as modes:
            if name not in MIX:
                modes.enter_context(mw.numpy_rank_promotion("raise"))
                modes.enter_context(mw.numpy_dtype_promotion("strict"))
            for test in finder.find(f, name, module=False, globs=names):
                runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_functions_say_what_they_do(module: ModuleType) -> None:
    functions = public_functions(module)
    assert not [n for n, f in functions.items() if not f.__doc__]
    assert len([n for n, f in functions.items() if ">>>" not in f.__doc__]) <= 16
