"""``config.reproducible_sums``: sums over devices have the same bits, virtual, real and in processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import meshwright as mw
from meshwright import PartitionSpec as P
from meshwright import lax

SCRIPT = Path(__file__).with_name("sums_in_order.py")


def bits(*launcher, **environment):
    env = {**os.environ, "MESHWRIGHT_REPRODUCIBLE_SUMS": "1", "PYTHONWARNINGS": "ignore", **environment}
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPT)], env=env, capture_output=True, text=True, timeout=300
    )
    found = set(re.findall(r"BITS (\w+)", done.stdout))
    assert done.returncode == 0 and len(found) == 1, done.stdout[-2000:] + done.stderr[-4000:]
    return found.pop()


@pytest.mark.slow
def test_real_devices_add_as_virtual_ones():
    virtual = bits(MESHWRIGHT_NUM_DEVICES="4")
    assert bits(MESHWRIGHT_NUM_DEVICES="4", MESHWRIGHT_REAL_DEVICES="4") == virtual


@pytest.mark.slow
def test_processes_add_as_virtual_devices():
    virtual = bits(MESHWRIGHT_NUM_DEVICES="4")
    assert bits(MESHWRIGHT_NUM_DEVICES="4", MESHWRIGHT_REAL_DEVICES="2") == virtual
    for job in (["-n", "4"], ["-n", "2", "--devices", "2"], ["-n", "2", "--real-devices", "2"]):
        assert bits("-m", "meshwright", "run", *job) == virtual


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_the_order_is_that_of_the_mesh(size):
    """Neighbours first; an axis of 4 is two of 2. As NumPy adds the same terms in this order, to the bit."""
    mesh = mw.make_mesh((size,), ("x",), devices=mw.devices()[:size])
    value = np.random.default_rng(0).normal(size=(size, 700)).astype(np.float32)

    def total(x):
        return lax.psum(x, "x")

    with mw.config.override("reproducible_sums", True):
        lowered = mw.jit(mw.shard_map(total, mesh=mesh, in_specs=P("x"), out_specs=P())).lower(value)
        part = lowered.partition()
    assert "in the order of the mesh" in str(part.explain())
    found = np.asarray(part.compile()(value))
    rows = list(value)
    while len(rows) % 2 == 0:
        rows = [a + b for a, b in zip(rows[::2], rows[1::2])]
    np.testing.assert_array_equal(found[0], rows[0] if len(rows) == 1 else rows[0] + rows[1] + rows[2])
