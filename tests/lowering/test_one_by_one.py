"""Decompositions of batches run one after the other, as LAPACK's kernels wait in the threads that they need."""

import os
import subprocess
import sys

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.ir.jaxpr import all_eqns
from meshwright.ir.passes import inline_calls
from meshwright.lowering.one_by_one import one_by_one

NAMES = ("qr", "lu", "eigh", "svd", "cholesky", "eig", "triangular_solve", "while", "scan", "cond")
X = np.random.default_rng(3).normal(size=(3, 4, 5, 5)).astype(np.float32)


def in_a_row(jaxpr):
    """Whether each decomposition, or loop or branch, of a program needs a result of the one before it."""
    needed, last = {}, set()
    for eqn in jaxpr.eqns:
        before = set().union(*(needed.get(a, ()) for a in eqn.invars if not hasattr(a, "val")))
        if eqn.op.name in NAMES:
            if not last <= before:
                return False
            last = {id(eqn)}
            before |= last
        needed |= dict.fromkeys(eqn.outvars, before)
    return True


def programs():
    def loop(x, y):
        return lax.fori_loop(0, 3, lambda i, c: mnp.linalg.qr(c + i)[0] @ mnp.linalg.qr(y)[0], x), mnp.linalg.qr(x)[1]

    def branch(x, y):
        return lax.cond(x[0, 0, 0] > 0, lambda x: mnp.linalg.qr(x)[1], lambda x: x, x), mnp.linalg.eigvalsh(y)

    def solved(x, y):
        return mnp.linalg.solve(x, y), mnp.linalg.inv(y), mnp.linalg.cholesky(y @ mnp.swapaxes(y, -1, -2))

    def lengths(x, y):
        return [mnp.linalg.svd(x)[1], mnp.linalg.eigvals(y), mnp.linalg.qr(x + 1j * y)[1], mnp.linalg.det(x)]

    return [lambda x, y: (mnp.linalg.qr(x), mnp.linalg.qr(y)), loop, branch, solved, lengths]


@pytest.mark.parametrize("number", range(5))
def test_each_waits_for_the_one_before(number):
    f = programs()[number]
    before = inline_calls(mw.make_jaxpr(f)(X[0], X[1]))
    after = one_by_one(before)
    assert in_a_row(after) and not in_a_row(before)
    assert all(in_a_row(r.jaxpr) for e in all_eqns(after.jaxpr) if e.op.holds_jaxprs for r in e.op.regions())
    for a, b in zip(mw.tree.leaves(mw.jit(f)(X[0], X[1])), mw.tree.leaves(f(X[0], X[1]))):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-4)


def test_what_waits_already_stays():
    """Decompositions of results of decompositions, single matrices, and programs with one batch."""
    for f in (
        lambda x: mnp.linalg.qr(mnp.linalg.qr(x)[0] + 1)[1],
        lambda x: [mnp.linalg.qr(x[0]), mnp.linalg.qr(x[1])],
        lambda x: mnp.linalg.qr(x),
    ):
        jaxpr = mw.make_jaxpr(f)(X[0])
        assert one_by_one(jaxpr) is jaxpr


def test_no_thread_waits_for_ever():
    count = 2 * (os.cpu_count() or 1) + 4
    program = f"""if True:
        import numpy as np, meshwright as mw, meshwright.numpy as mnp
        xs = [np.random.default_rng(i).normal(size=(16, 64, 64)).astype(np.float32) for i in range({count})]
        run = mw.jit(lambda *xs: sum(mnp.linalg.qr(x)[1].sum() for x in xs))
        assert all(np.isfinite(run(*xs)) for _ in range(3))"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
