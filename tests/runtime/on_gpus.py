"""Run by ``test_plugins`` in two processes: NCCL's collectives between GPUs, and a program of several of them."""

import os

if os.environ.get("CUDA_VISIBLE_DEVICES") == "0":  # processes share a GPU, which NCCL lets those of other hosts do
    os.environ.setdefault("NCCL_HOSTID", "host " + os.environ["MESHWRIGHT_PROCESS_ID"])

import numpy as np

import meshwright as mw
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.experimental import multihost_utils as mh

mw.distributed.initialize()
n = mw.device_count()
mesh = mw.make_mesh((n,), ("x",))
rows = NamedSharding(mesh, P("x"))
value = np.arange(12.0 * n * n, dtype=np.float32).reshape(2 * n, 6 * n) % 13
x = mw.device_put(value, rows)
tiles = value.reshape(n, 2, 6 * n)

EXPECTED = {
    "psum": (lambda x: lax.psum(x, "x"), np.concatenate([tiles.sum(0)] * n)),
    "pmax": (lambda x: lax.pmax(x, "x"), np.concatenate([tiles.max(0)] * n)),
    "all_gather": (lambda x: lax.all_gather(x, "x", tiled=True), np.concatenate([value] * n)),
    "psum_scatter": (lambda x: lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True),
                     np.concatenate(np.split(tiles.sum(0), n, 1))),
    "all_to_all": (lambda x: lax.all_to_all(x, "x", 1, 0, tiled=True), np.concatenate(np.split(value, n, 1))),
    "ppermute": (lambda x: lax.ppermute(x, "x", [(i, (i + 1) % n) for i in range(n)]), np.roll(value, 2, 0)),
}  # fmt: skip
for name, (f, expected) in EXPECTED.items():
    got = mw.jit(mw.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(x)
    np.testing.assert_array_equal(mh.process_allgather(got, tiled=True), expected, err_msg=name)

got = mw.jit(lambda x: (x.T @ x).sum(0) + x[::-1].sum(), out_shardings=rows)(x)
np.testing.assert_array_equal(mh.process_allgather(got, tiled=True), (value.T @ value).sum(0) + value.sum())
print("all is well", flush=True)
