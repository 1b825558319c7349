"""Windows of padded arrays, and parts of what windows give: one exchange of rows, and no tiles of other sizes."""

import warnings

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding as Sharding
from meshwright import P, lax
from meshwright.ops.window.own_padding import own_padding

MESH = mw.AbstractMesh((4,), ("x",))
#: bytes of a row of ``X``
ROW = 8 * 4
X = mw.ShapeDtypeStruct((2, 64, 8), np.float32)
K = mw.ShapeDtypeStruct((3, 8, 8), np.float32)
NHC = ("NHC", "HIO", "NHC")


def partitioned(function, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        specs = [Sharding(MESH, P(None, "x") if a is X else P()) for a in args]
        return mw.jit(function, in_shardings=tuple(specs)).lower(*args).partition(MESH)


def rows_sent(part):
    """How many rows of a sample neighbours send, by verified programs."""
    part.verify()
    assert {c.kind for c in part.collectives} <= {"collective_permute", "all_reduce"}
    return sum(c.bytes_sent for c in part.collectives if c.kind == "collective_permute") / (2 * ROW)


def causal(x, k):
    return lax.conv_general_dilated(mnp.pad(x, ((0, 0), (2, 0), (0, 0))), k, (1,), "VALID", dimension_numbers=NHC)


def sums(x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 3, 1), (1, 2, 1), "SAME")


def dilated_sums(x):
    padded = lax.pad(x, 0.0, ((0, 0, 0), (2, 1, 1), (0, 0, 0)))
    return lax.reduce_window(padded, 0.0, lax.add, (1, 3, 1), (1, 1, 1), "VALID")


def blurred(x, k):
    padded = mnp.pad(x, ((0, 0), (1, 1), (0, 0)))
    return lax.conv_general_dilated(padded, k, (1,), "VALID", dimension_numbers=NHC)[:, ::2]


def largest_padded(x, value=-np.inf):
    padded = lax.pad(x, np.float32(value), ((0, 0, 0), (1, 0, 0), (0, 0, 0)))
    return lax.reduce_window(padded, -np.inf, lax.max, (1, 3, 1), (1, 2, 1), ((0, 0), (0, 0), (0, 0)))


@pytest.mark.parametrize(
    ("function", "args", "most"),
    [(causal, (X, K), 2), (sums, (X,), 1), (dilated_sums, (X,), 1), (blurred, (X, K), 2), (largest_padded, (X,), 1)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_padding_is_fetched_with_the_windows(function, args, most):
    assert rows_sent(partitioned(function, *args)) <= most


def test_the_gradients_of_a_causal_convolution_send_what_it_sends():
    def loss(x, k):
        return (causal(x, k) ** 2).sum()

    assert rows_sent(partitioned(mw.grad(loss, (0, 1)), X, K)) <= 3 * 2


#: the derivative of the largest of three in steps of two, as JAX writes it for CPUs
SCATTERED = """
module attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%x: tensor<2x64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>},
                  %ct: tensor<2x32x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>})
      -> tensor<2x64x8xf32> {
    %least = stablehlo.constant dense<VALUE> : tensor<f32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %padded = stablehlo.pad %x, %least, low = [0, 0, 0], high = [0, 1, 0], interior = [0, 0, 0]
        : (tensor<2x64x8xf32>, tensor<f32>) -> tensor<2x65x8xf32>
    %all = "stablehlo.select_and_scatter"(%padded, %ct, %zero) <{padding = dense<0> : tensor<3x2xi64>,
        window_dimensions = array<i64: 1, 3, 1>, window_strides = array<i64: 1, 2, 1>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %keep = stablehlo.compare GE, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %keep : tensor<i1>
    }, {
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %sum = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %sum : tensor<f32>
    }) : (tensor<2x65x8xf32>, tensor<2x32x8xf32>, tensor<f32>) -> tensor<2x65x8xf32>
    %rows = stablehlo.slice %all [0:2, 0:64, 0:8] : (tensor<2x65x8xf32>) -> tensor<2x64x8xf32>
    return %rows : tensor<2x64x8xf32>
  }
}
"""


def test_the_derivative_of_a_largest_value_fetches_the_windows_of_a_tile():
    part = mw.load(SCATTERED.replace("VALUE", "0xFF800000")).partition()
    # the window that starts in the tile before, with its rows, and the row after the last window of the tile
    assert rows_sent(part) <= 1 + 2 + 1


def test_padding_with_another_value_is_not_the_windows_own():
    part = mw.load(SCATTERED.replace("VALUE", "0.5")).partition()
    rows_sent(part)
    filled = partitioned(lambda x: largest_padded(x, 0.5), X)
    rows_sent(filled)


def test_what_stays_in_the_tiles_of_its_array_is_not_cut():
    """The interior of a convolution is computed in the tiles of its array, with its borders left out."""

    def inside(x, k):
        y = lax.conv_general_dilated(x, k, (1,), "SAME", dimension_numbers=NHC)[:, 1:-1]
        return mnp.pad(y * y, ((0, 0), (1, 1), (0, 0)))

    assert rows_sent(partitioned(inside, X, K)) <= 2

    def loss(x, k):
        return (inside(x, k) ** 2).sum()

    assert rows_sent(partitioned(mw.grad(loss), X, K)) <= 2 + 2


@pytest.mark.parametrize("rows", [(40, 40), (0, 8), (66, 74)], ids=["none", "padding alone", "the end"])
def test_slices_that_see_nothing_of_the_array(rows):
    def part(x, k):
        padding = [(12, 12)]
        return lax.conv_general_dilated(x, k, (1,), padding, dimension_numbers=NHC)[:, rows[0] : rows[1]]

    partitioned(part, X, K).verify()
    jaxpr = mw.make_jaxpr(part)(X, K)
    assert (own_padding(jaxpr) is jaxpr) == (rows != (66, 74))


def test_other_uses_and_other_dimensions_stay_as_they_are():
    def both(x):
        y = sums(x)
        return y, y[:, 3:]

    batch = mw.make_jaxpr(lambda x: sums(lax.pad(x, 0.0, ((1, 0, 0), (1, 1, 0), (0, 0, 0)))))(X)
    for jaxpr in (mw.make_jaxpr(both)(X), batch):
        assert own_padding(jaxpr) is jaxpr
