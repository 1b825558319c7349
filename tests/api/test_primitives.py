"""Primitives with tables of rules: one source for JAX and for us, what a mesh makes of them, and what is refused."""

import re
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jaxlib.mlir.dialects import stablehlo as hlo

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import errors, lax
from meshwright.core import ShapedArray
from meshwright.extend.core import Primitive
from meshwright.interpreters import ad, batching, mlir, xla

P = mw.P
X = np.arange(32.0, dtype=np.float32).reshape(8, 4) / 10
W = np.cos(np.arange(12.0, dtype=np.float32)).reshape(4, 3)

IMPORTS = """
import numpy as np
import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla
from jaxlib.mlir.dialects import stablehlo as hlo

X = np.arange(12.0, dtype=np.float32).reshape(3, 4) / 10 + 1
W = np.cos(X)
"""

#: the primitive of JAX's tutorial, with the lowering rule in MLIR
TUTORIAL = """
multiply_add_p = Primitive("multiply_add")

def multiply_add(x, y, z):
    return multiply_add_p.bind(x, y, z)

@multiply_add_p.def_impl
def impl(x, y, z):
    return np.add(np.multiply(x, y), z)

@multiply_add_p.def_abstract_eval
def abstract_eval(xs, ys, zs):
    assert xs.shape == ys.shape == zs.shape
    return ShapedArray(xs.shape, xs.dtype)

mlir.register_lowering(multiply_add_p, lambda ctx, x, y, z: [hlo.AddOp(hlo.MulOp(x, y), z).result], platform="cpu")

def value_and_jvp(primals, tangents):
    (x, y, z), (xt, yt, zt) = primals, tangents
    made = lambda t, x: jnp.zeros_like(x) if type(t) is ad.Zero else t
    return multiply_add(x, y, z), multiply_add(made(xt, x), y, multiply_add(x, made(yt, y), made(zt, z)))

ad.primitive_jvps[multiply_add_p] = value_and_jvp

def transpose(ct, x, y, z):
    def of_factor(x, other):
        if not ad.is_undefined_primal(x):
            return None
        return ad.Zero(x.aval) if type(ct) is ad.Zero else multiply_add(ct, other, jnp.zeros_like(ct))

    assert not (ad.is_undefined_primal(x) and ad.is_undefined_primal(y))
    return of_factor(x, y), of_factor(y, x), ct if ad.is_undefined_primal(z) else None

ad.primitive_transposes[multiply_add_p] = transpose

def batch(args, dims):
    size = next(x.shape[d] for x, d in zip(args, dims) if d is not None)
    return multiply_add(*[batching.bdim_at_front(x, d, size) for x, d in zip(args, dims)]), 0

batching.primitive_batchers[multiply_add_p] = batch

def square_add(x, y):
    return multiply_add(x, x, y)

def scanned(c):
    return lax.scan(lambda c, x: (square_add(c, x), multiply_add(c, x, c)), c, W[0])

f = lambda x, y: square_add(x, jnp.sin(y)).sum()
answers = dict(
    eager=multiply_add(2.0, 10.0, 3.0), eager_arrays=square_add(X, W), jit=jax.jit(square_add)(X, W),
    jvp=jax.jvp(square_add, (X, W), (W, X)), jit_jvp=jax.jit(lambda x, y: jax.jvp(square_add, (x, y), (y, x)))(X, W),
    only_one=jax.jvp(lambda x: square_add(x, W), (X,), (W,)), grad=jax.grad(f, (0, 1))(X, W),
    jit_grad=jax.jit(jax.grad(f, (0, 1)))(X, W),
    forward_again=jax.jvp(lambda x: jax.jvp(square_add, (x, W), (x, x))[1], (X,), (W,)),
    vmap=jax.vmap(square_add)(X, W), vmap_grad=jax.jit(jax.vmap(jax.grad(f), 1, 1))(X, W),
    linearize=jax.linearize(square_add, X, W)[1](W, X), vjp=jax.vjp(square_add, X, W)[1](W),
    scan=scanned(jnp.float32(0.5)), jit_scan=jax.jit(scanned)(np.float32(0.5)),
    grad_scan=jax.jit(jax.grad(lambda c: scanned(c)[1].sum()))(np.float32(0.5)),
    cond=jax.jit(lambda x: lax.cond(x.sum() > 0, square_add, lambda x, y: y, x, W))(X),
    checkpoint=jax.grad(jax.checkpoint(lambda x: f(x, W)))(X),
    closed=[(str(e.primitive), e.primitive is multiply_add_p) for e in jax.make_jaxpr(square_add)(X, W).eqns],
)
"""

#: two results, parameters, tangents that are zero, batch dimensions that differ
SEVERAL = """
turn_p = Primitive("turn")
turn_p.multiple_results = True

def turn(x, y, *, by=1.0, kind="plane"):
    return turn_p.bind(x, y, kind=kind, by=by)

def turned(x, y, *, by, kind):
    return [x * np.cos(by) - y * np.sin(by), x * np.sin(by) + y * np.cos(by)]

turn_p.def_abstract_eval(lambda x, y, *, by, kind: [x, ShapedArray(y.shape, y.dtype)])
turn_p.def_impl(turned)
mlir.register_lowering(turn_p, mlir.lower_fun(turned, multiple_results=True))
seen = []

def jvp(primals, tangents, **params):
    seen.append([type(t) is ad.Zero for t in tangents])
    return turn_p.bind(*primals, **params), turn_p.bind(*map(ad.instantiate_zeros, tangents), **params)

def transpose(cts, x, y, *, by, kind):
    assert ad.is_undefined_primal(x) and x.aval.shape == getattr(y, "aval", y).shape
    seen.append([type(ct) is ad.Zero for ct in cts])
    back = turn_p.bind(*map(ad.instantiate_zeros, cts), by=-by, kind=kind)
    return [ct if ad.is_undefined_primal(v) else None for ct, v in zip(back, (x, y))]

def batch(args, dims, **params):
    size = next(x.shape[d] for x, d in zip(args, dims) if d is not None)
    return turn_p.bind(*[batching.bdim_at_front(x, d, size) for x, d in zip(args, dims)], **params), [0, 0]

ad.primitive_jvps[turn_p] = jvp
ad.primitive_transposes[turn_p] = transpose
batching.primitive_batchers[turn_p] = batch
f = lambda x, y: turn(x, y, by=0.3)[0] * y
eqn, = jax.make_jaxpr(lambda x, y: turn(x, y, by=2.0))(X, W).eqns
answers = dict(
    eager=turn(X, W, by=0.5), jit=jax.jit(lambda x: turn(x, W, by=0.5, kind="space"))(X),
    grad=jax.grad(lambda x: f(x, W).sum())(X), both=jax.jit(jax.grad(lambda x: f(x, x).sum()))(X),
    vmap=jax.vmap(f, (0, None))(X, W[0]), other=jax.vmap(f, (1, 0), 1)(X, W.T),
    jacobian=jax.jit(jax.jacrev(lambda x: jnp.stack(turn(x, x))))(X[0]), seen=seen,
    eqn=(str(eqn.primitive), dict(eqn.params), len(eqn.outvars)),
    again=eqn.primitive.bind(X, W, **eqn.primitive.get_bind_params(eqn.params)),
)
"""

#: what the helpers of ``ad`` and ``batching`` register
HELPERS = """
def broadcasted(*avals, **params):
    return ShapedArray(np.broadcast_shapes(*(a.shape for a in avals)), avals[0].dtype)

def made(name, f):
    p = Primitive(name)
    p.def_abstract_eval(broadcasted)
    mlir.register_lowering(p, mlir.lower_fun(f, multiple_results=False))
    p.def_impl(lambda *args, **params: jax.jit(lambda *args: p.bind(*args, **params))(*args))
    return p

sin_p = made("my_sin", lambda x: jnp.sin(x))
ad.defjvp(sin_p, lambda t, x: t * jnp.cos(x))
batching.defvectorized(sin_p)
exp_p = made("my_exp", lambda x, *, base: base**x)
ad.defjvp2(exp_p, lambda t, out, x, *, base: t * out * np.log(base))
batching.defvectorized(exp_p)
mix_p = made("mix", lambda x, y: x * jnp.sin(y))
ad.defjvp(mix_p, lambda t, x, y: t * jnp.sin(y), None)
batching.defbroadcasting(mix_p)
neg_p = made("my_neg", lambda x: -x)
ad.deflinear(neg_p, lambda ct: [neg_p.bind(ct)])
batching.defvectorized(neg_p)
by_p = made("times", lambda x, *, by: by * x)
ad.deflinear2(by_p, lambda ct, x, *, by: [by_p.bind(ct, by=by)])
batching.defvectorized(by_p)
dot_p = Primitive("my_dot")
dot_p.def_abstract_eval(lambda x, y: ShapedArray((x.shape[0], y.shape[1]), x.dtype))
dot_p.def_impl(jnp.dot)
mlir.register_lowering(dot_p, mlir.lower_fun(jnp.dot, multiple_results=False))
ad.defbilinear(dot_p, lambda ct, x, y: dot_p.bind(ct, y.T), lambda ct, x, y: dot_p.bind(x.T, ct))
outer_p = made("outer", lambda x: neg_p.bind(by_p.bind(x, by=3)))

base = lambda x: exp_p.bind(sin_p.bind(x), base=3)
chain = lambda x: by_p.bind(neg_p.bind(base(x)), by=2)
products = lambda x, w: dot_p.bind(jnp.sin(x), dot_p.bind(w.T, x)).sum()
answers = dict(
    eager=chain(X), jit=jax.jit(chain)(X), grad=jax.grad(lambda x: chain(x).sum())(X),
    jit_vmap=jax.jit(jax.vmap(jax.grad(chain)))(X[0]), second=jax.vmap(jax.grad(jax.grad(base)))(X[0]),
    mixed=jax.grad(lambda x, y: mix_p.bind(x, y).sum(), (0, 1))(X, W),
    mixes=[jax.vmap(mix_p.bind)(X, W), jax.vmap(mix_p.bind, (0, None))(X, W[0]), jax.vmap(mix_p.bind, (1, 0))(X, W.T),
           jax.vmap(mix_p.bind, (0, None))(X, np.float32(2)), jax.vmap(mix_p.bind, (0, 0))(X, W[:, 0])],
    products=jax.jit(jax.grad(products, (0, 1)))(X, W), products_jvp=jax.jvp(products, (X, W), (W, X)),
    outer=jax.jit(outer_p.bind)(X), names=[str(e.primitive) for e in jax.make_jaxpr(chain)(X).eqns],
    zeros=ad.zeros_like_aval(ShapedArray((2,), np.dtype("int32"))), both=ad.add_tangents(X, W),
    one=[ad.add_tangents(ad.Zero(ShapedArray((), np.dtype("float32"))), X), ad.add_tangents(X, ad.Zero(None))],
)
"""

#: rules that write MLIR and call functions, tell the axis, and take constants; platforms; a jaxpr as a parameter
RULES = """
affine_p = Primitive("affine")
affine_p.def_abstract_eval(lambda x, *, by: ShapedArray(x.shape, x.dtype))

def rule(ctx, x, *, by):
    (aval,), (out,) = ctx.avals_in, ctx.avals_out
    assert mlir.aval_to_ir_type(ctx.module_context, out) == x.type and str(mlir.dtype_to_ir_type(aval.dtype)) == "f32"
    shift = mlir.ir_constant(np.full(aval.shape, by, np.float32))
    return [hlo.add(shift, *mlir.lower_fun(lambda x: jnp.cos(x), multiple_results=False)(ctx, x))]

mlir.register_lowering(affine_p, rule)

def batch(axis, args, dims, *, by):
    return affine_p.bind(*args, by=axis.size), *dims

batching.fancy_primitive_batchers[affine_p] = batch

sized_p = Primitive("sized")
sized_p.def_abstract_eval(lambda x, *, by: ShapedArray(x.shape, x.dtype))
mlir.register_lowering(sized_p, mlir.lower_fun(lambda x, by: x * by, multiple_results=False))

def batch_sized(size, name, kind, args, dims, *, by):
    assert (size, name, kind) == (3, "rows", None)
    return sized_p.bind(*args, by=by + size), *dims

batching.axis_primitive_batchers[sized_p] = batch_sized

where_p = Primitive("where_it_runs")
where_p.def_abstract_eval(lambda x: x)
for platform, by in (("cpu", 2), ("tpu", 3), (None, 5)):
    mlir.register_lowering(where_p, mlir.lower_fun(lambda x, by=by: by * x, multiple_results=False), platform)

called_p = Primitive("called")
called_p.multiple_results = True
called_p.def_abstract_eval(lambda *avals, jaxpr: [v.aval for v in jaxpr.jaxpr.outvars])

def call(*args, jaxpr):
    return jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *args)

mlir.register_lowering(called_p, mlir.lower_fun(call))
inner = jax.make_jaxpr(lambda x: (jnp.sin(x), affine_p.bind(x, by=2)))(X)
answers = dict(
    affine=jax.jit(lambda x: affine_p.bind(x, by=2))(X), fancy=jax.jit(jax.vmap(lambda x: affine_p.bind(x, by=1)))(X),
    sized=jax.jit(jax.vmap(lambda x: sized_p.bind(x, by=2), axis_name="rows"))(jnp.arange(3.0)),
    where=jax.jit(where_p.bind)(X), called=jax.jit(lambda x: called_p.bind(x, jaxpr=inner))(X),
    nothing=jax.jit(lambda x: x * where_p.bind(2.0))(X),
)
"""


def answers_of(program, library):
    scope = {}
    exec(re.sub(r"\bjax\b", library, IMPORTS + program), scope)
    return scope["answers"]


@pytest.mark.parametrize(
    "program", [TUTORIAL, SEVERAL, HELPERS, RULES], ids=["tutorial", "several", "helpers", "rules"]
)
def test_code_for_jax_gives_what_it_gives_there(program):
    ours, theirs = answers_of(program, "meshwright"), answers_of(program, "jax")
    assert list(ours) == list(theirs)
    for name, want in theirs.items():
        got, wanted = jax.tree.leaves(mw.tree.map(_plain, ours[name])), jax.tree.leaves(want)
        assert len(got) == len(wanted), name
        for x, y in zip(got, wanted):
            if isinstance(y, (str, bool)):
                assert x == y, name
            else:
                assert x.dtype == np.asarray(y).dtype or name in ("eager", "again"), name  # by NumPy
                np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6, err_msg=name)


def _plain(x):
    return x if isinstance(x, (str, bool)) else np.asarray(x)


@pytest.mark.parametrize(
    ("program", "made", "shown"),
    [
        (TUTORIAL, "square_add(x, x)", "multiply_add a a a"),
        (SEVERAL, "turn(x, x, by=2.0)", "turn[by=2.0 kind=plane] a a"),
    ],
)
def test_equations_are_printed_as_there(program, made, shown):
    for library in ("jax", "meshwright"):
        source = program.partition("answers")[0] + f"shown = str(jax.make_jaxpr(lambda x: {made})(X[0]))"
        exec(re.sub(r"\bjax\b", library, IMPORTS + source), scope := {})
        assert shown in re.sub(r"\s+", " ", scope["shown"])


# --- on a mesh ----------------------------------------------------------------------------------------------
def scaled_dot(x, w, *, scale):
    return scale * (mnp.sin(x) @ w)


def scaled_dot_primitive():
    p = Primitive("scaled_dot")
    p.def_abstract_eval(lambda x, w, *, scale: ShapedArray((x.shape[0], w.shape[1]), x.dtype))
    mlir.register_lowering(p, mlir.lower_fun(scaled_dot, multiple_results=False))

    def jvp(primals, tangents, **params):
        return p.bind(*primals, **params), mw.jvp(lambda x, w: scaled_dot(x, w, **params), primals, made(tangents))[1]

    def made(tangents):
        return tuple(map(ad.instantiate_zeros, tangents))

    ad.primitive_jvps[p] = jvp
    return p


DOT = scaled_dot_primitive()
MESH = mw.make_mesh((4,), ("x",))


def on(*spec):
    return mw.NamedSharding(MESH, P(*spec))


def looped(f):
    return lambda x, w: lax.scan(lambda c, v: (c + f(v[None], w, scale=2.0).sum(), c), 0.0, x)[0]


@pytest.mark.parametrize(
    ("program", "specs"),
    [
        (lambda f: lambda x, w: f(x, w, scale=2.0), (("x",), ())),
        (lambda f: lambda x, w: f(x, w, scale=2.0), ((None, "x"), ("x",))),
        (lambda f: lambda x, w: f(x, w, scale=2.0), ((), (None,))),
        (lambda f: mw.grad(lambda x, w: f(x, w, scale=2.0).sum(), (0, 1)), (("x",), ())),
        (lambda f: mw.jit(lambda x, w: mw.checkpoint(lambda x: f(x, w, scale=3.0))(x)), (("x",), ())),
        (looped, ((), ())),
        (lambda f: lambda x, w: lax.cond(w[0, 0] > 0, lambda: f(x, w, scale=2.0), lambda: x @ w), (("x",), ())),
    ],
    ids=["rows", "columns", "whole", "grad", "calls", "scan", "cond"],
)
def test_a_primitive_is_partitioned_as_what_it_means(program, specs):
    def partitioned(f):
        lowered = mw.jit(program(f), in_shardings=tuple(on(*s) for s in specs)).lower(X, W)
        return lowered.partition()

    ours, plain = partitioned(DOT.bind), partitioned(scaled_dot)
    assert str(ours.jaxpr) == str(plain.jaxpr) and "scaled_dot" not in str(ours.jaxpr)
    assert [c.kind for c in ours.collectives] == [c.kind for c in plain.collectives]
    ours.verify(X, W)
    jitted = mw.jit(program(DOT.bind), in_shardings=tuple(on(*s) for s in specs))
    np.testing.assert_allclose(mw.tree.leaves(jitted(X, W))[0], mw.tree.leaves(program(scaled_dot)(X, W))[0], rtol=1e-5)


def test_a_rule_of_mlir_is_partitioned_too():
    p = mw.core.Primitive("squares")
    p.def_abstract_eval(lambda x: ShapedArray(x.shape[1:], x.dtype))

    def rule(ctx, x):
        return hlo.NegOp(*mlir.lower_fun(lambda x: (x * x).sum(0), multiple_results=False)(ctx, x))

    mlir.register_lowering(p, rule)
    part = mw.jit(p.bind, in_shardings=on("x")).lower(X).partition()
    assert [(c.kind, c.bytes_sent > 0) for c in part.collectives] == [("all_reduce", True)]
    part.verify(X)
    np.testing.assert_allclose(mw.jit(p.bind)(mw.device_put(X, on("x"))), -(X * X).sum(0), rtol=1e-6)


@pytest.mark.parametrize("jitted", [False, True])
def test_arrays_on_a_mesh_and_regions(jitted):
    run = mw.jit if jitted else lambda f: f
    want = scaled_dot(X, W, scale=2.0)
    f = lambda x, w: DOT.bind(x, w, scale=2.0)  # noqa: E731
    out = run(f)(mw.device_put(X, on("x")), mw.device_put(W, on()))
    np.testing.assert_allclose(out, want, rtol=1e-6)
    assert out.sharding.spec[0] == "x"
    region = mw.shard_map(f, mesh=MESH, in_specs=(P("x"), P()), out_specs=P("x"))
    np.testing.assert_allclose(run(region)(X, W), want, rtol=1e-6)
    by_w = mw.grad(lambda w: region(X, w).sum())
    np.testing.assert_allclose(run(by_w)(W), mw.grad(lambda w: scaled_dot(X, w, scale=2.0).sum())(W), rtol=1e-5)


def test_collectives_in_what_a_primitive_means():
    total = Primitive("total")
    total.def_abstract_eval(lambda x: x)
    mlir.register_lowering(total, mlir.lower_fun(lambda x: lax.psum(x, "x"), multiple_results=False))
    region = mw.shard_map(total.bind, mesh=MESH, in_specs=P("x"), out_specs=P("x"))
    want = np.tile(X.reshape(4, 2, 4).sum(0), (4, 1))
    np.testing.assert_allclose(mw.jit(region)(X), want, rtol=1e-6)
    np.testing.assert_allclose(region(X), want, rtol=1e-6)


def test_what_is_evaluated_outside_of_programs():
    p = Primitive("halved")
    p.def_abstract_eval(lambda x: ShapedArray(x.shape, x.dtype))
    mlir.register_lowering(p, mlir.lower_fun(lambda x: x / 2, multiple_results=False))
    assert p.bind(3.0).dtype == np.float32 and not p.bind(3.0).weak_type
    assert mw.jit(p.bind)(3.0) == xla.apply_primitive(p, 3.0) == 1.5
    called = []
    p.def_impl(lambda x: called.append(x) or mnp.asarray(x) / 2)
    assert p.bind(3.0) == 1.5 and called == [3.0] and mw.jit(p.bind)(3.0) == 1.5 and called == [3.0]
    np.testing.assert_allclose(mw.to_jax(p.bind)(jax.numpy.ones(3)), 0.5)


# --- what is refused ----------------------------------------------------------------------------------------
def bare(name="bare", **rules):
    p = Primitive(name)
    p.def_abstract_eval(rules.get("typed", lambda x: x))
    if "f" in rules:
        mlir.register_lowering(p, mlir.lower_fun(rules["f"], multiple_results=False))
    return p


def test_missing_rules_say_what_to_register(refuses):
    p, x = Primitive("bare"), mnp.ones(3)
    with refuses(NotImplementedError, "Abstract evaluation for 'bare'", "p.def_abstract_eval(rule)"):
        mw.jit(p.bind)(x)
    p.def_abstract_eval(lambda x: x)
    f = mw.jit(p.bind)
    for call in (f, p.bind):
        with refuses(
            NotImplementedError, "primitive 'bare' not found for platform cpu", "register_lowering", "def_impl"
        ):
            call(x)
    mlir.register_lowering(p, mlir.lower_fun(lambda x: 2 * x, multiple_results=False), platform="tpu")
    with refuses(NotImplementedError, "'bare' not found for platform cpu"):
        f(x)
    mlir.register_lowering(p, mlir.lower_fun(lambda x: 3 * x, multiple_results=False))
    assert f(x)[0] == 3
    with refuses(NotImplementedError, "Differentiation rule for 'bare'", "ad.primitive_jvps[p]"):
        mw.grad(lambda x: f(x).sum())(x)
    ad.primitive_jvps[p] = lambda primals, tangents: (p.bind(*primals), p.bind(*tangents))
    with refuses(NotImplementedError, "Transpose rule", "'bare'", "ad.primitive_transposes[p]"):
        mw.grad(lambda x: f(x).sum())(x)
    with refuses(NotImplementedError, "Batching rule for 'bare'", "batching.primitive_batchers[p]", "defvectorized"):
        mw.vmap(f)(x)


@pytest.mark.parametrize("missing", ["abstract", "lowering", "jvp", "transpose", "batching"])
def test_jax_raises_the_same_kind_of_error(missing):
    def program(lib):
        p = lib.Primitive("bare")
        if missing != "abstract":
            p.def_abstract_eval(lambda x: x)
        if missing != "lowering":
            lib.mlir.register_lowering(p, lib.mlir.lower_fun(lambda x: 2 * x, multiple_results=False))
        if missing != "jvp":
            lib.ad.primitive_jvps[p] = lambda primals, tangents: (p.bind(*primals), p.bind(*tangents))
        if missing == "batching":
            return lib.np.vmap(p.bind)
        return lib.np.jit(lib.np.grad(p.bind) if missing in ("jvp", "transpose") else p.bind)

    from jax.extend.core import Primitive as Theirs
    from jax.interpreters import ad as their_ad
    from jax.interpreters import mlir as their_mlir

    theirs = SimpleNamespace(Primitive=Theirs, ad=their_ad, mlir=their_mlir, np=jax)
    for lib in (SimpleNamespace(Primitive=Primitive, ad=ad, mlir=mlir, np=mw), theirs):
        x = lib.np.numpy.ones((2,) if missing == "batching" else ())
        with pytest.raises(NotImplementedError, match="bare"):
            program(lib)(x)


def test_rules_that_give_something_else_are_refused(refuses):
    x = mnp.ones((2, 3))
    with refuses(errors.RuleError, "bare: its lowering gives f32[3]", "says f32[2,3]"):
        mw.jit(bare(f=lambda x: x[0]).bind)(x)
    with refuses(errors.RuleError, "bare", "gives 3, expected a ShapedArray"):
        mw.jit(bare(typed=lambda x: 3).bind)(x)
    with refuses(TypeError, "bare: parameter axes is [0]", "not hashable"):
        mw.jit(lambda x: bare(typed=lambda x, axes: x).bind(x, axes=[0]))(x)
    p = bare(f=lambda x: x)
    ad.primitive_jvps[p] = lambda primals, tangents: (p.bind(*primals), tangents[0][0])
    with refuses(errors.RuleError, "bare: its jvp rule gives a tangent of type f32[3]", "f32[2,3]"):
        mw.jvp(p.bind, (x,), (x,))
    ad.deflinear(p, lambda ct: [ct, ct])
    with refuses(errors.RuleError, "bare: its transpose rule is to give 1 cotangent"):
        mw.grad(lambda x: p.bind(x).sum())(x)
    ad.deflinear(p, lambda ct: [ct[0]])
    with refuses(errors.RuleError, "bare: its transpose rule gives a cotangent of type f32[3]", "f32[2,3]"):
        mw.grad(lambda x: p.bind(x).sum())(x)
    batching.primitive_batchers[p] = lambda args, dims: (p.bind(*args), 1)
    with refuses(errors.RuleError, "bare: its batching rule gives a result f32[2,3]", "at 1", "size 2"):
        mw.vmap(p.bind)(x)
    p.multiple_results = True
    with refuses(errors.RuleError, "bare: its abstract evaluation rule is to give a list", "multiple_results"):
        mw.jit(p.bind)(x)
    with refuses(errors.RuleError, "effects of primitives", "io_callback"):
        p.def_effectful_abstract_eval(lambda x: (x, set()))


def test_lowering_rules_that_write_nothing_usable_are_refused(refuses):
    p, x = bare(), mnp.ones(3)
    for rule, words in (
        (lambda ctx, x: 3, ("bare: its lowering rule returns 3", "mlir.lower_fun")),
        (lambda ctx, x: [x, x], ("bare: what its lowering rule writes cannot be used", "func.return")),
    ):
        mlir.register_lowering(p, rule)
        with refuses(errors.RuleError, *words):
            mw.jit(p.bind)(x)
    with refuses(TypeError, "register_lowering: expected a primitive and a rule", "lower_fun"):
        mlir.register_lowering(p, 3)


def test_batching_of_operands_without_a_common_place_is_refused(refuses):
    p = Primitive("joined")
    p.def_abstract_eval(lambda x, y: x)
    batching.defbroadcasting(p)
    with refuses(errors.RuleError, "joined: operands of ranks 2, 1", "primitive_batchers"):
        mw.jit(mw.vmap(p.bind))(mnp.ones((2, 3, 4)), mnp.ones((2, 4)))


def test_functions_that_rules_of_mlir_call_are_kept_as_they_are():
    def calls(f):
        p = bare(typed=lambda x: ShapedArray(x.shape, x.dtype))
        mlir.register_lowering(p, lambda ctx, x: mlir.lower_fun(f, multiple_results=False)(ctx, x))
        return p.bind

    def drawn(x):
        return x + mw.random.normal(mw.random.key(3), x.shape)

    np.testing.assert_array_equal(mw.jit(calls(drawn))(X), mw.jit(drawn)(X))
    called = calls(lambda x: mw.pure_callback(lambda v: 2 * v, x, x))
    np.testing.assert_array_equal(mw.jit(called)(X), 2 * X)
    region = mw.shard_map(lambda x: lax.psum(x, "x"), mesh=MESH, in_specs=P("x"), out_specs=P())
    np.testing.assert_allclose(mw.jit(calls(lambda x: x + region(x)[0, 0]))(X), X + X[::2, 0].sum(), rtol=1e-6)
    inside = mw.shard_map(calls(lambda x: lax.psum(x, "x")), mesh=MESH, in_specs=P("x"), out_specs=P("x"))
    np.testing.assert_allclose(mw.jit(inside)(X), np.tile(X.reshape(4, 2, 4).sum(0), (4, 1)), rtol=1e-6)


def test_keys_effects_and_primitives_without_operands():
    drawn = bare(
        "drawn", typed=lambda key: ShapedArray((3,), np.dtype("float32")), f=lambda k: mw.random.normal(k, (3,))
    )
    key = mw.random.key(1)
    for f in (drawn.bind, mw.jit(drawn.bind)):
        np.testing.assert_array_equal(f(key), mw.random.normal(key, (3,)))
    told = []
    telling = bare("telling", f=lambda x: (mw.debug.callback(told.append, x), x + 1)[1])
    assert mw.jit(telling.bind)(1.0) == telling.bind(1.0) == 2
    mw.effects_barrier()
    assert told == [1.0, 1.0]
    filled = bare("filled", typed=lambda *, n: ShapedArray((n,), np.dtype("float32")), f=lambda *, n: mnp.ones(n))
    f = lambda x: (x * filled.bind(n=2)).sum()  # noqa: E731
    assert f(mnp.ones(2)) == 2 and mw.jit(mw.vmap(mw.grad(f)))(mnp.zeros((1, 2))).tolist() == [[1, 1]]


def test_values_over_explicit_axes_are_typed_by_what_the_primitive_means():
    mesh = mw.make_mesh((4,), ("x",), axis_types=(mw.sharding.AxisType.Explicit,))
    with mw.set_mesh(mesh):
        x = mw.device_put(X, mw.NamedSharding(mesh, P("x", None)))
        out = mw.jit(lambda x: DOT.bind(x, W, scale=2.0))(x)
        assert str(mw.typeof(out)) == str(mw.typeof(DOT.bind(x, W, scale=2.0))) == "f32[8@x,3]"
    np.testing.assert_allclose(out, scaled_dot(X, W, scale=2.0), rtol=1e-6)


def test_integers_have_no_tangents():
    counted = Primitive("counted")
    counted.multiple_results = True
    counted.def_abstract_eval(lambda x, n: [x, n])
    mlir.register_lowering(counted, mlir.lower_fun(lambda x, n: [x * n, n + 1]))
    zeros = []

    def jvp(primals, tangents):
        (x, n), (t, zero) = primals, tangents
        zeros.append(type(zero) is ad.Zero)
        out, m = counted.bind(x, n)
        return [out, m], [counted.bind(t, n)[0], ad.Zero(m.aval.to_tangent_aval())]

    ad.primitive_jvps[counted] = jvp
    ad.primitive_transposes[counted] = lambda cts, x, n: [counted.bind(cts[0], n)[0], None]
    f = lambda x, n: counted.bind(counted.bind(x, n)[0], n + 1)[0]  # noqa: E731
    for run in (f, mw.jit(f)):
        assert mw.grad(run)(3.0, 2) == 6 and mw.jvp(partial(run, n=2), (3.0,), (1.0,))[1] == 6
    assert zeros and all(zeros)


def test_a_derivative_that_the_rule_says_is_zero():
    p = bare("stopped", f=lambda x: 2 * x)
    ad.primitive_jvps[p] = lambda primals, tangents: (p.bind(*primals), ad.Zero(tangents[0].aval))
    np.testing.assert_array_equal(mw.jit(mw.grad(lambda x: (x * p.bind(x)).sum()))(mnp.ones(2)), [2, 2])
    ad.primitive_jvps[p] = lambda primals, tangents: (p.bind(*primals), p.bind(*tangents))
    ad.primitive_transposes[p] = lambda ct, x: [None]
    np.testing.assert_array_equal(mw.grad(lambda x: (x * p.bind(x)).sum())(mnp.ones(2)), [2, 2])


def test_zeros_are_made_arrays():
    """As rules do with tangents that they are given as :class:`Zero`."""
    zero = ad.Zero(mw.typeof(np.zeros((2, 3), "int8")))
    assert ad.instantiate_zeros(zero).dtype == "int8"
    np.testing.assert_array_equal(zero.instantiate(), np.zeros((2, 3), "int8"))
    assert mw.jit(lambda x: x + ad.Zero(mw.typeof(x)).instantiate())(np.ones(3, "float32")).tolist() == [1, 1, 1]
    assert ad.Zero(mw.typeof(mw.random.key(0))).instantiate().dtype == mw.dtypes.float0


# --- Python functions in rules ------------------------------------------------------------------------------
@pytest.mark.parametrize("effect", [False, True])
def test_rules_may_call_python(effect):
    called, p = [], Primitive(f"hosted_{effect}")
    p.multiple_results = True
    p.def_abstract_eval(lambda x, y: [x, y])

    def host(x, y):
        called.append((type(x), x.shape))
        return x + 1, y * 2

    def rule(ctx, *values):
        outs, token, keepalive = mlir.emit_python_callback(
            ctx, host, None, values, ctx.avals_in, ctx.avals_out, has_side_effect=effect, sharding=None
        )
        ctx.module_context.add_keepalive(keepalive)
        assert token is None
        return outs

    mlir.register_lowering(p, rule)
    f = mw.jit(lambda x, y: p.bind(x, y))
    a, b = f(mnp.arange(3.0), mnp.ones((2, 2), int))
    assert a.tolist() == [1, 2, 3] and b.tolist() == [[2, 2], [2, 2]] and called
    assert all(issubclass(kind, np.ndarray) for kind, _ in called)
