"""Threads of ours hold nothing of XLA's when the interpreter ends, which would end the process with SIGABRT."""

import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.core.background import Background
from meshwright.runtime.pjrt.shielded import _Call, shielded


class Thing:
    pass


def test_a_background_ends_when_told():
    seen = threading.Event()

    def work(stop):
        stop.wait()
        seen.set()

    background = Background(work, "test")
    assert background.is_alive()
    background.end()
    assert not background.is_alive() and seen.is_set()


def test_work_is_over_before_the_interpreter_is():
    text = """
import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.core.background import Background
import time
def work(stop):
    stop.wait()
    time.sleep(0.3)
    print("over", flush=True)
Background(work, "test")
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr


@pytest.fixture
def slow_workers(monkeypatch):
    """The thread that makes a call goes on later than the one that waits for it."""
    make = _Call.make
    monkeypatch.setattr(_Call, "make", lambda call: (make(call), time.sleep(0.005)))


def test_what_a_shielded_call_used_and_gave_is_freed_by_who_asked(slow_workers):
    freed = []
    for _ in range(10):
        used, given = Thing(), Thing()
        for thing in (used, given):
            weakref.finalize(thing, lambda: freed.append(threading.current_thread()))
        results = [given]
        del thing, given
        result = shielded(lambda used=used, results=results: results.pop())
        del used, results, result
    assert len(freed) == 20 and set(freed) == {threading.main_thread()}


def test_errors_of_shielded_calls_are_freed_too(slow_workers):
    freed = []

    def fails(thing):
        raise ValueError("of the call")

    for _ in range(10):
        thing = Thing()
        weakref.finalize(thing, lambda: freed.append(threading.current_thread()))
        try:
            shielded(lambda thing=thing: fails(thing))
        except ValueError:
            pass
        del thing
    assert len(freed) == 10 and set(freed) == {threading.main_thread()}


def test_memory_of_numpy_is_freed_by_a_thread_of_pythons():
    """Not by the thread of XLA's that ends the run which uses it: it would wait for the interpreter, or be its end."""
    freed = []
    function = mw.jit(lambda x: lax.fori_loop(0, 20_000, lambda _, s: s + x, x)[:3])
    for _ in range(3):
        memory = np.ones(4 * 1024 + 64, np.uint8)
        start = -memory.ctypes.data % 64
        x = memory[start : start + 4 * 1024].view(np.float32)
        weakref.finalize(x, lambda: freed.append(threading.current_thread()))
        shared = mnp.asarray(x, copy=False)
        result = function(shared)
        del x, shared
        assert not freed  # the run goes on, and uses it
        result.block_until_ready()
        time.sleep(0.01)
        function(np.ones(1024, np.float32)).block_until_ready()
        assert freed == [threading.main_thread()]
        freed.clear()
