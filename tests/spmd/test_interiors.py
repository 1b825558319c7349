"""Stencils send the rows next to a tile, however they are written: padded, set into an array, in loops."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.ops.shape.interiors import interiors
from meshwright.ops.shape.shifts import windows_of_extended

N = 64
MESH = mw.AbstractMesh((4, 2), ("a", "b"))


def neighbours(u):
    return u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]


def nine(u):
    n, m = u.shape
    return sum((1 + i + 3 * j) * u[i : n - 2 + i, j : m - 2 + j] for i in range(3) for j in range(3))


def stepped(u):
    return u.at[1:-1, 1:-1].add(neighbours(u) / 10)


def partitioned(f, *spec, size=N):
    where = NamedSharding(MESH, P(*spec))
    lowered = mw.jit(f, in_shardings=where, out_shardings=where).lower(mw.ShapeDtypeStruct((size, size), np.float32))
    return lowered.partition()


#: a row to either neighbour along ``a``, and a column to the other device along ``b``
ROWS, COLUMN = 2 * 4 * N // 2, 4 * N // 4
#: the same with corners; permutes to the left and to the right are counted both
CORNERS = ROWS + 2 * (COLUMN + 2 * 4)

BORDERS = "edge", "reflect", "symmetric"


@pytest.mark.parametrize(
    ("f", "sent"),
    [
        (lambda u: mnp.pad(neighbours(u), 1), ROWS + COLUMN),
        (lambda u: mnp.pad(neighbours(u), 1, constant_values=3.0), ROWS + COLUMN),
        (lambda u: neighbours(mnp.pad(u, 1)), ROWS + COLUMN),
        (lambda u: neighbours(mnp.pad(u, 1, mode="wrap")), ROWS + 2 * COLUMN),
        (lambda u: u.at[1:-1, 1:-1].set(mnp.exp(neighbours(u)) / u[1:-1, 1:-1]), ROWS + COLUMN),
        (stepped, ROWS + COLUMN),
        (lambda u: lax.fori_loop(0, 5, lambda _, u: stepped(u), u), 5 * (ROWS + COLUMN)),
        (lambda u: u.at[2:-1].set(u[1:-2] * 2), ROWS // 2),
        # with corners, which come along with the columns of the rows that are fetched
        *[(lambda u, mode=m: nine(mnp.pad(u, 1, mode=mode)), CORNERS) for m in ("constant", "edge", "reflect")],
        (lambda u: mnp.pad(nine(u), 1), CORNERS),
        (lambda u: lax.fori_loop(0, 5, lambda _, u: nine(mnp.pad(u, 1)), u), 5 * CORNERS),
        # of higher order: each of the two rows once
        (lambda u: mnp.pad(u[4:] - 8 * u[3:-1] + 8 * u[1:-3] - u[:-4], ((2, 2), (0, 0))), 2 * ROWS),
        # borders that repeat or reflect what is next to them
        *[(lambda u, mode=m: neighbours(mnp.pad(u, 1, mode=mode)), ROWS + COLUMN) for m in BORDERS],
        (lambda u: mnp.pad(u, ((2, 1), (0, 0)), mode="edge")[:-3] - u, ROWS),
        (lambda u: lax.fori_loop(0, 5, lambda _, u: neighbours(mnp.pad(u, 1, mode="edge")), u), 5 * (ROWS + COLUMN)),
        # other differences at the ends
        (lambda u: mnp.gradient(u, axis=0), ROWS),
        (lambda u: sum(mnp.gradient(u)), ROWS + COLUMN),
        (lambda u: mnp.diff(u, axis=0, append=u[-1:]), ROWS // 2),
        (lambda u: mnp.concatenate([u[1:2], u[:-2] * u[2:], mnp.exp(u[-2:-1])]), ROWS),
    ],
)
def test_stencils(f, sent):
    part = partitioned(f, "a", "b")
    assert part.bytes_sent == sent
    assert {c.kind for c in part.collectives} == {"collective_permute"}
    part.verify()


@pytest.mark.parametrize(
    ("f", "sent"),
    [
        (lambda u: mnp.concatenate([u[1:2], u[1:-1], u[-2:-1]]), 0),
        (lambda u: mnp.pad(u[1:-1], ((1, 1), (0, 0)), mode="edge"), 0),
        *[(lambda u, mode=m: mnp.pad(u[1:-1, 1:-1], 1, mode=mode), 0) for m in BORDERS],
        *[(lambda u, mode=m: mnp.pad(neighbours(u), 1, mode=mode), ROWS + COLUMN) for m in BORDERS],
        (lambda u: mnp.concatenate([mnp.maximum(u[1:2], 0.5) * u[0, 0], u[1:-1], u[-1:]]), 7),
        (lambda u: mnp.concatenate([2 * u[1:2] - u[2:3], u[1:-1], 2 * u[-2:-1] - u[-3:-2]]), 0),
        (lambda u: mnp.concatenate([u[-2:-1], u[1:-1], u[1:2]]), ROWS),  # from end to end
        (lambda u: mnp.concatenate([u[3:4], u[2:3], u[1:-2] - u[:-3], u[-1:]]), ROWS),
    ],
)
def test_few_rows_at_the_ends_shift_nothing(f, sent):
    part = partitioned(f, "a", "b")
    assert part.bytes_sent == sent
    part.verify()


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("stencil", [neighbours, nine])
def test_borders_are_little_work(stencil, mode):
    """What is around the array is put there in the rows that are fetched, not chosen in all of a tile."""
    assert partitioned(lambda u: stencil(mnp.pad(u, 1, mode=mode)), "a", "b", size=512).work.redundancy < 1.02


@pytest.mark.parametrize("mode", BORDERS)
@pytest.mark.parametrize("size", [64, 61, 9])
def test_borders_are_laid_around_the_halo_once(mode, size):
    """Many windows of one extended array send and hold little more than windows of one with zeros around it."""

    def windows(mode):
        def f(u):
            p = mnp.pad(u, 2, mode=mode)
            return sum((1 + i - 3 * j) * mnp.exp(-p[i : i + size, j : j + size]) for i in range(5) for j in range(5))

        return partitioned(f, "a", "b", size=size)

    part, zeros = windows(mode), windows("constant")
    part.verify()
    assert part.bytes_sent == zeros.bytes_sent and len(part.collectives) == len(zeros.collectives)
    assert part.peak_bytes < 1.2 * zeros.peak_bytes or size < N


def test_borders_from_beyond_the_halo():
    """A window that reaches less far than the rows that a border repeats, or than a tile."""
    where = NamedSharding(MESH, P("a"))
    for f in (
        lambda u: mnp.concatenate([u[5:7], u, u[14:13:-1]])[1:-2] - u,
        lambda u: mnp.pad(u, 9, mode="reflect")[2 : len(u) + 2] - mnp.pad(u, 9, mode="reflect")[17 : len(u) + 17],
    ):
        for rows in (16, 18, 21):
            shape = mw.ShapeDtypeStruct((rows,), np.float32)
            mw.jit(f, in_shardings=where, out_shardings=where).lower(shape).partition().verify()


@pytest.mark.parametrize("fill", [0.0, 3.0])
def test_rows_that_do_not_exist(fill):
    """Windows that begin before an array, end behind it, or lie outside, of tiles with padding and without."""
    padding = [(1, 1), (3, 0), (0, 7), (16, 0), (0, 40), (40, 24), (-3, 3), (5, -5), (-20, 30), (30, -20), (-8, -8)]

    def f(u, v):
        return [lax.pad(x, np.float32(fill), [(low, high, inner), (0, 0, 0)])
                for x in (u, v) for low, high in padding for inner in (0, 1)]  # fmt: skip

    where = NamedSharding(MESH, P("a"))
    args = [mw.ShapeDtypeStruct((n, 2), np.float32) for n in (32, 30)]
    part = mw.jit(f, in_shardings=where, out_shardings=where).lower(*args).partition()
    assert "collective_permute" in {c.kind for c in part.collectives}
    part.verify()


def test_nothing_has_no_rows():
    def f(u):
        v = mnp.concatenate([u, u[:0] * 2], 0)[:, 4:4]
        return mnp.diff(mnp.diff(v, axis=1, prepend=0), axis=0), mnp.pad(v, ((1, 1), (0, 0)))

    partitioned(f, "a", "b").verify()


def test_it_is_said():
    assert any("interiors of arrays are computed in the rows" in note for note in partitioned(stepped, "a", "b").notes)


def test_nothing_split_nothing_changed():
    part = partitioned(stepped)
    assert not part.notes and "placed_update" in str(part.jaxpr)


@pytest.mark.parametrize("f", [
    lambda u: u.at[3:5].set(1.0),  # a small part
    lambda u: u.at[1:-1].set(mnp.cumsum(u[1:-1], 1)),  # not element by element
    lambda u: u.at[1:-1, 1:-1].set(neighbours(u) * u[0, 0] + mnp.flip(u[1:-1, 1:-1])),  # some of it is
    lambda u: mnp.concatenate([u[40:44], u[:-4]])[2:-1],  # from far away
    lambda u: mnp.concatenate([u[:1] * u[3:4], mnp.sort(u)[1:-1], u[::63][1:]]),
])  # fmt: skip
def test_others_are_right(f):
    partitioned(f, "a", "b").verify()


def test_infinite_borders_stay_out():
    """The border is computed with what is padded, and left out."""
    mesh = mw.make_mesh((4, 2), ("a", "b"))
    u = np.random.default_rng(0).normal(size=(N, N)).astype(np.float32)
    u[0], u[:, -1] = np.inf, np.nan

    def f(u):
        return u.at[1:-1, 1:-1].set(u[1:-1, 1:-1] / u[:-2, 1:-1] + u[1:-1, :-2])

    where = NamedSharding(mesh, P("a", "b"))
    np.testing.assert_array_equal(mw.jit(f, in_shardings=where, out_shardings=where)(u), mw.jit(f)(u))


def test_calls_without_results_stand_beside_interiors():
    def shown(u):
        mw.debug.callback(lambda x: None, u[0])
        return mnp.pad(u[1:-1], ((1, 1), (0, 0)))

    where = NamedSharding(mw.make_mesh((2,), ("a",)), P("a"))
    u = np.ones((8, 4), np.float32)
    part = mw.jit(shown, in_shardings=where).lower(u).partition()
    np.testing.assert_array_equal(part(u), shown(u))


def repeatedly(step, n, x):
    for _ in range(n):
        x = step(x)
    return x


@pytest.mark.parametrize(
    ("f", "most"),
    [
        (lambda x, n: mnp.pad(repeatedly(mnp.sin, n, x[1:-1]), 1), 1),
        (lambda x, n: mnp.pad(repeatedly(lambda y: y[1:-1], n, mnp.pad(x, n))[1:-1], 1), 2),
        (lambda x, n: repeatedly(lambda y: mnp.concatenate([y, y[-1:] * 2]), n, x), 1),
        pytest.param(
            lambda x, n: repeatedly(lambda y: mnp.concatenate([y[1:2], y, y[2:1:-1]]), n, x)[7 : 7 + N],
            N // 2,
            marks=pytest.mark.slow,
        ),
        (lambda x, n: repeatedly(lambda y: mnp.concatenate([y, y.sum(keepdims=True)]), n, x)[5 : 5 + N], 1),
    ],
)
def test_chains_of_any_length(f, most):
    """They are followed without Python's stack, and the program grows by so many times at most."""
    n = 1000
    jaxpr = mw.make_jaxpr(lambda x: f(x, n))(np.ones(N, np.float32))
    for rewrite in (interiors, windows_of_extended):
        size = len(rewrite(jaxpr).jaxpr.eqns)
        assert size <= (1 + most) * len(jaxpr.jaxpr.eqns) + 10


@pytest.mark.parametrize("n", [1, 3])
def test_own_rows_around_own_rows(n):
    def f(x):
        y = repeatedly(lambda y: mnp.concatenate([y[1:2], y * 2, y[2:1:-1]]), n, x)
        return y[2 : 2 + N] + repeatedly(lambda y: mnp.concatenate([y, y[-1:] * 2]), n, x)[1 : 1 + N]

    partitioned(f, "a", "b").verify()


@pytest.mark.parametrize(("spec", "sent"), [(("a",), 2 * 4 * N), (("a", "b"), 2 * 4 * N // 2 + 4 * N // 4)])
def test_the_gradient_of_a_padded_stencil_sends_the_edges_of_its_cotangent(spec, sent):
    """The padded cotangents are cut to the tiles of the array before they are added."""
    place = NamedSharding(MESH, P(*spec))

    def gradient(u, ct):
        return mw.grad(lambda u: (neighbours(mnp.pad(u, 1)) * ct).sum())(u)

    like = mw.ShapeDtypeStruct((N, N), np.float32)
    part = mw.jit(gradient, in_shardings=place, out_shardings=place).lower(like, like).partition()
    assert part.bytes_sent == sent
    assert part.verify()


def test_what_is_needed_whole_or_elsewhere_is_not_cut():
    """Sums of pads of which something else needs all rows, and pads of which nothing would be left, stay."""

    def sums(x, y):
        whole = mnp.pad(x, ((0, 8), (0, 0))) + mnp.pad(y, ((8, 0), (0, 0)))
        return whole[2:], whole.sum(0), (mnp.pad(x, ((0, 64), (0, 0))) + mnp.pad(y, ((64, 0), (0, 0))))[N + 4 :]

    like = mw.ShapeDtypeStruct((N, N), np.float32)
    place = NamedSharding(MESH, P("a"))
    assert mw.jit(sums, in_shardings=place).lower(like, like).partition().verify()
