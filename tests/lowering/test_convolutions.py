"""Convolutions as XLA's CPU kernels want them: the same values, in whatever order dimensions lie."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.ir.passes import dead_code
from meshwright.ir.tracing import eval_jaxpr
from meshwright.lowering import depthwise
from meshwright.lowering import kernel_gradients as of_kernels
from meshwright.lowering.convolutions import as_products

RNG = np.random.default_rng(0)


def _random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


#: operands, strides, padding, dilation of the kernel, and how many convolutions are left
CASES = {
    "one row": ((2, 5, 6, 3), (1, 1, 3, 4), (1, 1), ((0, 0), (0, 0)), (1, 1), 0),
    "one row of some": ((2, 5, 6, 3), (1, 1, 3, 4), (2, 3), ((0, 0), (0, -1)), (1, 1), 0),
    "one row of padding, too": ((2, 5, 6, 3), (1, 1, 3, 4), (1, 1), ((1, 0), (0, 0)), (1, 1), 1),
    "all rows": ((4, 5, 6, 3), (5, 6, 3, 2), (1, 1), ((0, 0), (0, 0)), (1, 1), 0),
    "all rows, more results": ((2, 5, 6, 3), (5, 6, 3, 7), (1, 1), ((0, 0), (0, 0)), (1, 1), 0),
    "some rows": ((4, 5, 6, 3), (3, 2, 3, 2), (1, 1), ((0, 0), (0, -1)), (2, 4), 0),
    "all rows, one column": ((4, 5, 6, 3), (5, 1, 3, 2), (1, 2), ((0, 0), (0, 0)), (1, 1), 0),
    "few positions": ((1, 3, 3, 5), (3, 3, 5, 20), (1, 1), ((1, 1), (1, 1)), (1, 1), 0),
    "few positions, strides": ((1, 7, 9, 5), (3, 2, 5, 20), (2, 4), ((1, 0), (2, 1)), (1, 2), 0),
    "many positions": ((2, 5, 5, 5), (3, 3, 5, 20), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
}  # fmt: skip


#: orders of batch, rows, columns and features
ORDERS = [(0, 1, 2, 3), (0, 3, 1, 2), (3, 1, 2, 0), (2, 0, 3, 1)]


def _reference(x, y, strides, padding, dilation):
    """In float64, features last."""
    padded = np.pad(x.astype(np.float64), ((0, 0), *((max(p, 0), max(q, 0)) for p, q in padding), (0, 0)))
    cuts = [(max(-p, 0), padded.shape[1 + i] - max(-q, 0)) for i, (p, q) in enumerate(padding)]
    seen = padded[:, slice(*cuts[0]), slice(*cuts[1])]
    rows = [(seen.shape[1 + i] - (y.shape[i] - 1) * dilation[i] - 1) // strides[i] + 1 for i in range(2)]
    total = np.zeros((x.shape[0], *rows, y.shape[-1]))
    for i, j in np.ndindex(*y.shape[:2]):
        low, left = i * dilation[0], j * dilation[1]
        part = seen[:, low :: strides[0], left :: strides[1]][:, : rows[0], : rows[1]]
        total += part @ y[i, j]
    return total


def _convolved(order, strides, padding, dilation):
    """The convolution of what lies in an order, into that order; so do kernels, inputs in the batch's place."""
    at = [order.index(d) for d in range(4)]
    spec = (at[0], at[3], at[1], at[2])
    numbers = lax.ConvDimensionNumbers(spec, (at[3], at[2], at[0], at[1]), spec)
    return lambda x, y: lax.conv_general_dilated(x, y, strides, padding, None, dilation, numbers)


def _left(closed):
    return sum(e.op.name == "conv_general_dilated" for e in closed.jaxpr.eqns)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", CASES)
def test_products_have_the_values_of_convolutions(name, order):
    x, y, strides, padding, dilation, left = CASES[name]
    x, y = _random(*x), _random(*y)
    a, b = np.transpose(x, order), np.transpose(y, order)
    after = as_products(mw.make_jaxpr(_convolved(order, strides, padding, dilation))(a, b))
    assert _left(after) == left
    want = np.transpose(_reference(x, y, strides, padding, dilation), order)
    (got,) = mw.jit(lambda *v: eval_jaxpr(after, after.consts, *v))(a, b)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_infinities_meet_what_they_met(name):
    """Rows of padding make NaN of infinite kernels, as in the convolution; nothing else becomes one."""
    x, y, strides, padding, dilation, _ = CASES[name]
    x, y = _random(*x), _random(*y)
    x[0, 1, 2, 0], y[0, 0, 1, 1] = np.inf, -np.inf
    after = as_products(mw.make_jaxpr(_convolved((0, 1, 2, 3), strides, padding, dilation))(x, y))
    (got,) = mw.jit(lambda *v: eval_jaxpr(after, after.consts, *v))(x, y)
    with np.errstate(invalid="ignore"):
        want = _reference(x, y, strides, padding, dilation)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_kernels_of_one_row_are_products_on_one_device():
    x, w = _random(2, 8, 6, 6), _random(20, 8, 1, 1)
    both = mw.jit(mw.grad(lambda x, w: (lax.conv_general_dilated(x, w, (1, 1), "VALID") ** 2).sum(), argnums=(0, 1)))
    text = both.lower(x, w).compile().as_text("virtual")
    assert " convolution(" not in text and "ynn_fusion" not in text and " dot(" in text


@pytest.mark.parametrize("low", [-3, -2, -1, 2])
@pytest.mark.parametrize("strides", [1, 2])
def test_padding_may_cut_below_and_add_above(low, strides):
    """XLA's own kernels read rows that are not there."""
    x, y = _random(2, 14, 17, 20), _random(3, 3, 20, 24)
    padding = [(low, 2), (0, 1)]
    f = _convolved((0, 1, 2, 3), (strides, strides), padding, (1, 1))
    want = _reference(x, y, (strides, strides), padding, (1, 1))
    np.testing.assert_allclose(mw.jit(f)(x, y), want, rtol=2e-5, atol=2e-5)


def test_padding_may_cut_all_rows():
    x, y = _random(2, 3, 17, 20), _random(3, 3, 20, 24)
    f = _convolved((0, 1, 2, 3), (1, 1), [(-4, 6), (0, 0)], (1, 1))
    np.testing.assert_array_equal(mw.jit(f)(x, y), np.zeros((2, 3, 15, 24)))


# --- depthwise convolutions ---------------------------------------------------------------------------------
#: picture, kernel, strides, padding, dilation of the picture and of the kernel
DEPTHWISE = {
    "same": ((2, 9, 7, 5), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1)),
    "strides, uneven kernel": ((2, 11, 8, 5), (3, 2), (2, 3), ((1, 0), (0, 2)), (1, 1), (1, 1)),
    "dilated kernel": ((3, 12, 9, 2), (2, 3), (1, 2), ((0, 1), (2, 2)), (1, 1), (3, 2)),
    "dilated picture": ((2, 5, 6, 5), (3, 3), (1, 1), ((1, 2), (2, 1)), (2, 3), (1, 1)),
    "both dilated, cut": ((2, 5, 7, 3), (3, 2), (1, 1), ((-1, 2), (1, -2)), (2, 3), (3, 2)),
    "taps between rows": ((2, 4, 4, 3), (1, 2), (1, 1), ((0, 1), (0, 0)), (3, 2), (1, 1)),
    "many rows": ((9, 20, 3, 4), (3, 1), (1, 1), ((1, 1), (0, 0)), (1, 1), (1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", DEPTHWISE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_depthwise_convolutions_and_their_gradients_are_sums_of_rows(name, dtype, monkeypatch):
    monkeypatch.setattr(depthwise, "_LARGE", 0)
    shape, window, strides, padding, spread, dilation = DEPTHWISE[name]
    with mw.enable_x64(True):
        x, y = _random(*shape).astype(dtype), _random(*window, 1, shape[-1]).astype(dtype)
        numbers = ("NHWC", "HWIO", "NHWC")

        def f(x, y):
            return lax.conv_general_dilated(x, y, strides, padding, spread, dilation, numbers, shape[-1])

        ct = _random(*f(x, y).shape).astype(dtype)
        kernel = mw.make_jaxpr(lambda x, ct: mw.vjp(lambda y: f(x, y), y)[1](ct))(x, ct)
        programs = [(mw.make_jaxpr(f)(x, y), (x, y)), (kernel, (x, ct))]
        if spread == (1, 1):  # the gradient of strides is dilated
            programs.append((mw.make_jaxpr(lambda ct, y: mw.vjp(lambda x: f(x, y), x)[1](ct))(ct, y), (ct, y)))
        for plain, args in programs:
            if spread == (1, 1) or args[1] is y:
                assert _left(as_products(plain)) == 0
            (want,), (got,) = (eval_jaxpr(j, j.consts, *args) for j in (plain, as_products(plain)))
            tolerance = 1e-5 if dtype == np.float32 else 1e-12
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * float(np.abs(want).max()))


def test_other_grouped_convolutions_stay(monkeypatch):
    monkeypatch.setattr(depthwise, "_LARGE", 0)
    x, numbers = _random(2, 9, 9, 4), ("NHWC", "HWIO", "NHWC")
    for kernel, groups in (((3, 3, 2, 4), 2), ((3, 3, 1, 8), 4), ((9, 9, 1, 4), 4)):
        y = _random(*kernel)
        f = mw.make_jaxpr(lambda x, y, n=groups: lax.conv_general_dilated(x, y, (1, 1), "SAME", None, None, numbers, n))
        assert _left(as_products(f(x, y))) == 1


# --- windows that are pictures ------------------------------------------------------------------------------
@st.composite
def kernel_gradients(draw):
    """A convolution, in any order of dimensions, by whose kernel a derivative is taken; elements made at a time."""
    n = draw(st.integers(1, 3))
    spatial = "DHW"[-n:]
    sizes, kernel = ([draw(st.integers(*b)) for _ in range(n)] for b in ((6, 9), (1, 3)))
    names = {"N": draw(st.integers(1, 6)), "C": draw(st.integers(1, 4)), **dict(zip(spatial, sizes))}
    order, kernel_order, result = (draw(st.permutations(c + spatial)) for c in ("NC", "OI", "NC"))
    kernel_names = {"O": draw(st.integers(1, 5)), "I": names["C"], **dict(zip(spatial, kernel))}
    padding = [(draw(st.integers(-2, k - 1)), draw(st.integers(-2, k - 1))) for k in kernel]
    strides, dilation = (tuple(draw(st.integers(1, 3)) for _ in range(n)) for _ in range(2))
    padding = [(lo, max(hi, (k - 1) * d + 1 - s - lo)) for (lo, hi), k, d, s in zip(padding, kernel, dilation, sizes)]
    specs = tuple("".join(o) for o in (order, kernel_order, result))
    shapes = [names[d] for d in order], [kernel_names[d] for d in kernel_order]
    return shapes, strides, padding, dilation, specs, draw(st.sampled_from((1, 40, 300, 10**6)))


@settings(max_examples=40, deadline=None)
@given(kernel_gradients())
def test_gradients_of_kernels_are_products_of_patches(drawn):
    (x_shape, y_shape), strides, padding, dilation, specs, at_a_time = drawn
    x, y = _random(*x_shape), _random(*y_shape)

    def f(y, x):
        return lax.conv_general_dilated(x, y, strides, padding, rhs_dilation=dilation, dimension_numbers=specs)

    ct = _random(*f(y, x).shape)
    plain = mw.make_jaxpr(lambda x, ct: mw.vjp(lambda y: f(y, x), y)[1](ct))(x, ct)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_kernels, "_LARGE", 0)
        patch.setattr(of_kernels, "_AT_A_TIME", at_a_time)
        after = as_products(plain)
    rows = np.prod([ct.shape[specs[2].index(d)] for d in specs[1] if d in "DHW"])
    if 1 < np.prod([y.shape[i] for i, d in enumerate(specs[1]) if d in "DHW"]) < rows and 0 not in ct.shape:
        assert _left(dead_code(after)) == 0
    (got,) = mw.jit(lambda *v: eval_jaxpr(after, after.consts, *v))(x, ct)
    with mw.enable_x64():
        x, y, ct = (v.astype(np.float64) for v in (x, y, ct))
        (want,) = mw.vjp(lambda y: f(y, x), y)[1](ct)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def _gradient(x, ct, like=(3, 3, 20, 24)):
    f = lambda y: lax.conv_general_dilated(x, y, (1, 1), "SAME", None, None, ("NHWC", "HWIO", "NHWC"))  # noqa: E731
    return mw.vjp(f, mnp.zeros(like))[1](ct)[0]


def test_loops_over_pictures_keep_what_is_not_finite_to_its_taps():
    x, ct = _random(6, 30, 31, 20), _random(6, 30, 31, 24)
    x[5, 7, 7, 3] = np.inf
    compiled = mw.jit(_gradient).lower(x, ct).compile()
    text = compiled.as_text("virtual")
    assert "while" in text and "ynn_fusion" not in text and "convolution(" not in text
    got = np.asarray(mw.jit(_gradient)(x, ct))
    wanted = np.zeros(got.shape, bool)
    wanted[:, :, 3] = True
    np.testing.assert_array_equal(~np.isfinite(got), wanted)


def test_work_of_loops_is_counted():
    x, ct = _random(6, 30, 31, 20), _random(6, 30, 31, 24)
    work = 2 * 6 * 30 * 31 * 20 * 24 * 9
    assert work <= mw.jit(_gradient).lower(x, ct).cost_analysis()["flops"] <= 1.02 * work
