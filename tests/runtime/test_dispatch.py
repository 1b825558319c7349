"""Dispatch: calls return before their results are ready, trace once, keep their caches small, and work from threads."""

import gc
import threading
import time

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P

MESH = mw.make_mesh((4, 2), ("x", "y"))
ROWS = NamedSharding(MESH, P("x"))
X = np.arange(32, dtype=np.float32).reshape(8, 4)


# --- asynchronous -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sharding", [None, NamedSharding(MESH, P("x", "y"))], ids=["one device", "mesh"])
def test_a_call_returns_before_its_result_is_ready(sharding):
    x = mw.device_put(np.full((1024, 1024), 1 / 1024, np.float32), sharding)

    @mw.jit
    def slow(x):
        for _ in range(12):
            x = x @ x * 1.0
        return x

    slow(x).block_until_ready()
    start = time.perf_counter()
    out = slow(x)
    returned = time.perf_counter() - start
    early = not out.is_ready()
    assert mw.block_until_ready({"out": [out]})["out"][0] is out and out.is_ready()
    finished = time.perf_counter() - start
    assert early and returned < finished / 2
    np.testing.assert_allclose(out[3, 5], 1 / 1024, rtol=1e-3)


def test_many_calls_without_waiting():
    step = mw.jit(lambda x: x + 1, donate_argnums=0)
    x = mw.device_put(np.zeros((8, 8), np.float32), ROWS) + 0
    for _ in range(2000):
        x = step(x)
    assert x[3, 3] == 2000


@pytest.mark.filterwarnings("error")
def test_eager_ops_on_a_mesh_do_not_warn():
    x = mw.device_put(X, NamedSharding(MESH, P("x", "y")))
    assert x[3, 3] == 15 and x[-1, :2].tolist() == [28, 29]
    np.testing.assert_array_equal(mnp.sort(-x, axis=0), np.sort(-X, axis=0))
    np.testing.assert_array_equal(x.reshape(2, 16)[:, 3:], X.reshape(2, 16)[:, 3:])


def test_errors_leave_arrays_usable():
    x = mw.device_put(X, ROWS)
    with pytest.raises(TypeError):
        x + np.ones(3)
    np.testing.assert_array_equal(x + 1, X + 1)


# --- caches -------------------------------------------------------------------------------------------------
class Counter:
    """A function that counts how often it is traced."""

    def __init__(self):
        self.traced = 0

    def __call__(self, x, y=1.0):
        self.traced += 1
        return x * y


def test_a_second_call_does_no_tracing():
    counter = Counter()
    step = mw.jit(counter)
    for value in (X, mnp.asarray(X), mw.device_put(X), X.astype(np.float64)):
        for _ in range(3):
            np.testing.assert_array_equal(step(value), X)
    assert counter.traced == 1
    sharded = mw.device_put(X, ROWS)
    for _ in range(3):
        np.testing.assert_array_equal(step(sharded), X)
    assert counter.traced == 1  # another program, of the same trace
    step(X[:3]), step(X.astype(np.int32)), step(X, 2.0), step(X, y=2.0), step(X, np.float32(2)), step((X, X)[0])
    assert counter.traced == 6


def test_numbers_of_one_type_share_a_program():
    counter = Counter()
    step = mw.jit(counter)
    assert [float(step(x)) for x in (1.0, 2.0, 3.5)] == [1.0, 2.0, 3.5] and counter.traced == 1
    assert int(step(2, 3)) == 6 and int(step(True, 3)) == 3 and counter.traced == 3


def test_inner_functions_are_traced_once():
    counter = Counter()
    inner = mw.jit(counter)
    outer = mw.jit(lambda x: inner(inner(x) + 1))
    outer(X), outer(X), mw.grad(lambda x: mnp.sum(inner(x)))(X)
    assert counter.traced == 1


def test_clear_cache_and_another_configuration_trace_again():
    counter = Counter()
    step = mw.jit(counter)
    step(X)
    step.clear_cache()
    step(X)
    assert counter.traced == 2
    with mw.config.override("enable_x64", True):
        assert step(X.astype(np.float64)).dtype == np.float64
    step(X)  # as before: found again
    assert counter.traced == 3


def test_the_current_mesh_is_part_of_the_key():
    step = mw.jit(lambda x: mw.with_sharding_constraint(x, P("x")) * 2)
    other = mw.make_mesh((2, 4), ("x", "y"))
    for mesh in (MESH, other, MESH):
        with mesh:
            assert step(X).sharding.is_equivalent_to(NamedSharding(mesh, P("x")), 2)


def test_caches_do_not_grow_with_calls():
    step = mw.jit(lambda x, s: mnp.sin(x) * s)
    x, sharded = mnp.asarray(X), mw.device_put(X, ROWS)

    def work(i):
        step(x, float(i)), step(sharded, float(i)), (x * i + 1).sum(), sharded * i

    work(0)
    before = len(step._programs), len(step._caches.traces), len(step._caches.constrained)
    for i in range(1, 30):
        work(i)
    assert (len(step._programs), len(step._caches.traces), len(step._caches.constrained)) == before == (2, 1, 0)


def test_functions_and_their_programs_are_freed():
    freed = []

    class Big:
        def __del__(self):
            freed.append(1)

    def make():
        big = Big()
        step = mw.jit(lambda x: x + (big is not None))
        return step(X)

    for _ in range(3):
        make()
    gc.collect()  # a jitted function and its cache refer to each other
    assert len(freed) == 3


# --- constants ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sharding", [None, NamedSharding(MESH, P(None, "y"))], ids=["one device", "mesh"])
def test_large_constants_are_passed_not_written_into_the_program(sharding):
    weights = mw.device_put(np.arange(1 << 18, dtype=np.float32).reshape(512, 512) / (1 << 18), sharding)
    step = mw.jit(lambda x: x @ weights)
    x = np.ones((4, 512), np.float32)
    np.testing.assert_allclose(step(x), x @ np.asarray(weights), rtol=1e-4)
    (ready,) = step._programs.values()
    executable = ready.executable
    assert len(executable.constants) == 1 and executable.constants[0] is weights.buffer
    assert len(step.lower(x).compile().as_text()) < 20_000


def test_small_constants_are_written_into_the_program():
    step = mw.jit(lambda x: x + np.array([1, 2, 3, 4], np.float32))
    np.testing.assert_array_equal(step(X), X + np.arange(1, 5))
    assert "constant({1, 2, 3, 4})" in step.lower(X).as_text("hlo")


# --- threads ------------------------------------------------------------------------------------------------
def test_threads_trace_compile_and_run_side_by_side():
    shared = mw.jit(lambda x: mnp.cumsum(x * 2, axis=0))
    failures = []

    def work(number):
        try:
            for k in range(3):
                slope = mw.jit(mw.grad(lambda x: mnp.sum(mnp.sin(x) * number)))
                x = np.arange(5, dtype=np.float32) + number
                np.testing.assert_allclose(slope(x), np.cos(x) * number, rtol=1e-4, atol=1e-5)
                with MESH:
                    product = mw.jit(lambda a: a @ a.T, in_shardings=P("x"))(X + number)
                np.testing.assert_allclose(product, (X + number) @ (X + number).T, rtol=1e-5)
                np.testing.assert_allclose(shared(X + k), np.cumsum((X + k) * 2, axis=0), rtol=1e-5)

                def named(x):
                    with mw.named_scope(f"weaver{number}"):
                        return mnp.exp(x + number)

                located = mw.jit(named).lower(X).as_text(debug_info=True)
                assert f"weaver{number}/exp" in located and located.count("weaver") == located.count(f"weaver{number}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_a_trace_belongs_to_its_thread():
    inside, done, seen = threading.Event(), threading.Event(), []

    def other():
        inside.wait(30)
        seen.append(mnp.asarray(1.0) + 1)  # while the first thread is tracing
        done.set()

    thread = threading.Thread(target=other)
    thread.start()

    @mw.jit
    def step(x):
        inside.set()
        done.wait(30)
        return x + 1

    step(X)
    thread.join()
    assert isinstance(seen[0], mw.Array) and seen[0] == 2


# --- compilation --------------------------------------------------------------------------------------------
def test_nothing_is_fused_for_the_experimental_kernels():
    """Their compiler ends the process on some programs."""
    attend = mw.jit(lambda x: mnp.einsum("bij,bjk->bik", mw.nn.softmax(x), x))
    assert "ynn_fusion" not in attend.lower(np.ones((4, 64, 64), np.float32)).compile().as_text("virtual")


@pytest.mark.filterwarnings("ignore::meshwright.errors.ReplicationWarning")
def test_errors_of_the_compiler_keep_their_kind(refuses):
    with refuses(RuntimeError, "could not compile 'broken'", "custom_call_that_is_missing"):
        text = """func.func public @broken(%x: tensor<f32>) -> tensor<f32> {
          %0 = stablehlo.custom_call @custom_call_that_is_missing(%x) : (tensor<f32>) -> tensor<f32>
          return %0 : tensor<f32>
        }"""
        mw.load(text)(np.float32(1))


# --- results that are arguments -----------------------------------------------------------------------------
def _compiled(f, *args):
    """The executable behind a jitted function."""
    return f.lower(*args).compile().executable


@pytest.mark.parametrize("sharding", [None, ROWS], ids=["one device", "mesh"])
def test_arguments_that_are_results_are_neither_computed_nor_copied(sharding):
    x = mw.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), sharding)
    whole = mw.jit(lambda x: x)
    out = whole(x)
    assert out.buffer is x.buffer and out.sharding == x.sharding and _compiled(whole, x).loaded is None
    assert "ENTRY" in whole.lower(x).compile().as_text("virtual")
    some = mw.jit(lambda x, y: {"b": x, "a": x + y, "c": [y, 2 * y]})
    for _ in range(2):  # the second run knows the types of the results
        out = some(x, x)
        assert out["b"].buffer is x.buffer and out["c"][0].buffer is x.buffer
        np.testing.assert_array_equal(out["a"], 2 * np.asarray(x))
        np.testing.assert_array_equal(out["c"][1], 2 * np.asarray(x))
    np.testing.assert_array_equal(whole(np.arange(3)), [0, 1, 2])


def test_donated_arguments_are_not_results_as_they_are():
    x, y = (mw.device_put(np.full(5, i, np.float32)) for i in (1, 2))
    a, b = mw.jit(lambda x: (x + 1, x), donate_argnums=0)(x)
    assert x.is_deleted() and a.tolist() == [2] * 5 and b.tolist() == [1] * 5
    total, same = mw.jit(lambda a, y: (a.sum(), y), donate_argnums=0)(a, y)
    assert a.is_deleted() and same.buffer is y.buffer and total == 10 and same.tolist() == [2] * 5


def test_effects_happen_where_all_results_are_arguments(capsys):
    def told(x):
        mw.debug.print("{}", x)
        return x

    assert mw.jit(told)(np.int32(7)) == 7
    assert capsys.readouterr().out == "7\n"
