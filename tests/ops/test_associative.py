"""Associative scans: JAX's values and derivatives, one op for every function of scalars, and what devices send."""

import itertools

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright import lax
from meshwright.errors import ShapeError
from meshwright.ops.reduce.associative import AssociativeScan, LinearRecurrence

jax = pytest.importorskip("jax")
jnp = jax.numpy

RNG = np.random.default_rng(0)


def functions(n):
    """Of how many arrays, and the function."""
    return {
        "affine": (2, lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1])),
        "triangular": (3, lambda p, q: (p[0] * q[0], p[0] * q[1] + p[1] * q[2], p[2] * q[2])),
        "add": (1, lambda p, q: (p[0] + q[0],)),
        "max": (1, lambda p, q: (n.maximum(p[0], q[0]),)),
        "log-sum-exp": (1, lambda p, q: (n.logaddexp(p[0], q[0]),)),
        "softmax": (2, lambda p, q: softmax(n, p, q)),
        "moments": (3, lambda p, q: moments(p, q)),
        "areas": (2, lambda p, q: (p[0] + q[0], p[1] + q[1] + p[0] * q[0])),  # of its matrix no power has more entries
    }


def softmax(n, p, q):
    top = n.maximum(p[0], q[0])
    return top, p[1] * n.exp(p[0] - top) + q[1] * n.exp(q[0] - top)


def moments(p, q):
    apart = p[1] / p[0] - q[1] / q[0]
    return p[0] + q[0], p[1] + q[1], p[2] + q[2] + apart**2 * p[0] * q[0] / (p[0] + q[0])


NAMES = list(functions(np))
SHAPES = [((7, 3), 0, False), ((8, 5), 0, True), ((3, 13), 1, True), ((16,), 0, False), ((1, 4), 0, False)]


def program(numpy, lax, name, axis, reverse):
    count, combine = functions(numpy)[name]
    return lambda *xs: lax.associative_scan(combine, xs[:count], reverse=reverse, axis=axis)


def operands(name, shape):
    count = functions(np)[name][0]
    return tuple((0.5 + RNG.random(shape)).astype(np.float32) for _ in range(count))


def weighted(f, weights):
    return lambda *xs: sum((y * w).sum() for y, w in zip(f(*xs), weights))


def close(got, want, tol=3e-5):
    for a, b in zip(mw.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tol, atol=tol * (1 + np.abs(b).max(initial=0)))


@pytest.mark.parametrize("name,case", list(itertools.product(NAMES, SHAPES)))
def test_values_and_derivatives_are_jaxs(name, case):
    shape, axis, reverse = case
    xs, weights = operands(name, shape), operands(name, shape)
    f, g = program(mnp, lax, name, axis, reverse), program(jnp, jax.lax, name, axis, reverse)
    every = tuple(range(len(xs)))
    close(mw.jit(f)(*xs), g(*xs))
    close(mw.jvp(f, xs, weights)[1], jax.jvp(g, xs, weights)[1])
    slope, want = mw.grad(weighted(f, weights), every), jax.grad(weighted(g, weights), every)
    close(slope(*xs), want(*xs))
    squares = lambda of: lambda *xs: sum((s**2).sum() for s in of(*xs))  # noqa: E731
    close(mw.grad(squares(slope), every)(*xs), jax.grad(squares(want), every)(*xs), 2e-4)
    pairs = [np.stack([x, 1.1 * x], 1) for x in xs]
    close(mw.vmap(f, 1, 1)(*pairs), jax.vmap(g, 1, 1)(*pairs))


@pytest.mark.parametrize("name,case", list(itertools.product(NAMES, SHAPES)))
def test_tiles_gather_one_row_each(name, case):
    """Values and gradients, uneven tiles and tiles of padding alone."""
    shape, axis, reverse = case
    xs = operands(name, shape)
    f = program(mnp, lax, name, axis, reverse)
    slope = mw.grad(weighted(f, operands(name, shape)), tuple(range(len(xs))))
    for sizes, axes in (((8,), ("x",)), ((4, 2), ("x", "y"))):
        mesh = mw.make_mesh(sizes, axes)
        where = (mw.NamedSharding(mesh, P(*([None] * axis), "x")),) * len(xs)
        for fun in (f, slope):
            part = mw.jit(fun, in_shardings=where, out_shardings=where).lower(*xs).partition()
            part.verify(*xs)
        part = mw.jit(f, in_shardings=where, out_shardings=where).lower(*xs).partition()
        assert {c.kind for c in part.collectives} <= {"all_gather"}
        rows = len(xs) + (reverse and shape[axis] % sizes[0] > 0)  # whether there is one, too
        assert part.bytes_sent <= rows * 4 * (sizes[0] - 1) * np.prod(shape) / shape[axis]


def test_a_gradient_is_one_more_scan():
    def loss(a, b):
        return (lax.associative_scan(functions(mnp)["affine"][1], (a, b))[1] ** 2).sum()

    args = [mw.ShapeDtypeStruct((4096, 32), np.float32)] * 2
    names = [e.op.name for e in mw.make_jaxpr(mw.grad(loss, (0, 1)))(*args).eqns]
    assert names.count("associative_scan") == 1 and names.count("linear_recurrence") == 1
    where = (mw.NamedSharding(mw.make_mesh((8,), ("x",)), P("x")),) * 2
    part = mw.jit(mw.grad(loss, (0, 1)), in_shardings=where, out_shardings=where).lower(*args).partition()
    assert part.bytes_sent == (4 * 7 + 2) * 4 * 32  # two pairs of rows; what was before, twice


def test_functions_that_do_the_same_are_one_program():
    def scan(x):
        return lax.associative_scan(lambda a, b: a * b + 0 * a, x)

    x = np.ones(5, np.float32)
    bodies = [mw.make_jaxpr(scan)(x).eqns[0].op for _ in range(2)]
    assert bodies[0] == bodies[1] and isinstance(bodies[0], AssociativeScan)


@pytest.mark.parametrize("combine", [
    lambda a, b: mnp.einsum("...ij,...jk->...ik", b, a),  # matrices
    lambda a, b: mnp.cumsum(a, -1) * 0 + a + b,  # otherwise than element by element
])  # fmt: skip
def test_other_functions_are_written_out(combine):
    x = RNG.normal(size=(6, 3, 3)).astype(np.float32)
    got = np.asarray(lax.associative_scan(combine, x))
    want = [x[0]]
    for row in x[1:]:
        want.append(np.asarray(combine(want[-1], row)))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert "associative_scan" not in str(mw.make_jaxpr(lambda x: lax.associative_scan(combine, x))(x))


def test_integers_beside_numbers_have_no_derivative():
    """The value that is farthest from zero so far, and where it was."""

    def farthest(n, lax):
        def combine(p, q):
            first = abs(p[0]) >= abs(q[0])
            return n.where(first, p[0], q[0]), n.where(first, p[1], q[1])

        return lambda x: lax.associative_scan(combine, (x, n.arange(x.shape[0])))

    x = RNG.normal(size=9).astype(np.float32)
    close(farthest(mnp, lax)(x), farthest(jnp, jax.lax)(x))
    w = RNG.normal(size=9).astype(np.float32)
    close(
        mw.grad(lambda x: (farthest(mnp, lax)(x)[0] * w).sum())(x),
        jax.grad(lambda x: (farthest(jnp, jax.lax)(x)[0] * w).sum())(x),
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_ties_share_derivatives_as_in_the_tree(reverse):
    weights = np.arange(1, 8, dtype=np.float32)
    slope = lambda m, n, L: m.grad(lambda x: (L.associative_scan(n.maximum, x, reverse=reverse) * weights).sum())  # noqa: E731
    for x in (np.ones(7, np.float32), np.array([3, 1, 3, 3, 2, 3, 3], np.float32)):
        np.testing.assert_array_equal(np.asarray(slope(mw, mnp, lax)(x)), np.asarray(slope(jax, jnp, jax.lax)(x)))


def test_complex_numbers():
    """As in state-space models; a function without one derivative is differentiated as it is written out."""
    a, b = (RNG.normal(size=(2, 6, 3)) + 1j * RNG.normal(size=(2, 6, 3))).astype(np.complex64)
    turned = lambda n: lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1])  # noqa: E731
    largest = lambda n: lambda p, q: (n.where(abs(p[0]) >= abs(q[0]), p[0], q[0]), p[1] + n.conj(n.conj(q[1])))  # noqa: E731
    for f in (turned, largest):
        ours = lambda a, b: abs(lax.associative_scan(f(mnp), (a, b))[1]).sum()  # noqa: B023, E731
        theirs = lambda a, b: abs(jax.lax.associative_scan(f(jnp), (a, b))[1]).sum()  # noqa: B023, E731
        close(ours(a, b), theirs(a, b))
        close(mw.grad(ours, (0, 1))(a, b), jax.grad(theirs, (0, 1))(a, b), 1e-4)


def test_special_values():
    """What was before the first element is nothing, not a zero."""
    x = np.array([np.inf, -0.0, 0.0, 2.0, np.nan, 1.0], np.float32)
    for reverse in (False, True):
        got = lax.associative_scan(lambda a, b: a * b, x, reverse=reverse)
        want = jax.lax.associative_scan(lambda a, b: a * b, x, reverse=reverse)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_zeros_keep_their_signs(dtype, reverse):
    """JAX's lose them where prefixes of odd and of even lengths are put together."""
    zeros = np.array([-0.0, 1, complex(-0.0, -0.0), -2, 0, -0.0, complex(3, -0.0), -0.0, complex(0, -0.0)])
    x = mnp.asarray(zeros if dtype == "complex64" else zeros.real, dtype)
    for n in range(1, 10):
        later = lax.associative_scan(lambda a, b: b, x[:n], reverse=reverse)
        assert np.asarray(later).tobytes() == np.asarray(x[:n]).tobytes()
    product = np.asarray(lax.associative_scan(mnp.multiply, x.real, reverse=reverse)).astype(np.float32)
    order = slice(None, None, -1 if reverse else 1)
    want = np.multiply.accumulate(zeros.real[order])[order]
    np.testing.assert_array_equal(np.signbit(product), np.signbit(want))


@pytest.mark.parametrize("reverse", [False, True])
def test_the_function_is_not_taken_at_what_was_never_combined(reverse):
    """Of lengths, which have no derivative at (0, 0): not with nothing before, and not with the element itself."""
    x = np.array([0, 3, 4, 0, 2, 0], np.float32)
    loss = lambda x: (lax.associative_scan(lambda a, b: mnp.sqrt(a * a + b * b), x, reverse) ** 2).sum()  # noqa: E731
    got = np.asarray(mw.grad(loss)(x))
    np.testing.assert_allclose(got, 2 * x * np.arange(1, 7)[:: 1 if reverse else -1], rtol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
def test_infinities_do_not_reach_the_first_element(reverse):
    """A recurrence ends in an infinity: the derivative by the first factor, which it does not contain, is a number."""
    a, c = np.array([0.5, 2, 3], np.float32), np.array([1, 2, np.inf], np.float32)
    if reverse:
        a, c = a[::-1].copy(), c[::-1].copy()

    def loss(n, scan):
        combine = lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1])  # noqa: E731
        return lambda a, c: sum(n.sum(n.sin(y)) for y in scan(combine, (a, c), reverse))

    got = mw.grad(loss(mnp, lax.associative_scan), (0, 1))(a, c)
    want = jax.grad(loss(jnp, jax.lax.associative_scan), (0, 1))(a, c)
    assert np.isfinite(want[0][-1 if reverse else 0])
    for x, y in zip(got, want):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-5)


def test_bad_recurrences_are_refused():
    x = np.ones((4, 2), np.float32)
    with pytest.raises(ShapeError, match="entries"):
        LinearRecurrence(((0, 1),), 0).bind(x, x)
    with pytest.raises(ShapeError, match="axis 2"):
        LinearRecurrence(((0, 0),), 2).bind(x, x)
