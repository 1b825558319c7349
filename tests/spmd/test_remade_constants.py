"""What is made of constants, and of values that all devices have, is made in every layout it is needed in, and never
sent; also in loops and branches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.spmd.partition import choose

MESH = mw.AbstractMesh((2, 3), ("a", "b"))
TABLE = np.arange(40, dtype=np.float32).reshape(8, 5) ** 2


def ramp() -> Any:
    return mnp.arange(40, dtype=np.float32).reshape(8, 5)


def mask() -> Any:
    rows, columns = lax.broadcasted_iota(np.int32, (8, 5), 0), lax.broadcasted_iota(np.int32, (8, 5), 1)
    return mnp.where(rows >= columns, np.float32(1), np.float32(-2))


def rolled() -> Any:
    return mnp.pad(mnp.roll(lax.broadcasted_iota(np.float32, (6, 5), 0), 2, 0), ((1, 1), (0, 0)), constant_values=7)


def table() -> Any:
    return mnp.sin(TABLE)


@pytest.mark.parametrize("make", [ramp, mask, rolled, table], ids=lambda f: f.__name__)
@pytest.mark.parametrize("specs", [(P("a"), P("b")), (P(None, "a"), P("a")), (P(("a", "b")), P())], ids=str)
def test_two_layouts_of_one_constant(make, specs):
    """Each operand is cut in its own way; what is added to both is cut likewise, on each device."""

    def f(x, y):
        constant = make()
        return x + constant, y * constant, constant

    x, y = np.random.default_rng(0).normal(size=(2, 8, 5)).astype(np.float32)
    on = [NamedSharding(MESH, s) for s in specs]
    part = mw.jit(f, in_shardings=tuple(on), out_shardings=(*on, on[0])).lower(x, y).partition()
    assert not part.collectives
    part.verify(x, y)


def test_numbers_of_rows_are_counted_in_each_tile():
    """Where all of them are needed elsewhere, too, they are not cut out of these."""

    def f(x, y):
        rows = lax.broadcasted_iota(np.float32, (8, 5), 0)
        return mnp.fft.fft(rows + y, axis=0).real, x + rows

    x, y = np.ones((8, 5), np.float32), np.float32(2)
    on = NamedSharding(MESH, P("a")), NamedSharding(MESH, P())
    part = mw.jit(f, in_shardings=on, out_shardings=on[::-1]).lower(x, y).partition()
    assert {"all_slice", "dynamic_slice"}.isdisjoint(e.op.name for e in part.jaxpr.eqns)
    part.verify(x, y)


def test_a_constant_is_added_to_a_partial_sum():
    """The sum stays partial: one device of those it is spread over adds the constant."""

    def f(x, w, v):
        return (x @ w + mask()) @ v

    split = NamedSharding(MESH, P(None, "a")), NamedSharding(MESH, P("a")), NamedSharding(MESH, P())
    args = [np.random.default_rng(1).normal(size=s).astype(np.float32) for s in ((8, 4), (4, 5), (5, 2))]
    part = mw.jit(f, in_shardings=split, out_shardings=split[2]).lower(*args).partition()
    assert {c.kind for c in part.collectives} == {"all_reduce"} and len(part.collectives) == 1
    part.verify(*args)


def test_a_constraint_on_a_constant():
    def f(x):
        held = lax.with_sharding_constraint(table(), NamedSharding(MESH, P("a")))
        return x + held, mnp.cos(held)

    x = np.ones((8, 5), np.float32)
    on = NamedSharding(MESH, P(None, "b"))
    part = mw.jit(f, in_shardings=(on,), out_shardings=(on, on)).lower(x).partition()
    assert not part.collectives
    part.verify(x)


def test_what_is_summed_is_not_made_again():
    """A reduction of constants is done once, in the layout that was chosen."""

    def f(x):
        return x + mask().sum(1)

    x = np.ones(8, np.float32)
    part = mw.jit(f, in_shardings=(NamedSharding(MESH, P("a")),)).lower(x).partition()
    part.verify(x)
    assert sum(e.op.name == "reduce_sum" for e in part.jaxpr.eqns) == 1


SPECS = [(P("a"), P("b")), (P(None, "a"), P("a")), (P(("a", "b")), P())]


def scaled(t: Any) -> Any:
    return mnp.sin(ramp() * t) + t


@pytest.mark.parametrize("specs", SPECS, ids=str)
@pytest.mark.parametrize("t", [np.float32(1.5), np.float32(-0.0)], ids=str)
def test_two_layouts_of_what_numbers_make(specs, t):
    def f(x, y, t):
        made = scaled(t)
        return x + made, y * made, made

    x, y = np.random.default_rng(0).normal(size=(2, 8, 5)).astype(np.float32)
    on = [NamedSharding(MESH, s) for s in specs]
    part = mw.jit(f, in_shardings=(*on, None), out_shardings=(*on, on[0])).lower(x, y, t).partition()
    assert not part.collectives
    part.verify(x, y, t)


def looped(x: Any, y: Any) -> Any:
    """Constants of the program around, and each step's number, in two layouts."""
    rows = ramp()

    def step(carry: Any, t: Any) -> Any:
        u, v = carry
        made = mnp.cos(rows * t)
        return (u + made * TABLE, v * made + rows), None

    return lax.scan(step, (x, y), mnp.arange(3, dtype=np.float32))[0]


def looped_twice(x: Any, y: Any) -> Any:
    rows = ramp()

    def inner(i: Any, carry: Any) -> Any:
        u, v = carry
        return u + rows * i.astype(np.float32), v - rows

    return lax.fori_loop(0, 2, lambda i, carry: lax.fori_loop(0, i, inner, carry), (x, y))


def branched(x: Any, y: Any) -> Any:
    rows = ramp()
    return lax.cond(x[0, 0] > 0, lambda u, v: (u + rows, v * rows), lambda u, v: (u, v - TABLE), x, y)


@pytest.mark.parametrize("f", [looped, looped_twice, branched], ids=lambda f: f.__name__)
@pytest.mark.parametrize("specs", SPECS[:2], ids=str)
def test_in_bodies_constants_of_what_is_around_are_made_again(f, specs):
    x, y = np.random.default_rng(1).normal(size=(2, 8, 5)).astype(np.float32)
    on = tuple(NamedSharding(MESH, s) for s in specs)
    part = mw.jit(f, in_shardings=on, out_shardings=on).lower(x, y).partition()
    assert [c.kind for c in part.collectives if c.operand.size > 1] == []
    part.verify(x, y)


def test_long_computations_are_not_done_again():
    """Each device would do the arithmetic of all to spare one collective."""

    def f(x, t):
        made = ramp() * t
        for _ in range(20):
            made = mnp.sin(made) + 1
        return x + made, made @ mnp.ones((5, 5)), made.T @ x

    x, t = np.random.default_rng(2).normal(size=(8, 5)).astype(np.float32), np.float32(2)
    on = NamedSharding(MESH, P("a"))
    part = mw.jit(f, in_shardings=(on, None), out_shardings=(on, on, NamedSharding(MESH, P()))).lower(x, t).partition()
    assert sum(e.op.name == "sin" for e in part.jaxpr.eqns) == 20
    part.verify(x, t)


def test_a_number_that_is_summed_over_devices_is_complete_first():
    def f(x, y):
        made = ramp() * mnp.exp(x.sum() / 40)
        return x + made, y - made

    x, y = np.random.default_rng(3).normal(size=(2, 8, 5)).astype(np.float32)
    on = NamedSharding(MESH, P("a")), NamedSharding(MESH, P(None, "b"))
    part = mw.jit(f, in_shardings=on, out_shardings=on).lower(x, y).partition()
    assert [(c.kind, c.operand.size) for c in part.collectives] == [("all_reduce", 1)]
    part.verify(x, y)


def test_wide_constants_of_numpy_have_the_programs_type():
    """An array of 64 bits in a closure, which traced programs without ``enable_x64`` take in 32."""
    bounds = np.array([2, 4])
    mesh = mw.AbstractMesh((2,), ("x",))
    clipped = mw.jit(lambda i: mnp.clip(i, 0, bounds), in_shardings=mw.NamedSharding(mesh, mw.P("x")))
    rows = np.arange(8, dtype=np.int32).reshape(4, 2)
    clipped.lower(rows).partition().verify(rows)


def of_two(a, b, w):
    y = mnp.tanh(a)[:, None] * w
    return y * b, mnp.sort(y, 0)


def test_two_layouts_of_what_is_made_of_whole_arrays():
    """Rows for a product with rows, and all of it to be sorted."""
    mesh = mw.AbstractMesh((8,), ("x",))
    rows, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
    args = [np.random.default_rng(n).normal(size=s).astype(np.float32) for n, s in enumerate([64, (64, 6), (64, 6)])]
    part = mw.jit(of_two, in_shardings=(whole, rows, whole), out_shardings=(rows, whole)).lower(*args).partition()
    assert part.bytes_sent == 0
    part.verify(*args)


def test_collectives_of_whole_values_are_sent_once():
    """In a manual region, what a collective of the user makes is cut or gathered, not sent again in another layout."""
    mesh = mw.AbstractMesh((2, 4), ("m", "x"))

    def body(w, b):
        y = lax.psum(mw.with_sharding_constraint(w, NamedSharding(mesh, P())), "m")
        return y * b, mnp.sort(y, 1)

    specs = (P("m"), P("m"))
    f = mw.shard_map(body, mesh=mesh, in_specs=specs, out_specs=specs, axis_names={"m"}, check_vma=False)
    cut, whole = NamedSharding(mesh, P("m", "x")), NamedSharding(mesh, P("m"))
    args = [np.random.default_rng(n).normal(size=(16, 8)).astype(np.float32) for n in range(2)]
    part = mw.jit(f, in_shardings=(whole, cut), out_shardings=(cut, whole)).lower(*args).partition()
    assert [e.op.name for e in part.jaxpr.jaxpr.eqns].count("psum") == 1
    part.verify(*args)


@pytest.mark.parametrize(
    "moved", [lambda y: mnp.roll(y, 2, 0), lambda y: mnp.cumsum(y, 0), lambda y: mnp.diff(y, axis=0, prepend=0)]
)
def test_rows_of_whole_arrays_that_are_moved_are_sent(moved):
    """What needs its neighbours' rows would be computed whole by every device: of a large array, that takes longer."""
    mesh = mw.AbstractMesh((8,), ("x",), machine="v5e:2x4")
    rows, whole, x = (
        NamedSharding(mesh, P("x")),
        NamedSharding(mesh, P()),
        mw.ShapeDtypeStruct((2048, 2048), np.float32),
    )
    f = mw.jit(lambda w, b: moved(mnp.tanh(w)) * b, in_shardings=(whole, rows), out_shardings=rows)
    part = f.lower(x, x).partition()
    assert part.bytes_sent > 0
    assert all(v.aval.size < x.size for e in part.jaxpr.jaxpr.eqns for v in e.outvars)


def test_what_is_made_of_whole_arrays_is_whole_in_branches():
    mesh = mw.AbstractMesh((8,), ("x",))
    rows, whole, x = NamedSharding(mesh, P("x")), NamedSharding(mesh, P()), mw.ShapeDtypeStruct((64, 64), np.float32)

    def f(t, a, b):
        first = lax.cond(t > 0, lambda a, b: (b * 2 - 1) * a, lambda a, b: mnp.exp(-a * a) + b, a, b)
        y = mnp.where(first > 0, first + 1, first)
        return mnp.tanh(y), lax.cond(t > 0, lambda u, v: mnp.where(v > 0, v + 1, v) * u, lambda u, v: u + v, first, y)

    args = mw.ShapeDtypeStruct((), np.float32), x, x
    part = mw.jit(f, in_shardings=whole, out_shardings=(rows, whole)).lower(*args).partition()
    assert part.bytes_sent == 0


def test_what_is_made_of_arrays_takes_memory_traffic(monkeypatch):
    """Each device makes the part of a large operand that it multiplies, rather than all of it."""
    mesh = mw.AbstractMesh((8,), ("x",))
    rows, whole, x = NamedSharding(mesh, P("x")), NamedSharding(mesh, P()), mw.ShapeDtypeStruct((256, 256), np.float32)
    f = mw.jit(lambda a, b: mnp.tanh(a) @ b, in_shardings=(whole, rows), out_shardings=rows)
    priced = f.lower(x, x).partition()
    monkeypatch.setattr(choose, "_MADE", 0)
    choose.choose.cache_clear()
    free = f.lower(x, x).partition()
    choose.choose.cache_clear()
    assert priced.time().seconds < 0.95 * free.time().seconds
