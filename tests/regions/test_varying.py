"""What types say of the values of a ``shard_map``: which programs are refused, and derivatives at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import AbstractMesh, lax
from meshwright import PartitionSpec as P
from meshwright.errors import ArgumentError, DifferentiationError, RuleError, ShardingError
from meshwright.ir.verify import verify

MESH = mw.make_mesh((2, 3), ("x", "y"))
RNG = np.random.default_rng(7)
A = RNG.normal(size=(6, 6)).astype(np.float64)
W = RNG.normal(size=(3, 2)).astype(np.float64)


def over(f: Any, in_specs: Any, out_specs: Any, **options: Any) -> Any:
    return mw.shard_map(f, mesh=MESH, in_specs=in_specs, out_specs=out_specs, **options)


def jaxpr(f: Any, *args: Any) -> str:
    found = mw.make_jaxpr(f)(*args)
    verify(found)
    return str(found)


# --- the examples -------------------------------------------------------------------------------------------
def test_the_gradient_of_a_mean_over_devices() -> None:
    mesh = mw.make_mesh((4,), ("d",))

    def inside(x: Any) -> Any:
        return mw.grad(lambda x: lax.pmean((x * mnp.arange(1.0, 3.0)).sum() * (lax.axis_index("d") + 1), "d"))(x)

    f = mw.shard_map(inside, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    np.testing.assert_allclose(f(np.zeros(8, np.float32)), np.repeat([1, 2, 3, 4], 2) * np.tile([1, 2], 4) / 4)


def test_a_result_that_differs_is_refused(refuses: Any) -> None:
    words = "output['b'][1] of type f32[]{V:x}", "varies over x", "P() does not name", "psum", "check_vma"
    f = over(lambda a: {"a": a, "b": (a * 2, a.sum())}, P("x"), {"a": P("x"), "b": P(("x",))})
    with refuses(ArgumentError, "1 entry", "0 dimensions", "x[None]"):
        mw.make_jaxpr(f)(A)
    f = over(lambda a: {"a": a, "b": (a * 2, a.sum())}, P("x"), {"a": P("x"), "b": (P("x"), P())})
    with refuses(ShardingError, *words):
        f(A.astype(np.float32))
    assert over(lambda a: a, P("x"), P(), check_vma=False)(A).shape == (3, 6)  # taken at their word


# --- types --------------------------------------------------------------------------------------------------
def types_of(f: Any, *specs: Any, args: Any = (A,)) -> list[str]:
    """The axes over which the values that ``f`` returns vary, sorted and joined."""
    found: list[str] = []

    def inside(*values: Any) -> Any:
        out = f(*values)
        found[:] = ["".join(sorted(mw.typeof(y).vma)) for y in mw.tree.leaves(out)]
        return 0.0

    mw.make_jaxpr(over(inside, specs, P()))(*args)
    return found


COLLECTIVES: list[tuple[str, Callable[[Any], Any], str, str]] = [
    # name, function, the types of its result for an operand that varies over x, and over both
    ("psum", lambda a: lax.psum(a, "x"), "", "y"),
    ("psum of both", lambda a: lax.psum(a, ("x", "y")), "", ""),
    ("pmean", lambda a: lax.pmean(a, "y"), "x", "x"),
    ("pmax", lambda a: lax.pmax(a, "x"), "", "y"),
    ("psum of bools", lambda a: lax.psum(a > 0, "x"), "", "y"),
    ("all_gather", lambda a: lax.all_gather(a, "x"), "x", "xy"),
    ("all_gather_invariant", lambda a: lax.all_gather_invariant(a, "x"), "", "y"),
    ("psum_scatter", lambda a: lax.psum_scatter(a, "y", tiled=True), "xy", "xy"),
    ("ppermute", lambda a: lax.ppermute(a, "y", [(0, 1)]), "xy", "xy"),
    ("all_to_all", lambda a: lax.all_to_all(a, "y", 0, 0, tiled=True), "xy", "xy"),
    ("axis_index", lambda a: lax.axis_index("y"), "y", "y"),
    ("groups", lambda a: lax.psum(a, "y", axis_index_groups=[[0], [1, 2]]), "xy", "xy"),
    ("a Python number", lambda a: lax.psum(1, "x"), "", ""),
    ("bool", lambda a: lax.psum(True, "x"), "", ""),
    ("pbroadcast", lambda a: lax.pbroadcast(a, "x", 1), "", "y"),
]


@pytest.mark.parametrize(("name", "f", "one", "both"), COLLECTIVES, ids=[c[0] for c in COLLECTIVES])
def test_types_of_collectives(name: str, f: Any, one: str, both: str) -> None:
    assert types_of(f, P("x")) == [one]
    assert types_of(f, P(("x", "y")), args=(np.ones((18, 2), np.float32),)) == [both]


def test_types_of_control_flow() -> None:
    def loops(a: Any, w: Any) -> Any:
        carried = lax.scan(lambda c, r: ((c[0] + r.sum(), c[1] + 1, c[0]), None), (0.0, 0, 0.0), a)[0]
        steps = lax.while_loop(lambda c: c[0] < w[0, 0], lambda c: (c[0] + 1, c[1] + a[0, 0], c[2] * 2), (0.0, 0.0, 1))
        own_steps = lax.while_loop(lambda c: c[1] < a[0, 0], lambda c: (c[0] + 1, c[1] + 1), (0, 0.0))
        taken = lax.cond(w[0, 0] > 0, lambda: (a[0], w[0]), lambda: (a[1], w[1]))
        own = lax.cond(a[0, 0] > 0, lambda: (1, w[0]), lambda: (2, w[1]))
        return carried, steps, own_steps, taken, own

    found = types_of(loops, P("x"), P(), args=(A, W))
    assert found == ["x", "", "x", "", "x", "", "x", "x", "x", "", "x", "x"]


def test_types_of_calls_and_batches() -> None:
    @mw.custom_vjp
    def f(a: Any, w: Any) -> Any:
        return a + 1, w + 1

    f.defvjp(lambda a, w: (f(a, w), None), lambda r, g: g)

    def calls(a: Any, w: Any) -> Any:
        return mw.jit(lambda a, w: (a * 2, w))(a, w), mw.checkpoint(f)(a, w), mw.vmap(lambda r: (r, r * w[0]))(w)

    assert types_of(calls, P("x"), P(), args=(A, W)) == ["x", "", "x", "", "", ""]
    assert types_of(lambda a, w: lax.optimization_barrier((a, w)), P("x"), P(), args=(A, W)) == ["x", ""]


def test_types_are_printed_and_casts_stand_where_they_are_needed() -> None:
    text = jaxpr(over(lambda a, w: lax.psum(a * w, "x"), (P("x", "y"), P()), P(None, "y")), A[:, :3], W[:, :1])
    assert "d:f32[3,1]{V:(x,y)} e:f32[3,1]. let" in text
    assert "f:f32[3,1]{V:(x,y)} = pvary[axes=('x', 'y')] e" in text and "{V:y} = psum[axes=('x',)]" in text


def test_casts(refuses: Any) -> None:
    def loss(w: Any) -> Any:
        return (w * (lax.axis_index("x") + 1)).sum()

    def gradients(w: Any) -> Any:
        return mw.grad(loss)(w), mw.grad(loss)(lax.pcast(w, "x", to="varying"))

    shared, own = over(gradients, P(), (P(), P("x")))(W)
    np.testing.assert_array_equal(shared, np.full((3, 2), 3.0))
    np.testing.assert_array_equal(own, np.repeat([[1.0, 1.0], [2.0, 2.0]], 3, 0))
    for f, words in (
        (lambda a: lax.pcast(a, "x", to="varying"), ["f32[3,6]{V:x} varies over x already"]),
        (lambda a: lax.pvary(a, ("x", "y")), ["varies over x already"]),
        (lambda a: lax.pcast(a, "x", to="invarying"), ["psum", "all_gather_invariant"]),
        (lambda a: lax.pcast(a, "x", to="reduced"), ["to='reduced'", "what no cast makes true"]),
        (lambda a: lax.pcast(lax.psum(a, "x"), "x", to="unreduced"), ["to='unreduced'", "what no cast makes true"]),
        (lambda a: lax.pcast(a, "x", to="same"), ["must be one of 'varying'"]),
    ):
        with refuses(ArgumentError, *words):
            mw.make_jaxpr(over(f, P("x"), P("x", "y")))(A)


# --- derivatives --------------------------------------------------------------------------------------------
def numerical(f: Any, *args: np.ndarray) -> list[np.ndarray]:
    """Central differences of a scalar function."""
    grads = []
    for number, x in enumerate(args):
        grad = np.zeros_like(x)
        for place in np.ndindex(x.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = x.copy()
                moved[place] += step
                sides.append(float(f(*args[:number], moved, *args[number + 1 :])))
            grad[place] = (sides[0] - sides[1]) / 2e-5
        grads.append(grad)
    return grads


#: a part's contribution and the shared parameter to a scalar that is the same on all devices
LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "psum": lambda a, w: lax.psum((mnp.sin(a) * w).sum(), ("x", "y")),
    "pmean": lambda a, w: lax.pmean((mnp.sin(a) * w).sum(), ("x", "y")) ** 2,
    "psum of psum": lambda a, w: lax.psum((mnp.sin(lax.psum(a, "x")) * w * a).sum(), ("x", "y")),
    "all_gather": lambda a, w: lax.psum((lax.all_gather(a * w, "y")[::2] ** 2).sum() * a[0, 0], ("x", "y")),
    "invariant": lambda a, w: lax.psum((lax.all_gather_invariant(a * w, "y")[1:] ** 2 * a).sum(), ("x", "y")),
    "ppermute": lambda a, w: lax.psum((lax.ppermute(a, "y", [(0, 1), (1, 2)]) * a * w).sum(), ("x", "y")),
    "psum_scatter": lambda a, w: lax.psum((lax.psum_scatter(a * w, "y", tiled=True) ** 2).sum(), ("x", "y")),
    "all_to_all": lambda a, w: lax.psum((lax.all_to_all(a, "y", 0, 0, tiled=True) * a * w).sum(), ("x", "y")),
    "index": lambda a, w: lax.psum((w ** (lax.axis_index("y") + 2) * a.sum()).sum(), ("x", "y")),
    "scan": lambda a, w: lax.psum(lax.scan(lambda c, r: (c * r + w[0], c.sum()), w[1], a)[1].sum(), ("x", "y")),
    "own branch": lambda a, w: lax.psum(lax.cond(a[0, 0] > 0, lambda: w * a, lambda: w * w).sum(), ("x", "y")),
    "a loop of collectives": lambda a, w: lax.psum(
        lax.fori_loop(0, 3, lambda i, c: mnp.sin(0.2 * lax.psum(c * a, "x") * w), a).sum(), ("x", "y")
    ),
    "checkpoint": lambda a, w: lax.psum(mw.checkpoint(lambda a, w: mnp.sin(a * w).sum())(a, w), ("x", "y")),
    "jit": lambda a, w: lax.psum(mw.jit(lambda a: mnp.sin(a * w).sum())(a), ("x", "y")),
    "vmap": lambda a, w: lax.psum(mw.vmap(lambda r, v: r * v * w[0] * lax.psum(r, "x"))(a, w).sum(), ("x", "y")),
}  # fmt: skip


@pytest.fixture
def double() -> Any:
    with mw.enable_x64():
        yield


def close(got: Any, want: Any) -> None:
    for x, y in zip(mw.tree.leaves(got), mw.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_inside_of_through_and_both(name: str, double: Any) -> None:
    """With respect to parts and to a shared parameter, against differences of the function of whole arrays."""
    loss = LOSSES[name]
    specs = P("x", "y"), P()
    whole = mw.jit(over(loss, specs, P()))
    want = numerical(whole, A, W)
    close(mw.jit(mw.grad(whole, (0, 1)))(A, W), want)  # through
    inside = over(mw.grad(loss, (0, 1)), specs, specs)
    close(mw.jit(inside)(A, W), want)
    # A gradient step inside, differentiated outside.
    step = over(lambda a, w: loss(a, w - 0.1 * mw.grad(loss, 1)(a, w)), specs, P())
    close(mw.jit(mw.grad(step, (0, 1)))(A, W), numerical(mw.jit(step), A, W))


def test_without_the_sum_each_device_has_a_loss_of_its_own(double: Any) -> None:
    """Inside, the gradient by a shared parameter is that of the sum of all devices' losses."""

    def one(a: Any, w: Any) -> Any:
        return (mnp.sin(a) * w).sum()

    total = over(lambda a, w: lax.psum(one(a, w), ("x", "y")), (P("x", "y"), P()), P())
    found = over(lambda a, w: mw.grad(one, (0, 1))(a, w), (P("x", "y"), P()), (P("x", "y"), P()))(A, W)
    close(found, mw.grad(total, (0, 1))(A, W))


@pytest.mark.parametrize("axes", [{"x"}, {"y"}])
def test_gradients_where_other_axes_are_automatic(axes: set[str], double: Any) -> None:
    (axis,) = axes
    rows = P(axis)

    def loss(a: Any, w: Any) -> Any:
        a = mw.with_sharding_constraint(a, mw.NamedSharding(MESH, P(None, "y" if axis == "x" else "x")))
        return lax.psum((mnp.tanh(a @ w) ** 2).sum(), axis)

    w = RNG.normal(size=(6, 2))
    whole = mw.jit(over(loss, (rows, P()), P(), axis_names=axes))
    want = numerical(whole, A, w)
    close(mw.jit(mw.grad(whole, (0, 1)))(A, w), want)
    close(mw.jit(over(mw.grad(loss, (0, 1)), (rows, P()), (rows, P()), axis_names=axes))(A, w), want)


def test_regions_in_regions(double: Any) -> None:
    def outer(a: Any, w: Any) -> Any:
        def inner(b: Any, w: Any) -> Any:
            assert mw.typeof(b).vma == {"x", "y"} and not mw.typeof(w).vma
            return lax.psum((b * w[0, 0]).sum(), "y") * (lax.axis_index("x") + 1)

        part = mw.shard_map(inner, mesh=MESH, in_specs=(P(None, "y"), P()), out_specs=P())
        assert mw.typeof(part(a, w)).vma == {"x"}
        return lax.psum(part(a, w), "x")

    f = mw.jit(over(outer, (P("x"), P()), P(), axis_names={"x"}))
    close(f(A, W), (A[:3].sum() + 2 * A[3:].sum()) * W[0, 0])
    close(mw.grad(f, (0, 1))(A, W), numerical(f, A, W))
    loss = over(lambda a, w: mw.grad(outer, 1)(a, w), (P("x"), P()), P(), axis_names={"x"})
    close(mw.jit(loss)(A, W), numerical(f, A, W)[1])


def test_rows_that_a_mapped_axis_splits(double: Any, refuses: Any) -> None:
    many = np.stack([abs(A[:3]), -abs(A[3:])])

    def f(a: Any, w: Any) -> Any:
        total = lax.scan(lambda c, r: (c + r * w[0, 0], None), mnp.zeros(6), a)[0]
        return total, lax.psum(lax.cond(a[0, 0] > 0, lambda: a * 3, lambda: mnp.ones((3, 6))), "y") * w[0, 0]

    region = over(f, (P(), P()), (P(), P()))
    with refuses(ShardingError, "must divide"):
        mw.make_jaxpr(mw.vmap(region, (0, None), spmd_axis_name="y"))(many, W)
    mapped = mw.jit(mw.vmap(region, (0, None), spmd_axis_name="x"))
    sums, scaled = mapped(many, W)
    close([sums, scaled], [many.sum(1) * W[0, 0], 3 * W[0, 0] * np.stack([many[0] * 3, np.ones((3, 6))])])

    def squares(a: Any, w: Any) -> Any:
        return sum((y**2).sum() for y in mapped(a, w))

    close(mw.grad(squares, (0, 1))(many, W), numerical(squares, many, W))
    for g, spec in ((lambda a: lax.psum(a, "x"), P()), (lambda a: a, P(None, "x"))):  # would mix what is mapped
        with refuses(ShardingError, "the shard_map uses x itself"):
            mw.make_jaxpr(mw.vmap(over(g, spec, spec), spmd_axis_name="x"))(many)


def test_residuals_that_do_not_vary_are_kept_once() -> None:
    def f(a: Any, w: Any) -> Any:
        return lax.psum((a * mnp.exp(mnp.sin(w))).sum(), ("x", "y"))

    found = mw.make_jaxpr(mw.grad(over(f, (P("x", "y"), P()), P()), (0, 1)))(np.ones((6, 6)), W)
    verify(found)
    known = next(e for e in found.eqns if e.op.name == "shard_map")
    assert known.op.out_specs == (P(), P(), P()) and [v.aval.shape for v in known.outvars] == [(), (3, 2), (3, 2)]


def test_the_mesh_of_a_region_is_the_current_one_in_it() -> None:
    def outer(a: Any) -> Any:
        assert mw.get_mesh() == MESH.update_axis_types({"x": mw.sharding.AxisType.Manual})
        constrained = mw.with_sharding_constraint(a, P(None, "y"))
        return mw.shard_map(lambda b: lax.psum(b, "y"), in_specs=P(None, "y"), out_specs=P())(constrained)

    f = over(outer, P("x"), P("x"), axis_names={"x"})
    np.testing.assert_allclose(f(A), A.reshape(6, 3, 2).sum(1), rtol=1e-5)
    assert mw.get_mesh() is None


def test_the_names_that_it_had_before() -> None:
    from meshwright.experimental.shard_map import shard_map

    f = shard_map(lambda a: lax.psum(a, "x"), MESH, (P("x"),), P(), auto={"y"})
    np.testing.assert_allclose(f(A), A[:3] + A[3:], rtol=1e-5)
    with pytest.raises(ShardingError, match="varies over x"):
        shard_map(lambda a: a, MESH, P("x"), P())(A)
    assert shard_map(lambda a: a, MESH, P("x"), P(), check_rep=False)(A).shape == (3, 6)


# --- rules of users -----------------------------------------------------------------------------------------
def test_rules_of_users(refuses: Any) -> None:
    @mw.custom_vjp
    def product(a: Any, w: Any) -> Any:
        return a * w

    product.defvjp(lambda a, w: (a * w, (a, w)), lambda r, g: (g * r[1], g * r[0]))
    f = over(lambda a, w: mw.grad(lambda w: product(a, w).sum())(w), (P("x", "y"), P()), P())
    with refuses(DifferentiationError, "f32[3,2]{V:(x,y)}", "psum over x, y"):
        f(A, W)
    product.defvjp(lambda a, w: (a * w, (a, w)), lambda r, g: (g * r[1], lax.psum(g * r[0], ("x", "y"))))
    np.testing.assert_allclose(f(A, W), A.reshape(2, 3, 3, 2).sum((0, 2)), rtol=1e-5)

    @mw.custom_jvp
    def scaled(a: Any, w: Any) -> Any:
        return w * 2

    scaled.defjvp(lambda xs, ts: (xs[1] * 2, ts[1] * xs[0].sum()))
    with refuses(DifferentiationError, "along x, y it differs"):
        over(lambda a, w: mw.jvp(lambda w: scaled(a, w), (w,), (w,))[1], (P("x", "y"), P()), P())(A, W)


def test_cotangents_that_differ_of_a_value_that_does_not(refuses: Any) -> None:
    with refuses(DifferentiationError, "a cotangent has type f32[6]{V:x}", "lax.psum over x"):
        over(lambda a, w: mw.vjp(lambda w: w * 2, w)[1](a[0]), (P("x"), P()), P("x"))(A, A[0])
    got = over(lambda a: mw.vjp(lambda a: a * 2, a)[1](np.ones((3, 6), np.float32))[0], P("x"), P("x"))(A)
    np.testing.assert_array_equal(got, np.full((6, 6), 2.0))


# --- what would wait without end, and what is not known -----------------------------------------------------
def test_collectives_that_not_all_devices_come_to(refuses: Any) -> None:
    def branch(a: Any) -> Any:
        return lax.cond(a[0, 0] > 0, lambda: lax.psum(a, "x"), lambda: lax.psum(2 * a, "x"))

    def loop(a: Any) -> Any:
        return lax.while_loop(lambda c: c.sum() < 9, lambda c: c + lax.pmax(abs(a), "x"), a)

    def other(a: Any) -> Any:  # all along y go one way
        return lax.cond(a[0, 0] > 0, lambda: lax.psum(a, "y"), lambda: 2 * a)

    with refuses(ShardingError, "a choice of branches that differs", "along x", "psum at test_varying.py"):
        over(branch, P("x"), P("x"))(A)
    with refuses(ShardingError, "a loop whose number of steps", "pmax"):
        over(loop, P("x"), P("x"))(A)
    assert over(other, P("x"), P("x"))(A).shape == (6, 6)


def test_callbacks(refuses: Any) -> None:
    result = mw.ShapeDtypeStruct((3, 6), np.float32)
    assert types_of(lambda a: mw.pure_callback(lambda a: a, result, a), P("x")) == ["x"]
    assert types_of(lambda a: mw.io_callback(lambda a: a, result, a), P("x")) == ["xy"]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("in_loop", [False, True])
def test_sums_stay_before_what_a_python_function_gives_each_device(check_vma: bool, in_loop: bool) -> None:
    """Its operands are the same on all devices, its results are not: ``psum(a) * k`` is no ``psum(a * k)``."""
    drawn: list[np.float32] = []

    def draw(_: Any) -> np.float32:
        drawn.append(np.float32(len(drawn) + 1))
        return drawn[-1]

    def body(a: Any) -> Any:
        def step(*_: Any) -> Any:
            return mw.io_callback(draw, mw.ShapeDtypeStruct((), np.float32), np.float32(0))

        k = lax.scan(lambda c, _: (step(), None), step(), None, length=2)[0] if in_loop else step()
        return (lax.psum(a, ("x", "y")) * k).sum()[None], k[None]

    by_all = P(("x", "y"))
    total, k = mw.jit(over(body, by_all, (by_all, by_all), check_vma=check_vma))(np.ones((6, 64), np.float32))
    assert len(set(np.asarray(k).tolist())) == 6
    np.testing.assert_array_equal(total, 6 * 64 * np.asarray(k))


# --- unchecked ----------------------------------------------------------------------------------------------
def test_unchecked_derivatives_are_of_each_device(double: Any) -> None:
    """The transpose of psum is psum, as nothing says that its result is the same on all devices."""
    f = over(lambda a: mw.grad(lambda a: lax.psum(a.sum(), "x"))(a), P("x"), P("x"), check_vma=False)
    assert "V:" not in str(mw.make_jaxpr(f)(A))
    close(f(A), np.full((6, 6), 2.0))
    through = over(lambda a: lax.psum(mnp.sin(a).sum(), "x"), P("x"), P(), check_vma=False)
    close(mw.grad(through)(A), np.cos(A))


def test_an_unchecked_region_in_a_checked_one(double: Any) -> None:
    def outer(a: Any, w: Any) -> Any:
        def inner(b: Any) -> Any:
            return lax.psum(b * lax.axis_index("x") * w[0, 0], "y")

        part = mw.shard_map(inner, mesh=MESH, in_specs=P(None, "y"), out_specs=P(), check_vma=False)
        assert mw.typeof(part(a)).vma == {"x"}
        return lax.psum(part(a).sum(), "x")

    f = mw.jit(over(outer, (P("x"), P()), P(), axis_names={"x"}))
    close(mw.grad(f, (0, 1))(A, W), numerical(f, A, W))


def test_every_device_is_an_abstract_one_too() -> None:
    mesh = AbstractMesh((2,), ("x",))
    f = mw.shard_map(lambda a: lax.psum(a, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    part = mw.jit(f).lower(A).partition()
    assert "{V:" not in str(part.jaxpr) and [e.op.name for e in part.jaxpr.eqns] == ["psum"]


def test_ops_of_which_nothing_is_known(refuses: Any) -> None:
    from meshwright.ops.imported.device_collective import DeviceNumber

    with refuses(RuleError, "partition_id", "not known", "check_vma=False"):
        over(lambda a: a * DeviceNumber().bind(), P("x"), P("x"))(A.astype(np.uint32))
