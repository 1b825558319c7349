"""Values at the edges: wrong shapes, in-place assignment, NaN and infinity, no elements, no dimensions, 64 bits."""

import warnings

import jax
import ml_dtypes
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, errors
from meshwright import PartitionSpec as P

MESH = mw.make_mesh((4, 2), ("x", "y"))
ROWS = NamedSharding(MESH, P("x"))
X = np.arange(32, dtype=np.float32).reshape(8, 4)
V = np.arange(6, dtype=np.float32)


# --- shapes -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda x: x + np.ones(3), ("add", "(8, 4)", "(3,)", "sizes 4 and 3", "reshape")),
        (lambda x: x @ np.ones((5, 2)), ("matmul", "(8, 4)", "(5, 2)", "size 4", "size 5")),
        (lambda x: mnp.concatenate([x, np.ones((2, 5))]), ("concatenate", "(8, 4)", "(2, 5)", "dimension 0")),
        (lambda x: mnp.stack([x, np.ones((2, 5))]), ("stack", "(8, 4)", "(2, 5)")),
        (lambda x: x.reshape(5, 5), ("reshape", "(8, 4)", "32 elements", "(5, 5)")),
        (lambda x: mnp.transpose(x, (0, 0)), ("transpose", "(0, 0)")),
        (lambda x: mnp.sum(x, axis=2), ("sum", "axis 2", "2 dimensions")),
        (lambda x: mnp.broadcast_to(x, (3, 4)), ("broadcast_to", "(8, 4)", "(3, 4)")),
        (lambda x: mnp.where(x > 1, x, np.ones(5)), ("where", "(8, 4)", "(5,)")),
        (lambda x: mnp.einsum("ij,jk->ik", x, np.ones((3, 2))), ("einsum", "4", "3")),
        (lambda x: x[:, :, 0], ("too many indices", "2 dimensions")),
        (lambda x: x.at[0].set(np.ones(7)), ("(7,)", "(4,)")),
        (lambda x: mw.lax.dot_general(x, mnp.ones((5, 2)), (((1,), (0,)), ((), ()))), ("dot_general", "4", "5")),
        (lambda x: mw.lax.add(x, np.ones((3, 4), np.float32)), ("add", "(8, 4)", "(3, 4)")),
    ],
)
@pytest.mark.parametrize("run", [lambda f: f(mnp.asarray(X)), lambda f: mw.jit(f)(X)], ids=["eager", "jit"])
def test_shapes_that_do_not_match(refuses, use, words, run):
    with refuses(errors.MeshwrightError, *words):
        run(use)


# --- assignment ---------------------------------------------------------------------------------------------
def assign(x):
    x[0] = 1
    return x


def assign_slice(x):
    x[1:, ::2] += 1
    return x


def remove(x):
    del x[0]
    return x


@pytest.mark.parametrize(
    "run", [lambda f: f(mnp.asarray(X)), lambda f: mw.jit(f)(X), lambda f: mw.vmap(f)(np.stack([X, X]))]
)
def test_assignment_in_place(refuses, run):
    for fun in (assign, assign_slice):
        with refuses(TypeError, "immutable", ".at[index].set(value)"):
            run(fun)
    with refuses(TypeError, "immutable", "del"):
        run(remove)


def test_augmented_assignment_makes_a_new_array():
    x = y = mnp.asarray(X)
    y += 1
    y @= np.eye(4, dtype=np.float32)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, X + 1)
    with pytest.raises(AttributeError):
        x.shape = (4, 8)


def test_side_effects_on_numpy_values_inside_a_trace_stay_outside():
    table = np.zeros(3, np.float32)

    @mw.jit
    def step(x):
        table[0] += 1  # happens once, while tracing
        return x + table

    np.testing.assert_array_equal(step(np.float32(1)), [2, 1, 1])
    table[:] = 7
    np.testing.assert_array_equal(step(np.float32(1)), [2, 1, 1])


# --- NaN and infinity ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64"])
def test_constants_that_are_not_finite(value, dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = np.arange(3).astype(kind)
    row = np.array([value, 1, 2]).astype(kind)

    def compare(got, want):
        wide = np.complex64 if dtype == "complex64" else np.float32
        np.testing.assert_array_equal(np.asarray(got).astype(wide), want.astype(wide))

    for run in (lambda f: f(mnp.asarray(x)), lambda f: mw.jit(f)(x)):
        compare(run(lambda x: x + value), (x + np.asarray(value, kind)))
        compare(run(lambda x: x + row), x + row)
        compare(run(lambda x: mnp.full_like(x, value)), np.full(3, value).astype(kind))
    text = mw.jit(lambda x: x + row).lower(x).as_text("hlo")
    assert (f"({value}, 0)" if dtype == "complex64" else f"{{{value}, 1, 2}}") in text


def test_literals_that_are_not_finite_are_printed():
    jaxpr = str(mw.make_jaxpr(lambda x: (x + np.nan, x * np.inf, x - -np.inf))(V))
    assert "add a nan" in jaxpr and "mul a inf" in jaxpr and "-inf" in jaxpr
    text = mw.jit(lambda x: (x + np.nan, x * np.inf, x * -np.inf)).lower(V).as_text("hlo")
    for value in ("nan", "inf", "-inf"):
        assert f"constant({value})" in text


def test_masks_of_infinity_over_a_mesh():
    step = mw.jit(lambda x: mnp.max(mnp.where(x > 17, -np.inf, x), axis=0), in_shardings=ROWS)
    np.testing.assert_array_equal(step(X), np.where(X > 17, -np.inf, X).max(axis=0))


# --- no elements --------------------------------------------------------------------------------------------
EMPTY = np.zeros((0, 4), np.float32)


@pytest.mark.parametrize(
    ("fun", "numpy_fun"),
    [
        (lambda x: x + 1, None),
        (mnp.sum, np.sum),
        (lambda x: mnp.sum(x, axis=0), lambda x: np.sum(x, axis=0)),
        (lambda x: mnp.max(x, axis=1), lambda x: np.max(x, axis=1)),
        (lambda x: mnp.max(x, initial=3), lambda x: np.max(x, initial=3)),
        (mnp.prod, np.prod),
        (mnp.all, np.all),
        (mnp.any, np.any),
        (lambda x: x @ np.ones((4, 3), np.float32), None),
        (lambda x: x.T @ x, None),
        (lambda x: mnp.reshape(x, (2, 0, 3)), lambda x: np.reshape(x, (2, 0, 3))),
        (lambda x: mnp.reshape(x, (-1, 2)), lambda x: np.reshape(x, (-1, 2))),
        (lambda x: mnp.concatenate([x, X]), lambda x: np.concatenate([x, X])),
        (lambda x: mnp.sort(x, axis=0), lambda x: np.sort(x, axis=0)),
        (lambda x: mnp.cumsum(x, axis=0), lambda x: np.cumsum(x, axis=0)),
        (lambda x: mnp.pad(x, ((1, 2), (0, 0))), lambda x: np.pad(x, ((1, 2), (0, 0)))),
        (lambda x: x[:, 1], None),
        (lambda x: x[1:], None),
        (lambda x: mnp.asarray(X)[x[:, 0].astype("int32")], lambda x: X[x[:, 0].astype("int32")]),
        (mw.vmap(lambda row: row * 2), lambda x: x * 2),
        (mw.grad(lambda x: mnp.sum(x * x)), lambda x: x * 2),
    ],
)
@pytest.mark.parametrize("where", ["eager", "jit", "mesh"])
@pytest.mark.filterwarnings("ignore::meshwright.errors.ReplicationWarning")
def test_arrays_without_elements(fun, numpy_fun, where):
    want = (numpy_fun or fun)(EMPTY)
    if where == "eager":
        got = fun(mnp.asarray(EMPTY))
    elif where == "jit":
        got = mw.jit(fun)(EMPTY)
    else:
        got = mw.jit(fun, in_shardings=ROWS)(EMPTY)
    assert got.shape == want.shape and got.dtype == np.asarray(want).dtype
    np.testing.assert_array_equal(got, want)


def test_reductions_of_nothing_that_have_no_value(refuses):
    for call, name in ((mnp.max, "max"), (mnp.argmax, "argmax"), (mnp.min, "min")):
        with refuses(ValueError, name, "(0, 4)", "zero elements"):
            call(EMPTY)
    assert np.isnan(mnp.mean(EMPTY))
    with refuses(IndexError, "size 0"):
        mnp.asarray(EMPTY)[0]


def test_an_empty_array_over_a_mesh():
    array = mw.device_put(EMPTY, ROWS)
    assert {shard.data.shape for shard in array.addressable_shards} == {(0, 4)}
    assert repr(array) == "Array([], shape=(0, 4), dtype=float32)"


# --- no dimensions ------------------------------------------------------------------------------------------
REPLICATED = NamedSharding(MESH, P())


@pytest.mark.parametrize(
    "value",
    [3.0, np.float32(3), np.array(3, np.float32), mnp.float32(3), mw.device_put(3.0, REPLICATED)],
    ids=["python", "numpy scalar", "numpy array", "array", "replicated"],
)
def test_arrays_without_dimensions(refuses, value):
    double = mw.jit(lambda x: x * 2)
    assert double(value) == 6 and double(value).shape == ()
    array = mnp.asarray(value)
    assert mnp.sum(value) == 3 and mw.grad(lambda x: x * x)(value) == 6
    assert array[()] == 3 and array[...].shape == () and array[None].shape == (1,) and array.reshape(1, 1)[0, 0] == 3
    assert float(array) == 3.0 and int(array) == 3 and bool(array) and array.item() == 3.0 and f"{array:.2f}" == "3.00"
    with refuses(IndexError, "0 dimensions"):
        array[0]
    with refuses(TypeError, "0-d"):
        len(array)
    with refuses(TypeError, "0-d"):
        list(array)
    with refuses(ValueError, "axis 0", "()", "None"):
        mw.vmap(lambda x: x)(value)


def test_scalars_have_no_dimension_to_split(refuses):
    for use in (lambda: mw.device_put(3.0, ROWS), lambda: mw.jit(lambda x: x, in_shardings=ROWS)(3.0)):
        with refuses(errors.ShardingError, "1 entry", "shape ()", "0 dimensions"):
            use()


def test_conversions_need_one_element(refuses):
    for convert in (float, int, bool, complex):
        with refuses(TypeError, "one element", "(6,)"):
            convert(mnp.asarray(V))
    with refuses(TypeError, "integer scalar", "f32[]"):
        range(mnp.asarray(3.0))
    assert list(range(mnp.asarray(3))) == [0, 1, 2] and [5, 6, 7][mnp.asarray(1)] == 6
    with refuses(TypeError, "not hashable"):
        hash(mnp.asarray(V))
    with refuses(TypeError, "'.2f'", "(6,)"):
        format(mnp.asarray(V), ".2f")


# --- 64 bits ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("make", "what", "wide", "narrow"),
    [
        (lambda: mnp.array([1.0], dtype=np.float64), "array", "float64", "float32"),
        (lambda: mnp.zeros(3, "float64"), "zeros", "float64", "float32"),
        (lambda: mnp.ones(3).astype(np.float64), "astype", "float64", "float32"),
        (lambda: mnp.arange(3, dtype=np.int64), "arange", "int64", "int32"),
        (lambda: mnp.full(3, 1, "uint64"), "full", "uint64", "uint32"),
        (lambda: mnp.zeros(3, np.complex128), "zeros", "complex128", "complex64"),
        (lambda: mnp.sum(mnp.ones(3), dtype=np.float64), "sum", "float64", "float32"),
        (lambda: mw.random.normal(mw.random.key(0), (3,), np.float64), "normal", "float64", "float32"),
        (lambda: mw.lax.convert_element_type(mnp.ones(3), np.float64), "convert_element_type", "float64", "float32"),
    ],
)
def test_a_requested_64_bit_dtype_warns_and_is_narrowed(make, what, wide, narrow):
    with pytest.warns(errors.DTypeWarning, match=f"{what}.*{wide}.*enable_x64.*{narrow}"):
        assert make().dtype == narrow


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (lambda: mw.jit(lambda x: x)(np.ones(3)), "float32"),
        (lambda: mw.jit(lambda x: x)(np.arange(3)), "int32"),
        (lambda: mw.device_put(np.ones(3)), "float32"),
        (lambda: mnp.asarray(np.ones(3, np.uint64)), "uint32"),
        (lambda: mnp.ones(3) + np.float64(2), "float32"),
        (lambda: mnp.ones(3).astype(float), "float32"),
        (lambda: mnp.zeros(3, int), "int32"),
    ],
)
def test_64_bit_values_become_32_bit_ones_without_a_word(make, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make().dtype == dtype


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("asked", [float, int, complex, bool, "float64", "int64", "uint64", "complex128", "int8"])
def test_a_type_has_the_dtype_that_was_asked_for_and_is_taken_as_numpy_values_are(asked):
    def found(m):
        s = m.ShapeDtypeStruct((2,), asked)
        with m.enable_x64(True):
            made = m.ShapeDtypeStruct((2,), asked)
            wide = m.eval_shape(lambda x: x, s).dtype, m.jit(lambda x: x).lower(s).out_info.dtype
        types = [m.eval_shape(lambda x: x, t).dtype for t in (s, made)], m.numpy.zeros_like(s).dtype, wide
        update = s.update(shape=(3,))
        return s.dtype, update.dtype, types, s == made, s == m.ShapeDtypeStruct((2,), s.dtype), update == s, repr(s)

    assert found(mw) == found(jax)


def test_integers_that_do_not_fit(refuses):
    for make in (lambda: mnp.array(2**40), lambda: mnp.asarray([1, 2**40]), lambda: mnp.ones(3, int) + 2**40):
        with refuses(errors.MeshwrightError, "1099511627776", "int32"):
            make()


def test_things_that_are_no_numbers(refuses):
    for make in (lambda: mnp.array("abc"), lambda: mnp.array([object()]), lambda: mnp.array({1: 2})):
        with refuses(TypeError, "array"):
            make()
    with refuses(ValueError, "array", "sequence"):
        mnp.array([[1, 2], [3]])
    with refuses(TypeError, "dtype", "'datetime64'"):
        mnp.zeros(3, "datetime64")


def test_x64_can_be_switched_on_and_off():
    step = mw.jit(lambda x: x + 1)
    assert step(np.ones(3)).dtype == "float32"
    with mw.config.override("enable_x64", True):
        assert step(np.ones(3)).dtype == "float64" and mnp.arange(3).dtype == "int64" and step(2).dtype == "int64"
        assert mnp.array(2**40) == 2**40 and mnp.zeros(2, "float64").dtype == "float64"
        sharded = mw.jit(lambda x: mnp.sum(x * np.float64(1) / 3, axis=0), in_shardings=ROWS)(np.ones((8, 2)))
        np.testing.assert_allclose(sharded, np.full(2, 8 / 3), rtol=1e-15)
    assert step(np.ones(3)).dtype == "float32" and mnp.arange(3).dtype == "int32"
