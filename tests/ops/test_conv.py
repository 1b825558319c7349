"""Convolution against jax: values, derivatives of both operands, batching, what users may write, bad input."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from op_checks import check_batch, check_grad, check_value, values

from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from meshwright.ir.tracing import trace_to_jaxpr
from meshwright.ops.elementwise.table import mul
from meshwright.ops.products import conv as C
from meshwright.ops.shape.broadcast_reduce import reduce_sum
from meshwright.transforms.autodiff import grad
from meshwright.transforms.vmap import vmap

NHWC = ("NHWC", "HWIO", "NHWC")


def kw(**given):
    """Keyword arguments, as a dictionary."""
    return given


#: name: (lhs shape, rhs shape, parameters)
CASES = {
    "plain": ((2, 5, 6, 3), (3, 2, 3, 4), kw(window_strides=(1, 1), padding="VALID", dimension_numbers=NHWC)),
    "same, strides": ((2, 7, 6, 3), (3, 2, 3, 4), kw(window_strides=(2, 3), padding="SAME", dimension_numbers=NHWC)),
    "same lower": ((1, 7, 6, 2), (4, 2, 2, 3),
                   kw(window_strides=(2, 1), padding="SAME_LOWER", dimension_numbers=NHWC)),
    "dilations": ((2, 4, 5, 2), (2, 3, 2, 3),
                  kw(window_strides=(2, 1), padding=((1, 2), (0, 3)), lhs_dilation=(3, 2), rhs_dilation=(2, 2),
                       dimension_numbers=NHWC)),
    "negative padding": ((2, 7, 6, 2), (2, 2, 2, 3),
                         kw(window_strides=(1, 2), padding=((-2, 1), (1, -1)), dimension_numbers=NHWC)),
    "feature groups": ((2, 5, 4, 6), (2, 3, 2, 9),
                       kw(window_strides=(1, 2), padding="SAME", dimension_numbers=NHWC, feature_group_count=3)),
    "depthwise": ((2, 5, 4, 3), (2, 2, 1, 6),
                  kw(window_strides=(1, 1), padding="VALID", dimension_numbers=NHWC, feature_group_count=3)),
    "batch groups": ((4, 5, 4, 3), (2, 3, 3, 6),
                     kw(window_strides=(2, 1), padding="SAME", dimension_numbers=NHWC, batch_group_count=2)),
    "other layout": ((3, 5, 2, 6), (4, 2, 3, 3),
                     kw(window_strides=(1, 2), padding=((1, 0), (2, 1)), dimension_numbers=("CHNW", "OWHI", "WNHC"))),
    "kernel larger than result": ((3, 6, 5, 2), (5, 4, 2, 4),
                                  kw(window_strides=(1, 1), padding=((0, 1), (0, 0)), dimension_numbers=NHWC)),
    "one dimension": ((2, 3, 8), (4, 3, 3), kw(window_strides=(2,), padding=((1, 1),))),
    "three dimensions": ((1, 2, 4, 3, 5), (3, 2, 2, 3, 2), kw(window_strides=(1, 2, 1), padding="SAME")),
    "no spatial dimension": ((3, 4), (5, 4), kw(window_strides=(), padding=())),
    "no result": ((2, 2, 5, 3), (3, 2, 3, 4), kw(window_strides=(1, 1), padding="VALID", dimension_numbers=NHWC)),
    "empty batch": ((0, 4, 5, 3), (3, 2, 3, 4), kw(window_strides=(1, 1), padding="VALID", dimension_numbers=NHWC)),
}  # fmt: skip


def pair(name):
    lhs, rhs, params = CASES[name]
    x, w = values(*lhs) / 8, values(*rhs, seed=1) / 8
    return (
        x,
        w,
        lambda x, w: C.conv_general_dilated(x, w, **params),
        lambda x, w: lax.conv_general_dilated(x, w, **params),
    )


@pytest.mark.parametrize("name", CASES)
def test_derivatives_agree_with_jax(name):
    x, w, ours, theirs = pair(name)
    check_grad(ours, theirs, x, w)


@pytest.mark.parametrize("name", ["plain", "dilations", "feature groups", "batch groups", "other layout"])
def test_batching_is_a_loop(name):
    x, w, ours, _ = pair(name)
    check_batch(ours, x, w, tol=1e-4)


@pytest.mark.parametrize("name", ["plain", "feature groups", "batch groups"])
def test_large_batches_become_groups(name):
    x, w, ours, _ = pair(name)
    check_batch(ours, x, w, size=17, tol=1e-4)


def test_batch_of_none():
    x, w, ours, theirs = pair("feature groups")
    for axes in ((0, None), (None, 2), (1, 0)):
        batched = [a if d is None else np.zeros((*a.shape[:d], 0, *a.shape[d:]), a.dtype) for a, d in zip((x, w), axes)]
        from_jax = jax.vmap(theirs, in_axes=axes)(*batched)
        assert np.asarray(vmap(ours, in_axes=axes)(*batched)).shape == from_jax.shape


def batched_ops(name, *axes):
    """The ops that a batched convolution becomes, and where its batch dimension is."""
    x, w, ours, _ = pair(name)
    full = [ShapedArray(s if d is None else (*s[:d], 3, *s[d:]), np.dtype(np.float32))
            for s, d in zip((x.shape, w.shape), axes)]  # fmt: skip
    jaxpr = trace_to_jaxpr(lambda x, w: [vmap(ours, in_axes=axes)(x, w)], full).jaxpr
    return [e.op.name for e in jaxpr.eqns], jaxpr.eqns


@pytest.mark.parametrize("axes", [(0, None), (None, 3)])
def test_batch_dimension_beside_its_dimension_moves_nothing(axes):
    names, _ = batched_ops("plain", *axes)
    assert "transpose" not in names[: names.index("conv_general_dilated") + 1]


def test_batch_of_groups_is_more_groups():
    _, eqns = batched_ops("feature groups", 3, 3)
    convs = [e.op for e in eqns if e.op.name == "conv_general_dilated"]
    assert [op.feature_group_count for op in convs] == [9]


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_any_parameters(data):
    spatial = data.draw(st.integers(1, 2), "spatial")
    kind = data.draw(st.sampled_from(["feature_group_count", "batch_group_count"]), "groups")
    groups = data.draw(st.integers(1, 3), "count")

    def each(low, high, what):
        return tuple(data.draw(st.integers(low, high), what) for _ in range(spatial))

    n, k = each(1, 6, "n"), each(1, 3, "k")
    params = kw(
        window_strides=each(1, 3, "stride"), lhs_dilation=each(1, 3, "lhs_dilation"),
        rhs_dilation=each(1, 3, "rhs_dilation"), **{kind: groups},
    )  # fmt: skip
    pads = []
    for size, dilation in zip(n, params["lhs_dilation"]):
        low = data.draw(st.integers(-2, 3), "low")
        pads.append((low, max(data.draw(st.integers(-2, 3), "high"), -((size - 1) * dilation + 1) - low)))
    params["padding"] = tuple(pads)
    features, batch = (2 * groups, 2) if kind == "feature_group_count" else (2, 2 * groups)
    x = values(batch, features, *n) / 8
    w = values(groups * 2, 2, *k, seed=1) / 8

    def theirs(x, w):
        # With negative padding, which JAX has in such gradients, XLA for CPUs reads beyond arrays (jaxlib 0.10.2).
        steps = zip(pads, params["lhs_dilation"])
        x = lax.pad(x, np.float32(0), [(0, 0, 0), (0, 0, 0), *((low, high, d - 1) for (low, high), d in steps)])
        whole = params | {"padding": [(0, 0)] * spatial, "lhs_dilation": (1,) * spatial}
        return lax.conv_general_dilated(x, w, **whole)

    check_grad(lambda x, w: C.conv_general_dilated(x, w, **params), theirs, x, w)


def test_second_derivative_in_double_precision():
    with config.override("enable_x64", True), jax.enable_x64(True):
        x, w = values(2, 5, 4, 4, dtype=np.float64) / 8, values(3, 2, 2, 6, seed=1, dtype=np.float64) / 8
        params = kw(
            window_strides=(2, 1), padding="SAME", rhs_dilation=(1, 2), dimension_numbers=NHWC, feature_group_count=2
        )

        def energy(conv, total):
            return lambda x, w: total(conv(x, w, **params))

        ours = energy(C.conv_general_dilated, lambda y: reduce_sum(mul(y, mul(y, y)), range(4)))
        theirs = energy(lax.conv_general_dilated, lambda y: (y**3).sum())
        for i in (0, 1):
            first, second = grad(ours, i), jax.grad(theirs, i)
            check_grad(first, second, x, w, tol=1e-9)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float16, np.complex64, "bfloat16"])
def test_dtypes(dtype):
    dtype = jax.numpy.dtype(dtype)
    x, w = values(2, 4, 5, 2).astype(dtype), values(2, 3, 2, 3, seed=1).astype(dtype)
    if dtype.kind == "c":
        x, w = x + x[::-1] * 1j, w - w[::-1] * 2j
    params = kw(window_strides=(1, 1), padding="SAME", dimension_numbers=NHWC)
    check_value(
        lambda x, w: C.conv_general_dilated(x, w, **params),
        lambda x, w: lax.conv_general_dilated(x, w, **params),
        x.astype(dtype), w.astype(dtype), tol=2e-2,
    )  # fmt: skip


def test_complex_derivative():
    x = (values(1, 4, 2) + 1j * values(1, 4, 2, seed=4)).astype(np.complex64) / 4
    w = (values(2, 2, 3, seed=2) - 1j * values(2, 2, 3, seed=3)).astype(np.complex64) / 4
    params = kw(window_strides=(1,), padding="SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    check_grad(
        lambda x, w: C.conv_general_dilated(x, w, **params), lambda x, w: lax.conv_general_dilated(x, w, **params), x, w
    )


def test_wider_result_and_its_derivative():
    x, w = values(2, 4, 5, 2, dtype=np.float16) / 8, values(2, 3, 2, 3, seed=1, dtype=np.float16) / 8

    def ours(x, w):
        return C.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=NHWC, preferred_element_type=np.float32, precision="highest"
        )

    def theirs(x, w):
        wide = x.astype(np.float32), w.astype(np.float32)
        return lax.conv_general_dilated(*wide, (1, 1), "SAME", dimension_numbers=NHWC)

    check_grad(ours, theirs, x, w, tol=2e-2)


# --- what users may write -----------------------------------------------------------------------------------
def test_conv_and_general_padding():
    x, w = values(2, 3, 6, 5), values(4, 3, 2, 3, seed=1)
    check_value(lambda x, w: C.conv(x, w, (2, 1), "SAME"), lambda x, w: lax.conv(x, w, (2, 1), "SAME"), x, w, tol=1e-3)
    args = (1, 2), ((1, 0), (2, -1)), (2, 1), (1, 2)
    check_value(
        lambda x, w: C.conv_with_general_padding(x, w, *args),
        lambda x, w: lax.conv_with_general_padding(x, w, *args),
        x, w, tol=1e-3,
    )  # fmt: skip


@pytest.mark.parametrize("padding", ["SAME", "VALID", ((1, 2), (0, 1))])
@pytest.mark.parametrize("strides", [(1, 3), (2, 2), (4, 1)])
@pytest.mark.parametrize(
    "options",
    [{}, {"transpose_kernel": True}, {"rhs_dilation": (2, 1)}, {"use_consistent_padding": True}],
    ids=lambda o: "".join(o) or "plain",
)
def test_conv_transpose(padding, strides, options):
    x = values(2, 4, 5, 3)
    w = values(3, 2, *((2, 3) if options.get("transpose_kernel") else (3, 2)), seed=1)
    check_value(
        lambda x, w: C.conv_transpose(x, w, strides, padding, **options),
        lambda x, w: lax.conv_transpose(x, w, strides, padding, **options),
        x, w, tol=1e-3,
    )  # fmt: skip


def test_conv_transpose_other_layout():
    x, w = values(2, 3, 5), values(3, 4, 3, seed=1)
    numbers = ("NCW", "IOW", "NCW")
    check_value(
        lambda x, w: C.conv_transpose(x, w, (2,), "SAME", dimension_numbers=numbers),
        lambda x, w: lax.conv_transpose(x, w, (2,), "SAME", dimension_numbers=numbers),
        x, w, tol=1e-3,
    )  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 9), st.integers(1, 5), st.integers(1, 4), st.sampled_from(["SAME", "VALID", "SAME_LOWER", "same"])
)
def test_padtype_to_pads(n, k, stride, word):
    expected = lax.padtype_to_pads((n, 7), (k, 2), (stride, 3), word.upper())
    assert [tuple(map(int, p)) for p in expected] == list(C.padtype_to_pads((n, 7), (k, 2), (stride, 3), word))


@pytest.mark.parametrize("numbers", [None, NHWC, ("NCWH", "OIWH", "HWNC"), ((0, 3, 1, 2), (3, 2, 0, 1), (1, 0, 2, 3))])
def test_dimension_numbers(numbers):
    want = lax.conv_dimension_numbers((2, 3, 4, 5), (3, 2, 1, 6), numbers if not numbers or isinstance(numbers[0], str)
                                      else lax.ConvDimensionNumbers(*numbers))  # fmt: skip
    got = C.conv_dimension_numbers((2, 3, 4, 5), (3, 2, 1, 6), numbers)
    assert tuple(got) == (want.lhs_spec, want.rhs_spec, want.out_spec)
    assert C.conv_dimension_numbers((2, 3, 4, 5), (3, 2, 1, 6), got) is got


def test_numpy_integers_are_parameters():
    x, w = values(1, 4, 2), values(2, 2, 3, seed=1)
    got = C.conv_general_dilated(x.transpose(0, 2, 1), w, np.array([2]), [[np.int64(1), 0]])
    want = lax.conv_general_dilated(x.transpose(0, 2, 1), w, (2,), [(1, 0)])
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5)


X, W = np.zeros((2, 6, 7, 4), np.float32), np.zeros((3, 3, 4, 8), np.float32)
BAD = {
    "features differ": (lambda: C.conv_general_dilated(X, W[:, :, :3], (1, 1), "SAME", dimension_numbers=NHWC),
                        ShapeError, r"has 4 features.*expected feature_group_count \(1\) times the 3"),
    "groups do not divide": (lambda: C.conv_general_dilated(X, W[:, :, :1, :6], (1, 1), "SAME", dimension_numbers=NHWC,
                                                            feature_group_count=4), ShapeError, "not divide the 6"),
    "batch groups do not divide": (lambda: C.conv_general_dilated(X[:1], W, (1, 1), "SAME", dimension_numbers=NHWC,
                                                                  batch_group_count=2), ShapeError, "1 lhs batch"),
    "both groups": (lambda: C.conv_general_dilated(X, W, (1, 1), "SAME", dimension_numbers=NHWC, batch_group_count=2,
                                                   feature_group_count=2), ShapeError, "one of them 1"),
    "group of none": (lambda: C.conv_general_dilated(X, W, (1, 1), "SAME", dimension_numbers=NHWC,
                                                     feature_group_count=0), ShapeError, "positive"),
    "dtypes": (lambda: C.conv(X, X.astype(np.float16), (1, 1), "SAME"), DTypeError, "float32 and float16"),
    "ranks": (lambda: C.conv(X, W[0], (1, 1), "SAME"), ShapeError, "same number of dimensions"),
    "strides": (lambda: C.conv(X, W, (1,), "SAME"), ShapeError, "window_strides needs 2 entries"),
    "zero stride": (lambda: C.conv(X, X, (1, 0), ((0, 0), (0, 0))), ShapeError, "stride of window dimension 1 is 0"),
    "zero dilation": (lambda: C.conv_general_dilated(X, X, (1, 1), ((0, 0), (0, 0)), (0, 1)), ShapeError, "dilation"),
    "float stride": (lambda: C.conv(X, W, (1.5, 1), "SAME"), ArgumentTypeError, "sequence of ints"),
    "padding word": (lambda: C.conv(X, W, (1, 1), "FULL"), ArgumentError, "'FULL'"),
    "padding count": (lambda: C.conv(X, W, (1, 1), [(1, 1)]), ArgumentError, r"2 \(low, high\) pairs"),
    "cut too much": (lambda: C.conv(X, X, (1, 1), [(-5, -3), (0, 0)]), ShapeError, "cuts more"),
    "empty kernel": (lambda: C.conv(X, X[:, :, :0], (1, 1), "VALID"), ShapeError, "window size .* is 0"),
    "word and dilation": (lambda: C.conv_general_dilated(X, W, (1, 1), "SAME", (2, 2), dimension_numbers=NHWC),
                          ArgumentError, "conv_transpose"),
    "letters": (lambda: C.conv_general_dilated(X, W, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWX")),
                ArgumentError, "N and C among them"),
    "spatial names": (lambda: C.conv_general_dilated(X, W, (1, 1), "SAME", dimension_numbers=("NHWC", "HDIO", "NHWC")),
                        ArgumentError, "same letters"),
    "two specs": (lambda: C.conv_general_dilated(X, W, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO")),
                  ArgumentError, "three specs"),
    "numbers twice": (lambda: C.conv_general_dilated(X, W, (1, 1), "SAME", dimension_numbers=(
        (0, 1, 2, 2), (0, 1, 2, 3), (0, 1, 2, 3))), ShapeError, "lhs_spec"),
    "precision": (lambda: C.conv(X, W, (1, 1), "SAME", precision="most"), ArgumentError, "'most'"),
    "transpose padding": (lambda: C.conv_transpose(X, W, (1, 1), "SAME_LOWER"), ArgumentError, "conv_transpose"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD.values(), ids=BAD)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
