"""Hundreds of virtual devices, in a process of their own: a training step on 512 gives what one device gives."""

import os
import subprocess
import sys

PROGRAM = """
import time
import numpy as np
import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, PartitionSpec as P

mesh = mw.make_mesh((32, 16), ("data", "model"))
assert mw.device_count() == 512 and mesh.size == 512

def loss(params, x, y):
    hidden = mnp.tanh(x @ params["w1"] + params["b1"])
    return mnp.mean((hidden @ params["w2"] - y) ** 2)

def step(params, x, y):
    value, grads = mw.value_and_grad(loss)(params, x, y)
    return {k: params[k] - 0.1 * grads[k] for k in params}, value

rng = np.random.default_rng(0)
params = {"w1": rng.normal(size=(48, 64)), "b1": rng.normal(size=64), "w2": rng.normal(size=(64, 32))}
params = {k: v.astype(np.float32) / 8 for k, v in params.items()}
x, y = (rng.normal(size=s).astype(np.float32) for s in ((96, 48), (96, 32)))
specs = {"w1": P(None, "model"), "b1": P("model"), "w2": P("model")}
shardings = {k: NamedSharding(mesh, s) for k, s in specs.items()}
rows = NamedSharding(mesh, P("data"))
start = time.perf_counter()
lowered = mw.jit(step, in_shardings=(shardings, rows, rows), out_shardings=(shardings, None)).lower(params, x, y)
part = lowered.partition()
assert part.num_devices == 512 and len(part.collectives) >= 4
assert {c.group_size for c in part.collectives} <= {16, 32, 512}
compiled = lowered.compile()
seconds = time.perf_counter() - start
new, value = compiled(params, x, y)
part.verify(params, x, y)
want, want_value = mw.jit(step)(params, x, y)
np.testing.assert_allclose(value, want_value, rtol=1e-5)
for k in params:
    np.testing.assert_allclose(new[k], want[k], rtol=1e-4, atol=1e-6)
    assert new[k].sharding.is_equivalent_to(shardings[k], new[k].ndim)
assert len(new["w1"].addressable_shards) == 512 and new["w1"].addressable_shards[5].data.shape == (48, 4)
assert "replica_groups={{0,16,32," in part.as_text("hlo")
assert seconds < 60, seconds
print("ok")
"""


def test_a_training_step_on_512_devices():
    environment = {**os.environ, "MESHWRIGHT_NUM_DEVICES": "512"}
    command = [sys.executable, "-c", PROGRAM]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert found.stdout == "ok\n", found.stderr
