"""Every function of the tables against JAX's of that name: values, dtypes, weak types, shapes, and what is refused.

Where JAX is wrong, or leaves open what we define, ``excuses`` says so.
"""

from __future__ import annotations

import importlib
from dataclasses import replace

import jax
import pytest
from arguments import OF_32_BITS, OF_64_BITS
from excuses import excused
from outcomes import Call, difference
from tables import MODULES, TABLES, function_of

import meshwright as mw


def check(name: str, calls: list[Call], loose: float) -> None:
    ours, theirs = function_of(mw, name), function_of(jax, name)
    wrong = []
    for call in calls:
        found = difference(ours, theirs, replace(call, loose=loose))
        if found and not excused(name, call, found):
            wrong.append(f"{name}({call}): {found}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", TABLES)
def test_some_calls(name: str) -> None:
    """A call of each function; all of them are for ``slow``."""
    calls = list(TABLES[name].calls(OF_32_BITS))
    check(name, calls[-(-len(calls) // 2) :][:1] or calls, TABLES[name].loose)


@pytest.mark.slow
@pytest.mark.parametrize("wide", [False, True], ids=["x32", "x64"])
@pytest.mark.parametrize("name", TABLES)
def test_all_calls(name: str, wide: bool) -> None:
    with mw.enable_x64(wide), jax.enable_x64(wide):
        check(name, list(TABLES[name].calls(OF_64_BITS if wide else OF_32_BITS)), TABLES[name].loose)
    mw.clear_caches()  # thousands of programs
    jax.clear_caches()


@pytest.mark.parametrize("module", MODULES)
def test_the_table_has_every_function(module: str) -> None:
    table = MODULES[module]
    ours, theirs = (importlib.import_module(f"{package}.{module}") for package in ("meshwright", "jax"))
    listed = {*table.TABLE, *table.SYNONYMS, *table.ELSEWHERE.split()}
    shared = {n for n in dir(ours) if n in dir(theirs) and n[0] != "_" and callable(getattr(ours, n))}
    missing = {
        n for n in shared - listed if not isinstance(getattr(ours, n), type) and not hasattr(getattr(ours, n), "dtype")
    }
    assert not missing, sorted(missing)
    for synonym, name in table.SYNONYMS.items():
        assert getattr(ours, synonym) is getattr(ours, name), synonym
