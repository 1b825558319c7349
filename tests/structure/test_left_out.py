"""Names of ``jax``: each is here, or is left out on purpose and says what to use instead."""

from __future__ import annotations

import importlib
import inspect
import re
import warnings

import pytest

from meshwright.core.absent import ABSENT, reason


def module_of(package, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = importlib.import_module(package)
        if name == "debug":
            return base.debug
        return importlib.import_module(f"{package}.{name}") if name else base


def names_of(module, inner):
    """The public names of a module of ``jax``; of an inner one without the modules it happens to import."""
    found = []
    for name in dir(module):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = getattr(module, name, None)
        if name.startswith("_") or value is None:
            continue
        if not (inspect.ismodule(value) and (inner or not value.__name__.startswith("jax"))):
            found.append(name)
    return found


@pytest.mark.parametrize(
    "module", [*ABSENT, "tree", "numpy.linalg", "numpy.fft", "scipy.sparse.linalg", "flatten_util"]
)
def test_every_name_is_here_or_left_out_on_purpose(module):
    theirs, ours = module_of("jax", module), module_of("meshwright", module)
    missing = [n for n in names_of(theirs, bool(module)) if not hasattr(ours, n)]
    assert [n for n in missing if module not in ABSENT or reason(module, n) is None] == []
    for name in missing:
        with pytest.raises(AttributeError, match=re.escape(reason(module, name))):
            getattr(ours, name)


@pytest.mark.parametrize("module", ABSENT)
def test_what_is_left_out_is_not_here(module):
    ours = module_of("meshwright", module)
    patterns = [p for entry in ABSENT[module] for p in entry.split("|")]
    assert [p for p in patterns if p.isidentifier() and hasattr(ours, p)] == []


def test_a_name_that_nobody_has():
    import meshwright as mw

    for module in (mw, mw.lax, mw.numpy, mw.random):
        with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
            module.no_such_name  # noqa: B018


def test_experimental():
    from meshwright import experimental

    for name in ("checkify", "mesh_utils", "multihost_utils", "shard_alike", "shard_map"):
        assert getattr(experimental, name).__doc__
    assert callable(experimental.io_callback)
    with pytest.raises(AttributeError, match="it has checkify"):
        _ = experimental.host_callback
