"""Every example in a docstring of the array library runs with ``numpy_rank_promotion="raise"`` and
``numpy_dtype_promotion="strict"``: what a function mixes inside is its own."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.image
import meshwright.numpy as mnp
import meshwright.scipy

MODULES = [
    "numpy", "numpy.linalg", "numpy.fft", "nn", "nn.initializers", "random", "optim", "lax", "lax.linalg",
    "image.resampling", *(m.name[11:] for m in pkgutil.walk_packages(mw.scipy.__path__, "meshwright.scipy.")),
]  # fmt: skip

TYPES = (type, type(mnp.float32))

#: functions whose examples mix, since that is what they are about
MIX = {
    "result_type": "says what a mixture promotes to",
    "promote_types": "says what a mixture promotes to",
    "vecdot": "shows that leading dimensions broadcast",
}


def functions(module: ModuleType) -> dict[str, Any]:
    """What a user may call and has an example there; what ``lax`` has from elsewhere, too."""
    public = {
        n: f for n, f in vars(module).items() if not n.startswith("_") and callable(f) and not isinstance(f, TYPES)
    }
    of_all = module.__name__.startswith("meshwright.lax")
    own = {n: f for n, f in public.items() if of_all or str(getattr(f, "__module__", "")).startswith(module.__name__)}
    return {n: f for n, f in own.items() if n not in MIX and ">>> " in (inspect.getdoc(f) or "")}


def examples(module: ModuleType) -> Iterator[doctest.DocTest]:
    names = {"mw": mw, "mnp": mnp, "jnp": mnp, "lax": mw.lax, "P": mw.PartitionSpec, "PRNGKey": mw.random.PRNGKey}
    names |= {} if module.__name__.startswith("meshwright.lax") else vars(module)
    for name, f in functions(module).items():
        scope = {**names, "np": np, name: f, getattr(f, "__name__", name): f}
        yield doctest.DocTestParser().get_doctest(inspect.getdoc(f) or "", scope, name, None, 0)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    with mw.numpy_rank_promotion("raise"), mw.numpy_dtype_promotion("strict"):
        for example in examples(importlib.import_module(f"meshwright.{name}")):
            runner.run(example)
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize("name", MIX)
def test_examples_that_mix_are_refused(name: str) -> None:
    (example,) = doctest.DocTestFinder().find(getattr(mnp, name), name, module=False, globs={**vars(mnp), "np": np})
    with mw.numpy_rank_promotion("raise"), mw.numpy_dtype_promotion("strict"):
        with pytest.raises((TypeError, ValueError), match=r"numpy_(rank|dtype)_promotion"):
            for line in example.examples:
                eval(line.source, example.globs)
