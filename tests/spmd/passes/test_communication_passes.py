"""Each communication pass: the program it makes, as golden text; before and after compute the same on every device."""

from __future__ import annotations

import numpy as np
import pytest
from local_programs import MESH, all_slice, apply, array, becomes, kinds, optimize, same, sent, stays, trace

import meshwright.numpy as mnp
from meshwright import lax
from meshwright.spmd import report
from meshwright.spmd.passes.pipeline import communication_passes

A, B, R = array(6, 4, over="xy"), array(6, 4, over="xy"), array(6, 4)


def gather(x, axes, dim=0):
    return lax.all_gather(x, tuple(axes), axis=dim, tiled=True)


# --- common and dead collectives ----------------------------------------------------------------------------
def test_equal_gathers_of_equal_values_are_one():
    becomes(
        "common|became dead",
        lambda a: gather(mnp.sin(a), "y") * 2 + gather(mnp.sin(a), "y"),
        [A],
        """
        { lambda ; a:f32[6,4]. let
            b:f32[6,4] = sin a
            c:f32[18,4] = all_gather[axes=('y',) dimension=0] b
            d:f32[18,4] = mul c 2.0:f32[]
            e:f32[18,4] = add d c
          in (e,) }
        """,
    )


def test_different_collectives_are_not_common():
    stays("common", lambda a: (lax.psum(a, "x"), lax.psum(a, "y"), lax.pmax(a, "x"), gather(a, "y", 1)), [A])


def test_dead_results_and_carries_leave_their_loop():
    def loop(c, xs):
        def body(carry, x):
            first, second = carry
            return (first + x.sum(), second + lax.psum(x, "x").sum()), gather(x, "y")

        return lax.scan(body, (c, c), xs)[0][0]

    becomes(
        "dead",
        loop,
        [array(), array(5, 3, over="y")],
        """
        { lambda ; a:f32[] b:f32[5,3]. let
            c:f32[] = scan[
              jaxpr={ lambda ; d:f32[] e:f32[3]. let
                  f:f32[] = reduce_sum[axes=(0,)] e
                  g:f32[] = add d f
                in (g,) }
              length=5
              num_carry=1
              num_consts=0
              reverse=False
              unroll=1
            ] a b
          in (c,) }
        """,
    )


def test_dead_results_leave_branches():
    def branches(p, x):
        return lax.cond(p > 0, lambda x: (x + 1, lax.psum(x, "x")), lambda x: (x - 1, x), x)[0]

    becomes(
        "dead",
        branches,
        [array(), array(2, over="x")],
        """
        { lambda ; a:f32[] b:f32[2]. let
            c:bool[] = gt a 0.0:f32[]
            d:i32[] = convert_element_type[new_dtype=int32 weak_type=False] c
            e:f32[2] = cond[
              branches=(
                { lambda ; f:f32[2]. let g:f32[2] = sub f 1.0:f32[] in (g,) }
                { lambda ; h:f32[2]. let i:f32[2] = add h 1.0:f32[] in (i,) }
              )
            ] d b
          in (e,) }
        """,
    )


def test_a_while_loop_drops_what_only_its_body_carries():
    def loop(x):
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + 1, lax.psum(s[2], "x")), (0, x, x))[1]

    inputs = [array(2, 3, over="x")]
    before = trace(loop, inputs)
    after = apply("dead", before, inputs)
    assert kinds(before) == ["all_reduce"] and kinds(after) == []
    same(before, after, inputs)


# --- loops --------------------------------------------------------------------------------------------------
def test_a_scan_gathers_its_weights_once():
    def loop(w, c, xs):
        return lax.scan(lambda c, x: (c + x @ gather(-w, "y"), None), c, xs)[0]

    inputs = [array(2, 4, over="y"), array(2, 4), array(5, 2, 6, over="x")]
    becomes(
        "hoist",
        loop,
        inputs,
        """
        { lambda ; a:f32[2,4] b:f32[2,4] c:f32[5,2,6]. let
            d:f32[2,4] = neg a
            e:f32[6,4] = all_gather[axes=('y',) dimension=0] d
            f:f32[2,4] = scan[
              jaxpr={ lambda ; g:f32[2,4] h:f32[6,4] i:f32[2,4] j:f32[2,6]. let
                  k:f32[2,4] = dot_general[dimension_numbers=(((1,), (0,)), ((), ())) preferred_element_type=None] j h
                  l:f32[2,4] = add i k
                in (l,) }
              length=5
              num_carry=1
              num_consts=2
              reverse=False
              unroll=1
            ] a e b c
          in (f,) }
        """,
    )


def test_a_while_loop_and_what_it_carries_unchanged():
    def loop(w, c):
        return lax.while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + lax.psum(w, "y") + lax.pmax(s[2], "x"), s[2]), (0, c, w)
        )[1]

    becomes(
        "hoist",
        loop,
        [array(2, 3, over="xy"), array(2, 3)],
        """
        { lambda ; a:f32[2,3] b:f32[2,3]. let
            c:f32[2,3] = psum[axes=('y',)] a
            d:f32[2,3] = pmax[axes=('x',)] a
            _:i32[] e:f32[2,3] _:f32[2,3] = while[
              body_jaxpr={ lambda ; f:f32[2,3] g:f32[2,3] h:f32[2,3] i:i32[] j:f32[2,3] k:f32[2,3]. let
                  l:i32[] = add i 1:i32[]
                  m:f32[2,3] = add j g
                  n:f32[2,3] = add m h
                in (l, n, k) }
              body_nconsts=3
              cond_jaxpr={ lambda ; o:i32[] p:f32[2,3] q:f32[2,3]. let
                  r:bool[] = lt o 3:i32[]
                in (r,) }
              cond_nconsts=0
            ] a c d 0:i32[] b a
          in (e,) }
        """,
    )


def test_collectives_leave_nested_loops():
    def loop(w, xs):
        def inner(c, x):
            return c + (x * lax.psum(w, "y")).sum(), None

        def outer(c, row):
            return lax.scan(inner, c, row)[0], None

        return lax.scan(outer, xs.sum() * 0, xs)[0]

    inputs = [array(3, over="y"), array(4, 5, 3)]
    before = trace(loop, inputs)
    after = apply("hoist", before, inputs)
    assert [c.count for c in report.collectives(before.jaxpr)] == [20]
    assert [c.count for c in report.collectives(after.jaxpr)] == [1]
    same(before, after, inputs)


def test_a_loop_that_never_runs_keeps_its_collectives():
    stays("hoist", lambda w, c, xs: lax.scan(lambda c, x: (c + lax.psum(w, "y") * x, None), c, xs)[0],
          [array(2, over="y"), array(2), array(0, 2)])  # fmt: skip


def test_what_changes_from_step_to_step_stays():
    stays("hoist", lambda c, xs: lax.scan(lambda c, x: (lax.psum(c, "y") + gather(x, "y"), None), c, xs)[0],
          [array(6, over="y"), array(5, 2, over="y")])  # fmt: skip


# --- sums of partial values ---------------------------------------------------------------------------------
def test_sums_are_reduced_once_through_negation_scaling_and_difference():
    becomes(
        "reassociate",
        lambda a, b, r: lax.psum(a, "x") * r - (-lax.psum(b, "x")),
        [A, B, R],
        """
        { lambda ; a:f32[6,4] b:f32[6,4] c:f32[6,4]. let
            d:f32[6,4] = mul a c
            e:f32[6,4] = neg b
            f:f32[6,4] = sub d e
            g:f32[6,4] = psum[axes=('x',)] f
          in (g,) }
        """,
    )


def test_behind_a_slice_and_a_reduction():
    becomes(
        "reassociate",
        lambda a: lax.psum(a, "x")[:2].sum(0),
        [A],
        """
        { lambda ; a:f32[6,4]. let
            b:f32[2,4] = slice[limit_indices=(2, 4) start_indices=(0, 0) strides=(1, 1)] a
            c:f32[4] = reduce_sum[axes=(0,)] b
            d:f32[4] = psum[axes=('x',)] c
          in (d,) }
        """,
    )


def test_maxima():
    becomes(
        "reassociate",
        lambda a, b: mnp.maximum(lax.pmax(a, "x"), lax.pmax(b, "x")),
        [A, B],
        """
        { lambda ; a:f32[6,4] b:f32[6,4]. let
            c:f32[6,4] = max a b
            d:f32[6,4] = pmax[axes=('x',)] c
          in (d,) }
        """,
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: lax.psum(a, "x") * b,  # the factor differs along x
        lambda a, b: lax.psum(a, "x") * lax.psum(b, "x"),  # not linear
        lambda a, b: lax.psum(a, "x") + b,  # b would be counted twice
        lambda a, b: lax.psum(a, "x") + lax.psum(b, "y"),  # over other devices
        lambda a, b: lax.psum(a, "x") + lax.pmax(b, "x"),
        lambda a, b: mnp.maximum(lax.psum(a, "x"), lax.psum(b, "x")),
        lambda a, b: lax.psum(a, "x").astype(mnp.bfloat16),  # rounds
    ],
)
def test_what_does_not_commute_stays(function):
    stays("reassociate", function, [A, B])


def test_a_sum_with_another_use_stays():
    def f(a, b):
        first = lax.psum(a, "x")
        return first + lax.psum(b, "x"), mnp.sin(first)

    stays("reassociate", f, [A, B])


def test_a_growing_op_is_not_moved_past():
    stays("reassociate", lambda a: mnp.broadcast_to(lax.psum(a, "x"), (5, 6, 4)), [A])


def halves(a):
    """The halves of a sum over devices, added up by themselves."""
    whole = lax.psum(a, "x")
    return whole[:2].sum(0) + whole[2:].sum(0)


def test_a_sum_that_several_use_is_made_behind_each_of_them():
    becomes(
        "reassociate",
        halves,
        [A],
        """
        { lambda ; a:f32[6,4]. let
            b:f32[2,4] = slice[limit_indices=(2, 4) start_indices=(0, 0) strides=(1, 1)] a
            c:f32[4] = reduce_sum[axes=(0,)] b
            d:f32[4,4] = slice[limit_indices=(6, 4) start_indices=(2, 0) strides=(1, 1)] a
            e:f32[4] = reduce_sum[axes=(0,)] d
            f:f32[4] = add c e
            g:f32[4] = psum[axes=('x',)] f
          in (g,) }
        """,
    )


def test_a_sum_stays_where_it_is_if_its_uses_together_need_as_much_of_it():
    def whole_and_half(a):
        whole = lax.psum(a, "x")
        return whole * 2, whole[:3]

    def twice(a):
        whole = lax.psum(a, "x")
        return -whole, whole * 2

    def also_not_linear(a):
        whole = lax.psum(a, "x")
        return whole[:1], mnp.sin(whole[1:2]), mnp.sin(whole)

    for function in (whole_and_half, twice, also_not_linear):
        stays("reassociate", function, [A])


def test_a_sum_of_what_is_added_to_zeros_is_made_behind_that():
    """As in the derivative of a gather of rows: six rows become two; in a one they would be counted twice."""

    def rows(start):
        return lambda a: mnp.full((2, 4), start, np.float32).at[mnp.array([0, 1, 1, 0, 1, 0])].add(lax.psum(a, "x"))

    before = trace(rows(0), [A])
    after = apply("reassociate", before, [A])
    assert (sent(before), sent(after)) == (6 * 4 * 4, 2 * 4 * 4)
    same(before, after, [A])
    stays("reassociate", rows(1), [A])


def test_a_slice_by_position_behind_linear_ops_makes_a_reduce_scatter():
    becomes(
        "reassociate|neighb",
        lambda a: all_slice(mnp.transpose(-lax.psum(a, "x")), "x", 0),
        [A],
        """
        { lambda ; a:f32[6,4]. let
            b:f32[6,4] = neg a
            c:f32[4,6] = transpose[permutation=(1, 0)] b
            d:f32[2,6] = reduce_scatter[axes=('x',) dimension=0 reduction=sum] c
          in (d,) }
        """,
    )


# --- gathers ------------------------------------------------------------------------------------------------
def test_gather_after_narrowing():
    becomes(
        "gather",
        lambda a: gather(a, "y").astype(mnp.bfloat16),
        [A],
        """
        { lambda ; a:f32[6,4]. let
            b:bf16[6,4] = convert_element_type[new_dtype=bfloat16 weak_type=False] a
            c:bf16[18,4] = all_gather[axes=('y',) dimension=0] b
          in (c,) }
        """,
        1e-2,
    )


def test_gather_after_a_product_and_a_slice():
    becomes(
        "gather",
        lambda a, b: (gather(a, "y") * gather(b, "y"))[:, :3],
        [A, B],
        """
        { lambda ; a:f32[6,4] b:f32[6,4]. let
            c:f32[6,4] = mul a b
            d:f32[6,3] = slice[limit_indices=(6, 3) start_indices=(0, 0) strides=(1, 1)] c
            e:f32[18,3] = all_gather[axes=('y',) dimension=0] d
          in (e,) }
        """,
    )


def test_a_contraction_of_what_was_gathered_is_reduced():
    becomes(
        "gather",
        lambda a, r: gather(a, "y", 1) @ r,
        [A, array(12, 2)],
        """
        { lambda ; a:f32[6,4] b:f32[12,2]. let
            c:f32[4,2] = all_slice[axes=('y',) dimension=0] b
            d:f32[6,2] = dot_general[dimension_numbers=(((1,), (0,)), ((), ())) preferred_element_type=None] a c
            e:f32[6,2] = psum[axes=('y',)] d
          in (e,) }
        """,
    )


def test_gather_after_a_reduction_of_another_dimension():
    becomes(
        "gather",
        lambda a, r: (gather(a, "y") + r).max(1),
        [A, array(18, 4)],
        """
        { lambda ; a:f32[6,4] b:f32[18,4]. let
            c:f32[6,4] = all_slice[axes=('y',) dimension=0] b
            d:f32[6,4] = add a c
            e:f32[6] = reduce_max[axes=(1,)] d
            f:f32[18] = all_gather[axes=('y',) dimension=0] e
          in (f,) }
        """,
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda a: gather(a, "y") * 2,  # as large as before
        lambda a: gather(a, "y")[:7],  # rows of several devices
        lambda a: mnp.sort(gather(a, "y"), axis=0)[:, :1],
        lambda a: gather(a, "y").astype(mnp.bfloat16) * lax.axis_index("y").astype(mnp.bfloat16),
    ],
)
def test_gathers_stay_where_nothing_is_saved(function):
    inputs = [A]
    before = trace(function, inputs)
    after = apply("gather", before, inputs)
    assert kinds(after) == kinds(before)
    same(before, after, inputs, 2e-2)


# --- neighbours ---------------------------------------------------------------------------------------------
def test_a_slice_of_a_sum_over_more_axes():
    becomes(
        "neighb",
        lambda a: all_slice(lax.psum(a, ("x", "y")), "y", 0),
        [array(60, 40, over="xy")],
        """
        { lambda ; a:f32[60,40]. let
            b:f32[20,40] = reduce_scatter[axes=('y',) dimension=0 reduction=sum] a
            c:f32[20,40] = psum[axes=('x',)] b
          in (c,) }
        """,
    )


def test_two_sums_in_a_row():
    becomes(
        "neighb",
        lambda a: lax.psum(lax.psum(a, "y"), "x"),
        [A],
        """
        { lambda ; a:f32[6,4]. let b:f32[6,4] = psum[axes=('x', 'y')] a in (b,) }
        """,
    )


def test_a_gathered_scatter_is_an_all_reduce():
    becomes("neighb", lambda a: gather(lax.psum_scatter(a, "y", scatter_dimension=0, tiled=True), "y"), [A],
            """
        { lambda ; a:f32[6,4]. let b:f32[6,4] = psum[axes=('y',)] a in (b,) }
        """)  # fmt: skip


def test_a_slice_by_the_major_axis_of_a_gather():
    becomes(
        "neighb",
        lambda a: all_slice(gather(a, "xy"), "x", 0),
        [A],
        """
        { lambda ; a:f32[6,4]. let
            b:f32[18,4] = all_gather[axes=('y',) dimension=0] a
          in (b,) }
        """,
    )


def test_a_slice_of_a_gather_along_another_dimension():
    becomes(
        "neighb",
        lambda a: all_slice(gather(a, "x"), "x", 1),
        [A],
        """
        { lambda ; a:f32[6,4]. let
            b:f32[12,2] = all_to_all[axes=('x',) concat_dimension=0 split_dimension=1] a
          in (b,) }
        """,
    )


def test_two_gathers_in_a_row():
    becomes(
        "neighb",
        lambda a: gather(gather(a, "y"), "x"),
        [A],
        """
        { lambda ; a:f32[6,4]. let
            b:f32[36,4] = all_gather[axes=('x', 'y') dimension=0] a
          in (b,) }
        """,
    )


def test_cutting_and_gathering_what_all_have():
    becomes(
        "neighb|became dead",
        lambda r: gather(all_slice(r, "y", 0), "y") + 1,
        [R],
        """
        { lambda ; a:f32[6,4]. let b:f32[6,4] = add a 1.0:f32[] in (b,) }
        """,
    )


def test_cutting_and_gathering_what_differs_stays():
    stays("neighb", lambda a: gather(all_slice(a, "y", 0), "y") + 1, [A])


def test_widening_comes_after_the_gather():
    becomes("neighb", lambda a: gather(a.astype(np.float32), "y"), [array(6, 4, over="y", dtype=np.float16)],
            """
        { lambda ; a:f16[6,4]. let
            b:f16[18,4] = all_gather[axes=('y',) dimension=0] a
            c:f32[18,4] = convert_element_type[new_dtype=float32 weak_type=False] b
          in (c,) }
        """)  # fmt: skip


def test_a_gather_does_not_move_past_a_slice_by_the_same_axis():
    inputs = [array(3, 1, over="y")]
    before = trace(lambda a: all_slice(gather(a, "y", 1), "y", 0), inputs)
    after, _ = optimize(before, inputs)
    assert kinds(after) == ["all_to_all"]
    same(before, after, inputs)


# --- sums of what is completed elsewhere ---------------------------------------------------------------------
def scatter(x, axes, dim=0):
    return lax.psum_scatter(x, tuple(axes), scatter_dimension=dim, tiled=True)


def test_a_sum_is_computed_of_the_tiles_that_another_use_leaves():
    becomes("sum tiles", lambda a: (scatter(a, "x"), lax.psum(-a.sum(1) * 3, ("x", "y"))), [A],
        """
        { lambda ; a:f32[6,4]. let
            b:f32[3,4] = reduce_scatter[axes=('x',) dimension=0 reduction=sum] a
            c:f32[3] = reduce_sum[axes=(1,)] b
            d:f32[3] = neg c
            e:f32[3] = mul d 3.0:f32[]
            f:f32[3] = psum[axes=('y',)] e
            g:f32[6] = all_gather[axes=('x',) dimension=0] f
          in (b, g) }
        """,
    )  # fmt: skip


def test_no_all_reduce_is_left_where_the_tiles_are_complete():
    becomes("sum tiles", lambda a: (scatter(a, "yx", 0), lax.psum(a.sum(1), ("x", "y"))), [A],
        """
        { lambda ; a:f32[6,4]. let
            b:f32[1,4] = reduce_scatter[axes=('y', 'x') dimension=0 reduction=sum] a
            c:f32[1] = reduce_sum[axes=(1,)] b
            d:f32[6] = all_gather[axes=('y', 'x') dimension=0] c
          in (b, d) }
        """,
    )  # fmt: skip


def test_nothing_is_gathered_where_the_tiles_are_summed_up():
    becomes("sum tiles", lambda a: (lax.psum(-a.sum(0), ("x", "y")), scatter(a, "y"), lax.psum(a.sum(0), "y")), [A],
        """
        { lambda ; a:f32[6,4]. let
            b:f32[4] = reduce_sum[axes=(0,)] a
            c:f32[4] = neg b
            d:f32[4] = psum[axes=('x', 'y')] c
            e:f32[2,4] = reduce_scatter[axes=('y',) dimension=0 reduction=sum] a
            f:f32[4] = reduce_sum[axes=(0,)] e
            g:f32[4] = psum[axes=('y',)] f
          in (d, e, g) }
        """,
    )  # fmt: skip


def test_what_is_summed_already_is_not_summed_again():
    becomes("sum tiles", lambda a: (lax.psum(a, "x"), lax.psum(a.sum(1), ("x", "y")), lax.psum(a[2:4], "x")), [A],
        """
        { lambda ; a:f32[6,4]. let
            b:f32[6,4] = psum[axes=('x',)] a
            c:f32[6] = reduce_sum[axes=(1,)] b
            d:f32[6] = psum[axes=('y',)] c
            e:f32[2,4] = slice[limit_indices=(4, 4) start_indices=(2, 0) strides=(1, 1)] b
          in (b, d, e) }
        """,
    )  # fmt: skip


@pytest.mark.parametrize(
    "function",
    [
        lambda a: (scatter(a, "x"), lax.psum(mnp.sin(a).sum(1), ("x", "y"))),
        lambda a: (scatter(a, "x"), lax.psum(a.sum(1) + lax.axis_index("x"), ("x", "y"))),
        lambda a: (scatter(a, "x"), lax.psum((a * a).sum(1), ("x", "y"))),
        lambda a: (scatter(a, "x"), lax.pmax(a.sum(1), ("x", "y"))),
        lambda a: (lax.pmax(a, "x"), lax.psum(a.sum(1), ("x", "y"))),
        lambda a: (scatter(a, "x"), lax.psum(a.sum(1), "y")),
        lambda a: (scatter(a, ("x", "y")), lax.psum(a.sum(1), "y")),
    ],
    ids=["not linear", "another term", "square", "maximum", "of maxima", "other axes", "of more axes"],
)
def test_sums_of_something_else_stay(function):
    stays("sum tiles", function, [A])


# --- combining ----------------------------------------------------------------------------------------------
def combinable(a, b):
    return lax.psum(a, "x"), gather(a, "y", 1), lax.psum(b, "x"), gather(b, "y"), lax.psum(b, "y")


def test_small_collectives_go_together():
    inputs = [A, array(3, over="xy")]
    before = trace(combinable, inputs)
    after = apply("combine", before, inputs, combine_bytes=1 << 10)
    assert sorted(kinds(after)) == ["all_gather", "all_reduce", "all_reduce"]
    assert sent(after) == sent(before)
    same(before, after, inputs)
    both = next(c for c in report.collectives(after.jaxpr) if c.axes == ("x",))
    assert both.operand.shape == (27,) and both.reason.count("it is written in the program") == 2
    assert both.reason.count("test_communication_passes.py:") == 1  # the other one's line is the collective's own


def test_buckets_have_a_size_and_wait_for_no_result():
    inputs = [A, array(3, over="xy")]
    before = trace(combinable, inputs)
    assert apply("combine", before, inputs, combine_bytes=100) is before  # 96 and 12 bytes
    chain = trace(lambda a: lax.psum(mnp.sin(lax.psum(a, "x")), "x"), [A])
    assert apply("combine", chain, [A], combine_bytes=1 << 20) is chain


# --- padding ------------------------------------------------------------------------------------------------
def padded(x, low=1, high=2, inner=0):
    return lax.pad(x, 0.0, [(low, high, inner), (0, 0, 0)])


def test_padding_that_is_cut_off_is_not_reduced():
    becomes(
        "without padding|became dead",
        lambda a: (lax.psum(padded(a), "x")[1:7] * 2, lax.pmax(padded(a), "y")[1:7]),
        [A],
        """
        { lambda ; a:f32[6,4]. let
            b:f32[6,4] = psum[axes=('x',)] a
            c:f32[6,4] = mul b 2.0:f32[]
            d:f32[6,4] = pmax[axes=('y',)] a
          in (c, d) }
        """,
    )


@pytest.mark.parametrize(
    "program",
    [
        lambda a: lax.psum(padded(a), "x")[1:6],
        lambda a: lax.psum(padded(a), "x")[:6],
        lambda a: (lax.psum(padded(a), "x")[1:7], lax.psum(padded(a), "x")),
        lambda a: lax.psum(padded(a, -1, 2), "x")[0:6],
        lambda a: lax.psum(padded(a, 0, 0, 1), "x")[0:6],
    ],
    ids=["less", "elsewhere", "also whole", "cut before", "spaced"],
)
def test_padding_that_is_used_or_moved_is_reduced(program):
    before = trace(lambda a: program(a), [A])
    common = apply("common", before, [A])
    assert apply("without padding", common, [A]) is common


# --- the pipeline -------------------------------------------------------------------------------------------
def test_the_pipeline_says_what_each_pass_changed():
    inputs = [A, B]
    before = trace(lambda a, b: all_slice(lax.psum(a, "x") + lax.psum(b, "x"), "x", 0), inputs)
    after, changes = optimize(before, inputs)
    assert [str(c) for c in changes] == [
        "reassociate sums of partial values: 2 -> 1 collective, 192 B -> 96 B",
        "merge neighbouring collectives: 1 -> 1 collective, 96 B -> 48 B",
    ]
    same(before, after, inputs)
    (found,) = report.collectives(after.jaxpr)
    assert found.kind == "reduce_scatter" and "; also, at test_communication_passes.py:" in found.reason


def test_the_pipeline_can_be_printed():
    text = str(communication_passes(MESH, []))
    names = [line[:40].rstrip() for line in text.splitlines()]
    assert names[1:3] == [" 2. drop dead collectives", " 3. merge common collectives"] and "combine" not in text
    assert "combine small collectives" in str(communication_passes(MESH, [], combine_bytes=1))
