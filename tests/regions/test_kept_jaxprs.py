"""Jaxprs that implicit functions, closures and ``make_jaxpr`` keep, in regions, given values that vary over other axes
than those that they were traced with: gradients are the sums over devices of what each computes alone."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright import lax

_ROWS = np.array([[0.3, -0.7, 1.1], [0.1, 0.2, 0.3]], "f4")
_SHARED = np.array([0.5, 0.6, 0.7], "f4")


def _newton(g, start):
    return lax.fori_loop(0, 20, lambda i, y: y - g(y) / (3 * y * y + 1), start)


def _by_jacobian(g, y):
    return mnp.linalg.solve(mw.jacobian(g)(y), y)


def _root(row, shared):
    return lax.custom_root(lambda y: y**3 + y - shared * row, mnp.zeros(3), _newton, _by_jacobian)


def _root_of_shared(row, shared):
    """The equation is the same on all devices, the guess is not."""
    return row * lax.custom_root(lambda y: y**3 + y - shared, 0 * row, _newton, _by_jacobian)


def _solution(row, shared):
    matrix = mnp.diag(row + 2) + mnp.outer(shared, row)
    return lax.custom_linear_solve(
        lambda v: matrix @ v,
        shared,
        lambda mv, b: mnp.linalg.solve(mw.jacobian(mv)(b), b),
        lambda mv, b: mnp.linalg.solve(mw.jacobian(mv)(b), b),
    )


def _symmetric_solution(row, shared):
    return lax.custom_linear_solve(lambda v: v * (row + 2), shared, lambda mv, b: b / mv(mnp.ones(3)), symmetric=True)


def _closure(row, shared):
    converted, consts = mw.closure_convert(lambda y: mnp.sin(y) * shared, shared)
    return converted(row * shared, *consts)


def _evaluated(row, shared):
    closed = mw.make_jaxpr(lambda y, w: mnp.sin(y) * w * y)(_SHARED, _SHARED)
    return mw.extend.core.jaxpr_as_fun(closed)(row * shared, shared)[0]


@pytest.mark.parametrize("local", [_root, _root_of_shared, _solution, _symmetric_solution, _closure, _evaluated])
@pytest.mark.parametrize("outer", [lambda f: f, mw.jit])
def test_jaxprs_are_typed_by_what_they_are_given(local, outer):
    mesh = mw.make_mesh((2,), ("s",))
    specs = {"mesh": mesh, "in_specs": (P("s"), P())}

    def loss(row, shared):
        return (local(row, shared) ** 2).sum()

    value = mw.shard_map(lambda x, w: lax.psum(loss(x[0], w), "s"), **specs, out_specs=P())
    inside = mw.shard_map(lambda x, w: mw.grad(loss, 1)(x[0], w), **specs, out_specs=P())
    moved = mw.shard_map(lambda x, w: local(x[0], w)[None], **specs, out_specs=P("s"))
    alone = [mw.grad(loss, (0, 1))(row, _SHARED) for row in _ROWS]
    of_rows, of_shared = np.stack([a[0] for a in alone]), sum(np.asarray(a[1]) for a in alone)
    np.testing.assert_allclose(outer(inside)(_ROWS, _SHARED), of_shared, rtol=2e-4, atol=2e-5)
    got = outer(mw.grad(value, (0, 1)))(_ROWS, _SHARED)
    np.testing.assert_allclose(got[0], of_rows, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(got[1], of_shared, rtol=2e-4, atol=2e-5)
    tangents = outer(lambda x, w: mw.jvp(moved, (x, w), (x, w))[1])(_ROWS, _SHARED)
    want = [mw.jvp(local, (row, _SHARED), (row, _SHARED))[1] for row in _ROWS]
    np.testing.assert_allclose(tangents, np.stack(want), rtol=2e-4, atol=2e-5)
