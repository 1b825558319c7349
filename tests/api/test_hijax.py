"""``VJPHiPrimitive``: functions whose derivatives are methods of a class."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.errors import ArgumentError, ArgumentTypeError, DifferentiationError, MissingRuleError, ShapeError
from meshwright.experimental.hijax import VJPHiPrimitive

X, Y = np.linspace(0.5, 2, 6, dtype=np.float32).reshape(2, 3), np.float32(-3)


class Reverse(VJPHiPrimitive):
    """``{"s": sin(x) y, "n": n + 1}``, whose derivative by y is told to be 10 times what it is."""

    def __init__(self, x, y, n):
        self.in_avals, self.out_aval, self.params = ({"x": x}, y, n), {"s": x, "n": n}, {"factor": 10}
        super().__init__()

    def expand(self, d, y, n):
        return {"s": mnp.sin(d["x"]) * y, "n": n + 1}

    def vjp_fwd(self, nzs_in, d, y, n):
        assert nzs_in[2] is False
        return self(d, y, n), (d["x"], y)

    def vjp_bwd_retval(self, res, g):
        x, y = res
        return {"x": mnp.cos(x) * y * g["s"]}, self.factor * mnp.sum(mnp.sin(x) * g["s"]), None


class Accumulating(Reverse):
    vjp_bwd_retval = VJPHiPrimitive.vjp_bwd_retval

    def vjp_bwd(self, res, g, in_d, in_y, in_n):
        x, y = res
        for _ in range(2):
            in_d["x"].accum(mnp.cos(x) * y * g["s"] / 2)
        in_y.accum(self.factor * mnp.sum(mnp.sin(x) * g["s"]))


class Both(Reverse):
    def jvp(self, primals, tangents):
        (d, y, n), (dd, dy, dn) = primals, tangents
        out = self(d, y, n)
        if isinstance(dd["x"], mw.SymbolicZero):
            return out, {"s": 100 * mnp.sin(d["x"]) * dy, "n": dn}
        tangent = mnp.cos(d["x"]) * y * dd["x"]
        return out, {"s": tangent if isinstance(dy, mw.SymbolicZero) else tangent + 100 * mnp.sin(d["x"]) * dy, "n": dn}


def apply(cls):
    return lambda x, y, n=2: cls(*map(mw.typeof, (x, y, n)))({"x": x}, y, n)["s"]


def close(got, want):
    for a, b in zip(mw.tree.leaves(got), mw.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, mw.jit, mw.checkpoint], ids=["eager", "jit", "checkpoint"])
@pytest.mark.parametrize("cls", [Reverse, Accumulating, Both])
def test_reverse_mode(cls, wrap):
    f = wrap(apply(cls))
    close(f(X, Y), np.sin(X) * Y)
    close(mw.grad(lambda x, y: mnp.sum(f(x, y)), (0, 1))(X, Y), (np.cos(X) * Y, 10 * np.sin(X).sum()))
    second = mw.grad(lambda x: mnp.sum(mw.grad(lambda x: mnp.sum(f(x, Y)))(x) ** 2))(X)
    close(second, -2 * np.cos(X) * np.sin(X) * Y**2)
    each = mw.vmap(mw.grad(lambda x, y: mnp.sum(f(x, y)), (0, 1)), (0, None))(X, Y)
    close(each, (np.cos(X) * Y, 10 * np.sin(X).sum(1)))


@pytest.mark.parametrize("wrap", [lambda f: f, mw.jit], ids=["eager", "jit"])
def test_forward_mode(wrap):
    f = wrap(apply(Both))
    out, tangent = mw.jvp(f, (X, Y), (X + 1, np.float32(2)))
    close((out, tangent), (np.sin(X) * Y, np.cos(X) * Y * (X + 1) + 200 * np.sin(X)))
    close(mw.jvp(lambda y: f(X, y), (Y,), (np.float32(1),))[1], 100 * np.sin(X))
    close(mw.vmap(mw.jacfwd(f), (0, None))(X, Y)[0], np.diag(np.cos(X[0]) * Y))
    close(mw.hessian(lambda x: mnp.sum(f(x, Y)))(X[0]), np.diag(-np.sin(X[0]) * Y))
    with pytest.raises(DifferentiationError, match=r"Reverse.*reverse mode only"):
        mw.jvp(wrap(apply(Reverse)), (X, Y), (X, Y))


def test_it_is_partitioned_and_verified():
    mesh = mw.AbstractMesh((2,), ("x",))
    rows = mw.NamedSharding(mesh, mw.P("x"))
    step = mw.grad(lambda x, y: mnp.sum(apply(Both)(x, y)), (0, 1))
    part = mw.jit(step, in_shardings=(rows, None)).lower(X, Y).partition(mesh)
    part.verify(X, Y)
    assert [p.kind for p in part.collectives] == ["all_reduce"]


class Linearized(VJPHiPrimitive):
    """The square, by ``lin`` and ``linearized`` alone."""

    def __init__(self, x):
        self.in_avals, self.out_aval, self.params = (x,), x, {}
        super().__init__()

    def expand(self, x):
        return x * x

    def lin(self, nzs_in, x):
        assert nzs_in == (True,)
        return self(x), 2 * x

    def linearized(self, residuals, t):
        return residuals * t


def test_lin_and_linearized_give_both_modes():
    f = lambda x: Linearized(mw.typeof(x))(x)  # noqa: E731
    close(mw.jvp(f, (X,), (X,)), (X**2, 2 * X**2))
    close(mw.grad(lambda x: mnp.sum(mw.jit(f)(x)))(X), 2 * X)


class Mapped(Linearized):
    """With a rule of its own for ``vmap``: cubes."""

    def batch(self, axis_data, args, dims):
        assert axis_data.size == 3 and dims == (0,)
        return mnp.moveaxis(args[0] ** 3, 0, -1), mnp.ndim(args[0]) - 1


def test_a_rule_for_vmap():
    f = lambda x: Mapped(mw.typeof(x))(x)  # noqa: E731
    close(mw.vmap(f, in_axes=1, out_axes=1)(X), X**3)
    close(mw.jit(mw.vmap(f))(X.T), X.T**3)
    close(f(X), X**2)


class FixedPoint(VJPHiPrimitive):
    """A loop, which cannot be differentiated in reverse mode, with the derivative of what it computes."""

    def __init__(self, a, x, *, f):
        self.in_avals, self.out_aval, self.params = (a, x), x, {"f": f}
        super().__init__()

    def expand(self, a, x):
        def going(s):
            return mnp.abs(s[0] - s[1]) > 1e-6

        return lax.while_loop(going, lambda s: (s[1], self.f(a, s[1])), (x, self.f(a, x)))[1]

    def vjp_fwd(self, nzs_in, a, x):
        found = self(a, x)
        return found, (a, found)

    def vjp_bwd_retval(self, res, g):
        a, found = res

        def terms(args, u):
            a, x, g = args
            return g + mw.vjp(lambda x: self.f(a, x), x)[1](u)[0]

        total = fixed_point(terms, (a, found, g), g)
        return mw.vjp(lambda a: self.f(a, found), a)[1](total)[0], None


def fixed_point(f, a, x):
    return FixedPoint(mw.tree.map(mw.typeof, a), mw.typeof(x), f=f)(a, x)


def test_an_implicit_function_has_second_derivatives():
    def root(a):
        return fixed_point(lambda a, x: (x + a / x) / 2, a, a)

    close([root(2.0), mw.grad(root)(2.0)], [2**0.5, 2**-1.5])
    close(mw.grad(mw.grad(root))(2.0), -(2**-3.5))
    close(mw.jit(mw.vmap(mw.grad(root)))(mnp.array([2.0, 8.0])), np.array([2**-1.5, 8**-0.5 / 2]))


def test_instances_of_the_same_parameters_are_equal():
    a, b = Linearized(mw.typeof(X)), Linearized(mw.typeof(X))
    assert a == b and hash(a) == hash(b) and a != Mapped(mw.typeof(X))
    assert repr(Reverse(*map(mw.typeof, (X, Y, 2)))) == "Reverse[{'factor': 10}]"


def test_what_is_wrong_is_refused():
    class Unset(VJPHiPrimitive):
        pass

    class Transposed(Linearized):
        def transpose(self, ct, *accums):
            return ct

    class Narrow(Linearized):
        def expand(self, x):
            return x[:1]

    class Empty(Linearized):
        expand = VJPHiPrimitive.expand

    class Plain(Linearized):
        lin = VJPHiPrimitive.lin

    class WrongSlope(Reverse):
        def vjp_bwd_retval(self, res, g):
            return {"x": g["s"][0]}, None, None

    aval = mw.typeof(X)
    with pytest.raises(ArgumentError, match=r"Unset.__init__ must set self.in_avals"):
        Unset()
    with pytest.raises(ArgumentError, match=r"a method transpose.*vjp_bwd_retval"):
        Transposed(aval)
    with pytest.raises(ArgumentTypeError, match="types are those of arrays"):
        Linearized(3)
    with pytest.raises(ShapeError, match=r"argument\[0\] has type f32\[3\].*f32\[2,3\]"):
        Linearized(aval)(X[0])
    with pytest.raises(ArgumentTypeError, match="expected arguments of the structure"):
        Linearized(aval)(X, X)
    with pytest.raises(ShapeError, match=r"output of expand has type f32\[1,3\]"):
        Narrow(aval)(X)
    with pytest.raises(MissingRuleError, match=r"define Empty.expand"):
        Empty(aval)(X)
    with pytest.raises(MissingRuleError, match=r"define Plain.jvp, which forward mode needs"):
        mw.jvp(Plain(aval), (X,), (X,))
    with pytest.raises(ShapeError, match=r"cotangent of argument\[0\]\['x'\] has type f32\[3\]"):
        mw.grad(lambda x: mnp.sum(apply(WrongSlope)(x, Y)))(X)
