"""XLA's buffers lack what JAX adds to them (``dtype``, ``shape``) where it is not imported: nothing here needs that."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import copy, pickle, sys
sys.modules["jax"] = None  # importing it fails
import ml_dtypes
import numpy as np
import meshwright as mw, meshwright.numpy as mnp

x = mnp.arange(6.0).reshape(2, 3)
copies = np.from_dlpack(x, copy=True), copy.deepcopy(x), pickle.loads(pickle.dumps(x))
for kept in (np.from_dlpack(x), mnp.from_dlpack(x), *copies):
    assert np.array_equal(kept, [[0, 1, 2], [3, 4, 5]])
for dtype in ("bfloat16", "float8_e5m2", "float8_e4m3fn", "bool", "complex64", "int16", "uint32"):
    given = mnp.arange(6).reshape(3, 2).astype(dtype)  # NumPy does not read all of these, XLA does
    taken = mnp.from_dlpack(given)
    assert (taken.shape, taken.dtype) == ((3, 2), given.dtype) and bool((taken == given).all())
assert mnp.from_dlpack(mnp.asarray(2, "bfloat16")).shape == ()
mesh = mw.make_mesh((2,), ("x",))
split = mw.device_put(x, mw.sharding.NamedSharding(mesh, mw.PartitionSpec("x")))
assert np.from_dlpack(split.addressable_shards[1].data).tolist() == [[3, 4, 5]]
assert mw.jit(lambda x: mw.pure_callback(np.sin, x, x), donate_argnums=0)(x + 0).shape == (2, 3)
"""


def test_arrays_are_exchanged_without_jax() -> None:
    environment = {**os.environ, "MESHWRIGHT_NUM_DEVICES": "2"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr
