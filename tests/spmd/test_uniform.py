"""Arrays of one number are filled in, wherever it is moved."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding as Sharding
from meshwright import P, lax
from meshwright.ops.shape.uniform import uniform

MESH = mw.AbstractMesh((4,), ("x",))
X = mw.ShapeDtypeStruct((8, 64), np.float32)


def laplacian(u):
    padded = mnp.pad(u, ((0, 0), (1, 1)))
    return 2 * u - padded[:, :-2] - padded[:, 2:]


def from_zeros(x):
    u = mnp.zeros_like(x)
    return u + (x - laplacian(u)) / 3


def first_of_two(x):
    guess = mnp.full_like(x, 2)
    return lax.fori_loop(0, 3, lambda i, u: u + x * mnp.concatenate([guess[:, :32], guess[:, 32:]], 1)[:, ::-1], x)


@pytest.mark.parametrize("function", [from_zeros, first_of_two])
def test_nothing_is_moved_or_held_whole(function):
    part = mw.jit(function, in_shardings=Sharding(MESH, P(None, "x"))).lower(X).partition(MESH)
    part.verify()
    assert not part.collectives
    assert part.work.redundancy < 1.01
    assert part.peak_bytes <= 4 * 8 * 16 * 4


def ops(function):
    names = []

    def visit(jaxpr):
        for eqn in jaxpr.jaxpr.eqns:
            names.append(eqn.op.name)
            for region in eqn.op.regions() if eqn.op.holds_jaxprs else ():
                visit(region)

    visit(uniform(mw.make_jaxpr(function)(X)))
    return names


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + lax.pad(mnp.zeros((8, 62), np.float32), 0.0, ((0, 0, 0), (1, 1, 0))),
        lambda x: x + lax.concatenate([mnp.full((8, 32), x[0, 0])] * 2, 1)[::-1],
        lambda x: x + lax.rev(mnp.ones((64, 8), np.float32), (0,)).T.reshape(64, 8).reshape(8, 64),
    ],
    ids=["padded", "of a number that is not known", "in another order"],
)
def test_what_only_moves_one_number(function):
    assert not {"pad", "concatenate", "rev", "transpose"} & set(ops(function))


@pytest.mark.parametrize(
    ("function", "op"),
    [
        (lambda x: x + lax.pad(lax.full((8, 62), 0.0), 1.0, ((0, 0, 0), (1, 1, 0))), "pad"),
        (lambda x: x + lax.pad(lax.full((8, 62), 0.0), -0.0, ((0, 0, 0), (1, 1, 0))), "pad"),
        (lambda x: x + lax.concatenate([lax.full((8, 32), 0.0), lax.full((8, 32), 1.0)], 1), "concatenate"),
        (lambda x: x + lax.concatenate([mnp.zeros_like(x[:, :32]), x[:, :32]], 1), "concatenate"),
    ],
    ids=["another number", "another zero", "two numbers", "an array"],
)  # fmt: skip
def test_two_numbers_are_no_one(function, op):
    assert op in ops(function)
