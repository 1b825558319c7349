"""Shardings in types: what each function makes of them, against JAX; what is ambiguous; sums still to be made."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax as jlax
from jax.sharding import AbstractMesh as JaxMesh
from jax.sharding import AxisType as JaxAxisType
from jax.sharding import NamedSharding as JaxSharding
from jax.sharding import PartitionSpec as JaxSpec

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.errors import ArgumentError, ArgumentTypeError, MeshError, ShapeError, ShardingError, ShardingTypeError
from meshwright.sharding import AxisType, auto_axes, explicit_axes

JAX_MESH = JaxMesh((2, 4), ("x", "y"), axis_types=(JaxAxisType.Explicit,) * 2)


@pytest.fixture
def mesh():
    with mw.set_mesh(mw.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)) as current:
        yield current


def arrays(mesh):
    """Values of distinct elements, by what splits them."""

    def split(shape, *spec):
        value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 7
        return mw.device_put(value, mw.NamedSharding(mesh, P(*spec)))

    return {
        "both": split((8, 16), "x", "y"), "rows": split((8, 16), "x"), "columns": split((8, 16), None, "x"),
        "whole": split((8, 16)), "weights": split((16, 8), "y"), "right": split((16, 8), None, "y"),
        "tall": split((8, 1), "x"), "wide": split((1, 16), None, "y"), "cube": split((8, 4, 4), "x"),
        "vector": split((8,), "x"), "other": split((4,), "y"),
    }  # fmt: skip


#: functions of a library, its ``lax`` and the arrays above: of each, both give the same types
SAME = {
    "add": lambda m, l, a: a["both"] + a["both"],
    "add replicated": lambda m, l, a: a["whole"] + a["both"],
    "add number": lambda m, l, a: a["both"] + 1,
    "sin": lambda m, l, a: m.sin(a["both"]),
    "sum of rows": lambda m, l, a: a["both"].sum(0),
    "sum": lambda m, l, a: a["both"].sum(),
    "max": lambda m, l, a: a["both"].max(1),
    "argmax": lambda m, l, a: a["rows"].argmax(0),
    "transpose": lambda m, l, a: a["both"].T,
    "split dimension": lambda m, l, a: a["rows"].reshape(4, 2, 16),
    "joined dimensions": lambda m, l, a: a["rows"].reshape(128),
    "split other": lambda m, l, a: a["both"].reshape(8, 4, 4),
    "one more": lambda m, l, a: a["rows"].reshape(8, 1, 16),
    "dot over one": lambda m, l, a: a["rows"] @ a["weights"],
    "dot": lambda m, l, a: a["rows"] @ a["right"],
    "dot as asked": lambda m, l, a: m.einsum("ij,jk->ik", a["both"], a["weights"], out_sharding=spec(m, "x")),
    "dot scattered": lambda m, l, a: m.dot(a["both"], a["weights"], out_sharding=spec(m, ("x", "y"))),
    "dot scattered other": lambda m, l, a: m.dot(a["both"], a["weights"], out_sharding=spec(m, "x", "y")),
    "dot of one axis twice as asked": lambda m, l, a: m.dot(a["both"], a["right"], out_sharding=spec(m, "x", "y")),
    "dot of one axis twice whole as asked": lambda m, l, a: m.dot(a["both"], a["right"], out_sharding=spec(m)),
    "dot unreduced": lambda m, l, a: m.dot(a["both"], a["weights"], out_sharding=spec(m, "x", unreduced={"y"})),
    "reshape as asked": lambda m, l, a: m.reshape(a["columns"], (128,), out_sharding=spec(m, "x")),
    "joined": lambda m, l, a: m.concatenate([a["rows"], a["rows"]], 0),
    "joined columns": lambda m, l, a: m.concatenate([a["rows"], a["rows"]], 1),
    "columns": lambda m, l, a: a["rows"][:, :3],
    "column": lambda m, l, a: a["rows"][:, 0],
    "picked columns": lambda m, l, a: a["rows"][:, m.array([3, 1])],
    "padded": lambda m, l, a: m.pad(a["rows"], ((0, 0), (1, 1))),
    "sorted": lambda m, l, a: m.sort(a["rows"], 1),
    "cumulated": lambda m, l, a: m.cumsum(a["rows"], 1),
    "reversed": lambda m, l, a: l.rev(a["rows"], (0,)),
    "where": lambda m, l, a: m.where(a["both"] > 0, a["both"], 0.0),
    "broadcast": lambda m, l, a: m.broadcast_to(a["rows"], (3, 8, 16)),
    "stretched": lambda m, l, a: m.broadcast_to(a["tall"], (8, 16)),
    "stretched other": lambda m, l, a: m.broadcast_to(a["wide"], (8, 16)),
    "squeezed": lambda m, l, a: a["tall"].squeeze(1),
    "range": lambda m, l, a: m.arange(8),
    "zeros alike": lambda m, l, a: m.zeros_like(a["both"]),
    "full alike": lambda m, l, a: m.full_like(a["rows"], 3),
    "ones as asked": lambda m, l, a: m.ones((8, 4), out_sharding=spec(m, "x")),
    "joined split dimensions": lambda m, l, a: a["both"].reshape(128),
    "window of rows": lambda m, l, a: l.dynamic_slice(a["rows"], (3, 0), (4, 16)),
    "half of the rows": lambda m, l, a: a["rows"][2:6],
    "diagonal": lambda m, l, a: m.diag(a["vector"]),
    "tiled": lambda m, l, a: m.tile(a["rows"], (1, 2)),
    "stacked": lambda m, l, a: m.stack([a["rows"], a["rows"]]),
    "outer": lambda m, l, a: m.outer(a["vector"], a["other"]),
    "softmax": lambda m, l, a: m.exp(a["rows"]) / m.exp(a["rows"]).sum(0, keepdims=True),
    "scattered": lambda m, l, a: a["rows"].at[:, m.array([0, 1])].add(1.0),
    "batched": lambda m, l, a: m.einsum("bij,bjk->bik", a["cube"], a["cube"]),
}  # fmt: skip

#: ambiguous: both refuse
REFUSED = {
    "two axes": lambda m, l, a: a["both"] + a["columns"],
    "one axis twice": lambda m, l, a: a["rows"] + a["columns"],
    "no blocks": lambda m, l, a: a["columns"].reshape(128),
    "contraction": lambda m, l, a: a["both"] @ a["weights"],
    "contraction of einsum": lambda m, l, a: m.einsum("ij,jk->ik", a["both"], a["weights"]),
    "result twice": lambda m, l, a: m.outer(a["vector"], a["vector"]),
    "row": lambda m, l, a: a["rows"][0],
    "picked rows": lambda m, l, a: a["rows"][m.array([0, 1])],
    "taken rows": lambda m, l, a: m.take(a["rows"], m.array([0, 1]), axis=0),
    "uneven": lambda m, l, a: a["rows"][:3],
    "uneven pad": lambda m, l, a: m.pad(a["rows"], ((1, 2), (0, 0))),
    "sorted rows": lambda m, l, a: m.sort(a["rows"], 0),
    "cumulated rows": lambda m, l, a: m.cumsum(a["rows"], 0),
    "largest of a split dimension": lambda m, l, a: l.top_k(a["columns"], 3),
    "not summed": lambda m, l, a: m.dot(a["rows"], a["weights"], out_sharding=spec(m, "x", unreduced={"y"})),
}  # fmt: skip


def spec(library, *entries, **sums):
    return (P if library is mnp else JaxSpec)(*entries, **sums)


def ours(aval):
    """What JAX says of a type, in our words."""
    return P(*aval.sharding.spec.partitions, unreduced=aval.sharding.spec.unreduced)


def jax_arrays(ours):
    return {
        name: jax.ShapeDtypeStruct(x.shape, np.float32, sharding=JaxSharding(JAX_MESH, JaxSpec(*x.sharding.spec)))
        for name, x in ours.items()
    }


def test_types_are_those_of_jax_and_values_those_of_one_device(mesh):
    given = arrays(mesh)
    jitted = mw.jit(lambda a: {name: f(mnp, lax, a) for name, f in SAME.items()})
    outs = jitted(given)
    plain = {name: np.asarray(x) for name, x in given.items()}
    with jax.sharding.use_abstract_mesh(JAX_MESH):
        wanted = jax.eval_shape(lambda a: {name: f(jnp, jlax, a) for name, f in SAME.items()}, jax_arrays(given))
        text = jax.make_jaxpr(lambda a: {name: f(jnp, jlax, a) for name, f in SAME.items()})(jax_arrays(given))
    theirs = dict(zip(sorted(SAME), text.out_avals))
    with mw.set_mesh(None):
        values = mw.jit(lambda a: {n: f(mnp, lax, a) for n, f in SAME.items() if "asked" not in n and "ered" not in n
                                   and "unreduced" not in n})(plain)  # fmt: skip
    for name, out in outs.items():
        found = mw.typeof(out)
        assert found.sharding.spec == ours(theirs[name]), name
        assert found.shape == wanted[name].shape
        assert tuple(out.sharding.spec) + (None,) * (out.ndim - len(out.sharding.spec)) == tuple(found.sharding.spec), (
            name
        )
        if name in values:
            np.testing.assert_allclose(np.asarray(out), np.asarray(values[name]), rtol=1e-5, err_msg=name)
    product = np.asarray(given["both"]) @ np.asarray(given["weights"])
    for name in ("dot as asked", "dot scattered", "dot scattered other", "dot unreduced"):
        np.testing.assert_allclose(np.asarray(outs[name]), product, rtol=1e-5)


def test_what_is_ambiguous_is_refused_as_by_jax(mesh):
    given = arrays(mesh)
    for name, f in REFUSED.items():
        with pytest.raises(ShardingTypeError):
            mw.eval_shape(lambda a, f=f: f(mnp, lax, a), given)
            pytest.fail(name)
        with jax.sharding.use_abstract_mesh(JAX_MESH), pytest.raises(Exception, match=r"[sS]hard"):
            jax.eval_shape(lambda a, f=f: f(jnp, jlax, a), jax_arrays(given))


GOLDEN = {
    "contraction": "dot_general: operands f32[8@x,16@y], f32[16@y,8]: it sums over a dimension that is split over y, "
    "and the result may be whole along them or split. Say which it is: out_sharding= of the function, "
    "one of P('x', None), P(('x', 'y'), None), P('x', 'y'), P('x', None, unreduced={'y'}); or bring an "
    "operand to another sharding with reshard first",
    "one axis twice": "add: operands f32[8@x,16], f32[8,16@x] would split dimensions 0 and 1 of the result f32[8,16] "
    "both over x. Say which it is: out_sharding= of the function, one of P('x', None), P(None, 'x'); or bring "
    "an operand to another sharding with reshard first",
    "two axes": "add: operands f32[8@x,16@y], f32[8,16@x] split the same dimension over y and x. Say which it is: "
    "out_sharding= of the function, one of P('x', 'y'), P(None, 'x'); or bring an operand to another "
    "sharding with reshard first",
    "row": "slice: operands f32[8@x,16]: it picks along a dimension that is split over x, and the result may be "
    "whole along them or split. Say which it is: out_sharding= of the function, one of P(None, None); or "
    "bring an operand to another sharding with reshard first",
    "no blocks": "reshape: operands f32[8,16@x]: tiles over x are no blocks of dimension 0 of the result f32[128]. "
    "Say which it is: out_sharding= of the function, one of P('x',); or bring an operand to another "
    "sharding with reshard first",
    "sorted rows": "sort: of operands f32[8@x,16] dimension 0 is split over x, and each element of the result is of "
    "the whole of it; bring it together first: reshard(x, P(None, None))",
    "uneven": "slice: operands f32[8@x,16], the result: dimension 0 of shape (3, 16) has size 3, which 2 devices "
    "along x do not divide; types hold even parts only: pad it, leave it whole, or make the axis "
    "AxisType.Auto",
    "not summed": "out_sharding=P('x', unreduced={'y'}) leaves a sum over y to be made, but no dimension "
    "that is summed over is split over y; name the axes that split what is contracted",
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_errors_list_the_choices(mesh, name):
    with pytest.raises(ShardingTypeError) as error:
        mw.eval_shape(lambda a: REFUSED[name](mnp, lax, a), arrays(mesh))
    assert str(error.value) == GOLDEN[name]


def test_evaluated_op_by_op_it_is_the_same(mesh):
    a = arrays(mesh)
    assert str(mw.typeof(a["both"] + 1)) == "f32[8@x,16@y]"
    with pytest.raises(ShardingTypeError, match="one of P"):
        a["both"] @ a["weights"]
    out = mnp.dot(a["both"], a["weights"], out_sharding=P("x"))
    assert str(mw.typeof(out)) == "f32[8@x,8]" and out.sharding.spec == P("x")
    with pytest.raises(ShardingTypeError):  # though the product with a sharding has been compiled
        a["both"] @ a["weights"]


def test_printed_types_and_meshes(mesh):
    a = arrays(mesh)
    jaxpr = mw.make_jaxpr(lambda x: mw.reshard(x, P("y")))(a["both"])
    assert str(jaxpr) == "{ lambda ; a:f32[8@x,16@y]. let b:f32[8@y,16] = reshard a in (b,) }"
    assert str(mesh) == "Mesh('x': 2, 'y': 4, axis_types=(Explicit, Explicit))"
    assert repr(mw.sharding.get_abstract_mesh()) == "AbstractMesh('x': 2, 'y': 4, axis_types=(Explicit, Explicit))"
    assert repr(mw.typeof(a["rows"]).sharding.spec) == "P('x', None)"
    assert str(mw.typeof(mw.device_put(np.ones(8), P(("x", "y"))))) == "f32[8@(x,y)]"
    assert mw.typeof(np.ones(3)).sharding.spec == P(None)
    mixed = mw.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit, AxisType.Auto))
    assert str(mw.typeof(mw.device_put(np.ones((8, 16)), mw.NamedSharding(mixed, P("x", "y"))))) == "f32[8@x,16]"
    assert mixed.abstract_mesh.explicit_axes == ("x",) and mixed.abstract_mesh.auto_axes == ("y",)
    assert repr(P("x", unreduced={"y"})) == "P('x', unreduced={'y'})"
    assert P("x", unreduced={"y"}) != P("x") and P(reduced={"y"}) == P(reduced=["y"])


def test_types_without_values_say_how_they_are_split(mesh):
    a = arrays(mesh)["both"]
    for found in (
        mw.eval_shape(lambda x: x.T, a),
        mw.jit(lambda x: x.T).eval_shape(a),
        mw.make_jaxpr(lambda x: x.T, return_shape=True)(a)[1],
    ):
        assert str(mw.typeof(found)) == "f32[16@y,8@x]" and found.sharding.spec == P("y", "x")
        assert mw.jit(lambda x: x + 1).lower(found).compile()(a.T).sharding.spec == P("y", "x")
    assert str(mw.typeof(mw.ShapeDtypeStruct((8, 4), "int8", sharding=P("x")))) == "i8[8@x,4]"
    with mw.set_mesh(None), pytest.raises(MeshError):
        mw.ShapeDtypeStruct((8, 4), "int8", sharding=P("x"))


def test_gradients_have_the_types_of_their_values(mesh):
    a = arrays(mesh)

    def loss(w, x, out):
        return mnp.sin(mnp.dot(x, w, out_sharding=out) / 1000).sum()

    want = np.asarray(a["both"]).T / 1000 @ np.cos(np.asarray(a["both"]) @ np.asarray(a["weights"]) / 1000)
    for transformed in (lambda f: f, mw.jit, mw.checkpoint):
        f = transformed(lambda w, x: loss(w, x, P("x")))
        found = mw.jit(mw.grad(f))(a["weights"], a["both"])
        assert str(mw.typeof(found)) == "f32[16@y,8]" and found.sharding.spec == P("y", None)
        np.testing.assert_allclose(np.asarray(found), want, rtol=2e-4)
    assert str(mw.typeof(mw.grad(lambda w: loss(w, a["rows"], None))(a["right"]))) == "f32[16,8@y]"
    tangents = mw.jit(lambda w: mw.jvp(lambda w: loss(w, a["both"], P("x")), (w,), (w,)))(a["weights"])
    assert [str(mw.typeof(t)) for t in tangents] == ["f32[]", "f32[]"]


def test_vmap_sees_the_type_of_an_element(mesh):
    seen = []

    def element(row):
        seen.append(str(mw.typeof(row)))
        return row * row

    x = arrays(mesh)["both"]
    out = mw.jit(mw.vmap(element))(x)
    other = mw.jit(mw.vmap(element, in_axes=1, out_axes=1))(x)
    assert seen == ["f32[16@y]", "f32[8@x]"]
    assert str(mw.typeof(out)) == str(mw.typeof(other)) == "f32[8@x,16@y]"
    np.testing.assert_allclose(np.asarray(out), np.asarray(x) ** 2)
    with pytest.raises(ShardingTypeError, match="one of P"):
        mw.vmap(lambda u, v: u @ v)(mw.reshard(x, P("x", "y")), x)


def test_control_flow_keeps_types(mesh):
    a = arrays(mesh)
    xs = mw.reshard(a["both"], P(None, "y"))
    carry = mw.reshard(mnp.zeros(16), P("y"))

    def run(carry, xs, both):
        last, ys = lax.scan(lambda c, x: (c + x, c), carry, xs)
        looped = lax.while_loop(lambda c: c.sum() < 1e5, lambda c: c * 2 + 1, both)
        chosen = lax.cond(both.sum() > 0, lambda x: x, lambda x: x * 2, both)
        return last, ys, looped, chosen

    outs = mw.jit(run)(carry, xs, a["both"])
    assert list(map(str, map(mw.typeof, outs))) == ["f32[16@y]", "f32[8,16@y]", "f32[8@x,16@y]", "f32[8@x,16@y]"]
    np.testing.assert_allclose(np.asarray(outs[0]), np.asarray(xs).sum(0), rtol=1e-5)
    slope = mw.jit(mw.grad(lambda c, xs: lax.scan(lambda c, x: (c * x, None), c, xs)[0].sum()))(carry, xs)
    assert str(mw.typeof(slope)) == "f32[16@y]"
    with pytest.raises(ShapeError, match=r"goes in as f32\[16\] and comes out as f32\[16@y\]: shardings differ"):
        lax.scan(lambda c, x: (c + x, c), mnp.zeros(16), xs)
    with pytest.raises(ShardingTypeError, match=r"input 0, f32\[8@x,16@y\], is split over x; reshard it"):
        lax.scan(lambda c, x: (c + x, c), carry, a["both"])
    with pytest.raises(ShardingTypeError, match=r"branches must return equal types.*shardings differ"):
        lax.cond(True, lambda x: x, lambda x: a["whole"], a["both"])


# --- sums still to be made ------------------------------------------------------------------------------------
def test_unreduced_sums_are_made_by_reshard(mesh):
    a = arrays(mesh)
    unreduced = P("x", unreduced={"y"})

    def f(x, w):
        u = mnp.einsum("ij,jk->ik", x, w, out_sharding=unreduced)
        types.append(str(mw.typeof(u)))
        return mw.reshard(u + u, P("x")), mw.reshard(-u, P("x", "y")), mw.reshard(u.T, P(None, "x"))

    types: list[str] = []
    part = mw.jit(f).lower(a["both"], a["weights"]).partition()
    assert types == ["f32[8@x,8]{U:y}"]
    assert {c.kind for c in part.collectives} <= {"all_reduce", "reduce_scatter"}
    outs = part(a["both"], a["weights"])
    assert list(map(str, map(mw.typeof, outs))) == ["f32[8@x,8]", "f32[8@x,8@y]", "f32[8,8@x]"]
    want = np.asarray(a["both"]) @ np.asarray(a["weights"])
    for out, value in zip(outs, (2 * want, -want, want.T)):
        np.testing.assert_allclose(np.asarray(out), value, rtol=1e-5)


@pytest.mark.parametrize("f", [lambda u: u * u, mnp.sin, lambda u: u + 1.0, lambda u: u @ u.T, lambda u: u * 2])
def test_terms_pass_through_what_is_linear_alone(mesh, f):
    a = arrays(mesh)
    u = mnp.dot(a["both"], a["weights"], out_sharding=P("x", unreduced={"y"}))
    with pytest.raises(ShardingTypeError, match=r"sums still to be made over y; .* make the sum first, reshard"):
        f(u)
    with pytest.raises(ShardingError, match=r"a sum that is still to be made.*make it first with reshard"):
        _ = u.addressable_shards


def test_gradients_of_reduced_are_unreduced_and_the_reverse(mesh):
    a = arrays(mesh)
    value = np.arange(64, dtype=np.float32).reshape(16, 4) / 900  # sines of large numbers differ between processors

    def loss(w, x):
        return mnp.sin(x @ w).sum()

    reduced = mw.reshard(mnp.asarray(value), P(reduced={"x"}))
    assert str(mw.typeof(reduced)) == "f32[16,4]{R:x}"
    want = np.asarray(a["rows"]).T @ np.cos(np.asarray(a["rows"]) @ value)
    found = mw.jit(mw.grad(loss))(reduced, a["rows"])
    assert str(mw.typeof(found)) == "f32[16,4]{U:x}"
    np.testing.assert_allclose(np.asarray(mw.reshard(found, P())), want, rtol=2e-4)
    whole = mw.jit(mw.grad(lambda w, x: loss(mw.reshard(w, P(reduced={"x"})), x)))(mnp.asarray(value), a["rows"])
    assert str(mw.typeof(whole)) == "f32[16,4]"
    np.testing.assert_allclose(np.asarray(whole), want, rtol=2e-4)
    back = mw.vjp(
        lambda u: mw.reshard(u, P("x")), mnp.dot(a["both"], a["weights"], out_sharding=P("x", unreduced={"y"}))
    )
    assert str(mw.typeof(back[1](mw.reshard(mnp.ones((8, 8)), P("x")))[0])) == "f32[8@x,8]{R:y}"


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: P("x", unreduced={"x"}), "P('x', unreduced={'x'}) names x twice"),
        (
            lambda: P(unreduced={"x"}, reduced={"x"}),
            "names x twice; an axis splits a dimension, or is unreduced, or reduced",
        ),
        (lambda: mw.NamedSharding(mw.make_mesh((2,), ("x",)), P(unreduced={"x"})), "axis_types=AxisType.Explicit"),
    ],
)
def test_specs_of_sums_are_checked(make, message):
    with pytest.raises(ShardingError) as error:
        make()
    assert message in str(error.value)


# --- borders ------------------------------------------------------------------------------------------------
def test_axes_that_are_automatic_or_explicit_inside(mesh):
    a, seen = arrays(mesh), []

    def product(x, w):
        seen.append((str(mw.typeof(x)), mw.sharding.get_abstract_mesh().explicit_axes))
        return x @ w

    want = np.asarray(a["both"]) @ np.asarray(a["weights"])
    for f in (
        auto_axes(product, out_sharding=P("x", "y")),
        mw.jit(auto_axes(product, axes="y", out_sharding=P("x", "y"))),
    ):
        out = f(a["both"], a["weights"])
        assert str(mw.typeof(out)) == "f32[8@x,8@y]"
        np.testing.assert_allclose(np.asarray(out), want, rtol=1e-5)
    assert seen == [("f32[8,16]", ()), ("f32[8@x,16]", ("x",))]
    slope = mw.grad(lambda x: auto_axes(lambda x: mnp.sin(x), out_sharding=P("x", "y"))(x).sum())(a["both"])
    assert str(mw.typeof(slope)) == "f32[8@x,16@y]"
    np.testing.assert_allclose(np.asarray(slope), np.cos(np.asarray(a["both"])), rtol=1e-5)
    with pytest.raises(ArgumentTypeError, match="out_sharding is missing"):
        auto_axes(product)(a["both"], a["weights"])
    with pytest.raises(ArgumentError, match="names 'z'"):
        auto_axes(product, axes="z", out_sharding=P())(a["both"], a["weights"])
    with mw.set_mesh(mw.make_mesh((2, 4), ("x", "y"))):
        kinds = []
        f = explicit_axes(lambda x: kinds.append(str(mw.typeof(x))) or 2 * x, in_sharding=(P("x", "y"),))
        assert str(mw.typeof(mw.jit(f)(mnp.ones((8, 16))))) == "f32[8,16]" and kinds == ["f32[8@x,16@y]"]
        with pytest.raises(ArgumentTypeError, match="in_sharding is missing"):
            explicit_axes(lambda x: x)(mnp.ones(8))
    with mw.set_mesh(None), pytest.raises(MeshError, match="auto_axes: there is no mesh"):
        auto_axes(product, out_sharding=P())(np.ones((2, 2)), np.ones((2, 2)))


def test_regions_cut_arguments_as_their_types_say(mesh):
    a, seen = arrays(mesh), []

    def body(x):
        seen.append((str(mw.typeof(x)), mw.sharding.get_abstract_mesh().manual_axes))
        return x * 2

    outs = [
        mw.shard_map(body, out_specs=P("x", "y"))(a["both"]),
        mw.jit(mw.shard_map(body, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}))(a["both"]),
    ]
    assert seen == [("f32[4,4]{V:(x,y)}", ("x", "y")), ("f32[4,16@y]{V:x}", ("x",))]
    for out in outs:
        assert str(mw.typeof(out)) == "f32[8@x,16@y]"
        np.testing.assert_array_equal(np.asarray(out), 2 * np.asarray(a["both"]))
    with pytest.raises(ArgumentError, match=r"whose type .* says P.'x', 'y'.; leave in_specs out"):
        mw.shard_map(body, in_specs=P("y", "x"), out_specs=P("y", "x"))(a["both"])
    free = mw.make_mesh((2,), ("x",))
    with pytest.raises(ArgumentError, match="x is automatic, and the type of argument"):
        mw.shard_map(body, mesh=free, out_specs=P("x"))(mnp.ones(4))


def test_constraints_only_make_sure(mesh):
    x = arrays(mesh)["rows"]
    assert mw.lax.with_sharding_constraint(x, P("x", None)) is x
    for f in (lambda x: mw.lax.with_sharding_constraint(x, P(None, "x")),) * 2:
        with pytest.raises(ShardingTypeError, match=r"the value is f32.8@x,16. and .* change it with reshard"):
            mw.jit(f)(x)
    assert str(mw.typeof(mw.jit(lambda x: mw.device_put(x, P(None, "x")))(x))) == "f32[8,16@x]"
    inner = mw.jit(lambda x: x + 1, out_shardings=P(None, "y"))
    assert str(mw.typeof(mw.jit(lambda x: inner(x) * 2)(x))) == "f32[8,16@y]"


@pytest.mark.parametrize(
    "types, message",
    [
        ((AxisType.Auto,), "1 axis_types (Auto,) for 2 axes ('x', 'y')"),
        (("auto", "auto"), "axis_types holds 'auto'; expected AxisType.Auto, Explicit or Manual"),
    ],
)
def test_types_of_axes_are_checked(types, message):
    with pytest.raises(MeshError) as error:
        mw.make_mesh((2, 4), ("x", "y"), axis_types=types)
    assert message in str(error.value)
