"""Eight virtual devices for all tests, and what every test of an error asserts."""

from __future__ import annotations

import atexit
import ctypes
import gc
import hashlib
import itertools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from meshwright.core.caches import clear_caches
from meshwright.core.config import config
from meshwright.errors import MeshwrightError

config.update("num_devices", 8)
config.update("traceback_filtering", "off")  # a failing test shows all
config.update("verify_passes", True)
# Speed is measured in benchmarks. Machines of continuous integration are slow at times.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
# Tests compile thousands of small programs, ours and the oracle's, and run each once: code made fast, not fast code.
# XLA reads this when its first client starts.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1",
)
#: of a test with more cases than this, the ordinary suite runs one in ``SHARE``, and one of each kind; the others are
#: ``slow``. Which ones, their names and the text of their file decide: others after each change of it
CASES, SHARE = 2, 40
#: of a test with more kinds than this, half of them; but these look at every op
KINDS = 2
#: of the functions that test what does not grow any more, which are these folders, one in so many
SETTLED, OF_SETTLED = ("scipy", "random", "library"), 3
OF_EVERY_OP = {
    "test_derivative", "test_every_op_has_a_rule_or_is_a_function_of_its_operands", "test_every_op_has_a_sample",
    "test_infer", "test_localize", "test_partition", "test_types_of_results", "test_vmap_is_a_loop",
}  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before what is marked slow is left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the cases that the ordinary suite leaves out."""
    for item in items:
        if item.path.parent.name in SETTLED and _drawn(item, item.nodeid.partition("[")[0]) % OF_SETTLED:
            item.add_marker("slow")
    for cases in _by_function(items):
        if len(cases) <= CASES:
            continue
        kept, kinds, most = max(CASES, len(cases) // SHARE), set(), _most_kinds(cases)
        for item in sorted(cases, key=lambda item: _drawn(item, item.name)):
            if kept <= 0 and (_kind(item) in kinds or len(kinds) >= most):
                item.add_marker("slow")
            else:
                kinds.add(_kind(item))
            kept -= 1


def _drawn(item: pytest.Item, name: str) -> int:
    """A number by which cases are drawn."""
    return int.from_bytes(hashlib.sha256(_digest(item.path) + name.encode()).digest()[:8])


@cache
def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def _kind(item: pytest.Item) -> str:
    """The first word of a case's name."""
    return re.split(r"\W", item.name.partition("[")[2])[0]


def _most_kinds(cases: list[pytest.Item]) -> int:
    kinds = len(set(map(_kind, cases)))
    return kinds if getattr(cases[0], "originalname", "") in OF_EVERY_OP else max(KINDS, -(-kinds // 2))


def _by_function(items: list[pytest.Item]) -> Iterable[list[pytest.Item]]:
    found: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("slow"):
            found.setdefault((item.path, item.nodeid.partition("[")[0]), []).append(item)
    return found.values()


#: programs of the oracle that are written in one MLIR context; each new one takes 10 ms to make
PROGRAMS_A_CONTEXT = 200


#: objects made before the collector looks for cycles: Python's 700 are made by tracing a few equations
YOUNG = 20_000


def pytest_collection_finish() -> None:
    """Spares the collector what was imported: half a second each time that it looks at everything."""
    gc.set_threshold(YOUNG)
    gc.freeze()
    atexit.register(gc.unfreeze)
    share_contexts()


def share_contexts() -> None:
    """Lets the oracle write its programs, a new one for each operation and shape, in contexts that are used again."""
    if (mlir := sys.modules.get("jax._src.interpreters.mlir")) is None or not hasattr(mlir, "make_ir_context"):
        return
    made, contexts, count = mlir.make_ir_context, threading.local(), itertools.count()

    def make_ir_context() -> object:
        if next(count) % PROGRAMS_A_CONTEXT == 0 or not hasattr(contexts, "last"):
            contexts.last = made()
        return contexts.last

    mlir.make_ir_context = make_ir_context


#: of the 65,530 mappings that Linux gives a process by default, each compiled program takes a few
MAPPINGS = 25_000
RESIDENT_BYTES = 1 << 30


@pytest.fixture(autouse=True, scope="module")
def few_programs() -> Iterator[None]:
    yield
    forget_programs()


def forget_programs() -> None:
    """Forgets what was compiled, ours and the oracle's, before a process holds more code than it may map."""
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MAPPINGS:
        clear_caches()
        if "jax" in sys.modules:
            sys.modules["jax"].clear_caches()
        gc.collect()
    give_back_memory()


def give_back_memory() -> None:
    """Returns what compilations left on the heap, gigabytes in a long run, of which glibc keeps nearly all."""
    sizes, libc = Path("/proc/self/statm"), ctypes.CDLL(None)
    if sizes.exists() and hasattr(libc, "malloc_trim"):
        if int(sizes.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > RESIDENT_BYTES:
            libc.malloc_trim(0)


@contextmanager
def _refuses(kind: type[BaseException], *words: str) -> Iterator[None]:
    with pytest.raises(MeshwrightError) as caught:
        yield
    message = str(caught.value)
    assert isinstance(caught.value, kind), f"{type(caught.value).__name__}: {message}"
    missing = [word for word in words if word not in message]
    assert not missing, f"the message does not say {missing}: {message}"


@pytest.fixture
def refuses() -> Callable[..., AbstractContextManager[None]]:
    """``with refuses(kind, *words)``: an error of our tree, also a ``kind``, whose message has all the words."""
    return _refuses
