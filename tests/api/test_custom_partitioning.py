"""Functions whose user says how they are partitioned: what they are asked, what devices do, what is reported."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, P, lax
from meshwright.errors import ReplicationWarning, VerificationError
from meshwright.experimental.custom_partitioning import (
    BATCHING,
    ArrayMapping,
    CompoundFactor,
    SdyShardingRule,
    custom_partitioning,
    str_to_sdy_sharding_rule,
)
from meshwright.sharding import GSPMDSharding

MESH = mw.make_mesh((4, 2), ("x", "y"))
A = np.sin(np.arange(128, dtype=np.float32)).reshape(16, 8)
B = np.cos(np.arange(96, dtype=np.float32)).reshape(8, 12)
SQUARE = np.cos(np.arange(64, dtype=np.float32)).reshape(8, 8)


def over(*entries, mesh=MESH):
    return NamedSharding(mesh, P(*entries))


def product(asked=None):
    """A product whose devices share its sum, and what its partition was asked."""

    def partition(mesh, args, result):
        a, b = (s.sharding.spec for s in args)
        if asked is not None:
            asked.append((mesh, [s.shape for s in args], a, b, result.sharding.spec))

        def local(x, w):
            return lax.psum(x @ w, a[1]) if a[1] else x @ w

        ins = over(*a, mesh=mesh), over(a[1], b[1], mesh=mesh)
        return mesh, local, over(a[0], b[1], mesh=mesh), ins

    @custom_partitioning
    def dot(a, b):
        return a @ b

    assert dot.def_partition(partition, sharding_rule="i k, k j -> i j", reduction_factors=("k",)) is partition
    return dot


def test_a_rule_spreads_axes_and_the_partition_says_what_devices_do():
    asked = []
    dot = product(asked)
    f = mw.jit(lambda a, b: dot(2 * a, b) + 1, in_shardings=(over("x", "y"), over()))
    part = f.lower(A, B).partition()
    mesh, shapes, a, b, result = asked[-1]
    assert mesh == MESH and shapes == [(16, 8), (8, 12)]
    assert (a, b, result) == (P("x", "y"), P(None, None), P("x", None))
    assert [(c.kind, c.axes, str(c.operand)) for c in part.collectives] == [("all_reduce", ("y",), "f32[4,12]")]
    part.verify()
    np.testing.assert_allclose(f(A, B), 2 * A @ B + 1, rtol=1e-5, atol=1e-5)
    assert part.work.product_redundancy == 1


def rows_of(sharding):
    """A sharding with the last dimension whole."""
    return NamedSharding(sharding.mesh, P(*sharding.spec[:-1], None))


def transform():
    """The Fourier transform of JAX's documentation, whose last dimension has to be whole."""

    def partition(mesh, args, result):
        return mesh, mnp.fft.fft, rows_of(args[0].sharding), (rows_of(args[0].sharding),)

    def infer(mesh, args, result):
        assert result.dtype == np.complex64
        return rows_of(args[0].sharding)

    @custom_partitioning
    def fft(x):
        return mnp.fft.fft(x)

    fft.def_partition(partition, infer_sharding_from_operands=infer)
    return fft


def test_shardings_inferred_from_operands():
    fft = transform()
    f = mw.jit(lambda x: fft(x) * 2, in_shardings=over("x", None))
    part = f.lower(A.astype(np.complex64)).partition()
    assert not part.collectives and part.out_shardings[0].spec == P("x", None)
    np.testing.assert_allclose(f(A), 2 * np.fft.fft(A), rtol=1e-4, atol=1e-4)


def test_what_a_partition_gathers_is_said():
    row = A[0].astype(np.complex64)
    part = mw.jit(transform(), in_shardings=over("x"), out_shardings=over("x")).lower(row).partition()
    with pytest.warns(ReplicationWarning, match="operand 0 is gathered .* so says its partition"):
        part.warn()
    (gather,) = part.collectives
    assert gather.kind == "all_gather" and "custom_partitioning needs operand 0 as [{}]" in str(part.explain())
    part.verify()


def test_results_are_laid_out_as_their_user_suggests():
    asked = []

    def partition(mesh, args, result):
        asked.append(result.sharding.spec)
        return mesh, lambda x: x + 1, result.sharding, (result.sharding,)

    @custom_partitioning
    def more(x):
        return x + 1

    def suggested(mesh, wanted):
        return over(None, wanted.sharding.spec[0], mesh=mesh)

    more.def_partition(partition, propagate_user_sharding=suggested)
    part = mw.jit(more, in_shardings=over(), out_shardings=over("x", None)).lower(A).partition()
    assert asked[-1] == P(None, "x")
    part.verify()
    more.def_partition(partition)
    mw.jit(more, in_shardings=over(), out_shardings=over("x", None)).lower(A).partition()
    assert asked[-1] == P("x", None)


@pytest.mark.parametrize("decoded", [True, False])
def test_static_arguments_trees_and_values_that_are_closed_over(decoded):
    def fun(tree, k):
        return {"a": tree["a"] * k * factor, "b": [tree["b"].sum(-1)]}

    def partition(k, mesh, args, result):
        (tree,) = args
        kind = NamedSharding if decoded else GSPMDSharding
        assert k == 5 and type(tree["a"].sharding) is kind and type(result["b"][0].sharding) is kind
        ins = {"a": tree["a"].sharding, "b": over("x", None)}

        def local(tree):
            return {"a": tree["a"] * k * 3, "b": [tree["b"].sum(-1)]}

        return mesh, local, {"a": tree["a"].sharding, "b": [over("x")]}, [ins]

    def infer(k, mesh, args, result):
        return {"a": args[0]["a"].sharding, "b": [over("x")]}

    factor = mnp.float32(3)
    f = custom_partitioning(fun, static_argnums=(1,))
    f.def_partition(partition, infer, decode_shardings=decoded)
    args = {"a": A, "b": A}
    part = mw.jit(lambda t: f(t, 5), in_shardings=({"a": over("x", "y"), "b": over(None, "y")},)).partition(args)
    assert [s.spec for s in mw.tree.leaves(part.out_shardings)] == [P("x", "y"), P("x")]
    assert "operand 1" in str(part.explain())
    part.verify()
    np.testing.assert_allclose(f(args, k=5)["b"][0], A.sum(-1), rtol=1e-5)


def test_in_loops_branches_regions_and_derivatives():
    asked = []
    dot = product(asked)

    @mw.custom_vjp
    def differentiable(a, b):
        return dot(a, b)

    differentiable.defvjp(lambda a, b: (dot(a, b), (a, b)), lambda saved, g: (dot(g, saved[1].T), dot(saved[0].T, g)))

    def loss(a, b, flag):
        carry, sums = lax.scan(lambda c, _: (differentiable(c, b), c.sum()), a, None, length=2)
        return lax.cond(flag, lambda c: differentiable(c, b), lambda c: c, carry).sum() + sums.sum()

    places = over("x", None), over(), over()
    part = mw.jit(mw.grad(lambda a, b: loss(a, b, False)), in_shardings=places[:2]).lower(A, SQUARE).partition()
    part.verify()
    mw.jit(loss, in_shardings=places).lower(A, SQUARE, True).partition().verify()

    whole = mw.shard_map(dot, mesh=MESH, in_specs=(P("x"), P()), out_specs=P("x"))
    np.testing.assert_allclose(mw.jit(whole)(A, B), A @ B, rtol=1e-4, atol=1e-5)
    in_part = mw.shard_map(dot, mesh=MESH, in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"})
    f = mw.jit(in_part, in_shardings=(over("x", "y"), over("y")))
    np.testing.assert_allclose(f(A, B), A @ B, rtol=1e-4, atol=1e-5)
    assert asked[-1][0].axis_names == ("y",) and asked[-1][2] == P(None, "y")


def test_uneven_dimensions_are_shown_as_whole():
    asked = []
    dot = product(asked)
    mw.jit(lambda a, b: dot(a[:15], b), in_shardings=(over("x", None), over())).lower(A, B).partition().verify()
    assert asked[-1][2] == P(None, None)


def test_without_a_mesh_and_op_by_op_it_is_the_function():
    dot = product()
    np.testing.assert_allclose(dot(A, B), A @ B, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(mw.jit(dot)(A, B), A @ B, rtol=1e-5, atol=1e-5)
    lowered = mw.jit(dot).lower(A, B)
    assert "call @dot" in lowered.as_text()
    for text in (lowered.as_text(), lowered.as_text("hlo")):  # which hold no functions of Python
        with pytest.warns(ReplicationWarning, match="custom_partitioning dot: its user's functions"):
            loaded = mw.load(text)
        np.testing.assert_array_equal(loaded(A, B), mw.jit(dot)(A, B))


def test_a_wrong_partition_is_found_by_verify():
    @custom_partitioning
    def total(x):
        return x.sum(0)

    def partition(mesh, args, result):  # forgets to sum over devices
        return mesh, lambda x: x.sum(0), over(mesh=mesh), (over("x", None, mesh=mesh),)

    total.def_partition(partition, sharding_rule="i j -> j", reduction_factors=("i",))
    with pytest.raises(VerificationError):
        mw.jit(total, in_shardings=over("x", None)).lower(A).partition().verify()


def test_rules():
    rule = str_to_sdy_sharding_rule("... (a b) k, ...1 k -> ... a, ...1 b", reduction_factors=("k",))
    found = rule.rule([(5, 6, 7), (4, 7)], [(5, 2), (4, 3)])
    assert str(found) == "[..._0 (a b) k], [...1_0 k] -> [..._0 a], [...1_0 b]; k: reduction (sum)"
    same = SdyShardingRule(
        ((BATCHING, CompoundFactor("a", "b"), "k"), ArrayMapping("...1", "k")),
        ((BATCHING, "a"), ("...1", "b")),
        reduction_factors=("k",),
    )
    assert str(same) == str(rule) == "... (a b) k, ...1 k -> ... a, ...1 b"
    kinds = str_to_sdy_sharding_rule("...0 i j -> i j", need_replication_factors=("i",), permutation_factors=("j",))
    assert str(kinds.rule([(2, 3, 4)], [(3, 4)])) == "[..._0 i j] -> [i j]; i: replicated, j: window"
    assert repr(kinds).endswith("need_replication_factors=('i',), permutation_factors=('j',))")
    assert str(str_to_sdy_sharding_rule("-> i").rule([()], [(3,)])) == "[] -> [i]"


def test_a_rule_made_for_the_call():
    asked = []
    dot = product(asked)

    def rule(mesh, arguments, results):
        assert arguments[0].shape == (16, 8) and results[0].shape == (16, 12)
        return "i k, k j -> i j", {"reduction_factors": ("k",)}

    dot.def_partition(dot._rules.partition, sharding_rule=rule)
    mw.jit(dot, in_shardings=(over("x", "y"), over())).lower(A, B).partition()
    assert asked[-1][2:] == (P("x", "y"), P(None, None), P("x", None))


def test_what_a_function_of_its_own_partitioning_sums_is_no_row_of_a_loop():

    def partition(mesh, args, result):
        def local(x):
            return lax.psum(x.sum(0), "x")

        return mesh, local, over(mesh=mesh), (over("x", mesh=mesh),)

    @custom_partitioning
    def total(x):
        return x.sum(0)

    total.def_partition(partition, sharding_rule="i k -> k", reduction_factors=("i",))
    f = mw.jit(lambda x: total(x) * 2, in_shardings=over("x"))
    part = f.lower(A).partition()
    np.testing.assert_allclose(part(A), A.sum(0) * 2, rtol=1e-5)
    assert not any("loops" in note for note in part.notes)
