"""Options for a ``with`` block, with ``jax`` as the oracle where it has the same."""

import logging
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import errors, lax

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def counted(f):
    """A jitted function that counts its traces."""

    def g(x):
        g.traces += 1
        return f(x)

    g.traces = 0
    return g, mw.jit(g)


# --- the mechanism ------------------------------------------------------------------------------------------
def test_blocks_nest_and_end():
    before = mw.config.tracing
    with mw.enable_x64(), mw.default_matmul_precision("high"):
        assert mw.config.enable_x64 and mw.config.jax_default_matmul_precision == "high"
        with mw.enable_x64(False), mw.debug_nans():
            assert (mw.config.enable_x64, mw.config.debug_nans, mw.config.default_matmul_precision) == (
                False, True, "high",
            )  # fmt: skip
        assert mw.config.enable_x64 and not mw.config.debug_nans
    assert not mw.config.enable_x64 and mw.config.tracing is before
    with pytest.raises(KeyError), mw.enable_x64():
        raise KeyError
    assert not mw.config.enable_x64 and mw.config.tracing is before


def test_a_block_is_for_its_thread_and_update_for_all():
    seen = {}

    def other(name):
        seen[name] = (mw.config.enable_x64, mw.config.numpy_rank_promotion, mnp.ones(1).dtype.name)

    def run(name):
        thread = threading.Thread(target=other, args=(name,))
        thread.start()
        thread.join()

    with mw.enable_x64():
        run("block")
        assert mnp.ones(1).dtype == np.float64
        try:
            mw.config.update("numpy_rank_promotion", "warn")
            run("update")
            assert mw.config.numpy_rank_promotion == "warn" and mw.config.enable_x64
        finally:
            mw.config.update("numpy_rank_promotion", "allow")
    assert seen == {"block": (False, "allow", "float32"), "update": (False, "warn", "float32")}
    assert mw.config.numpy_rank_promotion == "allow"


def test_what_was_compiled_under_a_setting_is_found_again():
    g, f = counted(lambda x: lax.scan(lambda c, y: (c * 2.5, y), x, None, 2)[0])
    for _ in range(3):
        assert f(1.0).dtype == np.float32
        with mw.enable_x64():
            assert f(1.0).dtype == np.float64
    assert g.traces == 2


def test_clear_caches():
    g, f = counted(lambda x: x + 1)
    f(1.0), f(2.0)
    mw.clear_caches()
    f(1.0), f(2.0)
    assert g.traces == 2
    assert float(mnp.add(1.0, 2.0)) == 3.0


def test_values_that_options_cannot_have(refuses):
    with (
        refuses(errors.ConfigError, "default_matmul_precision", "'highest'", "'exact'"),
        mw.default_matmul_precision("exact"),
    ):
        pass
    with refuses(errors.ConfigError, "numpy_rank_promotion", "'raise'", "True"), mw.numpy_rank_promotion(True):
        pass
    with refuses(errors.ConfigError, "disable_jit", "bool", "int"), mw.disable_jit(1):
        pass
    with refuses(errors.ConfigError, "default_device", "device", "'gpu'"), mw.default_device("gpu"):
        pass


# --- precision ----------------------------------------------------------------------------------------------
PRODUCTS = {
    "matmul": lambda np_, lax_, x: np_.matmul(x, x.T),
    "einsum": lambda np_, lax_, x: np_.einsum("ij,kj->ik", x, x),
    "conv": lambda np_, lax_, x: lax_.conv(x[None, None], x[None, None, :1, :2], (1, 1), "SAME"),
    "in a loop": lambda np_, lax_, x: lax_.scan(lambda c, _: (c @ c, None), x @ x.T, None, 3)[0],
}


@pytest.mark.parametrize("precision", [None, "bfloat16", "tensorfloat32", "float32", "highest"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_precision_of_products_that_are_given_none(name, precision):
    function = PRODUCTS[name]
    ours, theirs = mw.jit(lambda x: function(mnp, lax, x)), jax.jit(lambda x: function(jnp, jax.lax, x))
    with mw.default_matmul_precision(precision), jax.default_matmul_precision(precision):
        texts = ours.lower(X).as_text(), theirs.lower(X).as_text()
        np.testing.assert_allclose(ours(X), theirs(X), rtol=1e-6)
    for word in ("HIGHEST", "HIGH,"):
        assert (word in texts[0]) == (word in texts[1])


def test_precision_that_is_given_wins(refuses):
    with mw.default_matmul_precision("highest"):
        text = mw.jit(lambda x: mnp.matmul(x, x.T, precision="high")).lower(X).as_text()
    assert "HIGH," in text and "HIGHEST" not in text
    with refuses(ValueError, "dot_general", "precision", "'exact'", "highest"):
        mnp.matmul(X, X.T, precision="exact")


# --- promotion ----------------------------------------------------------------------------------------------
def outcome(library, a, b):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            return library.add(library.ones(a), library.ones(b)).shape, len(caught) > 0
        except (TypeError, ValueError):
            return "error"


@pytest.mark.parametrize("mode", ["allow", "warn", "raise"])
def test_rank_promotion(mode):
    operands = [((2, 3), (3,)), ((2, 3), ()), ((2, 3), (1, 3)), ((3,), (3,)), ((4, 2, 3), (2, 3))]
    for a, b in operands:
        with mw.numpy_rank_promotion(mode), jax.numpy_rank_promotion(mode):
            assert outcome(mnp, a, b) == outcome(jnp, a, b), (a, b)


def test_rank_promotion_is_told_again_elsewhere():
    for _ in range(2):
        with (
            mw.numpy_rank_promotion("warn"),
            pytest.warns(errors.RankPromotionWarning, match=r"add.*\(2, 3\).*\(3,\)"),
        ):
            mnp.add(X, mnp.ones(3))


VALUES = [
    True,
    1,
    1.0,
    1j,
    *(np.ones(2, t) for t in ("bool", "int8", "int32", "uint8", "float32", "float16", "complex64")),
]


@pytest.mark.parametrize("mode", ["standard", "strict"])
def test_dtype_promotion(mode):
    def result(library, x, y):
        try:
            return np.dtype(library.multiply(x, y).dtype).name
        except (TypeError, ValueError):
            return "error"

    with mw.numpy_dtype_promotion(mode), jax.numpy_dtype_promotion(mode):
        for i, x in enumerate(VALUES):
            for y in VALUES[i:]:
                assert result(mnp, x, y) == result(jnp, x, y), (x, y)


def test_the_library_keeps_to_strict_promotion():
    x = np.array([[4.0, 1.0], [1.0, 3.0]], np.float32)
    functions = [
        lambda np_: np_.mean(x), lambda np_: np_.var(x, axis=0), lambda np_: np_.floor_divide(x, 2.0),
        lambda np_: np_.linalg.inv(x), lambda np_: np_.median(x), lambda np_: np_.sinc(x), lambda np_: np_.cumsum(x, 1),
    ]  # fmt: skip
    with mw.numpy_dtype_promotion("strict"):
        for f in functions:
            np.testing.assert_allclose(f(mnp), f(np), rtol=1e-5)


# --- checks and logs ----------------------------------------------------------------------------------------
def inverse(x):
    return 1 / x


LINE = inverse.__code__.co_firstlineno + 1


@pytest.mark.parametrize("run", [lambda: inverse(mnp.asarray(X)), lambda: mw.jit(inverse)(X)], ids=["eager", "jit"])
def test_debug_infs(refuses, run):
    run()
    with mw.debug_nans():
        run()  # infinite is not NaN
    with mw.debug_infs(), refuses(FloatingPointError, "div made an infinity", f"test_options.py:{LINE}", "debug_infs"):
        run()


def test_log_compiles(caplog):
    def two_steps(x):
        return mnp.sin(x) * 2

    caplog.set_level(logging.WARNING, "meshwright")
    mw.jit(two_steps)(X)
    assert not caplog.messages
    with mw.log_compiles():
        mw.jit(two_steps)(X[:1])
    assert any("Compiled two_steps for f32[1,3]" in m for m in caplog.messages)


# --- devices ------------------------------------------------------------------------------------------------
def test_default_device():
    device = mw.devices()[5]
    f = mw.jit(lambda x: x + 1)
    with mw.default_device(device):
        made = mnp.zeros(3), mnp.asarray(X), mnp.ones(2) * 2, f(X), mw.random.normal(mw.random.key(0), (2,))
        placed = mw.device_put(X, mw.devices()[1]) + 1
    assert [x.device for x in made] == [device] * 5 and placed.device == mw.devices()[1]
    assert f(X).device == mnp.zeros(3).device == mw.devices()[0]
    assert not any(x.committed for x in made)


# --- disable_jit --------------------------------------------------------------------------------------------
def test_disable_jit_runs_python(capsys):
    seen = []

    @mw.jit
    def f(x):
        seen.append(x)
        return mw.jit(lambda y: y * 2)(x) + 1

    with mw.disable_jit():
        np.testing.assert_array_equal(f(X), X * 2 + 1)
        np.testing.assert_array_equal(f(X), X * 2 + 1)
    assert all(x is X for x in seen) and len(seen) == 2


LOOPS = {
    "scan": lambda lax_, x: lax_.scan(lambda c, y: (c + y, {"y": c * y}), x[0], x),
    "reverse": lambda lax_, x: lax_.scan(lambda c, y: (c + y, c * y), x[0], x, reverse=True),
    "empty": lambda lax_, x: lax_.scan(lambda c, y: (c + y, c * y), x[0], x[:0]),
    "while": lambda lax_, x: lax_.while_loop(lambda v: v.sum() < 100, lambda v: v * 2, x[1]),
    "fori": lambda lax_, x: lax_.fori_loop(1, 4, lambda i, v: v * i, x),
    "cond": lambda lax_, x: lax_.cond(x[0, 0] > 0, lambda v: v + 1, lambda v: v - 1, x),
    "switch": lambda lax_, x: lax_.switch(7, [lambda v: v + 1, lambda v: v - 1, lambda v: v * 3], x),
    "map": lambda lax_, x: lax_.map(lambda v: v.sum(), x),
}


def test_loops_of_numbers_without_jit_give_arrays():
    with mw.disable_jit():
        outs = mw.lax.while_loop(lambda c: c < 3, lambda c: c + 1, 0), mw.lax.scan(lambda c, x: (c + 1, 1), 0, X)
    assert [mw.typeof(x).str_short() for x in mw.tree.leaves(outs)] == ["int32[]", "int32[]", f"int32[{len(X)}]"]
    assert not any(isinstance(x, int) for x in mw.tree.leaves(outs))


@pytest.mark.parametrize("name", LOOPS)
def test_control_flow_without_jit(name):
    expected = LOOPS[name](jax.lax, jnp.asarray(X))
    with mw.disable_jit():
        found = LOOPS[name](lax, mnp.asarray(X))
        gradient = mw.grad(lambda x: sum(y.sum() for y in mw.tree.leaves(LOOPS[name](lax, x))))(X)
    for got, want in zip(mw.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    staged = mw.grad(lambda x: sum(y.sum() for y in mw.tree.leaves(LOOPS[name](lax, x))))
    if name != "while":  # which has no reverse mode when it is one op
        np.testing.assert_allclose(gradient, staged(X), rtol=1e-6)


def test_values_in_loops_are_concrete_without_jit():
    seen = []
    with mw.disable_jit():
        lax.fori_loop(0, 3, lambda i, v: (seen.append(int(v)), v + i)[1], 10)
        lax.scan(lambda c, y: (c, seen.append(float(y))), 0, mnp.array([1.5, 2.5]))
    assert seen == [10, 10, 11, 1.5, 2.5]


def test_predicates_that_nobody_knows_stay_ops_without_jit():
    x = np.array([3.0, -5.0, 70.0], np.float32)
    functions = (
        lambda v: lax.cond(v > 0, lambda w: w * 2, lambda w: w - 1, v),
        lambda v: lax.while_loop(lambda w: w < 50, lambda w: w * w, v),
    )
    for f in functions:
        with mw.disable_jit():
            found = mw.vmap(f)(x)
        np.testing.assert_allclose(found, mw.vmap(f)(x))


def test_errors_without_jit_are_ours(refuses):
    with mw.disable_jit(), refuses(TypeError, "scan", "pair (carry, y)"):
        lax.scan(lambda c, y: c, 0.0, X)


# --- while tracing ------------------------------------------------------------------------------------------
def test_ensure_compile_time_eval(refuses):
    def f(x):
        with mw.ensure_compile_time_eval():
            rows = int(mnp.array([2, 3]).sum())
            table = mw.jit(lambda: mnp.arange(rows))()
            assert isinstance(table, mw.Array)
        return x * rows + table

    np.testing.assert_array_equal(mw.jit(f)(1.0), 5 + np.arange(5))
    np.testing.assert_array_equal(mw.vmap(f)(np.ones(2, np.float32)), np.tile(5.0 + np.arange(5), (2, 1)))

    def bad(x):
        with mw.ensure_compile_time_eval():
            return x * int(x + 1)

    with refuses(errors.TracerError, "concrete"):
        mw.jit(bad)(1.0)


def test_what_depends_on_traced_values_is_recorded_beside_what_is_evaluated():
    inside = []

    @mw.custom_jvp
    def cubed(x):
        return x**3

    cubed.defjvp(lambda p, t: (cubed(*p), 3 * p[0] ** 2 * t[0]))

    def f(x):
        with mw.ensure_compile_time_eval():
            table = mw.lax.scan(lambda c, _: (2 * c, c), mnp.float32(1), None, 3)[1]
            slope = mw.grad(cubed)(mnp.float32(2.0)) + mw.jit(mnp.sin)(mnp.arange(2.0))[0]
            key = mw.random.normal(mw.random.key(0), (3,))
            inside.extend([table, slope, key])
            y = mnp.where(x.sum() > 0, table, 0) * slope + cubed(mw.jit(mnp.sin)(x))
            y = mw.lax.cond(y[0] > 0, lambda: y + table, lambda: y)
            return mw.lax.scan(lambda c, v: (c + v * table, c[0]), y, mnp.arange(2.0))[0] + mw.vmap(mnp.cos)(x) + key

    def plain(x):
        table, key = mnp.array([1.0, 2.0, 4.0]), mw.random.normal(mw.random.key(0), (3,))
        y = mnp.where(x.sum() > 0, table, 0) * 12 + mnp.sin(x) ** 3
        return y + mnp.where(y[0] > 0, table, 0) + table + mnp.cos(x) + key

    x = mnp.array([0.5, 1.0, -0.25])
    for run in (mw.jit, lambda f: f, lambda f: mw.grad(lambda x: f(x).sum()), lambda f: mw.jit(mw.jacrev(f)),
                lambda f: lambda x: mw.vmap(f)(mnp.stack([x, -x]))):  # fmt: skip
        np.testing.assert_allclose(run(f)(x), run(plain)(x), rtol=1e-5, atol=1e-6)
    assert inside and not any(isinstance(v, mw.core.Tracer) for v in inside)
    assert isinstance(mw.jit(lambda x: (mnp.ones(2) + 1, x)[1])(x), mw.Array)  # the block has ended


def test_typeof():
    assert str(mw.typeof(X)) == "f32[2,3]" and mw.typeof(1.0).weak_type
    assert mw.jit(lambda x: x * mw.typeof(x).ndim)(3.0) == 0


def test_print_environment_info(capsys):
    assert mw.print_environment_info() is None
    printed = capsys.readouterr().out
    assert printed.strip() == mw.print_environment_info(return_string=True)
    assert np.__version__ in printed and "devices:    8" in printed
    assert mw.default_backend() == jax.default_backend()


def test_live_arrays():
    mine = mnp.arange(7) * 2
    assert any(x is mine for x in mw.live_arrays())
    assert any(x is mine for x in mw.live_arrays("cpu")) and not mw.live_arrays("gpu")
    mine.delete()
    assert not any(x is mine for x in mw.live_arrays())


EVALUATED_IN_REGIONS = {
    "position": (lambda x: mw.lax.axis_index("x"), [0, 1, 2, 3]),
    "position in a call": (lambda x: mw.jit(lambda: mw.lax.axis_index("x") + 1)(), [1, 2, 3, 4]),
    "position in a loop": (lambda x: mw.lax.fori_loop(0, 3, lambda i, c: c + mw.lax.axis_index("x"), 0), [0, 3, 6, 9]),
    "sum": (lambda x: float(mw.lax.psum(mnp.float32(2.5), "x")), [10] * 4),
    "sum of an array": (lambda x: np.asarray(mw.lax.psum(np.ones(1, np.int32), "x"))[0], [4] * 4),
    "sums of groups": (
        lambda x: mw.lax.psum(mnp.float32(2), "x", axis_index_groups=[[0, 1, 2], [3]]), [6, 6, 6, 2],
    ),
    "mean": (lambda x: int(mw.lax.pmean(mnp.int32(3), "x")), [3] * 4),
    "largest": (lambda x: int(mw.lax.pmax(mnp.int32(3), "x")), [3] * 4),
    "smallest": (lambda x: int(mw.lax.pmin(3, "x")), [3] * 4),
    "sum of a traced value": (lambda x: mw.lax.psum(x, "x"), [10] * 4),
    "gathered": (lambda x: mw.lax.all_gather(mnp.float32(2), "x")[3], [2] * 4),
    "exchanged": (lambda x: mw.lax.ppermute(mnp.float32(2), "x", [(0, 1)]), [0, 2, 0, 0]),
    "marked as varying": (lambda x: mw.lax.pcast(mnp.float32(2), "x", to="varying"), [2] * 4),
}  # fmt: skip


@pytest.mark.parametrize("name", EVALUATED_IN_REGIONS)
def test_what_depends_on_devices_is_recorded(name):
    """Of a constant, reductions over devices are constants too; a device's position, and what it is sent, is not."""
    make, want = EVALUATED_IN_REGIONS[name]

    def body(x):
        with mw.ensure_compile_time_eval():
            y = make(x)
        return 0 * x + y

    mesh, x = mw.make_mesh((4,), ("x",)), mnp.array([1.0, 2, 3, 4])
    for checked in (True, False):
        region = mw.shard_map(body, mesh=mesh, in_specs=mw.P("x"), out_specs=mw.P("x"), check_vma=checked)
        for run in (region, mw.jit(region)):
            np.testing.assert_array_equal(run(x), want)
    if name != "marked as varying":  # only in a region
        np.testing.assert_array_equal(mw.vmap(body, axis_name="x")(x), want)


def test_positions_are_no_constants(refuses):
    def body(x):
        with mw.ensure_compile_time_eval():
            return x * int(mw.lax.axis_index("x"))

    region = mw.shard_map(body, mesh=mw.make_mesh((4,), ("x",)), in_specs=mw.P("x"), out_specs=mw.P("x"))
    with refuses(errors.ConcretizationTypeError, "int() needs a concrete value", "test_options.py"):
        region(mnp.ones(4))


# --- options without effect ---------------------------------------------------------------------------------
def test_options_of_jax_that_do_nothing_say_so_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for value in (True, True, False):
            mw.config.update("jax_disable_most_optimizations", value)
        mw.config.update("jax_cpp_jit", False)
        mw.config.update("jax_cpp_jit", True)
    assert [w.category for w in caught] == [errors.OptionWarning] and "compiler_options" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_large_constants_are_warned_of():
    table = mnp.ones(300)
    before = mw.config.jax_captured_constants_warn_bytes
    try:
        mw.config.update("jax_captured_constants_warn_bytes", 1000)
        with pytest.warns(errors.ConstantsWarning, match="lookup closes over arrays of 1200 bytes"):
            mw.jit(_named(lambda i: table[i], "lookup"))(0)
        mw.config.update("jax_captured_constants_warn_bytes", -1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            mw.jit(_named(lambda i: table[i + 1], "lookup"))(0)
    finally:
        mw.config.update("jax_captured_constants_warn_bytes", before)


def _named(function, name):
    function.__name__ = name
    return function
