"""What the memory model says of small programs whose buffers can be counted by hand."""

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.spmd.memory.held import Memory

MESH = mw.AbstractMesh((2, 2), ("data", "model"))
KIB = 1024
#: bytes of the address of one of several results
ADDRESS = 8


def f32(*shape: int) -> Any:
    return mw.ShapeDtypeStruct(shape, np.float32)


def on(*spec: Any) -> NamedSharding:
    return NamedSharding(MESH, P(*spec))


REPLICATED = on()


def memory(fun: Any, *args: Any, spec: Any = REPLICATED, donate: tuple[int, ...] = ()) -> Memory:
    run = mw.jit(fun, in_shardings=(spec,) * len(args), donate_argnums=donate)
    return run.lower(*args).partition().memory


# --- what never gets a buffer -------------------------------------------------------------------------------
def test_elementwise_operations_are_one_kernel():
    found = memory(lambda x, y: mnp.exp(x * 2 + y) - x / y, f32(16, 64), f32(16, 64))
    assert (found.argument_bytes, found.output_bytes, found.temp_bytes) == (8 * KIB, 4 * KIB, 0)


def test_broadcasts_and_unused_values_are_free():
    def f(x):
        _ = mnp.sin(x) @ x.T
        return (x + mnp.arange(64.0)[None] * mnp.ones((16, 1))).reshape(64, 16)

    assert memory(f, f32(16, 64)).temp_bytes == 0


def test_equal_operations_are_done_once():
    def f(x, y):
        return mnp.sort(x @ y, 0) + mnp.sort(x @ y, 1)

    def g(x, y):
        z = x @ y
        return mnp.sort(z, 0) + mnp.sort(z, 1)

    args = f32(48, 32), f32(32, 40)
    assert memory(f, *args).peak_bytes == memory(g, *args).peak_bytes


def test_a_product_in_the_middle_is_a_buffer():
    found = memory(lambda x, y, z: (x @ y) @ z, f32(64, 32), f32(32, 128), f32(128, 16))
    assert found.temp_bytes == 64 * 128 * 4
    assert [b.aval.shape for b in found.buffers if b.kind == "temporary"] == [(64, 128)]


def test_an_expensive_value_with_two_users_is_kept():
    """A cheap one is computed in both."""

    def two_parts(op):
        def f(x):
            y = op(x)
            return y[:64] * 2, mnp.flip(y, 0)[:32] + 1

        return f

    x = f32(128, 128)
    assert memory(two_parts(mnp.tanh), x).temp_bytes == 64 * KIB
    assert memory(two_parts(lambda x: x + 3), x).temp_bytes == 0


# --- who shares memory --------------------------------------------------------------------------------------
def test_sharded_arrays_count_with_their_tiles():
    def f(x):
        return mnp.sin(x)

    assert memory(f, f32(64, 32), spec=on("data", "model")).peak_bytes == 2 * 64 * 32 * 4 // 4


def test_donated_arguments_hold_results():
    def step(p, g):
        return p - 0.1 * g

    kept, given = (memory(step, f32(32, 64), f32(32, 64), donate=d) for d in ((), (0,)))
    assert given.alias_bytes == 8 * KIB
    assert kept.peak_bytes - given.peak_bytes == 8 * KIB


def test_a_donated_argument_that_is_still_needed_is_copied():
    def f(p, x):
        return p * 2, mnp.sort(x @ p.T, 1)  # the product does not come before the update

    found = memory(f, f32(32, 64), f32(8, 64), donate=(0,))
    assert found.alias_bytes == 8 * KIB
    assert found.temp_bytes >= 8 * KIB


def test_results_that_are_arguments_are_copies():
    found = memory(lambda x, y: (x, x, y * 2), f32(8, 64), f32(4, 64))
    assert found.output_bytes == (2 * 8 + 4) * 64 * 4 + 3 * ADDRESS and found.temp_bytes == 0


def test_a_result_that_another_result_needs_is_computed_in_both():
    def f(x):
        y = x + x
        return y, x + y

    found = memory(f, f32(16, 64))
    assert (found.output_bytes, found.temp_bytes) == (8 * KIB + 2 * ADDRESS, 0)


def test_all_reduces_that_would_wait_for_each_other_stay_apart():
    """Those over one axis are combined; then those over the other axis, of which one needs the other, cannot be."""

    def f(x, y):
        a, b = lax.psum(x, "data"), lax.psum(y, "model")
        return lax.psum(mnp.sin(a), "model"), lax.psum(mnp.sin(b), "data")

    run = mw.shard_map(f, mesh=MESH, in_specs=(P(), P()), out_specs=(P(), P()))
    found = mw.jit(run).lower(f32(16, 64), f32(16, 64)).partition().memory
    assert found.output_bytes == 8 * KIB + 2 * ADDRESS
    assert sum(b.what == "all_reduce" and b.nbytes > KIB for b in found.buffers) == 3


def test_loops_work_in_place():
    def filled(x):
        return lax.fori_loop(0, 7, lambda i, y: y.at[i].set(y[i] * 2), x)

    assert memory(filled, f32(7, 1024)).temp_bytes < 7 * KIB


def test_a_loop_body_has_temporaries():
    def f(x, w):
        return lax.fori_loop(0, 3, lambda i, y: mnp.tanh(y @ w) @ w.T, x)

    assert memory(f, f32(16, 32), f32(32, 512)).temp_bytes >= 16 * 512 * 4


def test_the_larger_branch_counts():
    def f(p, x):
        return lax.cond(p, lambda x: (x @ x.T) @ x, lambda x: x * 2, x)

    run = mw.jit(f, in_shardings=(on(), on()))
    part = run.lower(mw.ShapeDtypeStruct((), np.bool_), f32(128, 16)).partition()
    assert 128 * 128 * 4 <= part.memory.temp_bytes < 2 * 128 * 128 * 4


# --- the figures together -----------------------------------------------------------------------------------
def loss(params, x):
    for w in params:
        x = mnp.tanh(x @ w)
    return (x**2).sum()


@pytest.mark.parametrize("batch", [8, 24, 64])
def test_memory_grows_with_the_batch(batch: int) -> None:
    def peak(n):
        return memory(mw.grad(loss), [f32(32, 32)] * 3, f32(n, 32)).peak_bytes

    assert peak(batch) < peak(2 * batch) <= 2 * peak(batch)


def test_memory_falls_with_the_devices():
    def peak(mesh):
        spec = NamedSharding(mesh, P("data"))
        run = mw.jit(mw.grad(loss), in_shardings=(NamedSharding(mesh, P()), spec))
        return run.lower([f32(32, 32)] * 3, f32(512, 32)).partition().peak_bytes

    peaks = [peak(mw.AbstractMesh((n,), ("data",))) for n in (1, 2, 8)]
    assert peaks == sorted(peaks, reverse=True) and peaks[0] > 3 * peaks[-1]


def test_report_names_the_largest_buffers_and_their_lines():
    run = mw.jit(lambda x, y: mnp.sort(x @ y, 0).sum(), in_shardings=(on("data"), on()))
    part = run.lower(f32(64, 32), f32(32, 128)).partition()
    text = str(part.memory)
    first, *lines = text.splitlines()
    assert first.startswith("a device holds at most") and "arguments 20.0 KiB" in first
    sizes = [b.nbytes for b in part.memory.buffers]
    assert sizes == sorted(sizes, reverse=True)
    assert sum("input 1" in line for line in lines) == 1
    assert any("temporary" in line and "test_memory_model.py" in line for line in lines)
    assert part.peak_bytes == part.memory.peak_bytes


def test_buffers_of_the_report_are_the_peak():
    """Where nothing is lost between buffers, those alive add up to the peak."""
    found = memory(lambda x, y, z: mnp.tanh(x @ y) @ z, f32(64, 32), f32(32, 128), f32(128, 16))
    assert sum(b.nbytes for b in found.buffers) == found.peak_bytes


def test_memory_is_linear_in_layers():
    def temporaries(layers):
        return memory(mw.grad(loss, argnums=1), [f32(32, 32)] * layers, f32(16, 32)).temp_bytes

    one, two, four = map(temporaries, (40, 80, 160))
    assert four - two == pytest.approx(2 * (two - one), rel=0.05) and two > 1.8 * one


def test_a_scalar_out_of_an_array_of_constants_has_no_known_value():
    table = np.array([2, 3, 5], np.float32)
    found = memory(lambda x: x * lax.slice(mnp.asarray(table), (1,), (2,)).reshape(()) + 1, f32(16, 64))
    assert found.argument_bytes == found.output_bytes == 4 * KIB


def test_what_only_prints_has_no_buffer():
    """In loops and branches too."""

    def printed(c: Any) -> Any:
        mw.debug.print("{}", c[0, 0])
        return c * 2

    def step(x: Any) -> Any:
        y = lax.fori_loop(0, 3, lambda i, c: printed(c), x)
        return lax.cond(y[0, 0] > 0, printed, lambda c: c, printed(y))

    assert memory(step, f32(64, 64)).temp_bytes < 17 * KIB
