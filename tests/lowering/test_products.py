"""Products in the form that XLA's CPU kernels are fast at: which change places, and that their values stay."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.ir.jaxpr import all_eqns
from meshwright.lowering.products import swap_products

RNG = np.random.default_rng(3)


def products(jaxpr):
    return [e for e in all_eqns(jaxpr.jaxpr) if e.op.name == "dot_general"]


@pytest.mark.parametrize("equation, lhs, rhs, swapped", [
    ("bij,bkj->bik", (3, 5, 300), (3, 256, 300), True),
    ("bji,bkj->bik", (3, 300, 5), (3, 256, 300), True),
    ("abij,abkj->abik", (2, 3, 7, 256), (2, 3, 260, 256), True),
    ("ij,kj->ik", (64, 256), (256, 256), True),
    ("abj,kj->abk", (2, 32, 256), (256, 256), True),
    ("ij,jk->ik", (64, 256), (256, 300), "transposed"),
    ("ij,kj->ik", (1030, 1024), (2048, 1024), False),  # many rows
    ("ij,kj->ik", (1024, 1024), (2048, 1024), True),  # few enough, as the other is larger than a cache
    ("bij,bkj->bik", (3, 140, 300), (3, 256, 300), False),  # many rows
    ("bij,bkj->bik", (3, 1, 300), (3, 256, 300), False),  # a product with a vector
    ("bij,bkj->bik", (3, 5, 64), (3, 256, 64), False),  # a small matrix
    ("bij,bjk->bik", (3, 5, 300), (3, 300, 256), False),  # not transposed
    ("ibj,bkj->bik", (5, 3, 300), (3, 256, 300), False),  # the batch is not in front
    ("ki,kj->ij", (512, 256), (512, 10), True),  # the gradient of a weight with few columns
    ("aki,akj->ij", (8, 64, 256), (8, 64, 10), True),
    ("ki,kj->ij", (512, 256), (512, 65), False),  # not so few
    ("ki,kj->ij", (64, 1024), (64, 40), False),  # to read the result transposed costs as much
    ("ki,kj->ij", (512, 256), (512, 1), False),  # a product with a vector
    ("ki,kj->ij", (512, 10), (512, 256), False),  # as it should be
])  # fmt: skip
def test_wide_and_tall_products_change_places(equation, lhs, rhs, swapped):
    x, w = RNG.normal(size=lhs).astype(np.float32), RNG.normal(size=rhs).astype(np.float32)
    if swapped == "transposed":
        w = np.ascontiguousarray(w.T)
    jaxpr = mw.make_jaxpr(lambda x, w: mnp.einsum(equation, x, w.T if swapped == "transposed" else w))(x, w)
    after = swap_products(jaxpr)
    ((before,), (product,)) = products(jaxpr), products(after)
    same = [a.aval.shape for a in product.invars] == [a.aval.shape for a in before.invars]
    assert same != bool(swapped) and after.out_avals == jaxpr.out_avals
    got = mw.jit(lambda *args: mw.ir.tracing.eval_jaxpr(after, after.consts, *args)[0])(x, w)
    np.testing.assert_allclose(got, np.einsum(equation, x, w.T if swapped == "transposed" else w), rtol=2e-4, atol=2e-4)


def test_of_a_mapped_step_the_way_back_changes_places():
    """Each device has 16 rows and its own matrix of 256 × 256."""
    ws, x = RNG.normal(size=(8, 256, 256)).astype(np.float32), RNG.normal(size=(8, 16, 256)).astype(np.float32)

    def gradient(w, x):
        return mw.grad(lambda x: (mnp.tanh(x @ w) ** 2).sum())(x)

    step = mw.pmap(gradient, "i")
    text = step.lower(ws, x).compile().as_text("virtual")
    lines = [line for line in text.splitlines() if " dot(" in line]
    assert any("f32[8,16,256]" in line.split(" dot(")[0] for line in lines)  # forwards
    assert any("f32[8,256,16]" in line.split(" dot(")[0] for line in lines)  # and back
    np.testing.assert_allclose(step(ws, x), mw.vmap(gradient)(ws, x), rtol=1e-4, atol=1e-3)


def test_a_tall_product_that_is_transposed_is_not_exchanged_back():
    """XLA would make ``dot(x, g)`` of the transposed ``dot(g, x)``."""
    x, g = RNG.normal(size=(512, 256)).astype(np.float32), RNG.normal(size=(512, 10)).astype(np.float32)
    gradient = mw.jit(mw.grad(lambda w, x, g: ((x @ w) * g).sum()))
    w = np.zeros((256, 10), np.float32)
    text = gradient.lower(w, x, g).compile().as_text("virtual")
    (line,) = (line for line in text.splitlines() if " dot(" in line)
    assert "f32[10,256]" in line.split(" dot(")[0]
    np.testing.assert_allclose(gradient(w, x, g), x.T @ g, rtol=1e-4, atol=1e-4)
