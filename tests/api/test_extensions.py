"""Names for code that extends JAX: backends, traces, types, primitives with methods, classes that vmap maps."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import ArgumentError, ArgumentTypeError, RuleError
from meshwright.experimental import hijax
from meshwright.extend import backend
from meshwright.extend import core as extended
from meshwright.interpreters import batching


def test_backends():
    assert backend.get_backend().platform == mw.devices()[0].platform
    assert list(backend.backends()) == [mw.devices()[0].platform]
    assert backend.get_default_device() == mw.devices()[0]


def test_trace_states_differ_between_traces_alone():
    outside, states = extended.get_opaque_trace_state(), []

    @mw.jit
    def f(x):
        states.append([extended.get_opaque_trace_state(convention="any") for _ in range(2)])
        return mw.vmap(lambda y: (states.append([extended.get_opaque_trace_state()]), y)[1])(x)

    f(mnp.ones(2))
    (first, second), (inner,) = states
    assert first == second and hash(first) == hash(second)
    assert len({outside, first, inner}) == 3
    assert extended.get_opaque_trace_state() == outside


def test_types_and_jaxprs():
    assert all(map(extended.valid_jaxtype, (1, 2.0, np.ones(2), mnp.ones(2), np.float32(1))))
    assert not any(map(extended.valid_jaxtype, ("a", object(), None)))
    aval = mw.typeof(np.ones((2, 3), np.int32))
    assert isinstance(aval, mw.core.AbstractValue)
    assert extended.mapped_aval(3, 1, aval).shape == (2,)
    assert extended.unmapped_aval(4, 1, aval).shape == (2, 4, 3)
    assert extended.mapped_aval(3, None, aval) is extended.unmapped_aval(3, None, aval) is aval
    with pytest.raises(ArgumentError, match="use None"):
        extended.unmapped_aval(4, 1, aval, explicit_mesh_axis="x")
    jaxpr = mw.make_jaxpr(lambda x: mw.lax.cond(x > 0, lambda: x, lambda: -x))(1.0).jaxpr
    inner = list(extended.subjaxprs(jaxpr))
    assert inner and inner == [j for e in jaxpr.eqns for j in extended.jaxprs_in_params(e.params)]
    assert all(isinstance(j, extended.Jaxpr) for j in inner)


class Cubed(hijax.HiPrimitive):
    def abstract_eval(self, x, *, times):
        return x, set()

    def to_lojax(self, x, *, times):
        return times * x**3

    def jvp(self, primals, tangents, *, times):
        (x,), (t,) = primals, tangents
        return self.bind(x, times=times), 3 * times * x**2 * hijax.instantiate_zeros(t)


def test_primitives_with_methods():
    cubed = Cubed("cubed")
    x = np.float32(2)
    assert cubed.bind(x, times=2) == 16 == mw.jit(lambda x: cubed.bind(x, times=2))(x)
    assert mw.grad(lambda x: cubed.bind(x, times=2))(x) == 24
    with pytest.raises(RuleError, match="Transpose rule"):
        mw.linear_transpose(lambda x: cubed.bind(x, times=2), x)(x)
    with pytest.raises(RuleError, match=r"define HiPrimitive\.abstract_eval"):
        hijax.HiPrimitive("empty").bind(x)


def test_values_of_other_types_are_refused():
    class Kind(hijax.HiType):
        pass

    class Made(hijax.HiPrimitive):
        def abstract_eval(self, x):
            return Kind(), set()

    with pytest.raises(RuleError, match=r"expected a primitive of arrays without effects.*register_pytree_node"):
        mw.jit(Made("made").bind)(1.0)


class Padded:
    """Rows of different lengths; mapped by "rows"."""

    def __init__(self, data, lengths, note):
        self.data, self.lengths, self.note = data, lengths, note


@pytest.fixture
def padded():
    def element(cont, index, x, spec):
        return Padded(cont(x.data, 0), cont([x.lengths], 0)[0], x.note)

    def whole(cont, size, x, spec):
        return Padded(cont(size, x.data, 1), cont(size, x.lengths, 0), x.note)

    batching.register_vmappable(Padded, str, int, element, whole, None)
    yield Padded(mnp.arange(6.0).reshape(2, 3), mnp.array([1, 3]), "note")
    batching.unregister_vmappable(Padded)


def test_classes_that_vmap_maps(padded):
    def f(x, y):
        assert x.note == "note" and x.data.shape == (3,) and x.lengths.shape == ()
        return Padded(x.data * y, x.lengths + 1, "out"), x.data.sum()

    out, sums = mw.jit(lambda y: [g for o, s in [mw.vmap(f, ("rows", 0), ("rows", 0))(padded, y)]
                                  for g in ((o.data, o.lengths), s)])(mnp.array([10.0, 100.0]))  # fmt: skip
    np.testing.assert_array_equal(out[0], (np.arange(6.0).reshape(2, 3) * [[10], [100]]).T)
    np.testing.assert_array_equal(out[1], [2, 4])
    np.testing.assert_array_equal(sums, [3, 12])


def test_wrong_specs_of_classes_that_vmap_maps(padded):
    with pytest.raises(ArgumentTypeError, match="a Padded is mapped by a spec of type str, got 0"):
        mw.vmap(lambda x: x.data)(padded)
    with pytest.raises(ArgumentError, match="no argument is mapped"):
        mw.vmap(lambda x: x.data, ("rows",))(padded)
    assert mw.vmap(lambda x, y: x.data.sum() + y, (None, 0))(padded, mnp.arange(2.0)).tolist() == [15, 16]
    with pytest.raises(ArgumentTypeError, match="use int and None"):
        batching.register_vmappable(Padded, str, float, None, None, None)
