"""shard_map that is manual along some axes of a mesh and automatic along the others: values, derivatives, layouts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.errors import ArgumentError, ShardingError
from meshwright.ir.verify import verify

MESH = mw.AbstractMesh((2, 3), ("x", "y"))
RNG = np.random.default_rng(8)
A = RNG.normal(size=(4, 6)).astype(np.float32)
W = RNG.normal(size=(6, 5)).astype(np.float32)


def over(f: Any, in_specs: Any, out_specs: Any, axes: Any = ("x",)) -> Any:
    return mw.shard_map(f, mesh=MESH, in_specs=in_specs, out_specs=out_specs, axis_names=set(axes))


def partitioned(f: Any, *args: Any) -> Any:
    """The partitioned program, verified, and its results."""
    part = mw.jit(lambda *a: f(*a)).lower(*args).partition(MESH)
    verify(part.jaxpr)
    part.verify(*args)
    return part, [np.asarray(y) for y in part.executable([np.asarray(a) for a in args])]


def close(got: Any, want: Any) -> None:
    got, want = mw.tree.leaves(got), jax.tree.leaves(want)
    assert len(got) == len(want)
    for x, y in zip(got, want):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-4, atol=1e-4)


def hidden(a: Any, w: Any) -> Any:
    """A product over a dimension that the automatic axis splits, and collectives along the manual one."""
    a = mw.with_sharding_constraint(a, NamedSharding(MESH, P(None, "y")))
    h = mnp.tanh(a @ w)
    return lax.psum(h, "x") * (1.0 + lax.axis_index("x")), lax.all_gather(h, "x", axis=1, tiled=True)


layer = over(hidden, (P("x"), P()), (P("x"), P("x")))


def reference(a: Any, w: Any) -> Any:
    h = jnp.tanh(a @ w)
    top, bottom = h[:2], h[2:]
    both = jnp.concatenate([top, bottom], 1)
    return jnp.concatenate([top + bottom, (top + bottom) * 2]), jnp.concatenate([both, both])


def test_values_and_layouts() -> None:
    part, got = partitioned(layer, A, W)
    close(got, reference(A, W))
    assert [s.spec for s in part.in_shardings] == [P("x", "y"), P("y")]
    sum_, *written = part.collectives
    assert (sum_.kind, sum_.axes) == ("all_reduce", ("y",)) and "partial sums over y" in sum_.reason
    assert [(c.kind, c.axes, c.reason) for c in written] == [
        ("all_reduce", ("x",), "written in the program"),
        ("all_gather", ("x",), "written in the program"),
    ]


def test_derivatives() -> None:
    def loss(f: Any, m: Any) -> Any:
        def total(a: Any, w: Any) -> Any:
            h, g = f(a, w)
            return (h**2).sum() + m.sin(g).sum()

        return total

    _, got = partitioned(mw.grad(loss(layer, mnp), (0, 1)), A, W)
    close(got, jax.grad(loss(reference, jnp), (0, 1))(A, W))
    tangents = A * 0.5, W * 2
    _, got = partitioned(lambda a, w: mw.jvp(layer, (a, w), tangents)[1], A, W)
    close(got, jax.jvp(reference, (A, W), tangents)[1])
    _, got = partitioned(mw.grad(loss(mw.checkpoint(layer), mnp)), A, W)
    close(got, jax.grad(loss(reference, jnp))(A, W))


def test_batches() -> None:
    many = np.stack([A, A * 2, A - 1])
    _, got = partitioned(mw.vmap(layer, (0, None)), many, W)
    close(got, jax.vmap(reference, (0, None))(many, W))

    def constrained(a: Any) -> Any:
        return lax.psum(mw.with_sharding_constraint(mnp.sin(a), NamedSharding(MESH, P(None, None))), "x")

    for axis, spec in (("y", P("y", "x", None)), ("x", None)):
        if spec is None:  # the region's own axis then splits the batch
            f = over(lambda a: lax.psum(mnp.sin(a), "y"), P("y"), P(), {"y"})
            many, want = np.stack([A[:3], A[1:]]), lambda a: np.sin(a).sum(0, keepdims=True)
        else:
            f, want = over(constrained, P("x"), P()), lambda a: np.sin(a[:2]) + np.sin(a[2:])
        part, (got,) = partitioned(mw.vmap(f, spmd_axis_name=axis), many)
        close(got, np.stack([want(a) for a in many]))
        assert part.out_shardings[0].spec[0] == axis


def test_a_region_in_a_region() -> None:
    def outer(a: Any) -> Any:
        inner = mw.shard_map(
            lambda b: lax.psum(b * (lax.axis_index("x") + 1), "y") + b,
            mesh=MESH,
            in_specs=P(None, "y"),
            out_specs=P(None, "y"),
        )
        return lax.psum(inner(a), "x") + inner(a * 2)

    _, (got,) = partitioned(over(outer, P("x"), P("x")), A)

    def inner(b: np.ndarray, x: int) -> np.ndarray:
        return np.tile(b.reshape(2, 3, 2).sum(1) * (x + 1), 3) + b

    parts = A[:2], A[2:]
    total = inner(parts[0], 0) + inner(parts[1], 1)
    close(got, np.concatenate([total + inner(2 * parts[x], x) for x in (0, 1)]))


def test_loops_and_sums_left_to_the_end() -> None:
    """In the loop the sum over the automatic axis stays a sum of terms; it is completed once, behind it."""

    def body(a: Any, w: Any) -> Any:
        a = mw.with_sharding_constraint(a, NamedSharding(MESH, P(None, "y")))
        return lax.fori_loop(0, 4, lambda i, c: c + (a * i) @ w, mnp.zeros((2, 5)))

    part, (got,) = partitioned(over(body, (P("x"), P()), P("x")), A, W)
    close(got, 6 * A @ W)
    assert [(c.kind, c.axes) for c in part.collectives] == [("all_reduce", ("y",))]
    assert part.jaxpr.jaxpr.eqns[-1].op.name == "psum"


def test_tiles_that_do_not_divide_a_manual_part() -> None:
    """Two rows a part are not split three ways (the tiles would be no tiles of the whole); six columns are."""
    x = RNG.normal(size=(4, 8)).astype(np.float32)
    f = over(lambda a: mnp.sin(mw.with_sharding_constraint(a, NamedSharding(MESH, P("y")))) * 2, P("x"), P("x"))
    part, (got,) = partitioned(f, x)
    close(got, np.sin(x) * 2)
    assert [s.spec for s in part.out_shardings] == [P("x")]
    f = over(lambda a: mnp.sin(mw.with_sharding_constraint(a, NamedSharding(MESH, P(None, "y")))), P("x"), P("x"))
    part, (got,) = partitioned(f, x)
    close(got, np.sin(x))
    assert [s.spec for s in part.out_shardings] == [P("x", "y")]


def test_eager_and_jitted_on_devices() -> None:
    mesh = mw.make_mesh((2, 3), ("x", "y"))

    @mw.shard_map(mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    def f(a: Any) -> Any:
        a = mw.with_sharding_constraint(a, NamedSharding(mesh, P(None, "y")))
        return mnp.cumsum(a, 1) + lax.psum(a, "x")

    want = np.cumsum(A, 1) + np.tile(A[:2] + A[2:], (2, 1))
    close(f(A), want)
    placed = mw.device_put(A, NamedSharding(mesh, P("x", "y")))
    close(mw.jit(f)(placed), want)


def test_errors() -> None:
    with pytest.raises(ArgumentError, match=r"axis_names=\['z'\], the mesh has the axes \['x', 'y'\]"):
        mw.make_jaxpr(over(lambda a: a, P("x"), P("x"), {"z"}))(A)
    with pytest.raises(ArgumentError, match=r"in_specs has .*'y'.* only \['x'\] are manual"):
        mw.make_jaxpr(over(lambda a: a, P("y"), P("x")))(A)
    with pytest.raises(ArgumentError, match=r"out_specs has .* only \['x'\] are manual"):
        mw.make_jaxpr(over(lambda a: a, P("x"), P("x", "y")))(A)
    with pytest.raises(ShardingError, match=r"the constraint .* names x, manual here"):
        mw.make_jaxpr(over(lambda a: mw.with_sharding_constraint(a, NamedSharding(MESH, P("x"))), P("x"), P("x")))(A)
    with pytest.raises(ArgumentError, match=r"axis_names=\['x'\].* of which \['x'\] are manual already"):
        mw.make_jaxpr(over(lambda a: over(lambda b: b, P(), P())(a), P("x"), P("x")))(A)


@pytest.mark.parametrize("names, border", [({"x"}, "last_tile_dims={manual, replicated}}"), ({"x", "y"}, '"{manual}"')])
def test_the_text_shows_the_region_and_is_read_again(names, border):
    mesh = mw.make_mesh((2, 4), ("x", "y"))

    def body(a):
        if "y" not in names:
            a = mw.lax.with_sharding_constraint(a, mw.NamedSharding(mesh, mw.P(None, "y")))
        return a + mw.jit(lambda a: mw.lax.psum(a.sum(), "x"))(a)  # the sum is the same along x, and is cast

    region = mw.shard_map(body, mesh=mesh, in_specs=mw.P("x"), out_specs=mw.P("x"), axis_names=names)
    step = mw.jit(region, in_shardings=mw.NamedSharding(mesh, mw.P("x")))
    x = np.arange(128, dtype=np.float32).reshape(8, 16)
    with mw.config.override("use_shardy_partitioner", False):
        text = step.lower(x).as_text()
    assert "SPMDFullToShardShape" in text and "stablehlo.all_reduce" in text and border in text
    assert ("last_tile_dims={manual}" in text) == ("y" not in names)  # the constraint inside
    shardy = step.lower(x).as_text()
    axes = ", ".join(f'"{name}"' for name in sorted(names))
    assert f"manual_axes={{{axes}}}" in shardy
    assert shardy.count("sdy.sharding_constraint") == ("y" not in names)
    for written in (text, shardy):
        (again,) = mw.tree.leaves(mw.load(written)(x))
        np.testing.assert_allclose(np.asarray(again), np.asarray(step(x)), rtol=1e-6)


def test_regions_inside_of_regions_are_in_the_text():
    """Three deep, one in a loop, with constraints: each is manual along its axes and those of all around it."""
    mesh = mw.make_mesh((2, 2, 2), ("x", "y", "z"))

    def third(c):
        return mnp.sin(c) * lax.psum(c.sum(), ("x", "z"))

    def second(b):
        inner = mw.shard_map(third, in_specs=P("z"), out_specs=P("z"), axis_names={"z"})
        b = mw.with_sharding_constraint(b, NamedSharding(mesh, P("z")))
        return lax.scan(lambda c, x: (c + lax.psum(inner(x), "y"), None), b, mnp.stack([b, b * 2]))[0]

    def first(a):
        return mw.shard_map(second, in_specs=P(None, "y"), out_specs=P(None, "y"), axis_names={"y"})(a) * 2

    region = mw.shard_map(first, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    step = mw.jit(region, in_shardings=NamedSharding(mesh, P("x")))
    a = RNG.normal(size=(8, 4)).astype(np.float32)
    with mw.config.override("use_shardy_partitioner", False):
        text = step.lower(a).as_text()
    assert text.count("@SPMDFullToShardShape") == text.count("@SPMDShardToFullShape") == 3
    assert '"{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}"' in text  # manual along x
    assert '"{devices=[1,2,2,2]<=[2,2,2]T(1,0,2) last_tile_dims={manual, replicated}}"' in text  # and cut along y
    assert '"{devices=[1,1,4,2]<=[8] last_tile_dims={manual, replicated}}"' in text  # along x and y
    assert '"{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dims={manual}}"' in text  # the constraint, and what z cuts
    shardy = step.lower(a).as_text()
    for axis in "xyz":
        assert shardy.count(f'manual_axes={{"{axis}"}}') == 1
    for written in (text, shardy):
        (again,) = mw.tree.leaves(mw.load(written)(a))
        np.testing.assert_allclose(np.asarray(again), np.asarray(step(a)), rtol=1e-5)


@pytest.mark.parametrize("shardy", [True, False])
@pytest.mark.parametrize("dialect", ["stablehlo", "hlo"])
def test_positions_mean_the_axes_of_the_text_on_any_mesh(dialect, shardy):
    mesh = mw.make_mesh((2, 2, 2), ("x", "y", "z"))

    def inner(b):
        return b * (1 + lax.axis_index("x")) + 10 * lax.axis_index("z")

    def body(a):
        return mw.shard_map(inner, in_specs=P(None, "z"), out_specs=P(None, "z"), axis_names={"z"})(a)

    region = mw.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    a = RNG.normal(size=(8, 4)).astype(np.float32)
    want = np.asarray(mw.jit(region)(a))
    with mw.config.override("use_shardy_partitioner", shardy):
        text = mw.jit(region).lower(a).as_text(dialect)
    loaded = mw.load(text)
    again = mw.load(loaded.as_text("stablehlo"))
    for names in (("x", "y", "z"), ("z", "y", "x"), ("y", "z", "x")):
        for program in (loaded, again):
            (got,) = mw.tree.leaves(program.partition(mw.make_mesh((2, 2, 2), names))(a))
            np.testing.assert_array_equal(np.asarray(got), want)


def test_texts_say_what_stays_unreduced_and_what_reshards_leave_open():
    x, y = mw.sharding.AxisType.Explicit, mw.sharding.AxisType.Auto
    mesh = mw.make_mesh((2, 4), ("x", "y"), axis_types=(x, y))
    a = np.ones((8, 8), np.float32)
    moved = mw.jit(lambda a: mw.reshard(a, NamedSharding(mesh, P("x")))).lower(a).as_text()
    assert 'sharding_constraint %arg0 <@mesh, [{"x", ?}, {?}]>' in moved
    text = """sdy.mesh @m = <["x"=2, "y"=4]>
    func.func @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
      %0 = sdy.sharding_constraint %a <@m, [{"y"}, {}], unreduced={"x"}> : tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }"""
    assert '[{"y"}, {}], unreduced={"x"}>' in mw.load(text).lower(mesh).as_text()


def test_any_axis_name_and_any_function_name_may_be_in_the_text():
    """Names that are not ASCII, and a function called as the mesh is."""
    axes = mw.make_mesh((2, 4), ("données", 'a "b"'))

    @mw.jit
    def mesh(a):
        return mnp.sin(a)

    def f(a):
        return mw.with_sharding_constraint(mesh(a) + 1, NamedSharding(axes, P("données", 'a "b"')))

    a = RNG.normal(size=(4, 8)).astype(np.float32)
    text = mw.jit(f).lower(a).as_text()
    assert "sdy.mesh @mesh = " in text and "@mesh_0(" in text
    program = mw.load(text)
    assert program.mesh.axis_names == axes.axis_names
    np.testing.assert_allclose(program(a), np.sin(a) + 1, rtol=1e-6)
