"""Functions are objects of any kind: their names may be missing, or no text."""

import pytest

import meshwright as mw
import meshwright.numpy as mnp

X = mnp.ones(3)
#: what is done to a function of a vector
USES = {
    "vmap": lambda f: mw.vmap(f)(mnp.ones((2, 3))),
    "jit": lambda f: mw.jit(f)(X),
    "lower": lambda f: mw.jit(f).lower(X).compile()(X),
    "grad": lambda f: mw.grad(f)(X),
    "value_and_grad": lambda f: mw.value_and_grad(f)(X),
    "jvp": lambda f: mw.jvp(f, (X,), (X,)),
    "vjp": lambda f: mw.vjp(f, X),
    "linearize": lambda f: mw.linearize(f, X),
    "hessian": lambda f: mw.hessian(f)(X),
    "jacrev": lambda f: mw.jacrev(f)(X),
    "checkpoint": lambda f: mw.grad(mw.checkpoint(f))(X),
    "make_jaxpr": lambda f: mw.make_jaxpr(f)(X),
    "eval_shape": lambda f: mw.eval_shape(f, X),
    "custom_jvp": lambda f: mw.custom_jvp(f).defjvp(lambda p, t: (f(*p), f(*t))),
    "custom_vjp": lambda f: mw.custom_vjp(f).defvjp(lambda x: (f(x), x), lambda x, ct: (ct * x,)),
    "custom_vmap": lambda f: mw.custom_batching.custom_vmap(f).def_vmap(lambda n, b, x: (f(x), False)),
    "scan": lambda f: mw.lax.scan(lambda c, x: (c, f(x)), 0, X),
    "map": lambda f: mw.lax.map(f, X),
    "cond": lambda f: mw.lax.cond(True, f, f, X),
    "vectorize": lambda f: mnp.vectorize(f)(X),
    "closure_convert": lambda f: mw.closure_convert(f, X)[0](X),
    "checkify": lambda f: mw.experimental.checkify.checkify(f)(X),
    "pmap": lambda f: mw.pmap(f)(X[None]),
    "shard_map": lambda f: mw.shard_map(f, mesh=mw.make_mesh((1,), ("a",)), in_specs=mw.P(), out_specs=mw.P())(X),
    "named_call": lambda f: mw.named_call(f, name="f")(X),
}


class Numbered:
    __name__ = 3

    def __call__(self, x):
        return mnp.sin(x).sum()


class Nameless(Numbered):
    __name__ = None
    __doc__ = 3
    __annotations__ = None


class Dynamic:
    def __getattr__(self, name):
        if name in ("__name__", "__qualname__", "__doc__"):
            return X
        raise AttributeError(name)

    def __call__(self, x):
        return mnp.sin(x).sum()


@pytest.mark.parametrize("kind", [Numbered, Nameless, Dynamic])
@pytest.mark.parametrize("use", USES)
def test_names_need_not_be_text(use, kind):
    USES[use](kind())
