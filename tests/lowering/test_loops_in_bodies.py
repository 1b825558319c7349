"""Functions with control flow, applied by reductions and maps: XLA ends the process on them."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax

X = 12 * np.random.default_rng(3).integers(1, 50, (4, 6)).astype(np.int32)
FUNCTIONS = {
    "while": (mnp.gcd, np.gcd),
    "cond": (lambda a, b: lax.cond(a > b, lambda: a, lambda: b), np.maximum),
    "scan": (lambda a, b: lax.fori_loop(0, 3, lambda i, c: c + b - b, a) + b, np.add),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_reductions(name):
    ours, numpys = FUNCTIONS[name]
    for axes in ((0,), (1,), (0, 1), (1, 0)):
        got = mw.jit(lambda x: lax.reduce(x, np.int32(0), ours, axes))(X)  # noqa: B023
        np.testing.assert_array_equal(got, numpys.reduce(X, axis=axes))
    mapped = mw.vmap(lambda x, i: lax.reduce(x, i, ours, (0,)))(X, X[:, 0])
    np.testing.assert_array_equal(mapped, numpys(numpys.reduce(X, axis=1), X[:, 0]))
    empty = lax.reduce(X[:0], np.int32(7), ours, (0,))
    np.testing.assert_array_equal(empty, np.full(6, 7))
    assert lax.reduce(X[:, :0], np.int32(7), ours, (0,)).shape == (0,)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_windows(name):
    ours, numpys = FUNCTIONS[name]
    got = lax.reduce_window(X, np.int32(0), ours, (2, 3), (1, 2), ((1, 0), (0, 1)))
    padded = np.pad(X, ((1, 0), (0, 1)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (2, 3))[:, ::2]
    np.testing.assert_array_equal(got, numpys.reduce(seen, axis=(2, 3)))


@pytest.mark.filterwarnings("ignore:input 0")
@pytest.mark.parametrize("devices", [2, 4])
def test_on_meshes(devices):
    mesh = mw.make_mesh((devices,), ("i",))
    for spec in (mw.P("i"), mw.P(None, "i")):
        f = mw.jit(lambda x: lax.reduce(x, np.int32(0), mnp.gcd, (1,)), in_shardings=mw.NamedSharding(mesh, spec))
        f.lower(X).partition().verify(X)
        np.testing.assert_array_equal(f(X), np.gcd.reduce(X, axis=1))


def test_maps_of_programs_from_elsewhere():
    text = """
func.func @main(%x: tensor<2x3xi32>) -> tensor<2x3xi32> {
  %0 = "stablehlo.map"(%x) ({
  ^bb0(%a: tensor<i32>):
    %n = stablehlo.constant dense<100> : tensor<i32>
    %1 = stablehlo.while(%v = %a) : tensor<i32>
      cond {
        %c = stablehlo.compare LT, %v, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %d = stablehlo.add %v, %v : tensor<i32>
        stablehlo.return %d : tensor<i32>
      }
    stablehlo.return %1 : tensor<i32>
  }) {dimensions = array<i64: 0, 1>} : (tensor<2x3xi32>) -> tensor<2x3xi32>
  return %0 : tensor<2x3xi32>
}"""
    x = np.array([[1, 3, 50], [99, 100, 7]], np.int32)
    np.testing.assert_array_equal(mw.load(text)(x), [[128, 192, 100], [198, 100, 112]])


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_windows_by_ops_without_a_window_op_of_their_own(name):
    start = np.int32(-1 if name == "bitwise_and" else 0)
    got = lax.reduce_window(X, start, getattr(lax, name), (2, 2), (1, 1), "VALID")
    seen = np.lib.stride_tricks.sliding_window_view(X, (2, 2))
    np.testing.assert_array_equal(got, getattr(np, name).reduce(seen, axis=(2, 3)))
    got = lax.reduce_window(X > 300, np.bool_(start), getattr(lax, name), (2, 2), (1, 1), "VALID")
    np.testing.assert_array_equal(got, getattr(np, name).reduce(seen > 300, axis=(2, 3)))


def test_ops_that_are_loops_on_cpus():
    """The function has no control flow of its own, but what XLA gets for its ops does."""
    zero = np.float32(0)

    def add(a, b):  # the incomplete gamma function is below 1
        return a + b + mnp.floor(lax.igamma(a * a + 1, b * b + 1))

    x = X.astype(np.float32) / 1000
    np.testing.assert_allclose(lax.reduce(x, zero, add, (0,)), x.sum(0), rtol=1e-6)
    windows = lax.reduce_window(x, zero, add, (2, 1), (1, 1), "VALID")
    np.testing.assert_allclose(windows, x[1:] + x[:-1], rtol=1e-6)


def _below_one(a):
    """0: numbers below 1, without what follows the point."""
    return mnp.floor(lax.igamma(mnp.arange(3.0) + 1, a * a + mnp.arange(3.0)).sum() / 3)


NO_FORMULAS = {
    "constants": _below_one,
    "decomposition": lambda a: mnp.linalg.det(mnp.eye(2) * (1 + a - a)) - 1,
    "transform": lambda a: mnp.fft.fft(mnp.ones(3) + a)[1].imag,
    "sums": lambda a: mnp.zeros(4).at[np.array([1, 1])].add(a)[0],
    "reduction": lambda a: lax.reduce(mnp.zeros(3) * a, np.float32(0), lambda b, c: b + c + _below_one(b), (0,)),
    "random": lambda a: mnp.floor(mw.random.uniform(mw.random.key(a.astype(int)))),
}


@pytest.mark.parametrize("name", NO_FORMULAS)
def test_functions_with_arrays(name):
    zero, x = np.float32(0), X.astype(np.float32) / 1000

    def add(a, b):
        return a + b + NO_FORMULAS[name](a).astype(a.dtype)

    np.testing.assert_allclose(mw.jit(lambda x: lax.reduce(x, zero, add, (0,)))(x), x.sum(0), rtol=1e-5)
    windows = mw.jit(lambda x: lax.reduce_window(x, zero, add, (2, 1), (1, 1), "VALID"))(x)
    np.testing.assert_allclose(windows, x[1:] + x[:-1], rtol=1e-5)


@pytest.mark.parametrize(
    "derive",
    [lambda key, b: key, lambda key, b: mw.random.fold_in(key, b), lambda key, b: mw.random.split(key)[1]],
    ids=["key", "fold_in", "split"],
)
def test_functions_that_draw(derive):
    """The words of new keys are compiled apart, by calls on which XLA ends the process here."""

    def add(a, b):  # numbers that are drawn are below 1
        return a + b + mnp.floor(mw.random.uniform(derive(mw.random.key(a), b))).astype(a.dtype)

    x, zero = X.astype(np.uint32), np.uint32(0)
    np.testing.assert_array_equal(mw.jit(lambda x: lax.reduce(x, zero, add, (0,)))(x), x.sum(0))
    windows = mw.jit(lambda x: lax.reduce_window(x, zero, add, (2, 1), (1, 1), "VALID"))(x)
    np.testing.assert_array_equal(windows, x[1:] + x[:-1])
