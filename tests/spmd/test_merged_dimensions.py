"""What is reduced or selected along merged dimensions, one of them in tiles, is not gathered."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright import lax

MESH = mw.make_mesh((2, 4), ("data", "model"))
RNG = np.random.default_rng(2)
X = RNG.normal(size=(6, 3, 128)).astype(np.float32)
#: equal ones, and what is no number
TIES = RNG.integers(0, 3, (6, 3, 128)).astype(np.float32)
SPECIAL = np.where(RNG.random((6, 3, 128)) < 0.05, np.nan, np.where(RNG.random((6, 3, 128)) < 0.1, np.inf, X))


def partitioned(f: Any, x: Any, *spec: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return mw.jit(f, in_shardings=mw.NamedSharding(MESH, P(*spec))).lower(x).partition()


FUNCTIONS = {
    "sum": lambda xp, lax, x: x.reshape(6, -1).sum(1),
    "of all": lambda xp, lax, x: x.reshape(-1).max(),
    "max": lambda xp, lax, x: x.reshape(6, -1).max(1),
    "of the other": lambda xp, lax, x: x.reshape(6, -1).min(0)[:4],
    "argmax": lambda xp, lax, x: xp.argmax(x.reshape(6, -1), 1),
    "argmin": lambda xp, lax, x: xp.argmin(x.reshape(6, -1), 1),
    "of three": lambda xp, lax, x: xp.argmax(x.reshape(-1)),
    "top_k": lambda xp, lax, x: lax.top_k(x.reshape(6, -1), 5),
    "top_k of many": lambda xp, lax, x: lax.top_k(x.reshape(6, -1), 40),
    "of a function": lambda xp, lax, x: (xp.sin(y := x.reshape(6, -1)) * 2 + y).sum(1),
    "variance": lambda xp, lax, x: x.reshape(6, -1).var(1),
    "softmax": lambda xp, lax, x: (lambda y: xp.exp(y - y.max(1, keepdims=True)).reshape(x.shape))(x.reshape(6, -1)),
    "also whole": lambda xp, lax, x: (lambda y: (y, y.max(1)))(x.reshape(6, -1)),
    "any": lambda xp, lax, x: (x.reshape(6, -1) > 2).any(1),
}


@pytest.mark.parametrize("x", [X, TIES, SPECIAL.astype(np.float32)], ids=["numbers", "ties", "special"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results(name: str, x: np.ndarray) -> None:
    part = partitioned(lambda x: FUNCTIONS[name](mnp, lax, x), x, "data", None, "model")
    for got, want in zip(
        mw.tree.leaves(part(x)), jax.tree.leaves(FUNCTIONS[name](jax.numpy, jax.lax, jax.numpy.asarray(x)))
    ):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("sum", 2 * 3 * 4 * 3 // 4),  # three sums, all-reduced by four
        ("max", 2 * 3 * 4 * 3 // 4),
        ("argmax", 2 * 2 * 3 * 3 * 4 * 3 // 4),  # of each row: its maximum and where
        ("top_k", 2 * (5 * 9 * 4) * 2),  # values and places of five from another device each time, of nine rows
        ("any", 5),
        ("of a function", 2 * 3 * 4 * 3 // 4),
        ("variance", 2 * 2 * 3 * 4 * 3 // 4),  # of the mean, and of squares
    ],
)
def test_little_is_sent(name: str, sent: int) -> None:
    part = partitioned(lambda x: FUNCTIONS[name](mnp, lax, x), X, "data", None, "model")
    assert part.bytes_sent == sent < X.nbytes // 8 * 3


def test_what_is_whole_anyway_is_reduced_where_it_is() -> None:
    part = partitioned(lambda x: FUNCTIONS["also whole"](mnp, lax, x), X, "data", None, "model")
    assert [c.kind for c in part.collectives] == ["all_gather"]


def test_what_is_taken_apart_again_is_never_merged() -> None:
    tiles = mw.NamedSharding(MESH, P("data", None, "model"))
    f = mw.jit(lambda x: FUNCTIONS["softmax"](mnp, lax, x), in_shardings=tiles, out_shardings=tiles)
    part = f.lower(X).partition()
    assert [(c.kind, c.bytes_sent) for c in part.collectives] == [("all_reduce", 18)]
    part.verify()


def test_a_beam_search_sends_candidates() -> None:
    def step(hidden: Any, weights: Any, scores: Any) -> Any:
        logits = mw.nn.log_softmax(hidden @ weights) + scores[..., None]
        values, places = lax.top_k(logits.reshape(6, -1), 3)
        return values, places // 512, places % 512

    specs = P("data"), P(None, "model"), P("data")
    args = X, RNG.normal(size=(128, 512)).astype(np.float32), X[..., 0]
    part = mw.jit(step, in_shardings=tuple(mw.NamedSharding(MESH, s) for s in specs)).lower(*args).partition()
    assert part.bytes_sent < 1000 < 4 * 3 * 3 * 512 * 3 // 4
    part.verify(*args)


@pytest.mark.parametrize("channels", [5, 6, 10])
def test_channels_of_their_own_may_be_uneven(channels):
    """A dimension of groups of one channel is split like any other, by an axis that does not divide it, too."""
    mesh = mw.AbstractMesh((4,), ("x",))
    on = mw.NamedSharding(mesh, mw.P(None, None, "x"))

    def gradients(x, w, ct):
        def conv(x, w):
            return lax.conv_general_dilated(x, w, (1,), "SAME", None, None, ("NHC", "HIO", "NHC"), channels)

        return mw.vjp(conv, x, w)[1](ct)

    x, w = mw.ShapeDtypeStruct((2, 8, channels), np.float32), mw.ShapeDtypeStruct((3, 1, channels), np.float32)
    part = mw.jit(gradients, in_shardings=on, out_shardings=on).lower(x, w, x).partition()
    part.verify()
    assert not part.collectives


def test_a_constraint_on_what_is_merged_holds() -> None:
    """What is merged is laid out as the user says, although sums of its parts would send less."""

    def f(x: Any) -> Any:
        return mnp.sin(lax.with_sharding_constraint(x.reshape(6, -1), mw.NamedSharding(MESH, P("data")))).sum(1)

    part = partitioned(f, X, "data", None, "model")
    part.verify(X)
    assert [(c.kind, c.bytes_sent) for c in part.collectives] == [("all_gather", X.nbytes // 2 * 3 // 4)]
