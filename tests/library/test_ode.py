"""Initial value problems beside what they have as solutions, their derivatives, and what ends their steps."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.errors import ArgumentError, DifferentiationError, DTypeError, ShapeError
from meshwright.experimental.ode import odeint

TIMES = np.array([0.0, 0.3, 1.1], np.float32)


def decay(y, t, rate):
    return -rate * y


def test_solutions_of_trees():
    def pendulum(y, t, stiffness):
        return {"place": y["speed"], "speed": -(stiffness**2) * y["place"]}

    ys = odeint(pendulum, {"place": 1.0, "speed": np.zeros(1, np.float32)[0]}, TIMES, 2.0)
    np.testing.assert_allclose(ys["place"], np.cos(2 * TIMES), rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(ys["speed"], -2 * np.sin(2 * TIMES), rtol=2e-6, atol=1e-6)
    assert odeint(decay, mnp.ones(3), TIMES[:1], 1.0).tolist() == [[1.0] * 3]


def test_exact_to_the_tolerance_in_float64():
    with mw.enable_x64(True):
        times = np.linspace(0, 2, 5)
        exact = np.exp(np.sin(3 * times))
        for tolerance in (1e-4, 1e-8, 1e-11):
            ys = odeint(lambda y, t: 3 * mnp.cos(3 * t) * y, 1.0, times, rtol=tolerance, atol=tolerance)
            assert np.abs(np.asarray(ys) - exact).max() < 40 * tolerance


@pytest.mark.parametrize("run", [lambda f: f, mw.jit], ids=["", "jit"])
def test_gradients_are_those_of_the_solution(run):
    weights = np.array([[1.0, -2.0], [0.5, 3.0], [2.0, 1.0]], np.float32)

    def loss(y, times, rate, scale):
        # The number of terms, an integer, has no cotangent; scale is closed over.
        ys = odeint(lambda y, t, r, n: -r["rate"] * y * scale * n, y, times, {"rate": rate}, 2)
        return (ys * weights).sum()

    def exact(y, times, rate, scale):
        return (y * mnp.exp(-2 * rate * scale * (times - times[0]))[:, None] * weights).sum()

    point = mnp.array([1.0, 0.5]), mnp.asarray(TIMES), 0.7, 0.9
    got, want = (run(mw.grad(f, (0, 1, 2, 3)))(*point) for f in (loss, exact))
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)


@pytest.mark.slow
def test_second_derivatives_complex_states_and_equal_times():
    second = mw.grad(mw.grad(lambda rate: odeint(decay, 1.0, TIMES, rate)[-1]))(0.7)
    assert abs(second - TIMES[-1] ** 2 * np.exp(-0.7 * TIMES[-1])) < 1e-5
    start, times = np.array([1, 1 - 2j], np.complex64), mnp.array([0.0, 0.0, 1.0, 1.0])

    def angle_of(times, speed):
        return mnp.real(odeint(lambda y, t, w: 1j * w * y, start, times, speed)[:, 1]).sum()

    with warnings.catch_warnings(action="error"):  # of imaginary parts that are dropped
        got = mw.grad(angle_of, (0, 1))(times, 2.0)
    want = mw.grad(lambda t, w: mnp.real(mnp.exp(1j * w * (t - t[0])) * start[1]).sum(), (0, 1))(times, 2.0)
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)


def test_batches_and_sharded_states():
    rates = mnp.array([0.5, 1.0, 4.0])
    exact = np.exp(-np.outer(rates, TIMES))
    np.testing.assert_allclose(mw.vmap(lambda r: odeint(decay, 1.0, TIMES, r))(rates), exact, rtol=2e-6)
    split = NamedSharding(mw.AbstractMesh((2,), ("x",)), P("x"))
    part = mw.jit(lambda y: odeint(decay, y, TIMES, rates), in_shardings=split).lower(mnp.ones(3)).partition()
    part.verify(np.ones(3, np.float32))


def test_what_cannot_be_continued_is_nan():
    blown = odeint(lambda y, t: y**2, 1.0, mnp.array([0.0, 0.5, 2.0, 3.0]))
    np.testing.assert_allclose(blown, [1, 2, np.nan, np.nan], rtol=1e-5)
    assert np.isnan(odeint(decay, 1.0, TIMES, 1.0, mxstep=1)[1:]).all()
    assert np.isnan(odeint(decay, 1.0, TIMES, np.nan)[1:]).all()
    assert np.isnan(odeint(lambda y, t: mnp.cos(t), 1.0, mnp.array([0.0, np.inf]))[1])
    assert np.isnan(mw.jit(lambda t: odeint(decay, 1.0, t, 1.0))(TIMES[::-1])[1:]).all()


def test_refusals(refuses):
    for error, words, call in (
        (DTypeError, ("y0['n'] is i32[]",), lambda: odeint(decay, {"n": 1}, TIMES, 1.0)),
        (DTypeError, ("t is int32",), lambda: odeint(decay, 1.0, np.arange(3), 1.0)),
        (ArgumentError, ("t decreases", "-func(y, -t)"), lambda: odeint(decay, 1.0, TIMES[::-1], 1.0)),
        (DTypeError, ("make the state complex",), lambda: odeint(lambda y, t: 1j * y, 1.0, TIMES)),
        (ShapeError, ("shape ()",), lambda: odeint(decay, 1.0, 2.0, 1.0)),
        (ShapeError, ("like the state",), lambda: odeint(lambda y, t: (y, y), 1.0, TIMES)),
        (ArgumentError, ("rtol", "not negative"), lambda: odeint(decay, 1.0, TIMES, 1.0, rtol=-1.0)),
        (DifferentiationError, ("reverse mode only",), lambda: mw.jacfwd(lambda r: odeint(decay, 1.0, TIMES, r))(1.0)),
    ):
        with refuses(error, *words):
            call()
