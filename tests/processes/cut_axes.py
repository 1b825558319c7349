"""Run by ``test_jobs`` in three processes with two virtual devices each: one axis of 6 that is real, then virtual."""

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.experimental import multihost_utils as mh

mw.distributed.initialize()
RANK = mw.process_index()
mesh = mw.make_mesh((6,), ("x",))
rows = NamedSharding(mesh, P("x"))
value = np.random.default_rng(0).permutation(100).reshape(20, 5).astype(np.float32)
x = mw.device_put(value, rows)
for index, want in ((P(None, "x"), value), (P(), value)):
    np.testing.assert_array_equal(mh.process_allgather(mw.device_put(x, NamedSharding(mesh, index))), want)

product, least = mw.jit(lambda x: (x.T @ x, mnp.sort(x[:, 0])), in_shardings=rows)(x)
np.testing.assert_array_equal(mh.process_allgather(product), value.T @ value)
np.testing.assert_array_equal(mh.process_allgather(least), np.sort(value[:, 0]))

tile = value[:18]
mine = mw.make_array_from_process_local_data(rows, tile[6 * RANK : 6 * RANK + 6])
turned = mw.shard_map(lambda t: lax.ppermute(t, "x", [(i, (i + 1) % 6) for i in range(6)]), mesh=mesh, in_specs=P("x"),
                      out_specs=P("x"))  # fmt: skip
np.testing.assert_array_equal(mh.process_allgather(mw.jit(turned)(mine)), np.roll(tile, 3, 0))
print("all is well", flush=True)
