"""Options that name arguments by number: a number that no argument has is refused, in one way."""

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import ArgumentError, ArgumentTypeError

X = mnp.ones((1, 2))


def _f(x, y, z):
    return (x * y * z).sum()


def _custom(kind, numbers):
    function = kind(_f, nondiff_argnums=numbers)
    if kind is mw.custom_vjp:
        function.defvjp(lambda x, y, z: (_f(x, y, z), None), lambda *_: ())
    else:
        function.defjvp(lambda *_: (1.0, 1.0))
    return function(X, X, X)


CALLS = {
    "pmap static": lambda i: mw.pmap(_f, static_broadcasted_argnums=i)(X, 1, 2),
    "make_jaxpr": lambda i: mw.make_jaxpr(_f, static_argnums=i)(X, 1, 2),
    "jit": lambda i: mw.jit(_f, static_argnums=i)(X, 1, 2),
    "jit of any number": lambda i: mw.jit(lambda *a: _f(*a), static_argnums=i)(X, 1, 2),
    "grad": lambda i: mw.grad(_f, argnums=i)(X, X, X),
    "jacobian": lambda i: mw.jacrev(_f, argnums=i)(X, X, X),
    "checkpoint": lambda i: mw.checkpoint(_f, static_argnums=i)(X, 1.0, 2.0),
    "custom_vjp": lambda i: _custom(mw.custom_vjp, i),
    "custom_jvp": lambda i: _custom(mw.custom_jvp, i),
    "jit donates": lambda i: mw.jit(lambda *a: _f(*a), donate_argnums=i)(X + 0, X + 0, X + 0),
    "pmap donates": lambda i: mw.pmap(_f, donate_argnums=i)(X + 0, X + 0, X + 0),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("numbers", [-5, (0, -4)])
def test_one_before_the_first_is_refused(name, numbers):
    with pytest.raises(ArgumentError, match=r"argnums=.* names argument -[45]"):
        CALLS[name](numbers)


@pytest.mark.parametrize("name", ["pmap static", "grad", "jacobian", "checkpoint", "custom_vjp", "custom_jvp"])
def test_one_after_the_last_is_refused(name):
    with pytest.raises(ArgumentError, match=r"argument 3, but .* 3 positional arguments; expected numbers from -3"):
        CALLS[name](3)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("numbers", [1.0, "a"])
def test_what_is_no_number_is_refused(name, numbers):
    with pytest.raises(ArgumentTypeError, match="argnums must be an int or a sequence of ints"):
        CALLS[name](numbers)


def test_numbers_from_the_end_are_those_arguments():
    assert mw.checkpoint(_f, static_argnums=-1)(X, 1.0, 2.0) == 4
    jvp = mw.custom_jvp(lambda x, k: x * k, nondiff_argnums=-1)
    jvp.defjvp(lambda k, primals, tangents: (primals[0] * k, tangents[0] * k))
    assert mw.grad(jvp)(2.0, 3.0) == 3


@pytest.mark.parametrize("transform", [mw.jit, mw.pmap])
@pytest.mark.parametrize("numbers", [3, (0, 3), -4])
def test_what_is_donated_is_a_parameter(transform, numbers):
    """As the function is made, where it has a fixed number of them; of any number, where it is passed."""
    with pytest.raises(ArgumentError, match=r"donate_argnums=.* names argument -?[34], but the function takes 3 pos"):
        transform(_f, donate_argnums=numbers)
    x = X + 0
    transform(lambda *a: a[0] * 2, donate_argnums=(0, 3))(x)
    assert x.is_deleted()


@pytest.mark.parametrize("static, donated", [(1, 1), (1, -1), (-1, 1), (-1, (0, -1))])
@pytest.mark.parametrize("fun", [lambda x, n: x * n, lambda *a: a[0] * a[1]], ids=["fixed", "any number"])
def test_what_is_static_is_not_donated(fun, static, donated):
    for transform, option in ((mw.jit, "static_argnums"), (mw.pmap, "static_broadcasted_argnums")):
        with pytest.raises(ArgumentError, match=f"{transform.__name__}: argument .* both static and donated"):
            transform(fun, **{option: static}, donate_argnums=donated)(X, 3)


def test_equal_static_arguments_of_different_types_give_results_of_different_types():
    """The types of results are found once for each combination of static arguments."""
    rounded = mw.custom_vjp(lambda k, x: x.astype("float32" if k is True else "bfloat16"), nondiff_argnums=0)
    rounded.defvjp(lambda k, x: (rounded(k, x), None), lambda k, _, ct: (ct.astype("float32"),))
    for k in (1, True, 1.0):
        assert mw.grad(lambda x, k=k: rounded(k, x).sum().astype("float32"))(X[0, 0]) == 1
