import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import meshwright as mw
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.errors import ArgumentError, ArgumentTypeError

SPLIT = NamedSharding(mw.make_mesh((4, 2), ("x", "y")), P("x"))


def workers():
    return [t for t in threading.enumerate() if t.name == "meshwright-prefetch"]


def batches(count, taken):
    for i in range(count):
        taken.append(i)
        yield {"x": np.full((8, 3), i), "y": (np.arange(8) + i, np.float32(i) * np.ones((4, 2), np.float32))}


def test_batches_come_in_order_and_are_made_in_advance():
    taken = []
    found = mw.data.prefetch_to_mesh(batches(6, taken), {"x": SPLIT, "y": NamedSharding(SPLIT.mesh, P())}, size=2)
    first = next(found)
    deadline = time.monotonic() + 30
    while len(taken) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert taken == [0, 1, 2, 3]  # one is out, two wait, one wants to
    assert first["x"].sharding == SPLIT and first["y"][0].is_fully_replicated
    rest = list(found)
    assert [int(b["x"][0, 0]) for b in [first, *rest]] == list(range(6))
    np.testing.assert_array_equal(rest[-1]["y"][0], np.arange(8) + 5)


def test_threads_share_the_batches():
    class Slow:
        def __iter__(self):
            time.sleep(0.1)  # in which all threads come
            return iter([np.full(8, i) for i in range(40)])

    found = mw.data.prefetch_to_mesh(Slow(), SPLIT)
    with ThreadPoolExecutor(4) as pool:
        taken = pool.map(lambda _: [int(batch[0]) for batch in found], range(4))
    assert sorted(itertools.chain(*taken)) == list(range(40))


def test_errors_come_in_their_turn_and_threads_end(refuses):
    def failing():
        yield np.zeros(8)
        raise KeyError("of the test")

    found = mw.data.prefetch_to_mesh(failing(), SPLIT)
    next(found)
    with pytest.raises(KeyError, match="of the test"):
        next(found)
    closed, let_go = (mw.data.prefetch_to_mesh(itertools.repeat(np.zeros(8)), SPLIT) for _ in range(2))
    next(closed), next(let_go)
    closed.close()
    assert list(closed) == []
    del let_go
    deadline = time.monotonic() + 30
    while workers() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not workers()
    with refuses(ArgumentError, "size", "0"):
        mw.data.prefetch_to_mesh([], SPLIT, size=0)
    with refuses(ArgumentTypeError, "iterable", "int"):
        mw.data.prefetch_to_mesh(3, SPLIT)


def test_another_thread_closes_what_one_waits_for():
    never = threading.Event()
    found = mw.data.prefetch_to_mesh(iter(never.wait, True), SPLIT)
    taken = []
    waiting = threading.Thread(target=lambda: taken.append(list(found)), daemon=True)
    waiting.start()
    found.close()
    waiting.join(30)
    never.set()
    assert taken == [[]]


def test_options_of_the_thread_hold():
    with mw.enable_x64():
        assert next(mw.data.prefetch_to_mesh([np.zeros(8)], SPLIT)).dtype == np.float64


class Counting:
    """Has a state, as the iterators of ``grain``."""

    def __init__(self, at=0):
        self.state = {"at": at}

    def __iter__(self):
        return self

    def __next__(self):
        if self.state["at"] == 5:
            raise StopIteration
        self.state["at"] += 1
        return np.full(8, self.state["at"])

    def get_state(self):
        return self.state


def test_a_state_is_that_after_the_batch_that_was_taken(refuses):
    found = mw.data.prefetch_to_mesh(Counting(), SPLIT)
    assert found.get_state() == {"at": 0}
    for taken in range(1, 6):
        assert int(next(found)[0]) == taken
        assert [int(b[0]) for b in Counting(**found.get_state())] == list(range(taken + 1, 6))
    assert list(found) == [] and found.get_state() == {"at": 5}
    with refuses(ArgumentTypeError, "get_state", "list_iterator"):
        mw.data.prefetch_to_mesh([np.zeros(8)], SPLIT).get_state()
