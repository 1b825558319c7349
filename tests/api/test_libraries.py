"""What libraries around JAX ask for: frames that are not the user's, the current trace, attributes, types."""

from __future__ import annotations

import inspect
import threading
import warnings
import weakref
from types import SimpleNamespace

import jax
import ml_dtypes
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import custom_derivatives, dtypes, lax, lib
from meshwright.core import source
from meshwright.errors import DonationWarning, DTypeError, UnexpectedTracerError
from meshwright.extend import linear_util, source_info_util
from meshwright.extend.core import find_top_trace, primitives, set_current_trace, take_current_trace
from meshwright.interpreters import ad, xla


@pytest.fixture
def layer(tmp_path, monkeypatch):
    """A layer, defined in a file of a library."""
    monkeypatch.setattr(source, "_excluded", source._excluded)
    path = tmp_path / "library" / "layers.py"
    path.parent.mkdir()
    path.write_text("def layer(x):\n    return x * 2.0\n")
    namespace = {}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    yield namespace["layer"], str(path.parent)
    source._is_skipped.clear()


def test_locations_are_those_of_the_callers_of_an_excluded_library(layer):
    apply, folder = layer
    at = lambda: mw.make_jaxpr(lambda x: apply(x))(1.0).eqns[0].source  # noqa: E731
    assert at().file.endswith("layers.py")
    assert source_info_util.summarize(at(), 2).splitlines()[0] == "layers.py:2 (layer)"
    source_info_util.register_exclusion(folder)
    assert at().file == __file__


def test_errors_still_show_the_frames_of_an_excluded_library(layer):
    apply, folder = layer
    source_info_util.register_exclusion(folder)
    with pytest.raises(TypeError) as caught:
        mw.jit(apply)(mw.random.key(0))
    assert any(str(entry.path).endswith("layers.py") for entry in caught.traceback)


def test_a_trace_is_taken_and_made_current_again():
    def f(x):
        with take_current_trace() as trace:
            n = mnp.sum(mnp.arange(4))
            with set_current_trace(trace):
                y = x * int(n)
        return y + 1

    assert [eqn.primitive.name for eqn in mw.make_jaxpr(f)(2.0).eqns] == ["mul", "add"]
    assert mw.grad(f)(2.0) == 6


def test_the_trace_is_current_again_after_an_error():
    def f(x):
        try:
            with take_current_trace():
                raise KeyError
        except KeyError:
            return x + 1

    assert len(mw.make_jaxpr(f)(2.0).eqns) == 1


def test_traced_values_are_refused_where_the_trace_was_taken():
    def f(x):
        with take_current_trace():
            return x + 1

    with pytest.raises((UnexpectedTracerError, TypeError, ValueError)):
        mw.jit(f)(2.0)


def test_primitives_of_functions_with_rules_are_those_of_equations():
    f = mw.custom_jvp(lambda x: x * 2)
    f.defjvps(lambda t, ans, x: 2 * t)
    g = mw.custom_vjp(lambda x: x * 2)
    g.defvjp(lambda x: (x * 2, None), lambda _, ct: (2 * ct,))
    found = [eqn.primitive for eqn in mw.make_jaxpr(lambda x: g(f(x)))(1.0).eqns]
    assert found == [custom_derivatives.custom_jvp_call_p, custom_derivatives.custom_vjp_call_p]
    assert found[0] is primitives.custom_jvp_call_p


def test_calls_are_primitives_that_interpreters_of_jaxprs_name():
    closed = mw.make_jaxpr(lambda x, y: (x * y, mnp.sin(y)))(2.0, 3.0)
    called = mw.jit(lambda x: primitives.closed_call_p.bind(x, 4.0, call_jaxpr=closed))(3.0)
    assert [float(x) for x in called] == [12.0, np.sin(np.float32(4.0))]
    fun = linear_util.wrap_init(lambda x: [x + 1, 2 * x])
    assert [float(x) for x in primitives.call_p.bind(fun, 3.0)] == [4, 6]
    names = {eqn.primitive for eqn in mw.make_jaxpr(mw.jit(mnp.sin))(1.0).eqns}
    assert primitives.call_p.call_primitive and not lax.add_p.call_primitive
    assert primitives.jit_p in names and not names & {primitives.call_p, primitives.closed_call_p}


def test_tracers_of_a_derivative_are_told_from_others():
    found = []

    def f(x, y):
        trace = find_top_trace((x, y))
        found.append([isinstance(v, ad.JVPTracer) and v._trace.main is trace.main for v in (x, y, 2 * x)])
        return x * y

    mw.grad(lambda y: mw.jvp(lambda x: f(x, y), (2.0,), (1.0,))[1])(3.0)
    assert found == [[True, False, True]]


# --- wrappers -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("wrap", [mw.jit, mw.pmap, mw.vmap, mw.grad, mw.checkpoint, mw.named_call, mw.make_jaxpr])
def test_wrappers_have_the_attributes_of_their_functions(wrap):
    def f(x):
        return x

    f.trace, f.rate = 7, 0.5
    wrapped = wrap(f)
    assert wrapped.__wrapped__ is f and wrapped.rate == 0.5 and "f" in wrapped.__name__
    if wrap is mw.jit:
        assert callable(wrapped.trace), "what the wrapper has itself stays"
        assert mw.jit(mw.grad(wrapped)).rate == 0.5


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("wrap", [mw.jit, mw.pmap, mw.vmap, mw.grad, mw.custom_jvp, mw.custom_vjp])
def test_wrappers_have_the_signature_of_their_functions(wrap, follow):
    def f(x, *, rate: float = 0.5):
        return rate * x

    assert inspect.signature(wrap(f), follow_wrapped=follow) == inspect.signature(f)
    inspect.signature(type(wrap(f)))


def test_wrappers_do_not_have_what_other_wrappers_keep():
    squared = mw.grad(lambda x: x**2)
    squared.tag = "of the user"
    kept = {name for name in vars(squared) if name.startswith("_") and not name.startswith("__")}
    found = vars(mw.jit(squared))
    assert found["tag"] == "of the user" and "_recipe" in kept and not (kept - {"_origin"}) & set(found)


def test_a_pmap_on_one_device_runs_in_the_thread_of_its_caller_without_jit():
    seen = []

    def f(x):
        seen.append(threading.get_ident())
        return x + lax.psum(x, "i") + lax.axis_index("i")

    with mw.disable_jit():
        got = mw.pmap(f, axis_name="i")(mnp.array([[1.0, 2.0]]))
        both = mw.vmap(mw.pmap(lambda x: x * lax.pmax(x, "i"), axis_name="i"))(mnp.array([[2.0], [3.0]]))
    assert seen == [threading.get_ident()]
    assert got.tolist() == [[2.0, 4.0]] and both.tolist() == [[4.0], [9.0]]


# --- types of a library -------------------------------------------------------------------------------------
class Wrapper:
    """A value of a library, which NumPy can read."""

    def __init__(self, value):
        self.value = np.asarray(value)

    def __array__(self, dtype=None, copy=None):
        return self.value if dtype is None else self.value.astype(dtype)


@pytest.fixture
def wrapper():
    tables = xla.canonicalize_dtype_handlers, mw.core.pytype_aval_mappings
    for table in tables:
        table[Wrapper] = table[np.ndarray]
    yield Wrapper
    for table in tables:
        del table[Wrapper]


def test_types_of_a_library_are_arrays_once_they_are_in_the_tables(wrapper):
    x = wrapper([1.0, 2.0])
    assert mw.typeof(x) == mw.core.pytype_aval_mappings[Wrapper](x) == mw.core.ShapedArray((2,), np.dtype("float32"))
    assert mnp.add(x, x).tolist() == mw.jit(lambda x: 2 * x)(x).tolist() == [2, 4]
    assert mw.grad(lambda x: mnp.sum(mnp.square(x)))(x).tolist() == [2, 4]
    assert mw.vmap(lambda x: x + 1)(x).tolist() == lax.add(x, mnp.ones(2)).tolist() == [2, 3]
    assert xla.canonicalize_dtype_handlers[np.ndarray](np.ones(2)).dtype == "float32"


class Parameter:
    """A wrapper of a library of layers: it stands for an array, and passes on the array's attributes."""

    def __init__(self, value):
        self.value = value

    def __jax_array__(self):
        return self.value

    def __getattr__(self, name):
        if name == "value":
            raise AttributeError(name)
        return getattr(self.value, name)


#: functions of an array and a wrapper
OF_WRAPPERS = {
    "dot": mnp.dot,
    "add": mnp.add,
    "power": mnp.power,
    "where": lambda x, w: mnp.where(x > 1, x, w),
    "concatenate": lambda x, w: mnp.concatenate([x, w]),
    "stack": lambda x, w: mnp.stack([w, x]),
    "sum": lambda x, w: mnp.sum(w),
    "max": lambda x, w: mnp.max(w),
    "einsum": lambda x, w: mnp.einsum("i,j->ij", x, w),
    "sin": lambda x, w: mnp.sin(w),
    "clip": lambda x, w: mnp.clip(x, 0, w),
    "softmax": lambda x, w: x * mw.nn.softmax(w),
    "relu": lambda x, w: mw.nn.relu(w),
    "logsumexp": lambda x, w: mw.nn.logsumexp(w),
    "norm": lambda x, w: mnp.linalg.norm(w),
    "at": lambda x, w: x.at[:].set(w),
    "reshape": lambda x, w: mnp.reshape(w, (3, 1)),
    "operator": lambda x, w: x * w,
    "convolve": mnp.convolve,
    "matmul": mnp.matmul,
    "asarray": lambda x, w: mnp.asarray(w),
}
#: what takes arrays alone
REFUSES_WRAPPERS = {
    "jit": lambda x, w: mw.jit(lambda y: 2 * y)(w),
    "lax": lax.mul,
    "scan": lambda x, w: lax.scan(lambda c, y: (c + y, c), 0.0, w)[0],
    "cond": lambda x, w: lax.cond(True, lambda y: 2 * y, lambda y: y, w),
    "grad": lambda x, w: mw.grad(lambda y: (y * y).sum())(w),
    "vmap": lambda x, w: mw.vmap(lambda y: 2 * y)(w),
    "checkpoint": lambda x, w: mw.checkpoint(lambda y: 2 * y)(w),
    "stop_gradient": lambda x, w: lax.stop_gradient(w) + x,
}
TRANSFORMED = {
    "jit": lambda f: mw.jit(f),
    "grad": lambda f: mw.grad(lambda y: mnp.sum(f(y))),
    "jit of grad": lambda f: mw.jit(mw.grad(lambda y: mnp.sum(f(y)))),
    "vmap": lambda f: lambda y: mw.vmap(f)(mnp.stack([y, y + 1])),
    "linearize": lambda f: lambda y: mw.linearize(f, y)[1](y),
}


@pytest.mark.parametrize("transformed", TRANSFORMED)
@pytest.mark.parametrize("name", OF_WRAPPERS)
def test_wrappers_of_traced_values_are_what_they_wrap(name, transformed):
    x, f, wrap = mnp.array([1.0, 2.0, 3.0]), OF_WRAPPERS[name], TRANSFORMED[transformed]
    got, want = wrap(lambda y: f(x, Parameter(y)))(x), wrap(lambda y: f(x, y))(x)
    np.testing.assert_array_equal(got, want)
    assert got.dtype == want.dtype


@pytest.mark.parametrize("transformed", TRANSFORMED)
@pytest.mark.parametrize("name", REFUSES_WRAPPERS)
def test_wrappers_are_no_constants(name, transformed):
    x, f, wrap = mnp.array([1.0, 2.0, 3.0]), REFUSES_WRAPPERS[name], TRANSFORMED[transformed]
    with pytest.raises(TypeError):
        wrap(lambda y: f(x, Parameter(y)))(x)


def test_traced_values_can_be_referred_to_weakly():
    seen = []

    def f(x):
        seen.append(weakref.ref(x)() is x)
        return 2 * x

    for wrap in (mw.jit, mw.grad, mw.linearize, mw.checkpoint):
        wrap(f)(1.0) if wrap is not mw.linearize else wrap(f, 1.0)
    mw.vmap(f)(mnp.ones(2))
    assert seen == [True] * 5


def test_options_are_read_as_a_dict():
    with mw.enable_x64(True):
        assert mw.config.x64_enabled and mw.config.values["jax_enable_x64"]
    values = mw.config.values
    assert not values["jax_enable_x64"] and values["jax_platforms"] == "cpu"
    values["jax_enable_x64"] = True
    assert not mw.config.enable_x64
    assert values.keys() >= {"jax_threefry_partitionable", "jax_numpy_rank_promotion", "jax_debug_nans"}


class Sizes:
    """A shape of another library."""

    def __init__(self, *sizes):
        self.sizes = sizes

    def __iter__(self):
        return iter(self.sizes)

    def __len__(self):
        return len(self.sizes)


@pytest.mark.parametrize("sizes", [(), (3,), (2, 3)])
@pytest.mark.parametrize(
    "kind", [lambda s: Sizes(*s), iter, lambda s: dict.fromkeys(s).keys(), lambda s: np.array(s, int)]
)
def test_shapes_are_anything_that_can_be_iterated_over(kind, sizes):
    key, x = mw.random.key(0), mnp.arange(float(np.prod(sizes)))
    for make in (
        mnp.zeros,
        lambda s: mw.random.normal(key, s),
        lambda s: mnp.broadcast_to(1.0, s),
        lambda s: mnp.reshape(x, s),
        x.reshape,
        lambda s: mnp.full_like(x, 1, shape=s),
        lambda s: mw.nn.initializers.normal()(key, s),
    ):
        assert make(kind(sizes)).shape == sizes


@pytest.mark.parametrize("sizes", [np.array([2.0, 3.0]), np.array([2.5]), {2: 2.5}.values(), "23", [2.0]])
def test_sizes_are_integers(sizes):
    for make in (mnp.zeros, lambda s: mw.random.normal(mw.random.key(0), s), lambda s: mnp.reshape(mnp.ones(6), s)):
        with pytest.raises(TypeError):
            make(sizes)


def test_what_is_taken_as_an_array():
    arrays = [1, 2.5, True, 1j, np.ones(2), np.float32(1), mnp.ones(2), mw.random.key(0)]
    others = ["a", None, [1.0], (1,), {}, object(), np.array("a"), np.array(None)]
    assert [mw.core.valid_jaxtype(x) for x in arrays + others] == [True] * len(arrays) + [False] * len(others)
    assert mw.jit(lambda x: float(mw.core.valid_jaxtype(x)))(1.0) == 1


def test_shapes_of_what_has_one():
    for x in (mw.ShapeDtypeStruct((3, 4), "float32"), SimpleNamespace(shape=(3, 4)), Wrapper(np.ones((3, 4)))):
        assert (mnp.shape(x), mnp.ndim(x), mnp.size(x), mnp.size(x, 1)) == ((3, 4), 2, 12, 4)


def test_other_types_are_not(refuses):
    assert Wrapper not in xla.canonicalize_dtype_handlers and Wrapper not in mw.core.pytype_aval_mappings
    with refuses(TypeError, "Wrapper"):
        mw.jit(lambda x: x)(Wrapper(1.0))
    with refuses(TypeError, "function for a class"):
        xla.canonicalize_dtype_handlers[np.ndarray] = None


# --- types and numbers --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "bounds", [(0, 6.0), (np.float64(-3), 2), (np.array([1.0, 2.0, -4.0]), 10.0), (0, np.prod(()))]
)
def test_bounds_of_integers_may_be_floats_that_are_whole(bounds):
    got, want = (m.random.randint(m.random.key(3), (3,), *bounds) for m in (mw, jax))
    np.testing.assert_array_equal(got, want)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bound", [np.float16(6), np.array([6, 6, 6], np.float16)])
def test_bounds_of_half_precision_do_not_warn(bound):
    got, want = (mw.random.randint(mw.random.key(3), (3,), 0, high) for high in (bound, 6))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("bound", [2.5, np.nan, np.inf, 1e300, np.array([1.0, 2.5])])
def test_other_floats_are_no_bounds_of_integers(bound, refuses):
    with refuses(DTypeError, "randint", "integers"):
        mw.random.randint(mw.random.key(3), (2,), 0, bound)


@pytest.mark.parametrize(("init", "op"), [(-np.inf, "max"), (np.inf, "min"), (0.0, "add")])
def test_reductions_of_integers_start_from_a_float_that_is_the_identity(init, op):
    x = [3, 1, 4, -1, 5]
    got, want = (
        [
            m.lax.reduce_window(m.numpy.array(x), init, getattr(m.lax, op), (2,), (1,), "SAME"),
            m.lax.reduce(m.numpy.array(x), init, getattr(m.lax, op), (0,)),
        ]
        for m in (mw, jax)
    )
    for ours, theirs in zip(got, want):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype


@pytest.mark.parametrize(("init", "op"), [(0.5, "add"), (2.0, "max"), (0.0, "max"), (np.nan, "add"), (-np.inf, "add")])
def test_reductions_of_integers_refuse_other_floats(init, op, refuses):
    with refuses(DTypeError, "init_value"):
        lax.reduce_window(mnp.arange(3), init, getattr(lax, op), (2,), (1,), "VALID")


@pytest.mark.parametrize(("init", "op"), [(-(2**31), "max"), (2**31 - 1, "min")])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_the_least_and_the_largest_integer_do_not_wrap_around(init, op, dtype):
    got, want = (m.lax.reduce(m.numpy.array([5, 3, 4], dtype), init, getattr(m.lax, op), (0,)) for m in (mw, jax))
    np.testing.assert_array_equal(got, want)
    assert got.dtype == want.dtype


def test_reductions_start_from_python_numbers_where_promotion_is_strict():
    with mw.numpy_dtype_promotion("strict"):
        assert lax.reduce_window(mnp.array([1, 3, 2]), -mnp.inf, lax.max, (2,), (1,), "VALID").tolist() == [3, 3]


@pytest.mark.parametrize("described", [mw.core.ShapedArray((2,), np.float32), mw.ShapeDtypeStruct((2,), "float32")])
def test_arguments_that_are_only_described(described):
    duck = SimpleNamespace(shape=described.shape, dtype=described.dtype)
    for x in (described, duck):
        assert mw.linear_transpose(lambda y: 3 * y, x)(mnp.ones(2))[0].tolist() == [3, 3]
        assert mnp.ones_like(x).tolist() == [1, 1] and mnp.zeros_like(x).dtype == "float32"
        assert mnp.full_like(x, 2, dtype=int).tolist() == [2, 2]


def test_names_that_are_classes_in_jax():
    assert dtypes.bfloat16 is jax.dtypes.bfloat16 is ml_dtypes.bfloat16
    assert mnp.ones(2, dtypes.bfloat16).dtype == "bfloat16"
    assert lib.__version__ == jax.lib.__version__


def test_paddings_are_a_list_as_in_jax():
    assert [(0, 0), *lax.padtype_to_pads((5,), (3,), (1,), "SAME")] == [(0, 0), (1, 1)]
    assert lax.padtype_to_pads((5,), (3,), (1,), "VALID") == jax.lax.padtype_to_pads((5,), (3,), (1,), "VALID")


def test_equations_have_their_effects_and_locations():
    def f(x):
        mw.debug.print("{}", x)
        return 2 * x

    printed, doubled = mw.make_jaxpr(f)(1.0).eqns
    assert printed.effects and not doubled.effects
    with mw.named_scope("outer"):
        (eqn,) = mw.make_jaxpr(lambda x: mw.named_call(mnp.sin, name="inner")(x))(1.0).eqns
    assert str(eqn.source_info.name_stack).endswith("inner")


def test_the_warning_of_a_donation_is_the_one_that_programs_ignore():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        mw.jit(mnp.sum, donate_argnums=0)(mnp.arange(4096.0) + 0)
    with pytest.warns(DonationWarning, match="Some donated buffers were not usable"):
        mw.jit(lambda x: mnp.max(x), donate_argnums=0)(mnp.arange(4096.0) + 0)
