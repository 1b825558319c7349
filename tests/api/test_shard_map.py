"""shard_map and pmap: values and derivatives against the same computation on whole arrays."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import AbstractMesh, NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.errors import ArgumentError, ArgumentTypeError, MeshError, ShapeError, ShardingError
from meshwright.ir.verify import verify

RNG = np.random.default_rng(4)
MESH = AbstractMesh((3, 2), ("x", "y"))
A = RNG.normal(size=(6, 4)).astype(np.float32)
B = RNG.normal(size=(4, 5)).astype(np.float32)


def close(got, want, rtol=1e-4):
    got, want = mw.tree.leaves(got), jax.tree.leaves(want)
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert np.shape(a) == np.shape(b)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=1e-5)


def run(f, *args):
    """Values of the partitioned program, after it was compared with the unpartitioned one."""
    lowered = mw.jit(lambda *a: f(*a)).lower(*args)
    verify(lowered.program.jaxpr)
    part = lowered.partition(MESH)
    verify(part.jaxpr)
    part.verify(*args)
    return mw.tree.leaves(part.executable([np.asarray(a) for a in args]))


def over(f, in_specs, out_specs):
    return mw.shard_map(f, mesh=MESH, in_specs=in_specs, out_specs=out_specs)


matmul = over(lambda a, b: lax.psum(mnp.sin(a) @ b, "y"), (P("x", "y"), P("y")), P("x"))


class TestValues:
    def test_product_with_a_sum(self):
        close(run(matmul, A, B), [np.sin(A) @ B])

    def test_one_axis_in_another(self):
        inner = mw.smap(lambda a, b: lax.psum(mnp.sin(a) @ b, "y"), in_axes=(1, 0), out_axes=None, axis_name="y")
        outer = mw.smap(in_axes=({"a": 0, "b": None},), out_axes={"c": 0}, axis_name="x")
        f = outer(lambda t: {"c": inner(t["a"], t["b"])})
        with mw.set_mesh(MESH):
            close(run(lambda a, b: f({"a": a, "b": b}), A, B), [np.sin(A) @ B])

    def test_collectives(self):
        def f(a):
            ring = lax.ppermute(a, "x", [(i, (i + 1) % 3) for i in range(3)])
            whole = lax.all_gather_invariant(a, "y", axis=1, tiled=True)
            return ring, whole.sum(1), a * lax.axis_index("x"), lax.pmax(a.max(), ("x", "y"))

        ring, sums, scaled, top = run(over(f, P("x", "y"), (P("x", "y"), P("x"), P("x", "y"), P())), A)
        close([ring, sums, top], [np.roll(A, 2, 0), A.sum(1), A.max()])
        close(scaled, A * np.repeat([0, 1, 2], 2)[:, None])

    def test_permutations_count_in_the_order_of_the_mesh(self):
        """As in JAX, where other collectives go by the order that axes are named in."""
        ring = [(i, (i + 1) % 6) for i in range(6)]

        def f(names, a):
            sent = lax.ppermute(a, names, ring), lax.pshuffle(a, names, [(i - 1) % 6 for i in range(6)])
            return *sent, lax.all_gather(a, names)[None]

        x = np.arange(6.0, dtype=np.float32)
        spec = P(("x", "y"))
        for names, order in ((("x", "y"), [0, 1, 2, 3, 4, 5]), (("y", "x"), [0, 2, 4, 1, 3, 5])):
            sent, shuffled, gathered = run(over(partial(f, names), spec, (spec, spec, spec)), x)
            close([sent, shuffled, gathered[0, :, 0]], [np.roll(x, 1), np.roll(x, 1), x[order]])

    def test_trees_and_layouts_around_it(self):
        f = over(lambda t, s: {"u": t["a"] * s, "v": lax.psum(t["b"].sum(), "x")}, ({"a": P("y"), "b": P("x")}, None),
                 {"u": P("y"), "v": P()})  # fmt: skip
        args = B, A, np.float32(3)
        ins = NamedSharding(MESH, P(None)), NamedSharding(MESH, P(None, "y")), None
        g = mw.jit(lambda b, a, s: f({"a": b, "b": a}, s), in_shardings=ins)
        part = g.lower(*args).partition()
        part.verify(*args)
        assert [s.spec for s in part.out_shardings] == [P("y"), P()]
        # The sum's own reduction and the gather of what it sums are one all-reduce.
        (total,) = (c for c in part.collectives if c.kind == "all_reduce")
        assert set(total.axes) == {"x", "y"} and total.operand.shape == ()
        assert "it is written in the program" in total.reason and "input 1 (a) is laid out as [{}, {y}]" in total.reason

    def test_decorator_current_mesh_and_calls(self):
        mesh = mw.make_mesh((3, 2), ("x", "y"))
        with mw.set_mesh(mesh):

            @mw.shard_map(in_specs=P("x"), out_specs=P("x"))
            def twice(a):
                return a * 2

            out = twice(A)
        close(out, A * 2)
        assert out.sharding == NamedSharding(mesh, P("x"))

    def test_inside_control_flow(self):
        def f(a, b):
            return lax.scan(lambda c, s: (mnp.tanh(matmul(a, c)[:4]) * s, c.sum()), b, np.float32([1, 2, 3]))

        def want(a, b):
            return jax.lax.scan(lambda c, s: (jnp.tanh((jnp.sin(a) @ c)[:4]) * s, c.sum()), b, np.float32([1, 2, 3]))

        close(run(f, A, B), want(A, B))


class TestTransformations:
    def test_gradients(self):
        def loss(m, product):
            return lambda a, b: (m.cos(product(a, b)) ** 2).sum()

        want = jax.grad(loss(jnp, lambda a, b: jnp.sin(a) @ b), (0, 1))(A, B)
        close(run(mw.grad(loss(mnp, matmul), (0, 1)), A, B), want)
        close(mw.grad(loss(mnp, matmul), (0, 1))(A, B), want)

    def test_operands_that_devices_share(self):
        f = over(lambda a, w: mnp.sin(a * w), (P("x", "y"), P()), P("x", "y"))
        got = run(mw.grad(lambda w, a: (f(a, w) ** 2).sum()), np.float32(0.3), A)
        close(got, [jax.grad(lambda w: (jnp.sin(A * w) ** 2).sum())(0.3)])

    def test_results_that_devices_share(self):
        f = over(lambda a: lax.psum((mnp.sin(a) ** 2).sum(), ("x", "y")), P("x", "y"), P())
        close(run(mw.grad(lambda a: f(a) * 3), A), [jax.grad(lambda a: 3 * (jnp.sin(a) ** 2).sum())(A)])

    def test_values_closed_over(self):
        def outer(w, a):
            return (over(lambda a: mnp.sin(a * w), P("x"), P("x"))(a) ** 2).sum()

        close(run(mw.grad(outer), np.float32(0.3), A), [jax.grad(lambda w: (jnp.sin(A * w) ** 2).sum())(0.3)])

    def test_forward_mode_and_vmap(self):
        close(run(lambda a, b: mw.jvp(matmul, (a, b), (a * a, b))[1], A, B), [jax.jvp(
            lambda a, b: jnp.sin(a) @ b, (A, B), (A * A, B))[1]])  # fmt: skip
        stacked = np.stack([A, A + 1], 1)
        close(run(mw.vmap(matmul, (1, None), 2), stacked, B), [np.stack([np.sin(A) @ B, np.sin(A + 1) @ B], 2)])

    def test_second_derivative(self):
        def f(product, m, grad):
            return grad(lambda b: (grad(lambda a: (product(a, b) ** 2).sum())(A) ** 2).sum())

        close(run(f(matmul, mnp, mw.grad), B), [f(lambda a, b: jnp.sin(a) @ b, jnp, jax.grad)(B)], rtol=1e-3)


class TestErrors:
    def test_shard_map(self):
        with pytest.raises(
            ShapeError, match=r"dimension 0 of argument\[0\] of type f32\[5,4\] has size 5.*divisible by 3"
        ):
            mw.make_jaxpr(over(lambda a: a, P("x"), P("x")))(A[:5])
        with pytest.raises(ArgumentError, match="in_specs has 1 entry"):
            mw.make_jaxpr(over(lambda a, b: a, (P("x"),), P("x")))(A, B)
        with pytest.raises(ArgumentError, match=r"3 entries, for argument.*give at most 2"):
            mw.make_jaxpr(over(lambda a: a, P(None, None, "x"), P("x")))(A)
        with pytest.raises(ArgumentError, match="out_specs must be a tree prefix"):
            mw.make_jaxpr(over(lambda a: a, P("x"), (P("x"), P())))(A)
        with pytest.raises(ShardingError, match="z"):
            mw.make_jaxpr(over(lambda a: a, P("z"), P("x")))(A)
        with pytest.raises(ArgumentTypeError, match=r"expected PartitionSpecs, as P\('x'\), got 'x'"):
            mw.make_jaxpr(over(lambda a: a, "x", P("x")))(A)
        with pytest.raises(MeshError, match="no mesh is given"):
            mw.shard_map(lambda a: a, in_specs=P("x"), out_specs=P("x"))(A)


class TestPmap:
    def test_one_device_per_index(self):
        f = mw.pmap(
            lambda x, s: {"y": x / lax.psum(x.sum(), "i") * s, "i": lax.axis_index("i")}, "i", in_axes=(1, None)
        )
        got = f(A, 2.0)
        close(got, {"y": A.T / A.sum() * 2, "i": np.arange(4, dtype=np.int32)})
        assert got["y"].sharding.spec == P("i") and len(got["y"].addressable_shards) == 4

    def test_partitioned(self):
        mesh = AbstractMesh((6,), ("i",))
        f = mw.shard_map(lambda x: x / lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P("i"))
        part = mw.jit(f).lower(A).partition()
        part.verify(A)

    def test_axes_static_arguments_and_gradients(self):
        x = A
        f = mw.pmap(lambda x, n: mnp.sin(x) ** n, static_broadcasted_argnums=1, out_axes=1)
        close(f(x, 3), np.sin(x).T ** 3)
        close(mw.grad(lambda x: f(x, 3).sum())(x), jax.grad(lambda x: (jnp.sin(x) ** 3).sum())(x))
        assert "shard_map" in str(mw.make_jaxpr(f, static_argnums=1)(x, 2))
