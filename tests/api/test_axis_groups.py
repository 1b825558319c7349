"""Collectives among ``axis_index_groups``: what each group does is what the collective does on the group alone."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
from meshwright import PartitionSpec as P
from meshwright import lax
from meshwright.errors import ArgumentError

GROUPS = [[4, 0, 3], [1, 5, 2]]
X = (np.arange(6 * 3 * 6) * 7 % 31).astype(np.float32).reshape(6, 3, 6)

COLLECTIVES = {
    "psum": lambda x, **k: lax.psum(x, "i", **k),
    "pmean": lambda x, **k: lax.pmean(x, "i", **k),
    "pmax": lambda x, **k: lax.pmax(x, "i", **k),
    "pmin": lambda x, **k: lax.pmin(x, "i", **k),
    "all_gather": lambda x, **k: lax.all_gather(x, "i", axis=1, **k),
    "all_gather of tiles": lambda x, **k: lax.all_gather(x, "i", axis=1, tiled=True, **k),
    "psum_scatter": lambda x, **k: lax.psum_scatter(x, "i", **k),
    "psum_scatter of tiles": lambda x, **k: lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True, **k),
    "all_to_all": lambda x, **k: lax.all_to_all(x, "i", 0, 1, **k),
    "all_to_all of tiles": lambda x, **k: lax.all_to_all(x, "i", 1, 0, tiled=True, **k),
    "all_to_all of one dimension": lambda x, **k: lax.all_to_all(x, "i", 1, 1, tiled=True, **k),
    "pswapaxes": lambda x, **k: lax.pswapaxes(x, "i", 0, **k),
    "a number": lambda x, **k: x * lax.psum(2, "i", **k),
}


def by_group(run):
    """The collective on each group alone, put back in the order of positions."""
    parts = [np.asarray(mw.vmap(run, axis_name="i")(X[group])) for group in GROUPS]
    out = np.zeros((6, *parts[0].shape[1:]), np.float32)
    for group, part in zip(GROUPS, parts):
        out[group] = part
    return out


@pytest.mark.parametrize("name", COLLECTIVES)
def test_under_vmap(name):
    run = COLLECTIVES[name]
    found = mw.vmap(lambda x: run(x, axis_index_groups=GROUPS), axis_name="i")(X)
    np.testing.assert_allclose(np.asarray(found), by_group(run), rtol=1e-6)


@pytest.mark.parametrize("name", ["psum", "all_gather of tiles", "all_to_all"])
def test_in_a_manual_region(name):
    run, mesh = COLLECTIVES[name], mw.make_mesh((6,), ("i",))

    def region(x):
        return run(x[0], axis_index_groups=GROUPS)[None]

    found = mw.jit(mw.shard_map(region, mesh=mesh, in_specs=P("i"), out_specs=P("i")))(X)
    np.testing.assert_allclose(np.asarray(found), by_group(run), rtol=1e-6)


def test_gradient():
    def loss(x, groups):
        total = mw.vmap(lambda v: lax.psum(v, "i", axis_index_groups=groups) ** 2, axis_name="i")(x)
        return mw.numpy.sum(total * np.arange(6)[:, None, None])

    wanted = np.zeros_like(X)
    for group in GROUPS:
        wanted[group] = 2 * X[group].sum(0) * sum(group)
    np.testing.assert_allclose(np.asarray(mw.grad(loss)(X, GROUPS)), wanted, rtol=1e-5)


@pytest.mark.parametrize("groups", [[[0, 1, 2], [3, 4]], [[0, 1, 2], [3, 4, 4]], [[0, 1], [2, 3]], []])
def test_refused_groups(refuses, groups):
    with refuses(ArgumentError, "all_gather", "axis_index_groups", "positions 0 to 5"):
        mw.vmap(lambda x: lax.all_gather(x, "i", axis_index_groups=groups), axis_name="i")(X)


@pytest.mark.parametrize("perm", [[(0, 6)], [(0, 1), (2, 1)], [(3, 0), (3, 1)]])
def test_refused_permutations(refuses, perm):
    with refuses(ArgumentError, "ppermute", "at most once"):
        mw.vmap(lambda x: lax.ppermute(x, "i", perm), axis_name="i")(X)


NO_AXIS = {
    "psum": lax.psum,
    "pmean": lax.pmean,
    "pmax": lax.pmax,
    "pmin": lax.pmin,
    "all_gather": lambda x, a: lax.all_gather(x, a, axis=1),
    "all_gather of tiles": lambda x, a: lax.all_gather(x, a, axis=1, tiled=True),
    "psum_scatter": lambda x, a: lax.psum_scatter(x, a),
    "psum_scatter of tiles": lambda x, a: lax.psum_scatter(x, a, scatter_dimension=1, tiled=True),
    "all_to_all": lambda x, a: lax.all_to_all(x, a, 0, 1),
    "all_to_all of tiles": lambda x, a: lax.all_to_all(x, a, 1, 0, tiled=True),
    "all_to_all of one dimension": lambda x, a: lax.all_to_all(x, a, 1, 1, tiled=True),
}


@pytest.mark.parametrize("name", NO_AXIS)
def test_along_no_axis_there_is_one_position(name):
    """So generic code may be given no axes; JAX has no untiled ``all_to_all`` of them."""
    x = X[:1, :1, :1] if "tiles" not in name and "dimension" not in name else X
    alone = mw.vmap(lambda v: NO_AXIS[name](v, "i"), axis_name="i")(x[None])[0]
    np.testing.assert_array_equal(mw.jit(lambda v: NO_AXIS[name](v, ()))(x), alone)
