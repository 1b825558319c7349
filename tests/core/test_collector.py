"""The collector is paused while a program is partitioned, which makes nothing that it would find."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright.core.collector import collector_paused


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


def test_partitioning_makes_no_cycles_and_runs_without_collections() -> None:
    mesh = mw.AbstractMesh((4, 2), ("data", "model"))

    def of(shape: tuple[int, ...], *spec: str | None) -> mw.ShapeDtypeStruct:
        return mw.ShapeDtypeStruct(shape, mnp.float32, sharding=mw.NamedSharding(mesh, P(*spec)))

    def loss(w1: mw.Array, w2: mw.Array, x: mw.Array) -> mw.Array:
        return (mnp.tanh(x @ w1) @ w2).sum()

    arguments = of((64, 128), None, "model"), of((128, 64), "model"), of((256, 64), "data")
    lowered = mw.jit(mw.grad(loss, (0, 1))).lower(*arguments)
    lowered.partition()  # what is remembered of a first time may hold anything
    collections: list[str] = []
    gc.collect()
    gc.callbacks.append(lambda phase, info: collections.append(phase))
    try:
        with collector_paused():
            lowered.partition()
            assert gc.collect() == 0
    finally:
        gc.callbacks.pop()
    assert collections == ["start", "stop"]
