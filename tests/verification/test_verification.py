"""What ``verify`` draws, compares, allows and refuses."""

from __future__ import annotations

import dataclasses
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from mutations import mutations

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax, nn
from meshwright import PartitionSpec as P
from meshwright.api.partitioned import PartitionedProgram
from meshwright.core.avals import ShapedArray
from meshwright.core.dtypes import wide_types
from meshwright.errors import CallbackError, VerificationError
from meshwright.ir.interval import ANYWHERE, Interval
from meshwright.ir.tracing import eval_jaxpr
from meshwright.lowering.batched import virtual_program
from meshwright.ops.elementwise.table import copy
from meshwright.verification.difference import compare
from meshwright.verification.domains import input_domains
from meshwright.verification.draw import draw_inputs
from meshwright.verification.programs import _is_convolved
from meshwright.verification.rounding import rounded_otherwise
from meshwright.verification.widen import widened

MESH = mw.AbstractMesh((4,), ("x",))
X = NamedSharding(MESH, P("x"))
F32, I32 = np.float32, np.int32


def program(function, *args, shardings=None):
    return mw.jit(lambda *a: function(*a), in_shardings=shardings or (X,) * len(args)).lower(*args).partition(MESH)


def drawn(function, *args):
    source = program(function, *args, shardings=(None,) * len(args)).part.source
    return draw_inputs(source.in_avals, input_domains(source))


def zeros(*shape, dtype=F32):
    return np.zeros(shape, dtype)


def adam(g, m, v, t):
    m, v, t = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g, t + 1
    rate = mnp.sqrt(1 - 0.999 ** t.astype(F32)) / (1 - 0.9 ** t.astype(F32))
    return -rate * m / (mnp.sqrt(v) + 1e-8), m, v, t


@pytest.mark.parametrize(
    "function",
    [
        mnp.log, mnp.sqrt, lax.rsqrt, mnp.log1p, mnp.arcsin, mnp.arccosh, mnp.arctanh, lax.erf_inv, lax.lgamma,
        lambda x: mnp.log(2 * x - 3), lambda x: mnp.sqrt(mnp.sum(mnp.reshape(x, (4, 4)), 0) / 3),
        lambda x: mnp.sqrt(1 - x / 7), lambda x: mnp.log(mnp.sum(3 * x * x)) + mnp.sqrt(-x), lambda x: x**2.5,
        lambda x: lax.scan(lambda c, y: (mnp.sqrt(c + y), mnp.log(c)), x[0], x)[1],
        lambda x: lax.cond(True, mnp.sqrt, mnp.square, x), lambda x: mnp.sqrt(mnp.where(x > 3, x, x + 1)),
        lambda x: lax.fori_loop(0, 2, lambda i, y: mnp.sqrt(y), x),
    ],
)  # fmt: skip
def test_where_roots_and_logarithms_look(function):
    (x,) = drawn(function, zeros(16))
    assert np.all(np.isfinite(mw.jit(function)(x))) and len(set(x.tolist())) == 16


def test_optimizer_states():
    g, m, v, t = drawn(adam, zeros(40, 8), zeros(40, 8), zeros(40, 8), zeros(dtype=I32))
    assert (g < 0).any() and (m < 0).any() and (v > 0).all() and 0 <= t < 20
    found = program(adam, zeros(40, 8), zeros(40, 8), zeros(40, 8), np.int32(0), shardings=(X, X, X, None)).verify()
    assert found.finite == 1 and found.worst.relative < 1e-12


@pytest.mark.parametrize(
    "function",
    [
        lambda t, i: t[i], lambda t, i: mnp.take(t, i, axis=0), lambda t, i: t.at[i].add(1.0),
        lambda t, i: nn.one_hot(i, t.shape[0]) @ t, lambda t, i: mnp.take_along_axis(t, i[:, None] + 0, 0),
        lambda t, i: mnp.where((i == 0)[:, None], 0.0, t[i]),
    ],
)  # fmt: skip
def test_indices_reach_all_of_their_dimension(function):
    _, i = drawn(function, zeros(1000, 4), zeros(300, dtype=I32))
    assert i.min() == 0 and i.max() == 999 and len(set(i.tolist())) > 200


def test_indices_of_several_dimensions():
    _, i = drawn(lambda t, i: t[i[:, 0], i[:, 1]], zeros(10, 1000), zeros(200, 2, dtype=I32))
    assert i[:, 0].max() < 10 and i[:, 1].max() > 900 and i.min() == 0
    (index,) = drawn(lambda i: lax.switch(i, [lambda: 1.0, lambda: 2.0, lambda: 3.0]), np.int32(0))
    assert 0 <= index < 3


def test_every_branch_is_drawn():
    """In as few draws as there are branches, or pairs of them."""

    def function(i, p, x):
        return lax.switch(i, [mnp.sin, mnp.cos, mnp.tanh], x) + lax.cond(p, mnp.exp, mnp.square, x)

    source = program(function, np.int32(0), np.bool_(True), zeros(4), shardings=(None, None, X)).part.source
    draws = [draw_inputs(source.in_avals, input_domains(source), seed)[:2] for seed in range(6)]
    assert {(int(i), bool(p)) for i, p in draws} == {(i, p) for i in range(3) for p in (False, True)}


def test_domains_without_an_integer():
    (i,) = draw_inputs([ShapedArray((3,), np.dtype(I32))], [Interval(0.2, 0.8)])
    assert i.tolist() == [1, 1, 1]


def test_masks_are_of_both_kinds():
    def attention(scores, mask):
        return nn.softmax(mnp.where(mask, scores, -mnp.inf))

    _, mask = drawn(attention, zeros(64, 8), zeros(64, 8, dtype=bool))
    assert mask.any(1).all() and not mask.all(1).all()
    for dtype in (I32, F32):
        _, mask = drawn(lambda s, m: attention(s, m != 0), zeros(64, 8), zeros(64, 8, dtype=dtype))
        assert set(mask.ravel().tolist()) == {0, 1}


def test_matrices_with_a_root():
    (a,) = drawn(lambda a: mw.numpy.linalg.cholesky(a), zeros(3, 5, 5))
    assert (np.linalg.eigvalsh(a) > 0).all()


def test_keys_are_any_bits():
    (key,) = drawn(lambda k: mw.random.normal(k, (4,)), np.zeros(2, np.uint32))
    assert key.max() > 1000


def test_a_domain_for_nothing():
    assert input_domains(program(mnp.sin, zeros(4)).part.source) == [ANYWHERE]


# --- float64 ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, F32, np.complex64])
def test_narrow_types_are_compared_in_float64(dtype):
    found = program(lambda x: mnp.sum(mnp.cumsum(x, 0) @ x.T, 0), zeros(8, 6, dtype=dtype)).verify()
    assert found.precision == "float64" and found.worst.relative < 1e-12


def test_ops_that_keep_their_types():
    def function(key, x):
        bits = lax.bitcast_convert_type(x, np.int32)
        return mnp.sum(mw.random.normal(key, x.shape) * x), lax.bitcast_convert_type(bits & ~1, F32)

    part = program(function, np.zeros(2, np.uint32), zeros(16), shardings=(None, X))
    assert "bitcast_convert_type" in widened(part.part.source).narrow
    assert "but for" in part.verify().precision


@pytest.mark.parametrize("op", ["bfloat16", "float32"])
def test_wide_programs_compute_the_same(op):
    def function(x, w):
        body = lambda c, y: (mnp.tanh(c @ w + y), mnp.sum(c.astype(np.float32)))  # noqa: E731
        return lax.scan(body, x[0], x)

    x, w = np.random.default_rng(0).normal(size=(3, 4, 4)).astype(op), np.eye(4).astype(op)
    part = program(function, x, w, shardings=(None, None))
    wide = widened(part.part.source)
    assert not wide.narrow and all(v.aval.dtype == np.float64 for v in wide.jaxpr.jaxpr.outvars)
    assert virtual_program(part.part).out_avals[0].dtype == op


def test_typed_keys():
    part = program(lambda k, x: x + mw.random.normal(k, x.shape), mw.random.key(0), zeros(8), shardings=(None, X))
    assert part.verify().finite == 1 and part.verify(mw.random.key(3), zeros(8)).finite == 1


# --- what is allowed ----------------------------------------------------------------------------------------
def test_amplified_rounding_is_no_mistake():
    """The gradient is zero but for rounding, and the optimizer makes it one."""

    def step(x, w):
        loss = lambda w: mnp.mean(nn.softmax(x + w))  # noqa: E731  (a constant)
        g = mw.grad(loss)(w)
        return g / (mnp.sqrt(g * g) + 1e-12)

    assert program(step, zeros(64, 33), zeros(33), shardings=(X, None)).verify()


@cache
def chaotic():
    """A recurrent network whose sums devices make in parts, in so many steps that no bit of them is left."""

    def run(x, w, u):
        return lax.scan(lambda h, t: (mnp.tanh(t @ w / 9 + h @ u),) * 2, zeros(4, 16), x)[0]

    along = [NamedSharding(MESH, spec) for spec in (P(None, None, "x"), P("x"), P("x"))]
    return program(run, zeros(150, 4, 8), zeros(8, 16), zeros(16, 16), shardings=along)


def test_amplified_rounding_is_told_from_mistakes(refuses):
    """Where nothing is left of the results, inputs are drawn again, or what was given is refused."""
    part, rng = chaotic(), np.random.default_rng(0)
    assert any("drawn smaller: other roundings" in note for note in part.verify().notes)
    given = [rng.normal(size=a.shape).astype(F32) for a in part.part.source.in_avals]
    with refuses(VerificationError, "too much to tell"):
        part.verify(*given)


@pytest.mark.slow
def test_mistakes_of_chaotic_programs_are_found(refuses):
    part = chaotic()
    for mistake in mutations(part.jaxpr.jaxpr, MESH):
        changed = dataclasses.replace(part.part, jaxpr=mistake.applied(part.jaxpr))
        with refuses(VerificationError, "they first differ after"):
            PartitionedProgram(part.program, changed).verify()


def test_mistakes_beside_chaos_are_told(refuses):
    """Of one output, which is infinite in its own type, nothing is told by what was given; the other is wrong."""

    def run(x):
        y = lax.fori_loop(0, 400, lambda _, y: 3.9 * y * (1 - y), x.sum(1) / 256)
        return y * F32(1e30) * F32(1e30), (x * x).sum(1)

    part = program(run, zeros(64, 256), shardings=(NamedSharding(MESH, P(None, "x")),))
    given = np.random.default_rng(0).random((64, 256), F32)
    first, *_ = mutations(part.jaxpr.jaxpr, MESH)  # before the loop
    one = first.applied(part.jaxpr)
    *_, last = mutations(one.jaxpr, MESH)  # beside it
    for jaxpr, said in ((one, "too much to tell"), (last.applied(one), "and 1 more outputs differ")):
        changed = dataclasses.replace(part.part, jaxpr=jaxpr)
        with refuses(VerificationError, said):
            PartitionedProgram(part.program, changed).verify(given)


def test_what_amplified_rounding_allows_is_said():
    """Of sums in the program's own types next to nothing is left, of those in float64 most bits."""
    columns = NamedSharding(MESH, P(None, "x"))
    sines = program(lambda x: mnp.sin(2e10 * (x.sum(1) + (x * x).sum(1))), zeros(64, 256), shardings=(columns,))
    found = sines.verify(np.random.default_rng(0).random((64, 256), F32) / 64)
    assert 1e-9 < found.worst.relative < found.worst.allowed < 1e-3 and "roundings are amplified" in str(found)


def test_differences_are_by_element():
    want = np.array([1e6, 1.0, 1e-9, 0.0])
    assert compare(want, want, 1e-9).excess <= 0
    assert compare(np.array([1e6 + 1e-4, 1.0, 1e-9, 0.0]), want, 1e-9).excess <= 0
    assert compare(np.array([1e6, 1 + 1e-4, 1e-9, 0.0]), want, 1e-9).excess > 0
    with_nan = np.array([np.nan, np.inf, 1.0])
    assert compare(with_nan, with_nan).finite == 1 and compare(with_nan, with_nan).absolute == 0
    for other in ([1.0, np.inf, 1.0], [np.nan, -np.inf, 1.0], [np.nan, np.inf, np.nan]):
        assert compare(np.array(other), with_nan, 1).excess == np.inf
    assert compare(np.array([1, 2]), np.array([1, 3]), 1, 5).excess > 0


def test_which_part_of_a_complex_number_is_nan():
    """It depends on the order of products: ``(inf + 1j) * 1j * (0 - 1j)``."""
    want = np.array([complex(np.nan, np.inf), 1j])
    for other in (complex(np.nan, np.nan), complex(np.inf, np.nan)):
        assert compare(np.array([other, 1j]), want).absolute == 0
    assert compare(np.array([1j, 1j]), want, 1).excess == np.inf
    # infinities without a NaN are themselves
    assert compare(np.array([complex(np.inf, 0)]), np.array([complex(-np.inf, 0)]), 1).excess == np.inf
    assert compare(np.array([complex(np.inf, 0)]), np.array([complex(np.inf, 0)])).absolute == 0
    assert compare(np.array([complex(np.nan, 1), 2j]), want).excess > 0
    x = np.full((5, 2), 1 + 1j, np.complex64)
    x[:, 0] = np.inf, complex(0, -1), complex(np.inf, 1), complex(2, 0), complex(-np.inf, 3)
    assert program(lambda v: mnp.cumprod(v, 0), x).verify(x, finite=0)


def test_the_order_of_infinities_is_said(refuses):
    """``inf - inf`` or not: that depends on which steps are combined first."""
    x = np.array([2.0, -1.0, 0.5, -1.0, 0.5, 0.5, np.inf, np.inf], F32)
    steps = program(lambda v: lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (v, v)), x)
    assert steps.verify().finite == 1
    with refuses(VerificationError, "associative_scan", "in another order", "without such values"):
        steps.verify(x, finite=0)


def test_what_is_not_finite_proves_nothing(refuses):
    part = program(lambda x: mnp.log(x), zeros(8))
    with refuses(VerificationError, "only 50.0 % of output 0", "log at", "finite=0.5"):
        part.verify(np.array([1, 2, 3, 4, -1, -2, -3, -4], F32))
    assert part.verify(np.array([1, 2, 3, 4, -1, -2, -3, -4], F32), finite=0.5).finite == 0.5
    with refuses(VerificationError, "only 0.0 %", "verify(*args)"):
        program(lambda x: x * mnp.nan, zeros(8)).verify()


def test_inputs_are_drawn_again_where_results_overflow():
    assert program(lambda x: mnp.exp(mnp.exp(10 * mnp.abs(x))), zeros(64)).verify().finite == 1


# --- how it is told -----------------------------------------------------------------------------------------
def test_checks_of_the_users_may_not_hold_of_what_was_drawn(refuses):
    """Inputs are drawn otherwise while a function raises; where it always does, it is said that they were drawn."""

    def above(limit):
        def check(x):
            if np.any(x < limit):
                raise ValueError("too small")
            return x

        return program(lambda x: mw.pure_callback(check, mw.ShapeDtypeStruct(x.shape, x.dtype), x) + 1, zeros(8))

    assert above(0).verify().finite == 1
    with refuses(CallbackError, "too small; the inputs of '<lambda>' were drawn at random"):
        above(9).verify()


def test_results_print():
    found = program(lambda x: (mnp.sum(x), x > 0), zeros(8)).verify()
    assert "verified: 2 outputs equal" in repr(found) and "100 %" in repr(found) and "f32[]" in repr(found)
    assert found._repr_html_().startswith("<p>verified") and len(found) == 2 and found[0].output == "output 0"


def test_progress_is_told():
    told = []
    program(mnp.sin, zeros(8)).verify(progress=lambda step, done, total: told.append((step, done, total)))
    assert [step for step, _, _ in told][-1] == "running both" and all(done < total for _, done, total in told)


def test_numbers_keep_their_types_beside_ops_that_do():
    part = program(lambda x: mnp.copysign(x, 0.5), zeros(16, dtype=bool), shardings=(X,))
    assert "bitcast_convert_type" in part.verify().precision


def test_convolutions_are_worth_optimizing():
    """XLA writes those in float64 as loops."""
    image, kernel, matrix = (np.ones(shape, np.float32) for shape in ((4, 16, 32, 32), (16, 16, 3, 3), (512, 512)))

    def convolved(x, k):
        return lax.conv(x, k, (1, 1), "SAME")

    assert _is_convolved(mw.make_jaxpr(convolved)(image, kernel))
    assert not _is_convolved(mw.make_jaxpr(convolved)(image[:, :, :4, :4], kernel))
    assert not _is_convolved(mw.make_jaxpr(lambda x: x @ x)(matrix))
    assert not _is_convolved(mw.make_jaxpr(lax.cumsum)(matrix))


def test_the_unpartitioned_program_is_compared_with_itself_in_its_own_types(refuses):
    """Where loops count in numbers that float64 would make wide."""
    part = program(lambda x: lax.fori_loop(0, 3, lambda i, c: c.at[i].add(mnp.sum(c)), x), zeros(8))
    mistaken = part.jaxpr.jaxpr.replace(eqns=[_without_sums(e) for e in part.jaxpr.jaxpr.eqns])
    wrong = dataclasses.replace(part.part, jaxpr=part.jaxpr.replace(jaxpr=mistaken))
    with refuses(VerificationError, "in round 0 of the scan"):
        PartitionedProgram(part.program, wrong).verify()


def _without_sums(eqn):
    if eqn.op.name == "psum":
        return eqn.replace(op=copy)
    regions = eqn.op.regions() if eqn.op.holds_jaxprs else ()
    changed = [r.replace(jaxpr=r.jaxpr.replace(eqns=[_without_sums(e) for e in r.eqns])) for r in regions]
    return eqn.replace(op=eqn.op.with_regions(changed)) if changed else eqn


def test_manual_regions_may_end_with_a_conversion():
    """Such a conversion makes the result of the ``shard_map``, also of one in another."""
    mesh = mw.AbstractMesh((2, 2), ("x", "y"))

    def rounded(axis, inner):
        spec = P(axis)
        return mw.shard_map(inner, mesh=mesh, in_specs=spec, out_specs=spec, axis_names={axis})

    once = rounded("x", lambda a: (a * 2).astype(ml_dtypes.bfloat16))
    for region in (once, rounded("y", once)):
        mw.jit(region).lower(ShapedArray((8, 3), np.dtype(F32))).partition(mesh).verify()


def test_sums_completed_late_are_named(refuses):
    """Infinities meet each device's term of the sum."""
    x, w = np.array([[1.0], [2], [-4], [-5]], F32) * np.ones((4, 3), F32), np.array([np.inf, 1, 2], F32)
    part = program(lambda x, w: mnp.sum(x, 0) @ mnp.diag(w), x, w, shardings=(X, None))
    with refuses(VerificationError, "+sum{x}", "the sum over devices is completed late"):
        part.verify(x, w, finite=0)
    assert part.verify(x, np.ones(3, F32)).finite == 1


def test_numbers_of_few_values_are_those_that_their_type_has():
    largest = np.iinfo(I32).max
    for seed in range(4):
        (drawn,) = draw_inputs([ShapedArray((), np.dtype(I32))], [Interval(largest - 1.0, largest + 1.0)], seed)
        assert drawn in (largest - 1, largest)


WITH_SUMS = {
    "product": lambda x: x @ x,
    "complex product": lambda x: (x + 1j) @ (x + 2j),
    "sum": lambda x: x.sum(0),
    "cumulative": lambda x: mnp.cumsum(x + 1j, 0),
    "transform": lambda x: mnp.fft.fft2(x + 1j),
    "real transform": lambda x: mnp.fft.rfft(x),
    "decomposition": lambda x: mnp.linalg.cholesky(x),
    "several results": lambda x: mnp.linalg.eigh(x),
    "triangular system": lambda x: lax.linalg.triangular_solve(x, x + 1, left_side=True),
}


@pytest.mark.parametrize("name", WITH_SUMS)
def test_sums_are_rounded_otherwise(name):
    """By a bit or so: of transforms and decompositions too, whose libraries sum in an order of their own."""
    x = np.cos(np.arange(36.0)).reshape(6, 6)
    x = x @ x.T + 3 * np.eye(6)
    with wide_types():
        plain = mw.make_jaxpr(WITH_SUMS[name])(x)
        before, after = (eval_jaxpr(j, j.consts, x) for j in (plain, rounded_otherwise(plain)))
    for a, b in zip(map(np.asarray, before), map(np.asarray, after), strict=True):
        assert a.itemsize >= 8 and np.any(a != b)
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13 * np.abs(a).max())
