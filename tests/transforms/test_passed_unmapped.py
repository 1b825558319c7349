"""What ``vmap`` passes unmapped need not be an array; symbolic zeros of integers and bools are ``float0``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.errors import ArgumentTypeError, DifferentiationError


@pytest.mark.parametrize("more", [mnp.mean, "mean", object(), len], ids=["function", "text", "object", "built-in"])
def test_vmap_passes_unmapped_objects_as_they_are(more):
    seen = []

    def f(x, options, y):
        seen.append(options)
        return x + y

    got = mw.vmap(f, in_axes=(0, None, None))(mnp.arange(3.0), {"more": more, "n": 2}, 1.5)
    assert seen == [{"more": more, "n": 2}] and got.tolist() == [1.5, 2.5, 3.5]
    inner = mw.vmap(mw.vmap(f, in_axes=(0, None, None)), in_axes=(0, None, None))(mnp.ones((2, 3)), more, 1)
    assert seen[-1] is more and inner.shape == (2, 3)


def test_mapped_objects_are_refused_by_name(refuses):
    with refuses(ArgumentTypeError, "argument options", "function"):
        mw.vmap(lambda x, options: x, in_axes=(0, 0))(mnp.arange(3.0), mnp.mean)


#: what a rule returns for the tangent of a bool: of a library, the tangent given and the type of the value
TANGENTS = {
    "given": lambda m, t, aval: t,
    "of the tangents' type": lambda m, t, aval: m.custom_derivatives.SymbolicZero(aval.to_tangent_aval()),
    "made": lambda m, t, aval: m.custom_derivatives.SymbolicZero(m.core.ShapedArray((), m.dtypes.float0)),
    "array": lambda m, t, aval: np.zeros((), m.dtypes.float0),
}


@pytest.mark.parametrize("name", TANGENTS)
def test_symbolic_zeros_of_bools(name):
    def answers(m, n):
        seen = []

        @m.custom_jvp
        def f(x, b):
            return n.sin(x), b

        def rule(primals, tangents):
            x, b = primals
            zero = tangents[1]
            seen.append((zero.aval.shape, np.dtype(zero.aval.dtype), np.dtype(zero.dtype)))
            return f(x, b), (3 * tangents[0], TANGENTS[name](m, zero, m.typeof(b)))

        f.defjvp(rule, symbolic_zeros=True)
        g = m.grad(lambda x: f(x, x > 2)[0])
        scanned = m.grad(lambda x: m.lax.scan(lambda c, _: (f(*c), None), (x, x > 2), None, 3)[0][0])
        return [h(n.float32(0.5)) for h in (g, m.jit(g), scanned, lambda x: m.vmap(g)(x[None]))], seen

    (got, ours), (want, theirs) = answers(mw, mnp), answers(jax, jnp)
    for x, y in zip(got, want):
        np.testing.assert_allclose(x, y, rtol=1e-6)
    assert set(ours) == set(theirs) == {((), np.dtype(mw.dtypes.float0), np.dtype(mw.dtypes.float0))}


def test_other_tangents_of_bools_are_refused(refuses):
    @mw.custom_jvp
    def f(x, b):
        return mnp.sin(x), b

    f.defjvp(lambda primals, tangents: (f(*primals), (tangents[0], mnp.float32(0))))
    with refuses(DifferentiationError, "float0"):
        mw.grad(lambda x: f(x, x > 2)[0])(0.5)


#: what a backward rule returns for an argument of ``{"a": x, "n": None, "m": ()}`` whose cotangent is ``g``
COTANGENTS = {
    "as it is": lambda g: {"a": g, "n": None, "m": ()},
    "something for nothing": lambda g: {"a": g, "n": object(), "m": 3},
    "arrays for nothing": lambda g: {"a": g, "n": g, "m": g},
    "None for nothing": lambda g: {"a": g, "n": None, "m": None},
    "one for all": lambda g: g,
    "None": lambda g: None,
}


@pytest.mark.parametrize("name", COTANGENTS)
def test_cotangents_are_a_prefix_of_the_argument(name):
    def answers(m, n):
        f = m.custom_vjp(lambda p: n.sin(p["a"]))
        f.defvjp(lambda p: (f(p), None), lambda _, g: (COTANGENTS[name](3 * g),))
        return m.grad(lambda x: f({"a": x, "n": None, "m": ()}))(0.5)

    np.testing.assert_allclose(answers(mw, mnp), answers(jax, jnp))


def test_other_structures_of_cotangents_are_refused(refuses):
    f = mw.custom_vjp(lambda p: mnp.sin(p["a"]))
    f.defvjp(lambda p: (f(p), None), lambda _, g: ({"b": g},))
    with refuses(DifferentiationError, "argument p", "structure"):
        mw.grad(lambda x: f({"a": x}))(0.5)


@pytest.mark.parametrize("closed", [False, True])
def test_integers_are_never_perturbed(closed):
    def answers(m, n):
        seen = []

        def use(x, i, by):
            f = m.custom_vjp(lambda x, i: x * i * by if closed else x * i)

            def fwd(x, i):
                seen.append((x.perturbed, i.perturbed))
                values = m.custom_derivatives.custom_vjp_primal_tree_values((x, {"i": i}))
                return f(values[0], values[1]["i"]), values[1]["i"]

            f.defvjp(fwd, lambda i, g: (g * i, None), symbolic_zeros=True)
            return f(x, i)

        return m.grad(m.jit(lambda x, y: use(x, n.arange(3)[2], y)))(1.5, 2.0), seen

    got, seen = answers(mw, mnp)
    assert float(got) == 2.0 and set(seen) == {(True, False)}
    if not closed:  # JAX has no values of what functions close over
        want, theirs = answers(jax, jnp)
        assert float(want) == 2.0 and set(theirs) == set(seen)


def test_zeros_of_values():
    def answers(m, n):
        tree = {"x": n.ones((2, 3), "bfloat16"), "i": n.arange(2), "b": True, "f": 1.5, "n": np.ones(2, np.float32)}
        zero = m.custom_derivatives.zero_from_primal
        return zero(tree), zero(tree, symbolic_zeros=True)

    (got, ours), (want, theirs) = answers(mw, mnp), answers(jax, jnp)
    for name, z in want.items():
        assert np.shape(got[name]) == np.shape(z) and np.asarray(got[name]).dtype == np.asarray(z).dtype, name
        assert ours[name].aval.shape == theirs[name].aval.shape and ours[name].aval.dtype == theirs[name].aval.dtype
        assert type(ours[name]) is mw.custom_derivatives.SymbolicZero


def test_values_that_are_no_primals_are_refused(refuses):
    with refuses(ArgumentTypeError, "tree['a']", "symbolic_zeros"):
        mw.custom_derivatives.custom_vjp_primal_tree_values({"a": 1.0})


@pytest.mark.parametrize("closed", [False, True])
def test_rules_that_nothing_asks_for_do_not_run(closed):
    """Rules may fail for some operands; where functions close over traced values, they are traced early."""
    ran = []

    def power(x, y, one):
        f = mw.custom_jvp(lambda x, y: mnp.where(y == 0, one, x**y))

        def rule(primals, tangents):
            ran.append(1)
            return f(*primals), primals[0] * tangents[0] + tangents[1] * 2.0  # not for float0

        f.defjvp(rule)
        return f(x, y)

    def summed(x, one):
        ones = one if closed else mnp.ones(())
        return lax.fori_loop(0, 3, lambda i, total: total + power(x, i, ones), mnp.zeros_like(x))

    for run in (summed, mw.jit(summed), mw.vmap(summed, in_axes=(0, None))):
        np.testing.assert_array_equal(run(mnp.full(3, 2.0), mnp.ones(())), [7.0, 7.0, 7.0])
    assert closed or not ran
    with pytest.raises(TypeError, match="float0"):
        mw.jvp(lambda x: summed(x, mnp.ones(())), (2.0,), (1.0,))


@pytest.mark.parametrize(
    "use",
    [lambda z: mnp.ones(3) * z, lambda z: z + mnp.ones(3), lambda z: mnp.where(True, z, 1.0), lambda z: mnp.sum(z),
     lambda z: mnp.ones(3) == z, lambda z: mnp.ones((3, 3)) @ z, lambda z: mnp.maximum(mnp.ones(3), z),
     lambda z: mnp.stack([z, z]), lambda z: lax.mul(mnp.ones(3), z), lambda z: mnp.asarray(z)],
)  # fmt: skip
def test_float0_has_no_values_to_compute_with(use, refuses):
    with refuses(TypeError, "float0", "no values"):
        use(np.zeros(3, mw.dtypes.float0))
