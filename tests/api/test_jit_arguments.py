"""What jitted functions can be called with, and what can be jitted: static arguments, keywords, methods, recursion."""

import functools

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import errors

V = np.arange(6, dtype=np.float32)


def power(x, n):
    return x**n


# --- static arguments ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "kind"),
    [([1], "list"), ({}, "dict"), (np.ones(2), "ndarray"), (mw.numpy.ones(2), "Array")],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_unhashable_static_arguments(refuses, value, kind):
    with refuses(TypeError, "power", "static argument 1", kind, "not hashable", "tuple"):
        mw.jit(power, static_argnums=1)(V, value)
    with refuses(ValueError, "power", "'n'", kind, "not hashable"):  # as in JAX; Python's type, above, too
        mw.jit(power, static_argnames="n")(V, n=value)


def test_a_tracer_is_no_static_argument(refuses):
    inner = mw.jit(power, static_argnums=1)
    with refuses(TypeError, "static argument 1", "Tracer"):
        mw.jit(lambda n: inner(V, n))(2)


@pytest.mark.parametrize("options", [{"static_argnums": 1}, {"static_argnums": -1}, {"static_argnames": "n"}])
def test_static_arguments_by_number_and_by_name(options):
    step = mw.jit(lambda x, n: x.reshape(n, -1) * n, **options)
    want = V.reshape(3, -1) * 3
    np.testing.assert_array_equal(step(V, 3), want)
    np.testing.assert_array_equal(step(V, n=3), want)


def test_a_negative_static_argument_is_counted_from_the_signature():
    step = mw.jit(lambda x, n=2: x * n, static_argnums=-1)
    np.testing.assert_array_equal(step(V), V * 2)


def test_each_static_value_is_traced_once():
    traced = []

    @functools.partial(mw.jit, static_argnums=1)
    def step(x, n):
        traced.append(n)
        return x * n

    for n in (2, 3, 2, 3):
        np.testing.assert_array_equal(step(V, n), V * n)
    assert traced == [2, 3]


@pytest.mark.parametrize("options", [{"static_argnums": 1}, {"static_argnames": "n"}])
def test_equal_static_values_of_different_types_are_different(options):
    @functools.partial(mw.jit, **options)
    def step(x, n):
        value = n[0] if isinstance(n, tuple) else n
        return isinstance(value, bool), x * 0 + str(value).count("-")

    for n in (1, True, 1.0, (1,), (True,), 0.0, -0.0, (0.0,), (-0.0,)):
        is_bool, minus = step(V, n=n) if "static_argnames" in options else step(V, n)
        assert is_bool == ("True" in str(n)) and minus[0] == str(n).count("-")


@pytest.mark.parametrize("kind", ["static", "donate"])
def test_options_that_name_no_argument(refuses, kind):
    with refuses(ValueError, f"{kind}_argnums", "argument 5", "2 positional", "x, n"):
        mw.jit(power, **{f"{kind}_argnums": 5})
    with refuses(ValueError, f"{kind}_argnames", "'m'", "x, n"):
        mw.jit(power, **{f"{kind}_argnames": "m"})
    with refuses(TypeError, f"{kind}_argnums", "'n'"):
        mw.jit(power, **{f"{kind}_argnums": "n"})
    with refuses(TypeError, f"{kind}_argnames", "3"):
        mw.jit(power, **{f"{kind}_argnames": 3})


def test_an_argument_that_is_static_and_donated(refuses):
    with refuses(ValueError, "static and donated"):
        mw.jit(power, static_argnums=1, donate_argnames="n")


# --- arguments and results ----------------------------------------------------------------------------------
class Model:
    def __init__(self):
        self.weight = 2.0

    @mw.jit
    def traced_self(self, x):
        return x * self.weight

    @functools.partial(mw.jit, static_argnums=0)
    def call(self, x):
        return x * self.weight

    def plain(self, x):
        return x * self.weight


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mw.jit(power)("abc", 2), ("argument x", "'abc'", "str", "static_argnums")),
        (lambda: mw.jit(power)(V, n=object()), ("argument n", "object", "static_argnames")),
        (lambda: mw.jit(power)([V, len], 2), ("argument x[1]", "builtin_function", "static_argnums")),
        (lambda: mw.jit(power)(np.array(["a"]), 2), ("argument x", "<U1", "numbers and bools")),
        (lambda: mw.jit(power)(2**40, 2), ("argument x", "1099511627776", "int32", "enable_x64")),
        (lambda: Model().traced_self(V), ("argument self", "Model", "static_argnums", "register_dataclass")),
        (lambda: mw.jit(lambda x: mw.jit(power)(x, "n"))(V), ("power: argument n", "'n'")),
        (lambda: mw.jit(power).lower(V, "n"), ("power: argument n", "'n'")),
    ],
)
def test_arguments_that_are_no_arrays(refuses, call, words):
    with refuses(TypeError, *words):
        call()


@pytest.mark.parametrize(
    ("value", "words"),
    [("text", ("output,", "'text'")), ((1, {"k": len}), ("output[1]['k']", "len")), (V.dtype, ("dtype", "output"))],
)
def test_results_that_are_no_arrays(refuses, value, words):
    with refuses(TypeError, "fun returned", *words):

        def fun(x):
            return value

        mw.jit(fun)(V)


def test_numbers_none_and_numpy_values_may_be_returned():
    one, none, array, flag = mw.jit(lambda: (1, None, np.arange(3), True))()
    assert one == 1 and none is None and flag.dtype == bool
    assert one.weak_type and not array.weak_type
    np.testing.assert_array_equal(array, [0, 1, 2])


def test_wrong_calls_are_pythons_errors():
    for wrong in (lambda: mw.jit(power)(V), lambda: mw.jit(power)(V, 1, 2), lambda: mw.jit(power)(V, 1, m=2)):
        with pytest.raises(TypeError, match="argument"):
            wrong()


def test_keyword_arguments():
    step = mw.jit(lambda x, *, scale, shift=1.0: x * scale + shift)
    np.testing.assert_array_equal(step(V, scale=3), V * 3 + 1)
    np.testing.assert_array_equal(step(shift=2.0, scale=3, x=V), V * 3 + 2)


@pytest.mark.parametrize("transform", [mw.jit, mw.grad, mw.value_and_grad, mw.vmap, mw.make_jaxpr])
def test_only_functions_are_transformed(refuses, transform):
    with refuses(TypeError, "expected a function", "3", "int"):
        transform(3)


# --- what can be jitted -------------------------------------------------------------------------------------
def test_methods_partials_and_callables():
    model = Model()
    np.testing.assert_array_equal(model.call(V), V * 2)
    assert "multiply" in model.call.lower(V).as_text() and model.call.trace(V).fun_name == "call"
    np.testing.assert_array_equal(mw.jit(model.plain)(V), V * 2)
    np.testing.assert_array_equal(mw.jit(functools.partial(power, n=3))(V), V**3)
    assert mw.jit(functools.partial(power, n=3)).lower(V).compile()(V)[2] == 8
    np.testing.assert_array_equal(mw.jit(abs)(-V), V)
    np.testing.assert_array_equal(mw.jit(mw.jit(power))(V, 2.0), V**2)
    with pytest.raises(errors.TracerArrayConversionError, match=r"meshwright\.numpy"):
        mw.jit(np.sin)(V)


def test_jit_as_a_decorator_with_options():
    @mw.jit(static_argnames="n")
    def step(x, n):
        return x * n

    np.testing.assert_array_equal(step(V, n=2), V * 2)
    assert step.__name__ == "step" and "step" in repr(step)


def test_recursion():
    @functools.partial(mw.jit, static_argnums=1)
    def doubled(x, times):
        return x if times == 0 else doubled(x, times - 1) * 2

    np.testing.assert_array_equal(doubled(V, 4), V * 16)
    np.testing.assert_array_equal(mw.grad(lambda x: mnp.sum(doubled(x, 3)))(V), np.full(6, 8, np.float32))

    @mw.jit
    def forever(x):
        return forever(x)

    with pytest.raises(RecursionError):
        forever(1.0)
    assert mnp.asarray(1.0) + 1 == 2  # and nothing is left broken


def test_only_jitted_functions_have_stages(refuses):
    def loss(x):
        return mnp.sum(x * x)

    def step(x):
        return loss(x)

    functions = {"grad(loss)": mw.grad(loss), "vmap(loss)": mw.vmap(loss), "grad(step)": mw.grad(mw.jit(step))}
    for name, fun in functions.items():
        for stage in (fun.lower, fun.trace):
            with refuses(TypeError, name, "not jitted", f"jit({name}).lower"):
                stage(V)


# --- arguments of grad and vmap -----------------------------------------------------------------------------
def test_inputs_and_outputs_of_grad(refuses):
    cases = [
        (lambda: mw.grad(lambda x: x * x)(3), ("argument x", "int32", ".astype(float)")),
        (lambda: mw.grad(lambda p, x: x, argnums=(0, 1))({"w": 1.0}, {"b": 2}), ("argument x['b']", "int32")),
        (lambda: mw.grad(lambda x: x * x)(V), ("scalar output", "(6,)", "jacrev")),
        (lambda: mw.grad(lambda x: None)(1.0), ("scalar output", "None", "has_aux")),
        (lambda: mw.grad(lambda x: x > 1)(1.0), ("real floating-point output", "bool")),
        (lambda: mw.grad(lambda x: x, argnums=2)(1.0), ("argnums=2", "1 positional")),
        (lambda: mw.grad(lambda: 1.0)(), ("argnums=0", "0 positional")),
        (lambda: mw.grad(lambda x: x, has_aux=True)(1.0), ("has_aux", "pair")),
        (lambda: mw.grad(lambda x: x)(1j), ("complex64", "holomorphic=True")),
        (lambda: mw.grad(lambda x: x, holomorphic=True)(1.0), ("argument x", "float32", "complex")),
        (lambda: mw.jvp(lambda x: x, (V,), (V[:2],)), ("tangent", "f32[2]", "f32[6]")),
        (lambda: mw.vjp(lambda x: x, V)[1](V[:2]), ("cotangent", "f32[2]", "f32[6]")),
    ]
    for call, words in cases:
        with refuses(errors.MeshwrightError, *words):
            call()


def test_axes_of_vmap(refuses):
    add = mnp.add
    cases = [
        (lambda: mw.vmap(power)(V, np.ones(3)), ("mapped axes", "x of shape (6,)", "n of shape (3,)")),
        (lambda: mw.vmap(power, in_axes=(0,))(V, V), ("in_axes has 1 entry", "2 positional")),
        (lambda: mw.vmap(power, in_axes=(0, 1))(V, V), ("axis 1 of argument n", "(6,)", "None")),
        (lambda: mw.vmap(power, in_axes=(0, "a"))(V, V), ("in_axes", "'a'")),
        (lambda: mw.vmap(power, in_axes=None)(V, V), ("power", "no argument is mapped", "axis_size")),
        (lambda: mw.vmap(power, out_axes=3)(V, V), ("out_axes", "axis 3", "1 dimension")),
        (lambda: mw.vmap(power, out_axes=None)(V, V), ("out_axes is None",)),
        (lambda: mw.vmap(lambda x: (x, x), out_axes=(0,))(V), ("out_axes", "(*,)", "(*, *)")),
        (lambda: mw.vmap(add)(1.0, V), ("axis 0", "()", "None")),
        (lambda: mw.vmap(lambda x: mw.lax.psum(x, "q"), axis_name="i")(V), ("'q'", "in scope: 'i'", "axis_name='q'")),
        (lambda: mw.jit(lambda x: mw.lax.psum(x, "q"))(V), ("'q'", "in scope: none", "vmap")),
    ]
    for call, words in cases:
        with refuses(errors.MeshwrightError, *words):
            call()


def test_inlined_functions_leave_their_equations():
    f = mw.jit(lambda x: mnp.sin(x * 2), inline=True)
    for g, x in ((f, 1.0), (mw.grad(f), 1.0), (mw.vmap(f), V)):
        names = [eqn.op.name for eqn in mw.make_jaxpr(g)(x).eqns]
        assert "sin" in names and "jit" not in names
    assert float(mw.jit(mw.grad(f))(0.0)) == 2
