"""Annotations that wait for others, of values that other annotations place."""

import numpy as np
import pytest

import meshwright as mw
from meshwright import lax
from meshwright.sharding import Mesh, NamedSharding
from meshwright.sharding import PartitionSpec as P

MESH = Mesh(np.array(mw.devices()[:8]).reshape(2, 4), ("y", "a"))


@pytest.mark.parametrize("spec", [P(None, ("y", "a")), P(None, "y"), P("a", "y"), P("y")])
def test_outputs_of_regions_keep_their_manual_axes_out(spec):
    """The search lets the output's sharding spread last; along a manual axis, no value inside can be split."""
    split = mw.shard_map(lambda x: x * 2.0, mesh=MESH, in_specs=P("a"), out_specs=P("a"))
    turned = mw.shard_map(
        lambda x: x + lax.axis_index("y"), mesh=MESH, in_specs=P(None, ("y", "a")), out_specs=P(None, ("y", "a"))
    )
    some = mw.shard_map(lambda x: x + lax.psum(x, "y"), mesh=MESH, in_specs=P(), out_specs=P(), axis_names={"y"},
                        check_vma=False)  # fmt: skip
    f = mw.jit(lambda x: some(turned(split(x))), out_shardings=NamedSharding(MESH, spec))
    x = np.arange(32 * 8 * 3, dtype=np.float32).reshape(32, 8, 3)
    wanted = 3 * (2 * x + np.repeat([0, 1], 4)[None, :, None])
    np.testing.assert_allclose(f(x), wanted)
