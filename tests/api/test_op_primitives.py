"""Ops as primitives: interpreters of jaxprs that are written for JAX, beside JAX."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright import lax
from meshwright.ir.op import REGISTRY
from meshwright.ops.op_primitives import JAX_NAMES

X = np.arange(1.0, 13.0, dtype=np.float32).reshape(3, 4)
MESH = mw.make_mesh((4,), ("x",))


def bound_again(jaxpr, *args):
    """The results of a closed jaxpr, each equation bound by its primitive and parameters."""
    env = dict(zip((*jaxpr.jaxpr.invars, *jaxpr.jaxpr.constvars), (*args, *jaxpr.consts)))

    def read(atom):
        return atom.val if isinstance(atom, mw.extend.core.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        out = eqn.primitive.bind(*map(read, eqn.invars), **eqn.primitive.get_bind_params(eqn.params))
        env.update(zip(eqn.outvars, out if eqn.primitive.multiple_results else [out]))
    return list(map(read, jaxpr.jaxpr.outvars))


def per_device(a):
    return lax.psum(a, "x"), lax.all_gather(a, "x"), lax.ppermute(a, "x", [(0, 1)]), lax.all_to_all(a, "x", 0, 0)


def everything(x):
    """Ops of many kinds, with calls, loops, branches, derivative rules and collectives."""
    mnp, spec = mw.numpy, mw.P("x")
    total, rows = lax.scan(lambda c, row: (c + row.sum(), row * 2), 0.0, x)
    region = mw.shard_map(per_device, mesh=MESH, in_specs=spec, out_specs=(mw.P(), spec, spec, spec))
    return (
        region(mnp.arange(16.0)), rows, lax.cond(total > 0, mnp.sin, mnp.cos, total), mnp.sort(x), mw.nn.softmax(x),
        lax.while_loop(lambda c: c < 900, lambda c: 2 * c, total), x.at[mnp.array([0, 2])].add(1.0), x[:, 1:3], x.T @ x,
        mnp.pad(x, 1), mw.checkpoint(mnp.exp)(x), lax.top_k(x, 2), mnp.fft.fft(x), mnp.round(x / 3), x[mnp.array([1])],
        mw.grad(lambda a: mw.nn.silu(a).sum())(x), lax.associative_scan(mnp.add, x), mw.random.normal(mw.random.key(0)),
        lax.conv(x[None, None], x[None, None, :2, :2], (1, 1), "SAME"), mnp.linalg.svd(x, full_matrices=False)[1],
    )  # fmt: skip


@pytest.mark.parametrize("around", [lambda f: f, mw.jit], ids=["eager", "jit"])
def test_equations_are_bound_again(around):
    x = mw.numpy.array(X)
    jaxpr = mw.make_jaxpr(everything)(x)
    got, want = around(partial(bound_again, jaxpr))(x), mw.tree.leaves(everything(x))
    assert len(got) == len(want)
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_primitives_of_equations_are_those_of_lax():
    def names(f):
        return [e.primitive for e in mw.make_jaxpr(f)(mw.numpy.array(X)).eqns]

    assert names(mw.numpy.exp) == [lax.exp_p] and lax.exp_p is mw.extend.core.primitives.exp_p
    assert names(lambda x: lax.cond(True, mw.numpy.sin, mw.numpy.cos, x))[-1] is lax.cond_p
    assert str(names(lambda x: x.at[mw.numpy.array([0])].add(1.0))[-1]) == "scatter-add"
    with pytest.raises(TypeError, match=r"sin_p.bind: expected parameters none, got axis"):
        lax.sin_p.bind(1.0, axis=0)


def test_every_op_is_a_primitive():
    """Names, and how many results: those of the op, whose parameters ``bind`` takes."""
    mw.ops.register_all()
    for name in REGISTRY:
        found = mw.extend.core.primitives
        theirs = JAX_NAMES.get(name, name)
        spelled = {"remat2": "remat", "custom_linear_solve": "linear_solve", "map": "map_op"}.get(theirs, theirs)
        assert getattr(found, spelled.replace("-", "_") + "_p").name == theirs


def binds(m, d):
    """Binds with JAX's parameters, in the library ``m`` with the dimension numbers ``d``."""
    p, ones = m.lax, m.numpy.ones
    to = {"new_dtype": np.dtype(np.int32), "weak_type": False, "sharding": None}
    dot = {"dimension_numbers": (((1,), (1,)), ((), ())), "precision": None, "preferred_element_type": None}
    conv = {"dimension_numbers": d.conv_dimension_numbers((1, 1, 3, 4), (1, 1, 2, 2), None)}
    conv |= {"feature_group_count": 1, "batch_group_count": 1, "precision": None, "preferred_element_type": None}
    conv |= {"window_strides": (1, 1), "padding": ((0, 0), (1, 0)), "lhs_dilation": (1, 1), "rhs_dilation": (1, 2)}
    return {
        "sin": lambda: p.sin_p.bind(0.5, accuracy=None), "add": lambda: p.add_p.bind(1.0, 2.0),
        "mul": lambda: p.mul_p.bind(X, X), "pow": lambda: p.integer_pow_p.bind(X, y=3),
        "sum": lambda: p.reduce_sum_p.bind(X, axes=(0,), out_sharding=None),
        "max": lambda: p.reduce_max_p.bind(X, axes=(1,), out_sharding=None),
        "argmax": lambda: p.argmax_p.bind(X, axes=(1,), index_dtype=np.dtype(np.int32)),
        "reshape": lambda: p.reshape_p.bind(X, new_sizes=(2, 6), dimensions=None, sharding=None),
        "broadcast": lambda: p.broadcast_in_dim_p.bind(X, shape=(2, 3, 4), broadcast_dimensions=(1, 2), sharding=None),
        "iota": lambda: p.iota_p.bind(dtype=np.dtype(np.int32), shape=(2, 3), dimension=1, sharding=None),
        "slice": lambda: p.slice_p.bind(X, start_indices=(1, 0), limit_indices=(3, 2), strides=None),
        "convert": lambda: p.convert_element_type_p.bind(X, **to),
        "transpose": lambda: p.transpose_p.bind(X, permutation=(1, 0)),
        "dot": lambda: p.dot_general_p.bind(X, X, **dot, out_sharding=None),
        "conv": lambda: p.conv_general_dilated_p.bind(X[None, None], ones((1, 1, 2, 2)), **conv, out_sharding=None),
        "round": lambda: p.round_p.bind(X / 2, rounding_method=d.RoundingMethod.TO_NEAREST_EVEN),
        "split": lambda: p.split_p.bind(X, sizes=(1, 2), axis=0), "tile": lambda: p.tile_p.bind(X, reps=(2, 1)),
        "top": lambda: p.top_k_p.bind(X, k=2, axis=0), "stack": lambda: p.stack_p.bind(X, X, axis=1),
        "cumsum": lambda: p.cumsum_p.bind(X, axis=1, reverse=True), "clamp": lambda: p.clamp_p.bind(2.0, X, 5.0),
        "select": lambda: p.select_n_p.bind(X > 3, X, -X),
        "sort": lambda: p.sort_p.bind(-X, dimension=1, is_stable=True, num_keys=1),
        "pad": lambda: p.pad_p.bind(X, np.float32(7), padding_config=((1, 0, 1), (0, -1, 0))),
        "total": lambda: p.lt_to_p.bind(np.float32(-0.0), np.float32(0.0)),
        "rev": lambda: p.rev_p.bind(X, dimensions=(1,)),
    }  # fmt: skip


@pytest.mark.parametrize("case", binds(mw, mw.lax))
def test_jaxs_parameters(case):
    got, want = binds(mw, mw.lax)[case](), binds(jax, jax.lax)[case]()
    for a, b in zip(mw.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype and a.aval.weak_type == b.aval.weak_type
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_scatters_take_what_their_function_does():
    """JAX's needs the jaxpr of the sum beside, without which it overwrites."""
    where = lax.ScatterDimensionNumbers((), (0,), (0,))
    flags = {"indices_are_sorted": False, "unique_indices": False, "mode": lax.GatherScatterMode.CLIP}
    given = np.ones(5, np.float32), np.array([[1], [9]]), np.ones(2, np.float32)
    got = lax.scatter_add_p.bind(*given, dimension_numbers=where, **flags, update_jaxpr=None, update_consts=())
    assert got.tolist() == [1, 2, 1, 1, 2]


def test_the_inverse_of_a_function_as_an_interpreter_of_its_jaxpr():
    """JAX's tutorial on interpreters: equations are applied backwards, from the values of ``literals``."""

    def inverse(m, f):
        known = {m.lax.exp_p: m.numpy.log, m.lax.tanh_p: m.numpy.arctanh}

        def inverted(*args):
            closed = m.make_jaxpr(f)(*args)
            env = dict(zip(closed.jaxpr.constvars, closed.literals)) | dict(zip(closed.jaxpr.outvars, args))
            for eqn in closed.eqns[::-1]:
                env[eqn.invars[0]] = known[eqn.primitive](env[eqn.outvars[0]])
            return env[closed.jaxpr.invars[0]]

        return inverted

    f = lambda m: lambda x: m.numpy.exp(m.numpy.tanh(x))  # noqa: E731
    for at in (1.2, 2.5):
        got, want = (m.vmap(m.grad(inverse(m, f(m))))(m.numpy.array([at, 0.9])) for m in (mw, jax))
        np.testing.assert_allclose(got, want, rtol=1e-5)
