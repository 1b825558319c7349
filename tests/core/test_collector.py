"""The collector is paused while a program is partitioned, and runs again after it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright.core.collector import collector_paused
from meshwright.spmd.partition import planner
from meshwright.spmd.propagate import Propagation, propagate


@pytest.fixture(autouse=True)
def _collector_as_it_was() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if enabled else gc.disable)()


def test_runs_again_after_the_block_and_after_an_error() -> None:
    with collector_paused(), collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), collector_paused():
        raise KeyError
    assert gc.isenabled()


def test_stays_off_where_the_user_has_turned_it_off() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


def test_runs_again_after_blocks_of_several_threads() -> None:
    def block() -> None:
        for _ in range(200):
            with collector_paused():
                pass

    threads = [threading.Thread(target=block) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gc.isenabled()


def test_partitioning_runs_without_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    enabled: list[bool] = []

    def spied(*args: Any) -> Propagation:
        enabled.append(gc.isenabled())
        return propagate(*args)

    monkeypatch.setattr(planner, "propagate", spied)
    mesh = mw.AbstractMesh((8,), ("data",))
    x = mw.ShapeDtypeStruct((64, 4), mnp.float32, sharding=mw.NamedSharding(mesh, P("data")))
    mw.jit(lambda x: mnp.tanh(x).sum()).lower(x).partition()
    assert set(enabled) == {False}
    assert gc.isenabled()
