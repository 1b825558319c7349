"""Caches that are bounded."""

from __future__ import annotations

import sys
import threading

from meshwright.core.caches import Recent


def test_the_keys_that_were_used_last_are_kept():
    recent = Recent(2)
    assert recent.setdefault("a", 1) == 1 and recent.setdefault("b", 2) == 2
    assert recent.setdefault("a", 3) == 1 and recent.setdefault("c", 4) == 4
    assert [recent.get(key) for key in "abc"] == [1, None, 4] and len(recent) == 2
    assert recent.get("a") == 1 and recent.setdefault("d", 5) == 5 and recent.get("c") is None
    recent.clear()
    assert len(recent) == 0 and recent.get("a") is None


def test_threads_share_it():
    """Each evicts what another has just found."""
    recent, failures = Recent(1), []

    def work(first):
        try:
            for n in range(2000):
                key = (first + n) % 3
                assert (recent.get(key) or recent.setdefault(key, key + 1)) == key + 1
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures, failures[0]
