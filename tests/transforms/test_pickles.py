"""What transformations return pickles and deep-copies: wrapped functions, linear functions of vjp and linearize."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp

X = np.array([0.5, -1.5, 2.0], np.float32)


def f(x, scale=2.0):
    """A sum."""
    return mnp.sum(mnp.sin(x) * x * scale)


def g(x, n=2):
    return mnp.tanh(x) * x**n, mnp.argmax(x), {"twice": 2 * x}


@mw.value_and_grad
def decorated(x):
    return mnp.sum(x * x)


class Model:
    weight = 3.0

    @mw.grad
    def slope(self):
        """Bound to its object as a function is."""

    def loss(self, x):
        return self.weight * mnp.sum(x * x)


WRAPPED = {
    "grad": mw.grad(f), "value_and_grad": mw.value_and_grad(f, argnums=(0, 1)), "jacfwd": mw.jacfwd(f),
    "jacrev": mw.jacrev(f), "hessian": mw.hessian(f), "vmap": mw.vmap(f, in_axes=(0, None)),
    "checkpoint": mw.checkpoint(f, policy=mw.checkpoint_policies.everything_saveable, static_argnums=1),
    "jit of grad of vmap": mw.jit(mw.grad(mw.checkpoint(f))), "decorated": decorated,
    "grad of a method": mw.grad(Model().loss),
}  # fmt: skip


def leaves(tree):
    return [np.asarray(x).tolist() for x in mw.tree.leaves(tree)]


@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_functions(name):
    made = WRAPPED[name]
    args = (X,) if name in ("decorated", "grad of a method", "jit of grad of vmap") else (X, 3.0)
    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), copy.copy(made)):
        assert leaves(again(*args)) == leaves(made(*args))
    assert copy.deepcopy(made) is made and (name != "decorated" or pickle.loads(pickle.dumps(made)) is made)


def test_a_wrapped_function_looks_like_the_function():
    made = mw.grad(f)
    assert made.__name__ == "f" and made.__doc__ == "A sum." and made.__wrapped__ is f
    assert inspect.signature(made) == inspect.signature(f) and repr(made) == "<grad of f>"
    assert isinstance(inspect.getattr_static(Model, "slope"), type(made)) and inspect.ismethod(Model().slope)


@pytest.mark.parametrize("function", [f, g], ids=["scalar", "tree"])
def test_linear_functions(function):
    out, pull = mw.vjp(function, X)
    _, push = mw.linearize(function, X)
    ct = mw.tree.map(
        lambda y: np.asarray(y) * 0.5 if y.dtype == np.float32 else np.zeros(y.shape, mw.dtypes.float0), out
    )
    for copied in (lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy):
        assert leaves(copied(pull)(ct)) == leaves(pull(ct))
        assert leaves(copied(push)(X)) == leaves(push(X))
    assert mw.tree.structure(push(X)) == mw.tree.structure(pickle.loads(pickle.dumps(push))(X))
    with pytest.raises(
        mw.errors.DifferentiationError, match=rf"linearize of {function.__name__} \(test_pickles.py:\d+\)"
    ):
        pickle.loads(pickle.dumps(push))(np.ones(4, np.float32))


#: modules all of whose functions pickle
MODULES = (
    "numpy numpy.linalg numpy.fft lax lax.linalg nn nn.initializers random optim scipy.special scipy.linalg "
    "scipy.stats scipy.signal tree"
).split()


@pytest.mark.parametrize("module", MODULES)
def test_functions_of_the_libraries(module):
    public = {n: f for n, f in vars(importlib.import_module(f"meshwright.{module}")).items() if n[0] != "_"}
    functions = {n: f for n, f in public.items() if callable(f) and not isinstance(f, type)}
    for name, f in functions.items():
        for again in (pickle.loads(pickle.dumps(f)), copy.deepcopy(f)):
            assert again is f or again == f or repr(again) == repr(f), name
    assert functions


def test_programs():
    """At every stage; what is called gives what it gave."""
    step = mw.jit(doubled)
    part = step.lower(X).partition(mw.make_mesh((2,), ("x",)))
    kept = [
        step, step.lower(X).compile(), part, mw.load(step.lower(X).as_text()), mw.make_jaxpr(doubled)(X),
        mw.export.export(step)(X), mw.ShapeDtypeStruct((2,), np.float32), mw.tree.structure({"a": 1}), mw.random.key(0),
        mw.NamedSharding(mw.make_mesh((2,), ("x",)), mw.P("x")), mw.devices()[0], mw.errors.ShapeError("said"),
    ]  # fmt: skip
    for i, value in enumerate(kept):
        for again in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
            assert type(again) is type(value)
            if i < 4:
                np.testing.assert_array_equal(again(X), 2 * X)


def doubled(x):
    return 2 * x
