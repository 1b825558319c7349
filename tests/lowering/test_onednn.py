"""Convolutions that oneDNN computes: which, with what values, and that nothing waits for them for ever."""

import platform
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.lowering import onednn

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="XLA has oneDNN on x86 and Linux"
)
LAST = ("NHWC", "HWIO", "NHWC")


def random(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def is_called(function, *args):
    return "__onednn$convolution" in mw.jit(function).lower(*args).compile().as_text("virtual")


def same(x, y):
    return lax.conv_general_dilated(x, y, (1, 1), "SAME", dimension_numbers=LAST)


@st.composite
def convolutions(draw):
    """Shapes and parameters of a convolution, in any order of dimensions."""
    n = draw(st.integers(1, 3))
    spatial = "DHW"[-n:]
    sizes = [draw(st.integers(5, 9)) for _ in range(n)]
    kernel = [draw(st.integers(1, 3)) for _ in range(n)]
    names = {"N": draw(st.integers(1, 3)), "C": draw(st.integers(1, 5)), **dict(zip(spatial, sizes))}
    order, kernel_order = draw(st.permutations("NC" + spatial)), draw(st.permutations("OI" + spatial))
    result = draw(st.permutations("NC" + spatial))
    kernel_names = {"O": draw(st.integers(1, 20)), "I": names["C"], **dict(zip(spatial, kernel))}
    padding = [(draw(st.integers(0, k - 1)), draw(st.integers(0, k - 1))) for k in kernel]
    strides, dilation = (tuple(draw(st.integers(1, 2)) for _ in range(n)) for _ in range(2))
    specs = tuple("".join(o) for o in (order, kernel_order, result))
    shapes = [names[d] for d in order], [kernel_names[d] for d in kernel_order]
    return shapes, strides, padding, dilation, specs


@settings(max_examples=25, deadline=None)
@given(convolutions())
def test_as_in_float64(drawn):
    (x_shape, y_shape), strides, padding, dilation, specs = drawn
    x, y = random(*x_shape), random(*y_shape)

    def convolved(x, y):
        return lax.conv_general_dilated(x, y, strides, padding, rhs_dilation=dilation, dimension_numbers=specs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onednn, "_LARGE", 0)
        got = mw.jit(convolved)(x, y)
    with mw.enable_x64():
        want = convolved(x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-5)


def test_values_of_a_large_one():
    x, y = random(2, 14, 14, 32), random(3, 3, 32, 40)
    assert is_called(same, x, y)
    got = mw.jit(same)(x, y)
    with mw.enable_x64():
        want = same(x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-4, atol=1e-4)
    x[0, 5, 5, 3], x[1, 2, 2, 0] = np.nan, np.inf
    seen = ~np.isfinite(np.asarray(mw.jit(same)(x, y)))
    wanted = np.zeros(seen.shape, bool)
    wanted[0, 4:7, 4:7], wanted[1, 1:4, 1:4] = True, True
    np.testing.assert_array_equal(seen, wanted)


def test_what_was_compiled_is_read_again():
    x, y = random(2, 13, 14, 32), random(40, 32, 3, 2)
    run = mw.jit(
        lambda x, y: lax.conv_general_dilated(
            x, y, (2, 1), [(1, 0), (1, 1)], rhs_dilation=(1, 2), dimension_numbers=("NHWC", "OIHW", "NHWC")
        )
    )
    text = run.lower(x, y).compile().as_text("virtual")
    assert "__onednn$convolution" in text
    again = mw.load(text)
    assert "conv_general_dilated" in again.as_text() and "opaque" not in again.as_text()
    np.testing.assert_allclose(np.asarray(again(x, y)), np.asarray(run(x, y)), rtol=1e-5, atol=1e-5)


def test_which():
    x, y = random(2, 14, 14, 32), random(3, 3, 32, 40)
    operand = mw.grad(lambda x, y: mnp.sum(same(x, y) ** 2))
    assert is_called(operand, x, y)
    half = [v.astype(np.float16) for v in (x, y)]
    strided = mw.grad(lambda x, g: mnp.sum(g * lax.conv(x, random(8, 8, 3, 3), (2, 2), "VALID")))
    depthwise = lambda x, y: lax.conv_general_dilated(  # noqa: E731
        x, y, (1, 1), "SAME", dimension_numbers=LAST, feature_group_count=32
    )
    for name, function, *args in (
        ("of half precision", same, *half),
        ("small", same, x[:1, :5, :5], y),
        ("a kernel's gradient", mw.grad(lambda y, g: mnp.sum(g * same(x, y))), y, random(2, 14, 14, 40)),
        ("of a dilated operand", strided, random(4, 8, 57, 57), random(4, 8, 28, 28)),
        ("of groups", depthwise, random(8, 40, 40, 32), random(3, 3, 1, 64)),
        ("of nothing", same, x[:0], y),
    ):
        assert not is_called(function, *args), name


def test_on_a_virtual_mesh():
    mesh = mw.make_mesh((4, 2), ("batch", "rows"))
    x, y = random(8, 20, 14, 32), random(3, 3, 32, 40)
    run = mw.jit(same, in_shardings=(mw.NamedSharding(mesh, mw.P("batch", "rows")), mw.NamedSharding(mesh, mw.P())))
    assert is_called(run, x, y)
    np.testing.assert_allclose(np.asarray(run(x, y)), np.asarray(mw.jit(same)(x, y)), rtol=1e-4, atol=1e-4)


def test_programs_that_are_kept_have_none(tmp_path):
    x, y = random(2, 14, 14, 32), random(3, 3, 32, 40)
    with (
        mw.config.override("compilation_cache_dir", tmp_path),
        mw.config.override("persistent_cache_min_compile_time_secs", 0.0),
    ):
        assert not is_called(lambda x, y: same(x, y) * 2, x, y)
    assert list(tmp_path.iterdir())


def test_their_work_is_counted():
    x, y = random(2, 14, 14, 32), random(3, 3, 32, 32)
    lowered = mw.jit(lambda x, y: same(same(x, y), y)).lower(x, y)
    each = 2 * 2 * 14 * 14 * 32 * 9 * 32
    assert lowered.cost_analysis()["flops"] == lowered.compile().cost_analysis()["flops"] == 2 * each


def test_many_at_once_end():
    x, ys = random(2, 14, 14, 16), random(12, 3, 3, 16, 32)
    run = mw.jit(lambda x, ys: sum(same(x * k, y) for k, y in enumerate(ys)))
    assert is_called(run, x, ys)
    want, found = np.asarray(run(x, ys)), []
    threads = [
        threading.Thread(target=lambda: found.extend(run(x, ys) for _ in range(20)), daemon=True) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 120
    for got in found:
        np.testing.assert_array_equal(np.asarray(got), want)
