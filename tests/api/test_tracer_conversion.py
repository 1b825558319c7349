"""Python control flow, conversions and compiled programs on traced values: an error with the remedy.

Under ``grad`` and its like values are known while Python runs: it may decide by them, but not compute with them.
"""

import cmath
import copy
import io
import math
import operator
import pickle

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import errors, lax

V = np.arange(1, 7, dtype=np.float32)


def if_(x):
    return x if x > 0 else -x


def while_(x):
    while x > 5:
        x = x - 1
    return x


BOOL, TYPE, ARRAY = errors.TracerBoolConversionError, errors.ConcretizationTypeError, errors.TracerArrayConversionError
INTEGER = errors.TracerIntegerConversionError

#: decisions, by name: a function of a float scalar, words of the message that say what to do
DECISIONS = {
    "if": (if_, "where"),
    "while": (while_, "while_loop"),
    "and": (lambda x: x > 0 and x, "static_argnums"),
    "not": (lambda x: x * (not x), "control flow"),
    "bool": (lambda x: x * bool(x), "where"),
    "in": (lambda x: x * (x in [1.0, 2.0]), "where"),
    "max": (lambda x: max(x, 1.0), "where"),
    "sorted": (lambda x: sorted([x, 1.0])[1], "where"),
}

#: conversions: the error, and words of the message that say what to do
CONVERSIONS = {
    "int": (lambda x: x * int(x), TYPE, ".astype(int)"),
    "float": (lambda x: x * float(x), TYPE, ".astype(float)"),
    "complex": (lambda x: x * complex(x).real, TYPE, ".astype(complex)"),
    "math.sin": (lambda x: x * math.sin(x), TYPE, "meshwright.numpy"),
    "cmath.exp": (lambda x: x * cmath.exp(x).real, TYPE, ".astype(complex)"),
    "%f": (lambda x: x * float("%.3f" % x), TYPE, "meshwright.numpy"),  # noqa: UP031
    "item": (lambda x: x * x.item(), TYPE, "return the value"),
    "tolist": (lambda x: x * x.tolist(), TYPE, "return the value"),
    "format": (lambda x: x * float(f"{x:.3f}"), TYPE, "outside of the traced function"),
    "pickle": (lambda x: x * pickle.loads(pickle.dumps(x)), TYPE, "pickle"),
    "index": (lambda x: x * operator.index(x), INTEGER, "static_argnums"),
    "range": (lambda x: x * len(range(x)), INTEGER, "static_argnums"),
    "list index": (lambda x: x * [1, 2, 3][x], INTEGER, "index an array"),
    "__array__": (lambda x: x * x.__array__(), ARRAY, "meshwright.numpy"),
    "np.asarray": (lambda x: x * np.asarray(x), ARRAY, "meshwright.numpy"),
    "np.array of a list": (lambda x: x * np.array([x])[0], ARRAY, "meshwright.numpy"),
    "np.float32": (lambda x: x * np.float32(x), ARRAY, "meshwright.numpy"),
    "np.sin": (lambda x: x * np.sin(x), ARRAY, "meshwright.numpy"),
    "np.add": (lambda x: np.add(x, 1.0), ARRAY, "meshwright.numpy"),
    "np.stack": (lambda x: x * np.stack([x, x])[0], ARRAY, "meshwright.numpy"),
    "np.where": (lambda x: np.where(True, x, 0.0), ARRAY, "meshwright.numpy"),
    "__dlpack__": (lambda x: x * np.asarray(x.__dlpack__()), TYPE, "pure_callback"),
    "np.from_dlpack": (lambda x: x * np.from_dlpack(x), TYPE, "pure_callback"),
    "tobytes": (lambda x: x * len(x.tobytes()), TYPE, "pure_callback"),
    "devices": (lambda x: x * len(x.devices()), TYPE, "arrays that go into"),
    "addressable_data": (lambda x: x * x.addressable_data(0), TYPE, "arrays that go into"),
    "addressable_shards": (lambda x: x * x.addressable_shards[0].data, TYPE, "arrays that go into"),
    "np.save": (lambda x: x * (np.save(io.BytesIO(), x) or 1), ARRAY, "meshwright.numpy"),
}

X = np.float32(2.5)

#: transformations under which a value is known while Python runs
KNOWN = {
    "grad": lambda f: mw.grad(f)(X),
    "value_and_grad": lambda f: mw.value_and_grad(f)(X)[1],
    "jvp": lambda f: mw.jvp(f, (X,), (np.float32(1),))[1],
    "linearize": lambda f: mw.linearize(f, X)[1](np.float32(1)),
    "vjp": lambda f: mw.vjp(f, X)[1](np.float32(1))[0],
    "jacfwd": lambda f: mw.jacfwd(f)(X),
    "jacrev": lambda f: mw.jacrev(f)(X),
    "grad of grad": lambda f: mw.grad(mw.grad(lambda x: x * f(x)))(X) / 2,
    "hessian": lambda f: mw.hessian(f)(X),
}
#: others
UNKNOWN = {
    "jit": lambda f: mw.jit(f)(X),
    "vmap": lambda f: mw.vmap(f)(V),
    "pmap": lambda f: mw.pmap(f)(V[:1]),
    "jit of grad": lambda f: mw.jit(mw.grad(f))(X),
    "grad of jit": lambda f: mw.grad(mw.jit(f))(X),
    "vmap of grad": lambda f: mw.vmap(mw.grad(f))(V),
    "grad of vmap": lambda f: mw.grad(lambda x: mnp.sum(mw.vmap(f)(x)))(V),
    "make_jaxpr": lambda f: mw.make_jaxpr(f)(X),
    "eval_shape": lambda f: mw.eval_shape(f, X),
    "checkpoint": lambda f: mw.checkpoint(f)(X),
    "grad of checkpoint": lambda f: mw.grad(mw.checkpoint(f))(X),
    "scan": lambda f: lax.scan(lambda c, _: (f(c), None), X, None, length=2),
    "while_loop": lambda f: lax.while_loop(lambda c: c < 3, f, X),
    "fori_loop": lambda f: lax.fori_loop(0, 2, lambda i, c: f(c), X),
    "cond": lambda f: lax.cond(True, f, f, X),
    "switch": lambda f: lax.switch(0, [f, f], X),
    "map": lambda f: lax.map(f, V),
    "associative_scan": lambda f: lax.associative_scan(lambda a, b: mw.vmap(f)(a) + b, V),
    "linear_transpose": lambda f: mw.linear_transpose(f, X)(X),
    "shard_map": lambda f: mw.shard_map(
        lambda x: f(x[0])[None], mesh=mw.make_mesh((2,), ("d",)), in_specs=mw.P("d"), out_specs=mw.P("d")
    )(V[:2]),
    "checkify": lambda f: mw.checkify.checkify(f)(X),
    "saved_residuals": lambda f: mw.ad_checkpoint.print_saved_residuals(f, X),
}


@pytest.mark.parametrize("transform", UNKNOWN)
@pytest.mark.parametrize("name", DECISIONS)
def test_decisions_need_a_known_value(refuses, name, transform):
    fun, remedy = DECISIONS[name]
    with refuses(BOOL, "concrete", remedy), refuses_type_error():
        UNKNOWN[transform](fun)


@pytest.mark.parametrize("transform", [*UNKNOWN, *KNOWN])
@pytest.mark.parametrize("name", CONVERSIONS)
def test_no_tracer_becomes_a_number(refuses, name, transform):
    fun, kind, remedy = CONVERSIONS[name]
    with refuses(kind, "concrete", remedy), refuses_type_error():
        {**KNOWN, **UNKNOWN}[transform](fun)


class refuses_type_error:
    """The error is a ``TypeError`` too, as code written against JAX expects."""

    def __enter__(self):
        pass

    def __exit__(self, kind, error, trace):
        assert kind is None or issubclass(kind, TypeError)


@pytest.mark.parametrize("transform", sorted({*KNOWN} - {"grad of grad", "hessian"}))
@pytest.mark.parametrize("name", DECISIONS)
def test_decisions_on_known_values(name, transform):
    # Each way is linear in x.
    value = DECISIONS[name][0](mnp.asarray(X))
    slope = {"and": 1.0, "if": 1.0, "while": 1.0, "max": 1.0, "sorted": 1.0}.get(name, float(value) / float(X))
    np.testing.assert_allclose(KNOWN[transform](DECISIONS[name][0]), slope)


def test_a_vector_has_no_truth(refuses):
    for transform in (mw.jit, lambda f: lambda x: mw.linearize(f, x), mw.vmap):
        with refuses(ValueError, "one element", ".any()"):
            transform(bool)(np.stack([V, V]))


def test_traced_arrays_are_arrays():
    for name, transform in {**KNOWN, **UNKNOWN}.items():
        kinds = []
        transform(lambda x, kinds=kinds: kinds.append(isinstance(x, mw.Array)) or 1.0 * x)
        assert kinds and all(kinds), name
    assert not isinstance(V, mw.Array) and not isinstance(1.0, mw.Array)
    assert isinstance(mnp.asarray(V), mw.Array)


def test_what_stays_traced_keeps_its_derivative():
    for use in (copy.copy, copy.deepcopy, mw.device_get, mw.device_put, mw.block_until_ready, mnp.array, mnp.copy):
        np.testing.assert_allclose(mw.grad(lambda x, use=use: use(x) ** 2)(X), 2 * X)
    np.testing.assert_allclose(mw.grad(lambda x: mnp.unique(x)[0] ** 2)(V[:1]), 2 * V[:1])
    np.testing.assert_allclose(mw.grad(lambda x: mnp.sum(x[mnp.nonzero(x)] ** 2))(V), 2 * V)


# --- programs that are compiled already ---------------------------------------------------------------------
def cube(x):
    return x**3


def _programs():
    compiled = mw.jit(cube).lower(X).compile()
    part = mw.jit(cube).lower(X).partition(mw.make_mesh((2,), ("x",)))
    loaded = mw.load(mw.jit(cube).lower(X).as_text())
    split = loaded.partition(mw.make_mesh((2,), ("x",)))
    return {
        "compiled": compiled,
        "compile": mw.jit(cube).compile(X),
        "executable": lambda x: compiled.executable([x])[0],
        "partitioned": lambda x: part.executable([x])[0],
        "loaded and partitioned": lambda x: split.executable([x])[0],
    }


PROGRAMS = _programs()


@pytest.mark.parametrize("transform", [*UNKNOWN, *KNOWN])
@pytest.mark.parametrize("kind", PROGRAMS)
def test_compiled_programs_take_no_tracers(refuses, kind, transform):
    program = PROGRAMS[kind]
    np.testing.assert_allclose(program(X), X**3)
    with refuses(TYPE, "compiled program", "cube", "jit(grad(f)).lower"), refuses_type_error():
        {**KNOWN, **UNKNOWN}[transform](program)


def test_verification_takes_no_tracers():
    part = mw.jit(cube).lower(X).partition(mw.make_mesh((2,), ("x",)))
    with pytest.raises(TypeError):
        mw.grad(lambda x: part.verify(x) and x)(X)


@pytest.mark.parametrize(
    "transform", sorted({*UNKNOWN, *KNOWN} - {"make_jaxpr", "saved_residuals", "linear_transpose"})
)
def test_loaded_programs_are_transformed(transform):
    loaded = mw.load(mw.jit(cube).lower(X).as_text())
    run = {**KNOWN, **UNKNOWN}[transform]
    for got, want in zip(mw.tree.leaves(run(loaded)), mw.tree.leaves(run(cube)), strict=True):
        if hasattr(got, "__array__") and not isinstance(got, mw.ShapeDtypeStruct):
            np.testing.assert_allclose(got, want, rtol=1e-6)
        else:
            assert str(got) == str(want)


def test_wide_loaded_programs_are_not_narrowed(refuses):
    with mw.enable_x64():
        text = mw.jit(lambda x: cube(x.astype("float64")).astype("float32")).lower(X).as_text()
    loaded = mw.load(text)
    with refuses(TYPE, "64-bit", "enable_x64"):
        mw.grad(loaded)(X)
    with mw.enable_x64():
        np.testing.assert_allclose(mw.grad(loaded)(X), 3 * X**2)


# --- messages -----------------------------------------------------------------------------------------------
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
