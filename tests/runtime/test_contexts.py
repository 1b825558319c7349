"""Programs are read in contexts that are used again, by one thread at a time."""

import threading

import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import CompileError
from meshwright.runtime.pjrt import compiler, contexts


@pytest.fixture
def free(monkeypatch):
    found = []
    monkeypatch.setattr(contexts, "_free", found)
    return found


def compiled(k, n=3):
    x = np.arange(float(n), dtype=np.float32)
    np.testing.assert_array_equal(mw.jit(lambda x: x * k + 1)(x), x * np.float32(k) + 1)


def test_one_after_another_share_a_context(free):
    compiled(7011)
    [(first, seen)] = free
    compiled(7012)
    assert free[0][0] is first and free[0][1] > seen > 0 and len(free) == 1


def test_what_has_read_much_is_let_go(free, monkeypatch):
    monkeypatch.setattr(contexts, "BYTES", 10)
    compiled(7013)
    assert free == []
    monkeypatch.setattr(contexts, "LARGE", 10)
    compiled(7014)
    assert free == []


def test_threads_have_contexts_of_their_own(free):
    threads = [threading.Thread(target=compiled, args=(k, 3 + k % 3)) for k in range(7020, 7044)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= len(free) <= len(threads) and len({id(c) for c, _ in free}) == len(free)


def test_an_error_keeps_its_context_to_itself(free):
    with pytest.raises(CompileError, match="XLA could not compile 'nothing'"):
        compiler.compile_module(b"ML\xefR nothing", "nothing")
    call = "%0 = stablehlo.custom_call @none() : () -> tensor<f32> return %0 : tensor<f32>"
    text = f"module {{ func.func public @main() -> tensor<f32> {{ {call} }} }}"
    with pytest.raises(CompileError, match="none"):
        compiler.compile_module(text.encode(), "missing")
    assert len(free) <= 1
