"""Foreign programs are read in a process of their own: what becomes of it is told, and it is there when needed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import meshwright as mw
from meshwright.core.config import config
from meshwright.errors import ImportProgramError
from meshwright.stablehlo import reader
from meshwright.stablehlo.hlo import module_bytecode

TEXT = "func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {\n  return %x : tensor<3xf32>\n}"


@pytest.fixture(scope="module")
def bytecode() -> bytes:
    x, w = np.ones((3, 2), np.float32), np.ones((2, 4), np.float32)
    return module_bytecode(mw.jit(lambda x, w: mw.numpy.tanh(x @ w)).lower(x, w).module)


@pytest.fixture
def child_with(monkeypatch, tmp_path):
    """``child_with(before, after)``: from now on, children run the program with ``before`` replaced by ``after``."""

    def change(before: str, after: str) -> None:
        source = Path(reader._PROGRAM).read_text()
        assert before in source
        changed = tmp_path / "child.py"
        for beside in ("dialects.py", "hlo_async.py", "hlo_combined.py"):
            shutil.copy(Path(reader._PROGRAM).with_name(beside), tmp_path)
        changed.write_text(source.replace(before, after))
        monkeypatch.setattr(reader, "_PROGRAM", changed)
        reader._drop()

    yield change
    reader._drop()


def pid() -> int:
    assert reader._child is not None
    return reader._child.process.pid


READS = "return _bytecode(data.decode())"


def test_a_reader_that_dies_is_an_error_once(child_with):
    child_with(READS, "return _bytecode(data.decode()) if b'3xf32' in data else os.abort()")
    with pytest.raises(ImportProgramError, match="<text>: XLA's reader ended with SIGABRT: the program is damaged"):
        mw.load(TEXT.replace("3xf32", "4xf32"))
    assert mw.load(TEXT).in_avals[0].shape == (3,)


def test_a_reader_that_cannot_start_says_why(child_with):
    child_with("from jaxlib import _hlo, _jax", "import a_module_that_is_missing")
    with pytest.raises(ImportProgramError, match="a_module_that_is_missing"):
        mw.load(TEXT)


def test_a_reader_that_does_not_end_is_ended(child_with):
    child_with(READS, "while True: pass")
    start = time.perf_counter()
    with (
        config.override("load_seconds", 1),
        pytest.raises(ImportProgramError, match=r"than 1 s; .*config\.load_seconds"),
    ):
        mw.load(TEXT)
    assert time.perf_counter() - start < 20


def test_a_reader_has_only_so_much_memory():
    constant = f'%0 = stablehlo.constant dense<"0x{"00" * 40_000_000}"> : tensor<10000000xf32>'
    large = TEXT.replace("{", "{\n  " + constant)
    assert mw.load(large).in_avals[0].shape == (3,)
    with config.override("load_memory", 2**24), pytest.raises(ImportProgramError, match=r"config\.load_memory|Memory"):
        mw.load(large)


def test_one_process_reads_many_programs(bytecode):
    mw.load(TEXT)
    first = pid()
    mw.load(bytecode)
    with pytest.raises(ImportProgramError):
        mw.load(TEXT.replace("return", "nothing"))
    mw.load(TEXT)
    assert pid() == first
    os.kill(first, signal.SIGKILL)
    time.sleep(0.1)
    mw.load(TEXT)
    assert pid() != first


def test_many_threads():
    found: list[int] = []

    def read(n: int) -> None:
        found.append(mw.load(TEXT.replace("3xf32", f"{n}xf32")).in_avals[0].shape[0])

    threads = [threading.Thread(target=read, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1, 9))


def test_our_own_text_needs_no_other_process(monkeypatch, refuses):
    lowered = mw.jit(lambda x: mw.numpy.tanh(x)).lower(np.ones(3, np.float32))
    texts = [lowered.as_text(), lowered.as_text("hlo")]
    reader._drop()
    monkeypatch.setattr(reader, "_PROGRAM", "/nowhere")
    for text in texts:
        np.testing.assert_allclose(mw.load(text)(np.ones(3, np.float32)), np.tanh(np.ones(3)), rtol=1e-6)
        with refuses(ImportProgramError, "the process that reads it failed"):
            mw.load(text + " ")


PROGRAM = f"""
import os, sys
import meshwright as mw
from meshwright.stablehlo import reader
text = {TEXT!r}
mw.load(text)
print(reader._child.process.pid, flush=True)
if sys.argv[1] == "fork":
    child = os.fork()
    if not child:
        mw.load(text)
        print(reader._child.process.pid, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    mw.load(text)
    print(reader._child.process.pid, flush=True)
else:
    sys.stdin.read()
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_the_reader_ends_with_its_parent():
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.kill()
    end = time.monotonic() + 20
    while is_running(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_running(child)


def test_a_fork_has_a_reader_of_its_own():
    done = subprocess.run([sys.executable, "-c", PROGRAM, "fork"], capture_output=True, text=True, timeout=120)
    first, forked, last = map(int, done.stdout.split())
    assert first == last != forked, done.stderr


@pytest.mark.parametrize("place", ['"\\FFx"', '"\\FFx":1:2'])
def test_names_that_are_no_text_are_refused(place):
    with pytest.raises(ImportProgramError, match="SIGABRT: the program is damaged"):
        mw.load(f"{TEXT} loc({place})")


@pytest.mark.slow
def test_no_damaged_byte_ends_the_process(bytecode):
    refused = 0
    for position in range(len(bytecode)):
        damaged = bytearray(bytecode)
        damaged[position] = 0xFF
        try:
            mw.load(bytes(damaged))
        except ImportProgramError:
            refused += 1
    assert refused > len(bytecode) // 4
