"""jacfwd, jacrev, hessian, closure_convert, named_call and xla_computation, against jax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import ArgumentError, ArgumentTypeError, DifferentiationError

RNG = np.random.default_rng(2)
A = RNG.normal(size=(2, 3)).astype(np.float32)
B = RNG.normal(size=4).astype(np.float32)


def both(f):
    return f(mw, mnp), f(jax, jnp)


def close(got, want):
    assert str(mw.tree.paths(got)) == str(mw.tree.paths(want))
    for a, b in zip(mw.tree.leaves(got), jax.tree.leaves(want)):
        assert np.shape(a) == np.shape(b)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=1e-5)


def fun(n):
    return lambda t, b: {"u": n.sin(t["a"]) * b[:3] + t["s"], "v": (t["a"] ** 2).sum() * b, "w": t["s"] ** 3}


TREE = {"a": A, "s": np.float32(0.7)}


@pytest.mark.parametrize("which", ["jacfwd", "jacrev"])
@pytest.mark.parametrize("argnums", [0, 1, -1, (0,), (1, 0)])
def test_jacobians(which, argnums):
    close(*both(lambda m, n: getattr(m, which)(fun(n), argnums)(TREE, B)))
    close(*both(lambda m, n: m.jit(getattr(m, which)(fun(n), argnums))(TREE, B)))


@pytest.mark.parametrize("which", ["jacfwd", "jacrev"])
def test_aux_batching_and_complex(which):
    close(*both(lambda m, n: getattr(m, which)(lambda x: (x * x, {"y": n.cos(x)}), has_aux=True)(B)))
    close(*both(lambda m, n: m.vmap(getattr(m, which)(lambda x: n.sin(x) * x[0]))(A)))
    z = (A + 1j * A[::-1]).astype(np.complex64)
    close(*both(lambda m, n: getattr(m, which)(lambda x: x * x[0, 0], holomorphic=True)(z)))


def test_hessian():
    close(*both(lambda m, n: m.hessian(lambda t: (n.sin(t["a"]) * t["s"] ** 2).sum())(TREE)))
    close(*both(lambda m, n: m.jit(m.hessian(lambda a, b: (n.exp(a[0]) @ b[:3]) * b[3], (0, 1)))(A, B)))


def test_errors():
    with pytest.raises(DifferentiationError, match=r"jacfwd needs real .* got int32 \(input\['n'\]\)"):
        mw.jacfwd(lambda t: t)({"n": np.int32(1)})
    with pytest.raises(DifferentiationError, match="jacrev needs real floating-point outputs"):
        mw.jacrev(lambda x: x.astype(int))(B)
    with pytest.raises(DifferentiationError, match="holomorphic"):
        mw.jacrev(lambda x: x)(B.astype(np.complex64))
    with pytest.raises(ArgumentError, match=r"names argument 2, but .* called with 1 positional argument; expected"):
        mw.jacfwd(lambda x: x, 2)(B)
    with pytest.raises(ArgumentTypeError, match=r"write jit\(jacrev\(<lambda>\)\)"):
        mw.jacrev(lambda x: x).lower(B)


def test_closure_convert():
    def outer(s, x):
        converted, consts = mw.closure_convert(lambda y: mnp.sin(y * s) + B, x)
        assert len(consts) == 1 and consts[0] is s
        assert np.allclose(converted(x * 2, *consts).aval.shape, (4,))
        with pytest.raises(ArgumentTypeError, match=r"closure_convert of .*: arguments have structure"):
            converted((x, x), *consts)
        return converted(x, s * 3).sum()

    want = jax.grad(lambda s: (jnp.sin(B * s * 3) + B).sum())(0.5)
    close(mw.grad(outer)(0.5, B), want)


def test_named_call():
    f = mw.named_call(lambda x: mnp.sin(x), name="attention")
    text = mw.jit(lambda x: f(x) + 1).lower(B).as_text(debug_info=True)
    assert "attention" in text
    close(f(B), np.sin(B))


def test_xla_computation():
    computation = mw.xla_computation(lambda x, n: mnp.sin(x) * n, static_argnums=1)(B, 3)
    text = computation.as_hlo_text()
    assert "f32[4]" in text and "sine(" in text and "digraph" in computation.as_hlo_dot_graph()
    assert len(computation.as_serialized_hlo_module_proto()) > 100
    _, shape = mw.xla_computation(lambda x: {"y": x[:2]}, return_shape=True)(B)
    assert shape["y"].shape == (2,)


def test_linearize_refuses_tangents_of_another_shape(refuses):
    _, f_jvp = mw.linearize(lambda x: x**2, 3.0)
    with refuses(mw.errors.DifferentiationError, "linearize", "f32[2]"):
        f_jvp(np.ones(2, np.float32))
