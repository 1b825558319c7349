"""Tables that forget what is gone, without Python code that Ctrl-C could fall into."""

from __future__ import annotations

import gc
import re
import signal
import sys
from pathlib import Path

import pytest

import meshwright
from meshwright.core.weak import WeakKeys, WeakValues, once_for_each


class Thing:
    """Something that can be referred to weakly."""


def test_values_go_with_their_keys():
    table, thing, other = WeakKeys(), Thing(), Thing()
    table[thing] = 1
    assert table.setdefault(thing, 2) == 1 and table.setdefault(other, 3) == 3
    assert table.get(thing) == 1 and set(table) == {thing, other}
    del thing
    assert len(table) == 1 and list(table) == [other] and table.get(other) == 3
    table.clear()
    assert table.get(other) is None and not len(table)


def test_what_cannot_be_a_key_is_a_type_error():
    for key in (1, [], type("Unhashable", (), {"__hash__": None})()):
        with pytest.raises(TypeError):
            WeakKeys().setdefault(key, 0)


def test_objects_are_found_while_somebody_holds_them():
    table, thing, later = WeakValues(), Thing(), Thing()
    table["a"] = thing
    assert table.get("a") is thing and table.get("b") is None
    table["a"] = later
    del thing
    assert table.get("a") is later
    del later
    assert table.get("a") is None and not len(table)


def test_a_result_is_made_once_for_each_object():
    calls = []
    function = once_for_each(lambda thing: calls.append(id(thing)))
    one, two = Thing(), Thing()
    assert [function(x) for x in (one, one, two)] == [None] * 3 and calls == [id(one), id(two)]


def test_no_interrupt_is_lost_while_objects_go(monkeypatch):
    """As it would be in a callback of ``weakref.WeakKeyDictionary``."""
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    keys, values, made = WeakKeys(), WeakValues(), once_for_each(lambda _: 0)
    before, heard = signal.signal(signal.SIGALRM, signal.default_int_handler), 0
    try:
        for _ in range(10):
            things = [Thing() for _ in range(20_000)]
            for i, thing in enumerate(things):
                keys[thing], values[i] = i, thing
                made(thing)
            thing = None
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
                things = None
                while True:
                    pass
            except KeyboardInterrupt:
                heard += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    things = None  # the last interrupt may have come before they went
    gc.collect()
    assert heard == 10 and not lost and not len(keys) and not len(values)


def test_nothing_else_runs_python_when_objects_go():
    pattern = re.compile(r"Weak(Key|Value)Dictionary|WeakSet|weakref\.finalize|def __del__|gc\.callbacks")
    package = Path(meshwright.__file__).parent
    found = [str(f) for f in package.rglob("*.py") if f.name != "weak.py" and pattern.search(f.read_text())]
    assert not found, f"use core.weak: {found}"
