"""Python control flow and conversions on traced values: an error with the remedy, or, under ``grad``, the value."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import errors

V = np.arange(1, 7, dtype=np.float32)


def if_(x):
    return x if x > 0 else -x


def while_(x):
    while x > 5:
        x = x - 1
    return x


#: name, function of a float scalar, the error, words of the message that say what to do
USES = [
    ("if", if_, errors.TracerBoolConversionError, "where"),
    ("while", while_, errors.TracerBoolConversionError, "while_loop"),
    ("and", lambda x: x > 0 and x, errors.TracerBoolConversionError, "static_argnums"),
    ("not", lambda x: x * (not x), errors.TracerBoolConversionError, "control flow"),
    ("bool", lambda x: x * bool(x), errors.TracerBoolConversionError, "where"),
    ("in", lambda x: x * (x in [1.0, 2.0]), errors.TracerBoolConversionError, "where"),
    ("int", lambda x: x * int(x), errors.ConcretizationError, ".astype(int)"),
    ("float", lambda x: x * float(x), errors.ConcretizationError, ".astype(float)"),
    ("complex", lambda x: x * complex(x).real, errors.ConcretizationError, ".astype(complex)"),
    ("item", lambda x: x * x.item(), errors.ConcretizationError, "return the value"),
    ("tolist", lambda x: x * x.tolist(), errors.ConcretizationError, "return the value"),
    ("format", lambda x: x * float(f"{x:.3f}"), errors.ConcretizationError, "outside of the traced function"),
    ("np.asarray", lambda x: x * np.asarray(x), errors.TracerArrayConversionError, "meshwright.numpy"),
    ("np.sin", lambda x: x * np.sin(x), errors.TracerArrayConversionError, "meshwright.numpy"),
    ("np.stack", lambda x: x * np.stack([x, x])[0], errors.TracerArrayConversionError, "meshwright.numpy"),
]
NAMES = [name for name, *_ in USES]


@pytest.mark.parametrize(("name", "fun", "kind", "remedy"), USES, ids=NAMES)
@pytest.mark.parametrize("transform", ["jit", "vmap", "jit of grad", "vmap of grad"])
def test_needs_a_concrete_value(refuses, name, fun, kind, remedy, transform):
    run = {
        "jit": lambda: mw.jit(fun)(np.float32(2)),
        "vmap": lambda: mw.vmap(fun)(V),
        "jit of grad": lambda: mw.jit(mw.grad(fun))(np.float32(2)),
        "vmap of grad": lambda: mw.vmap(mw.grad(fun))(V),
    }[transform]
    with refuses(kind, "concrete", remedy), refuses_type_error():
        run()


class refuses_type_error:
    """The error is a ``TypeError`` too, as code written against JAX expects."""

    def __enter__(self):
        pass

    def __exit__(self, kind, error, trace):
        assert kind is None or issubclass(kind, TypeError)


@pytest.mark.parametrize(("name", "fun"), [(name, fun) for name, fun, *_ in USES], ids=NAMES)
def test_grad_outside_of_jit_has_the_value(name, fun):
    x = np.float32(2.5)
    gradient = mw.grad(fun)(x)
    # Concrete uses are constants to the derivative: what is left is piecewise linear in x.
    value = fun(mnp.asarray(x))
    np.testing.assert_allclose(gradient, {"and": 1.0, "if": 1.0, "while": 1.0}.get(name, float(value) / float(x)))


def test_the_message_names_the_argument_or_the_line(refuses):
    def step(params, x):
        if params["w"]:
            return x
        return -x

    with refuses(errors.TracerBoolConversionError, "f32[]", "argument params['w'] of step"):
        mw.jit(step)({"w": np.float32(1)}, 2.0)

    def other(x):
        y = x * 2
        return x if y > 1 else y

    with refuses(errors.TracerBoolConversionError, "bool[]", "test_tracer_conversion.py", "other"):
        mw.jit(other)(1.0)


def test_range_and_index(refuses):
    with refuses(errors.TracerIntegerConversionError, "Python index", "static_argnums", "argument n"):
        mw.jit(lambda n: sum(range(n)))(3)
    with refuses(errors.TracerIntegerConversionError, "index an array"):
        mw.jit(lambda n: [1, 2, 3][n])(1)
    assert mw.jit(lambda n: mnp.array([1, 2, 3])[n])(1) == 2
    assert mw.jit(lambda n: sum(range(n)), static_argnums=0)(4) == 6


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda x, n: mnp.zeros(n), ("zeros", "shape")),
        (lambda x, n: mnp.zeros((2, n)), ("zeros", "shape")),
        (lambda x, n: x.reshape(n, -1), ("reshape", "shape")),
        (lambda x, n: mnp.broadcast_to(x, (n, 6)), ("broadcast_to", "shape")),
    ],
)
def test_shapes_must_be_known(refuses, use, words):
    with refuses(errors.TracerError, *words, "static_argnums"):
        mw.jit(use)(V, 3)


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda x, n: x[:n], ("slice", "dynamic_slice")),
        (lambda x, n: x[x > n], ("mask", "where")),
        (lambda x, n: mnp.nonzero(x), ("nonzero", "size=")),
    ],
)
def test_results_whose_shape_depends_on_values(refuses, use, words):
    with refuses(errors.MeshwrightError, *words):
        mw.jit(use)(V, 3)


def test_tracers_are_no_keys(refuses):
    with refuses(TypeError, "not hashable", "static"):
        mw.jit(lambda x: {x: 1} and x)(1.0)


def test_iteration(refuses):
    assert mw.jit(lambda x: sum(row * 2 for row in x))(V) == 2 * V.sum()
    with refuses(TypeError, "0-d"):
        mw.jit(lambda x: list(x))(1.0)


def test_printing_a_tracer_says_its_type():
    texts = []
    mw.jit(lambda x: texts.append(f"{x} {x!r}") or x)(V)
    assert texts[0].count("f32[6]") == 2
