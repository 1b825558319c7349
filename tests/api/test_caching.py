"""A function that is wrapped anew each time compiles once; functions that differ do not share."""

import functools
import gc
import weakref

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P

X = np.arange(8, dtype=np.float32)


class Counted:
    """A function of one array that counts how often it is traced or run op by op."""

    def __init__(self):
        self.calls = 0

        def function(x):
            self.calls += 1
            return mnp.sin(x).sum()

        self.function = function


MESH = mw.make_mesh((8,), ("d",))

WRAPPERS = {
    "jit": lambda f: mw.jit(f),
    "jit of jit": lambda f: mw.jit(mw.jit(f)),
    "jit of grad": lambda f: mw.jit(mw.grad(f)),
    "jit of value_and_grad": lambda f: mw.jit(mw.value_and_grad(f, argnums=(0,))),
    "jit of vmap": lambda f: mw.jit(mw.vmap(f, in_axes=(0,))),
    "jit of vmap of grad": lambda f: mw.jit(mw.vmap(mw.grad(f))),
    "jit of jacfwd": lambda f: mw.jit(mw.jacfwd(f)),
    "jit of hessian": lambda f: mw.jit(mw.hessian(f)),
    "jit of checkpoint": lambda f: mw.jit(mw.checkpoint(f)),
    "jit with shardings": lambda f: mw.jit(f, in_shardings=(mw.NamedSharding(MESH, P("d")),)),
    "pmap": lambda f: mw.pmap(f, "d"),
    "jit of shard_map": lambda f: mw.jit(mw.shard_map(lambda_of(f), mesh=MESH, in_specs=P("d"), out_specs=P("d"))),
}


@functools.cache
def lambda_of(f):
    return lambda x: f(x)[None]


@pytest.mark.parametrize("name", sorted(WRAPPERS))
def test_a_wrapper_made_anew_traces_nothing_again(name):
    counted = Counted()
    x = X[:, None] if "vmap" in name else X
    first = WRAPPERS[name](counted.function)(x)
    calls = counted.calls
    for _ in range(3):
        again = WRAPPERS[name](counted.function)(x)
    assert counted.calls == calls
    for a, b in zip(mw.tree.leaves(first), mw.tree.leaves(again)):
        np.testing.assert_array_equal(a, b)


def test_options_are_part_of_what_a_function_is():
    def f(x, y):
        return (x * y * y).sum()

    a, b = np.float32(2), np.float32(3)
    assert float(mw.jit(mw.grad(f))(a, b)) == 9
    assert float(mw.jit(mw.grad(f, argnums=1))(a, b)) == 12
    assert [float(g) for g in mw.jit(mw.grad(f, argnums=(0, 1)))(a, b)] == [9, 12]
    both = np.stack([X, X + 1])
    assert mw.jit(mw.vmap(lambda_of_rows, in_axes=0))(both).shape == (2,)
    assert mw.jit(mw.vmap(lambda_of_rows, in_axes=1))(both).shape == (8,)
    assert mw.jit(f, static_argnums=1)(a, 3) == 18 and mw.jit(f)(a, 4) == 32


def lambda_of_rows(x):
    return x.sum()


def test_what_copies_attributes_is_another_function():
    def f(x):
        return x * 2

    inner = mw.vmap(f)

    @functools.wraps(inner)
    def other(x):
        return inner(x) + 1

    assert mw.jit(mw.vmap(f))(X)[3] == 6
    assert mw.jit(other)(X)[3] == 7
    assert mw.jit(functools.partial(lambda n, x: x * n, 3))(X)[1] == 3
    assert mw.jit(functools.partial(lambda n, x: x * n, 4))(X)[1] == 4


def test_methods_and_callable_objects_are_traced_for_themselves():
    class Scale:
        def __init__(self, factor):
            self.factor = factor

        def run(self, x):
            return x * self.factor

        __call__ = run

    scale = Scale(2.0)
    assert mw.jit(scale.run)(X)[1] == 2 and mw.jit(scale)(X)[1] == 2
    scale.factor = 3.0
    assert mw.jit(scale.run)(X)[1] == 3 and mw.jit(scale)(X)[1] == 3


def test_a_function_is_freed_with_what_was_compiled_of_it():
    def make():
        def f(x):
            return mw.jit(lambda y: y * 2)(x).sum()

        mw.jit(f)(X), mw.jit(mw.grad(f))(X), mw.grad(mw.jit(f))(X)
        return weakref.ref(f)

    gone = make()
    gc.collect()
    assert gone() is None


def test_cleared_caches_are_cleared_for_all_wrappers():
    counted = Counted()
    mw.jit(counted.function)(X)
    mw.jit(counted.function).clear_cache()
    mw.jit(counted.function)(X)
    assert counted.calls == 2
    mw.clear_caches()
    mw.jit(counted.function)(X)
    assert counted.calls == 3


def test_a_program_is_compiled_once_however_often_it_is_asked_for():
    lowered = mw.jit(lambda x: x + 1).lower(X)
    assert lowered.compile().executable is lowered.compile().executable


def test_a_region_called_with_arrays_sees_what_it_closes_over_and_compiles_what_is_new():
    from meshwright.api import shard_map

    scale = {"by": mnp.float32(2.0), "power": 1}

    def call():
        f = mw.shard_map(lambda x: (x * scale["by"]) ** scale["power"], mesh=MESH, in_specs=P("d"), out_specs=P("d"))
        return float(f(X)[3])

    mw.clear_caches()
    assert call() == call() == 6 and len(shard_map._programs) == 1
    scale["by"] = mnp.float32(3.0)  # another value of the same program
    assert call() == 9 and len(shard_map._programs) == 1
    scale["power"] = 2
    assert call() == 81 and len(shard_map._programs) == 2


def test_what_comes_back_where_the_program_takes_it_finds_the_program_again():
    """The counter of a training step: on any device at first, then on the step's mesh."""
    mesh = mw.make_mesh((4,), ("x",), devices=mw.devices()[:4], axis_types=(mw.sharding.AxisType.Auto,))
    rows = mw.NamedSharding(mesh, mw.PartitionSpec("x"))
    step = mw.jit(lambda n, w, x: (n + 1, w - x.sum(0) * n, n * w))
    n, w, x = mnp.int32(0), mw.device_put(np.ones(8, np.float32), mw.NamedSharding(mesh, mw.PartitionSpec())), None
    x = mw.device_put(np.arange(32, dtype=np.float32).reshape(4, 8), rows)
    compiled = []
    for _ in range(3):
        (n, w, _), want = step(n, w, x), np.asarray(w) - np.asarray(x).sum(0) * np.asarray(n)
        np.testing.assert_allclose(w, want, rtol=1e-6)
        compiled.append({id(ready.executable) for ready in step._programs.values()})
    assert int(n) == 3 and n.committed and len(compiled[-1]) == 1
    # Elsewhere it is another program: the partitioner may not place it any more.
    split = step(n, mw.device_put(np.ones(8, np.float32), rows), x)
    assert len({id(ready.executable) for ready in step._programs.values()}) == 2
    np.testing.assert_allclose(split[2], 3 * np.ones(8), rtol=1e-6)


def test_arguments_on_one_device_are_not_taken_for_free_ones():
    f = mw.jit(lambda x: 2 * x)
    assert not f(mnp.ones(3)).committed and f(mw.device_put(mnp.ones(3), mw.devices()[0])).committed


def test_programs_are_looked_for_while_another_thread_adds_one():
    f = mw.jit(lambda x: x + 1)
    f(np.ones(3, np.float32))
    programs = f._programs

    class Added:
        """A program that does not serve; when it is asked, another one is added, as by another thread."""

        def serves(self, compiled_for, types):
            programs["other", len(programs)] = self
            return False

    for number in range(2):
        programs["start", number] = Added()
    assert f._caches.serving(("start",), ()) is None
