"""Python functions in programs: pure_callback, io_callback, debug.callback, debug.print."""

from __future__ import annotations

import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.errors import (
    ArgumentError,
    ArgumentTypeError,
    CallbackError,
    DifferentiationError,
    ReplicationWarning,
    RuleError,
)

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def sine(x):
    return mw.pure_callback(np.sin, x, x)


@pytest.mark.parametrize("wrap", [lambda f: f, mw.jit])
def test_functions_get_arrays_as_in_jax(wrap):
    seen = []

    def f(x):
        mw.debug.callback(seen.append, x)
        y = mw.pure_callback(lambda a: a.at[0].set(a.sum()), x, x)
        mw.io_callback(lambda t: seen.append(t["y"] / 2), None, {"y": y})
        return y

    got = wrap(f)(X)
    mw.effects_barrier()
    assert all(type(v) is mw.Array for v in seen)
    np.testing.assert_array_equal(seen[0], X)
    np.testing.assert_array_equal(got, np.stack([np.full(3, X.sum()), X[1]]))
    np.testing.assert_array_equal(seen[1], got / 2)


# --- pure ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("wrap", [lambda f: f, mw.jit, lambda f: mw.jit(mw.jit(f))])
def test_values_and_trees(wrap):
    def split(tree, scale):
        assert all(type(v) is mw.Array and not np.asarray(v).flags.writeable for v in tree.values())
        return {"sum": tree["a"] + tree["b"], "both": (tree["a"] * scale, np.int32(7))}

    out = {"sum": X, "both": (mw.ShapeDtypeStruct((2, 3), np.float32), mw.ShapeDtypeStruct((), np.int32))}
    got = wrap(lambda t: mw.pure_callback(split, out, t, scale=3.0))({"a": X, "b": X + 1})
    np.testing.assert_array_equal(got["sum"], 2 * X + 1)
    np.testing.assert_array_equal(got["both"][0], 3 * X)
    assert int(got["both"][1]) == 7


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int32", "float16", "bfloat16", "float8_e4m3fn", "c8"])
def test_types_go_in_and_out(dtype):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = np.array([[1, 0, 1], [0, 1, 1]]).astype(dtype)
    seen = []
    got = mw.jit(lambda x: mw.pure_callback(lambda a: (seen.append(a), a.T)[1], mw.ShapeDtypeStruct((3, 2), dtype), x))(
        x
    )
    assert seen[0].dtype == dtype and got.dtype == dtype
    np.testing.assert_array_equal(np.asarray(got), x.T)
    np.testing.assert_array_equal(seen[0], x)


def test_memory_layout_is_row_major():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    f = mw.jit(lambda x: mw.pure_callback(lambda a: a, mw.ShapeDtypeStruct((4, 2, 3), x.dtype), x.transpose(2, 0, 1)))
    np.testing.assert_array_equal(f(x), x.transpose(2, 0, 1))


def test_arguments_may_be_kept():
    kept = []
    f = mw.jit(lambda x: mw.pure_callback(lambda a: (kept.append(a), a)[1], x, x) * 2)
    for i in range(4):
        f(np.full(1000, i, np.float32))
    assert [float(a.sum()) for a in kept] == [0, 1000, 2000, 3000]


METHODS = ["sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized"]


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_vmap(method, jitted):
    shapes = []

    def host(x, w):
        shapes.append((x.shape, w.shape))
        return np.sin(x) * w

    row = mw.ShapeDtypeStruct((2,), np.float32)
    f = mw.vmap(lambda x, w: mw.pure_callback(host, row, x, w, vmap_method=method), in_axes=(1, None), out_axes=1)
    w = np.array([2.0, 5.0], np.float32)
    np.testing.assert_allclose((mw.jit(f) if jitted else f)(X, w), np.sin(X) * w[:, None], rtol=1e-6)
    expected = {
        "sequential": [((2,), (2,))] * 3,
        "sequential_unrolled": [((2,), (2,))] * 3,
        "legacy_vectorized": [((3, 2), (2,))],
        "expand_dims": [((3, 2), (1, 2))],
        "broadcast_all": [((3, 2), (3, 2))],
    }
    assert shapes == expected[method]


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
def test_results_are_arrays_under_every_transformation(method):
    pure = mw.vmap(lambda x: mw.pure_callback(np.sin, x, x, vmap_method=method))(X)
    effect = mw.vmap(lambda x: mw.io_callback(np.sin, x, x))(X)
    linear = mw.custom_jvp(lambda x: mw.pure_callback(np.sin, x, x))
    linear.defjvp(lambda p, t: (mw.pure_callback(np.sin, p[0], *p), t[0] * mw.pure_callback(np.cos, p[0], *p)))
    for out in (pure, effect, *mw.jvp(linear, (X,), (X,)), *mw.vjp(linear, X)[1](X)):
        assert type(out) is mw.Array
    assert pure.at[0, 0].set(5.0)[0, 0] == 5.0


def test_custom_derivative_of_a_callback():
    f = mw.custom_jvp(sine)
    f.defjvp(lambda p, t: (f(*p), mw.pure_callback(np.cos, p[0], p[0]) * t[0]))
    for wrap in (lambda g: g, mw.jit):
        np.testing.assert_allclose(wrap(mw.grad(lambda x: f(x * 2).sum()))(X), 2 * np.cos(2 * X), rtol=1e-5)


def test_in_control_flow():
    def body(c, x):
        return mw.pure_callback(lambda c, x: c * 2 + x, c, c, x), c

    last, every = mw.jit(lambda: lax.scan(body, np.float32(1), np.arange(4, dtype=np.float32)))()
    assert float(last) == 27 and every.tolist() == [1, 2, 5, 12]
    pick = mw.jit(lambda p, x: lax.cond(p, sine, lambda x: x, x))
    np.testing.assert_allclose(pick(True, X), np.sin(X), rtol=1e-6)
    np.testing.assert_array_equal(pick(False, X), X)


def test_unused_pure_callbacks_are_dropped_and_others_are_not():
    seen = []

    def note(kind):
        return lambda a: (seen.append(kind), a)[1]

    @mw.jit
    def f(x):
        mw.pure_callback(note("pure"), x, x)
        mw.io_callback(note("io"), x, x)
        mw.jit(lambda x: mw.io_callback(note("inner"), x, x))(x)
        return x

    lowered = f.lower(1.0)
    assert lowered.as_text().count("has_side_effect = true") == 2
    f(1.0)
    assert sorted(k for k in seen if k != "pure") == ["inner", "io"]


# --- effects ------------------------------------------------------------------------------------------------
def test_ordered_effects_happen_in_order():
    seen = []

    def note(*what):
        return lambda *_: seen.append(what)

    @mw.jit
    def f(x, flag):
        results = []
        for i in range(20):
            y = mnp.sin(x) if i % 2 else x @ x
            mw.io_callback(note(i), None, y, ordered=True)
            results.append(y)

        def step(j, c):
            mw.io_callback(lambda j: seen.append(("loop", int(j))), None, j, ordered=True)
            mw.debug.callback(note("again"), ordered=True)
            return c + 1

        n = lax.fori_loop(0, 2, step, 0)
        mw.io_callback(note("between"), None, ordered=True)

        def branch(x):
            return (mw.io_callback(note("yes"), None, ordered=True), x)[1]

        z = lax.cond(flag, branch, lambda x: x, x)
        mw.jit(lambda: mw.io_callback(note("end"), None, ordered=True))()
        return results[3], n, z

    x = np.ones((60, 60), np.float32)
    for flag in (True, False):
        seen.clear()
        f(x, flag)
        tail = [("between",), *([("yes",)] if flag else []), ("end",)]
        assert seen == [*((i,) for i in range(20)), ("loop", 0), ("again",), ("loop", 1), ("again",), *tail]


@pytest.mark.parametrize("flag", [True, False])
def test_order_of_branches_and_loops_without_results(flag):
    seen = []

    def say(tag, *values):
        def called(*numbers):
            if tag == "slow":
                time.sleep(0.02)
            seen.append((tag, *map(int, numbers)))

        mw.io_callback(called, None, *values, ordered=True)

    @mw.jit
    def f(p):
        lax.cond(p, lambda: say("slow"), lambda: None)
        say("between")
        lax.switch(mnp.int32(p), [lambda: None, lambda: lax.cond(p, lambda: say("inner"), lambda: None)])

        def step(_, x):
            lax.cond(x % 2 == 0, lambda: say("even", x), lambda: None)
            return None, None

        lax.scan(step, None, mnp.arange(3))
        say("end")

    f(flag)
    mw.effects_barrier()
    branches = [[("slow",)], [("inner",)]] if flag else [[], []]
    assert seen == [*branches[0], ("between",), *branches[1], ("even", 0), ("even", 2), ("end",)]


def test_order_needs_something_to_wait_for():
    def step(*_):
        mw.io_callback(lambda: None, None, ordered=True)
        return None, None

    with pytest.raises(RuleError, match="a scan without operands"):
        mw.jit(lambda: lax.scan(step, None, None, length=2))()


def test_effects_have_happened_when_the_call_returns():
    seen = []
    f = mw.jit(lambda x: (mw.io_callback(lambda v: seen.append(v.sum()), None, x), x)[1])
    for i in range(5):
        f(np.full(50000, i, np.float32))
        assert len(seen) == i + 1
    assert seen == [i * 50000 for i in range(5)]


def test_vmap_of_effects_is_a_loop():
    seen = []

    def add(x, y):
        seen.append((x.item(), y.item()))
        return x + y

    f = mw.vmap(lambda x, y: mw.io_callback(add, x, x, y), (0, None))
    np.testing.assert_array_equal(f(np.array([1.0, 2.0], np.float32), np.float32(10)), [11, 12])
    assert seen == [(1.0, 10.0), (2.0, 10.0)]
    with pytest.raises(RuleError, match="ordered call of <lambda> cannot be mapped"):
        mw.vmap(lambda x: mw.io_callback(lambda x: x, x, x, ordered=True))(X)


@pytest.mark.parametrize("jitted", [False, True])
def test_debugging_sees_the_forward_values_once(jitted, capsys):
    def f(x):
        mw.debug.print("{name}: {} and {y:.1f}", x, y=x + 1, name="here")
        return x**3

    wrap = mw.jit if jitted else lambda f: f
    assert float(wrap(mw.grad(f))(2.0)) == 12
    assert float(wrap(mw.grad(mw.jit(f)))(2.0)) == 12
    assert float(wrap(lambda x: mw.jvp(f, (x,), (1.0,))[1])(2.0)) == 12
    assert float(wrap(mw.grad(lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0]))(2.0)) == 12
    assert float(wrap(mw.grad(lambda x: lax.cond(x > 0, f, lambda x: x, x)))(2.0)) == 12
    assert capsys.readouterr().out == "here: 2.0 and 3.0\n" * 5
    wrap(mw.vmap(lambda x: f(x)))(np.arange(2, dtype=np.float32))
    assert capsys.readouterr().out == "here: 0.0 and 1.0\nhere: 1.0 and 2.0\n"


def test_checkpoint_shows_both_computations(capsys):
    f = mw.checkpoint(lambda x: (mw.debug.print("{}", x), mnp.sin(x))[1])
    mw.jit(mw.grad(lambda x: f(x)))(1.0)
    assert capsys.readouterr().out == "1.0\n1.0\n"


# --- meshes -------------------------------------------------------------------------------------------------
def test_on_a_mesh_callbacks_get_whole_arrays_once():
    mesh = mw.make_mesh((2, 4), ("a", "b"))
    seen = []

    def host(a):
        seen.append(a)
        return np.cumsum(a, 0)

    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    f = mw.jit(lambda x: mw.pure_callback(host, x, x * 2), in_shardings=NamedSharding(mesh, P("a", "b")))
    lowered = f.lower(x)
    with pytest.warns(ReplicationWarning, match="pure_callback at test_callbacks"):
        compiled = lowered.compile()
    np.testing.assert_array_equal(compiled(x), np.cumsum(2 * x, 0))
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0], 2 * x)
    part = lowered.partition()
    assert "pure_callback needs operand 0 as [{}, {}]" in part.explain()
    part.verify(x)


def test_in_shard_map_callbacks_get_parts(capsys):
    mesh = mw.make_mesh((4,), ("a",))

    def body(x):
        return (mw.debug.callback(lambda v: print(v.tolist()), x), x * 2)[1]

    f = mw.shard_map(body, mesh=mesh, in_specs=P("a"), out_specs=P("a"))
    mw.jit(f)(np.arange(8, dtype=np.float32))
    assert capsys.readouterr().out.splitlines() == ["[0.0, 1.0]", "[2.0, 3.0]", "[4.0, 5.0]", "[6.0, 7.0]"]


def test_in_shard_map_every_device_calls(capsys):
    def body(x, w):
        mw.debug.print("here")
        mw.debug.print("{} {}", x.sum(), w, ordered=True)
        return x * mw.pure_callback(np.square, w, w)  # a function of one device's value: nothing is mapped

    mesh = mw.make_mesh((2, 2), ("a", "b"))
    f = mw.shard_map(body, mesh=mesh, in_specs=(P("a"), P()), out_specs=P("a"))
    np.testing.assert_array_equal(mw.jit(f)(np.arange(4, dtype=np.float32), np.float32(3)), np.arange(4) * 9)
    assert sorted(capsys.readouterr().out.splitlines()) == [*["1.0 3.0"] * 2, *["5.0 3.0"] * 2, *["here"] * 4]


# --- errors -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("jitted", [False, True])
def test_what_callbacks_raise(jitted):
    def broken(x):
        raise KeyError("my key")

    wrap = mw.jit if jitted else lambda f: f
    with pytest.raises(CallbackError, match="function broken raised KeyError") as caught:
        wrap(lambda x: mw.pure_callback(broken, x, x))(X)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(CallbackError, match=r"result 0 .* has shape \(3, 2\) .* says f32\[2,3\]"):
        wrap(lambda x: mw.pure_callback(lambda a: a.T, x, x))(X)
    with pytest.raises(CallbackError, match="dtype int32"):
        wrap(lambda x: mw.pure_callback(lambda a: a.astype("int32"), x, x))(X)
    with pytest.raises(CallbackError, match="returned structure"):
        wrap(lambda x: mw.pure_callback(lambda a: (a, a), x, x))(X)


def test_programs_go_on_after_a_failure():
    def sometimes(x):
        if x > 0:
            raise ValueError("positive")
        return x

    f = mw.jit(lambda x: mw.pure_callback(sometimes, x, x))
    for _ in range(2):
        with pytest.raises(CallbackError, match="positive"):
            f(1.0)
        assert float(f(-1.0)) == -1


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_callbacks_that_end_the_process_are_errors_of_ours(end):
    def leave(x):
        raise end

    with pytest.raises(CallbackError, match=f"function .*leave raised {type(end).__name__}") as caught:
        mw.jit(lambda x: (mw.debug.callback(leave, x), x + 1)[1])(np.float32(1))
    assert caught.value.__cause__ is end


def test_bad_calls(refuses):
    with refuses(TypeError, "result_shape_dtypes", "ShapeDtypeStruct"):
        mw.pure_callback(np.sin, 3, X)
    with refuses(TypeError, "expected a function"):
        mw.io_callback(3, X, X)
    wide = mw.ShapeDtypeStruct((), np.float64)
    with refuses(ValueError, "float64", "enable_x64"):
        mw.pure_callback(np.sin, wide, X)
    with refuses(TypeError, "sharding", "SingleDeviceSharding"):
        mw.io_callback(np.sin, X, X, sharding=3)
    with refuses(ValueError, "vmap_method", "'broadcast_all'"):
        mw.pure_callback(np.sin, X, X, vmap_method="fast")
    with refuses(NotImplementedError, "needs vmap_method"):
        mw.vmap(sine)(X)
    for f in (sine, lambda x: mw.io_callback(np.sin, x, x)):
        with refuses(TypeError, "derivative of the Python function sin", "stop_gradient"):
            mw.grad(lambda x, f=f: f(x).sum())(X)
    assert issubclass(DifferentiationError, TypeError)
    with refuses(NotImplementedError, "int4", "int8"):
        mw.jit(lambda x: sine(x.astype("int4")))(X)


def test_formats_may_be_checked_when_the_program_comes_by(refuses, capsys):
    mw.jit(lambda x: mw.debug.print("{x}", x=x, skip_format_check=True))(2)
    assert capsys.readouterr().out == "2\n"
    with refuses(mw.errors.CallbackError, "KeyError"):
        mw.jit(lambda x: mw.debug.print("{y}", x=x, skip_format_check=True))(2)


def test_options_may_be_given_first(capsys, caplog):
    mw.jit(lambda x: mw.debug.print(ordered=True)("got {x}", x=x))(2)
    mw.debug.print(skip_format_check=True)("got", 3, 4)
    assert capsys.readouterr().out == "got 2\ngot 3 4\n"
    caplog.set_level("INFO", "meshwright")
    mw.jit(lambda x: mw.debug.log(ordered=True)("got {}", x))(2)
    (record,) = caplog.records
    assert record.getMessage() == "got 2" and record.filename == "test_callbacks.py" and record.levelname == "INFO"
    with pytest.raises(mw.errors.ArgumentError, match=r"debug\.log: the format '\{\} \{\}' does not fit"):
        mw.debug.log("{} {}", 1)


def test_leaves_of_other_structures_are_refused(refuses):
    with refuses(mw.errors.CallbackError, "structure"):
        mw.pure_callback(lambda x: ((x, x), x), [X, [X, X]], X)


def test_formats_are_checked_when_traced(refuses):
    for fmt, args, kwargs in (("{} {}", (1,), {}), ("{x}", (), {}), ("{", (1,), {})):
        with refuses(ValueError, "does not fit"):
            mw.jit(lambda args=args, kwargs=kwargs, fmt=fmt: mw.debug.print(fmt, *args, **kwargs))()
    with refuses(ValueError, "does not use argument 1, y"):
        mw.debug.print("{}", 1, 2, y=3)
    with refuses(TypeError, "format string"):
        mw.debug.print(X)
    assert issubclass(ArgumentError, ValueError) and issubclass(ArgumentTypeError, TypeError)


def test_of_random_keys_the_words_are_shown() -> None:
    seen: list[Any] = []
    mw.jit(lambda k: mw.debug.callback(lambda words: seen.append(words.tolist()), k))(mw.random.key(5))
    mw.effects_barrier()
    assert seen == [[0, 5]]


def test_parts_of_devices_are_not_what_is_shown() -> None:
    mw.debug.print("{}", 1, partitioned=False)
    with pytest.raises(ArgumentError, match="partitioned=True"):
        mw.debug.print("{}", 1, partitioned=True)
    with pytest.raises(ArgumentError, match="partitioned=True"):
        mw.debug.callback(lambda x: None, 1, partitioned=True)


def test_what_calls_give_is_sent_to_all_devices_that_do_not_call():
    mesh = mw.AbstractMesh((2, 4), ("x", "y"))
    given = mw.ShapeDtypeStruct((8,), np.float32, sharding=mw.NamedSharding(mesh, mw.P("x")))

    def double(x):
        return mw.pure_callback(lambda x: 2 * x, mw.ShapeDtypeStruct(x.shape, x.dtype), x)

    part = mw.jit(double).lower(given).partition()
    assert [(c.kind, c.group_size, c.bytes_sent) for c in part.collectives] == [
        ("all_gather", 2, 16),
        ("all_reduce", 8, 56),
    ]
    assert "one device calls" in str(part.explain()) and part.time().seconds > 1e-8
    local = mw.shard_map(double, mesh=mesh, in_specs=mw.P("x"), out_specs=mw.P("x"), axis_names={"x"}, check_vma=False)
    assert {c.axes for c in mw.jit(local).lower(given).partition().collectives} == {("y",)}
