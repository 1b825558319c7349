"""Sums over devices of every kind, and a step of training: prints a hash of the bits of all results."""

import hashlib
import itertools

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.experimental import multihost_utils

KINDS = {
    "psum": lambda x, axes: lax.psum(x * x * x, axes),
    "few": lambda x, axes: lax.psum((x[:2, :3] * x[1:3, :3]).sum(), axes) * x[:2],
    "psum_scatter": lambda x, axes: lax.psum_scatter(x * x, axes, scatter_dimension=1, tiled=True),
    "pmax": lambda x, axes: lax.pmax(x, axes),
}
TYPES = [("float32", KINDS), ("bfloat16", ["psum"]), ("complex64", ["psum"]), ("int32", ["psum"])]


def bits(x):
    """The bytes of all of an array, in all processes."""
    x = x.astype("float32") if x.dtype == mnp.bfloat16 else x
    return np.asarray(multihost_utils.process_allgather(x, tiled=True)).tobytes()


def sums(mesh, dtype, kinds):
    value = np.random.default_rng(0).normal(size=(64, 96)) * 10
    x = mw.device_put(value.astype("float32"), NamedSharding(mesh, P(mesh.axis_names))).astype(dtype)
    ways = [mesh.axis_names, mesh.axis_names[::-1], *mesh.axis_names]
    for kind, axes in itertools.product(kinds, ways):

        def device(x, kind=kind, axes=axes):
            return KINDS[kind](x, axes)

        whole = P(mesh.axis_names)
        yield bits(mw.jit(mw.shard_map(device, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False))(x))


def training(mesh):
    rng = np.random.default_rng(1)
    # Tiles of kernels' sizes: in what is left at an edge a product is rounded otherwise, and where that is depends on
    # the processor and on how many virtual devices' rows are one matrix.
    w, x = (rng.normal(size=s).astype("float32") for s in ((96, 192), (192, 96)))
    w, x = (mw.device_put(v, NamedSharding(mesh, P(*s))) for v, s in ((w, (None, "y")), (x, ("x",))))
    step = mw.jit(lambda w, x: w - 0.1 * mw.grad(lambda w: (mnp.tanh(x @ w) ** 2).mean())(w))
    for _ in range(3):
        w = step(w, x)
    return bits(w)


mw.distributed.initialize()
digest = hashlib.sha256()
for names, shape in ((("x", "y"), (2, 2)), (("x",), (4,))):
    mesh = mw.make_mesh(shape, names)
    for dtype, kinds in TYPES if len(shape) == 2 else TYPES[:1]:
        for found in sums(mesh, dtype, kinds):
            digest.update(found)
    if len(shape) == 2:
        digest.update(training(mesh))
print("BITS", digest.hexdigest())
