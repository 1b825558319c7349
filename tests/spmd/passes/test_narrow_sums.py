"""Sums over devices are completed before what they sum up is converted to a wider type."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from local_programs import apply, array, same, stays, trace

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.rewrite import producers_of
from meshwright.ops.collective.base import Collective
from meshwright.spmd.reason import Reason

X = [array(4, 6, over="xy", dtype=ml_dtypes.bfloat16)]


def completing(function: Callable[..., Any], inputs: Any) -> ClosedJaxpr:
    """The function's program, with collectives as the partitioner makes them to complete what their operands hold."""
    jaxpr = trace(function, inputs)
    makers = producers_of(jaxpr.jaxpr)
    eqns = [
        e.replace(note=Reason("output", made_by=makers[e.invars[0]].op.name)) if isinstance(e.op, Collective) else e
        for e in jaxpr.jaxpr.eqns
    ]
    return jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(eqns=eqns))


def becomes(function: Callable[..., Any], expected: str) -> None:
    before = completing(function, X)
    after = apply("reduce narrow|dead", before, X)
    assert str(after) == textwrap.dedent(expected).strip("\n")
    same(before, after, X, tolerance=2e-2)


def test_a_converted_sum():
    becomes(
        lambda x: lax.psum(x.astype(np.float32), "x"),
        """
        { lambda ; a:bf16[4,6]. let
            b:bf16[4,6] = psum[axes=('x',)] a
            c:f32[4,6] = convert_element_type[new_dtype=float32 weak_type=False] b
          in (c,) }
        """,
    )  # fmt: skip


def test_what_is_moved_after_the_conversion():
    """A dimension that is added and taken away again is left out; another order of dimensions is not."""

    def scattered(x: Any) -> Any:
        wide = x.astype(np.float32).T
        return lax.psum_scatter(wide.reshape(2, 3, 4), "x", scatter_dimension=0, tiled=True)

    becomes(
        scattered,
        """
        { lambda ; a:bf16[4,6]. let
            b:bf16[6,4] = transpose[permutation=(1, 0)] a
            c:bf16[2,3,4] = reshape[new_sizes=(2, 3, 4)] b
            d:bf16[1,3,4] = reduce_scatter[axes=('x',) dimension=0 reduction=sum] c
            e:f32[1,3,4] = convert_element_type[new_dtype=float32 weak_type=False] d
          in (e,) }
        """,
    )  # fmt: skip
    becomes(
        lambda x: lax.psum(x.astype(np.float32)[None].reshape(4, 6), "y"),
        """
        { lambda ; a:bf16[4,6]. let
            b:bf16[4,6] = psum[axes=('y',)] a
            c:f32[4,6] = convert_element_type[new_dtype=float32 weak_type=False] b
          in (c,) }
        """,
    )  # fmt: skip


def used_twice(x: Any) -> Any:
    wide = x.astype(np.float32)
    return lax.psum(wide, "x"), wide


def repeated(x: Any) -> Any:
    return lax.psum(mnp.broadcast_to(x.astype(np.float32), (3, 4, 6)), "x")


def computed(x: Any) -> Any:
    return lax.psum(mnp.sin(x.astype(np.float32)), "x")


def narrower(x: Any) -> Any:
    return lax.psum(x.astype(ml_dtypes.float8_e5m2), "x")


def counted(x: Any) -> Any:
    return lax.psum((x > 0).astype(np.float32), "x")


def overflowing(x: Any) -> Any:
    return lax.psum(x.astype(np.float16).astype(np.float32), "x")


@pytest.mark.parametrize(
    "function", [used_twice, repeated, computed, narrower, counted, overflowing], ids=lambda f: f.__name__
)
def test_what_stays(function):
    before = completing(function, X)
    assert apply("reduce narrow", before, X) is before


def wide(x: Any) -> Any:
    return lax.psum(x.astype(np.float32), "x")


def test_sums_that_the_user_wrote_in_a_wide_type_stay():
    """As per-device code, and as the sum of rows that a program converts, one on each device."""
    stays("reduce narrow", wide, X)
    mesh = mw.make_mesh((8,), ("x",))
    rows = np.linspace(1, 2, 48).reshape(8, 6).astype(ml_dtypes.bfloat16)
    functions = {
        "mapped": mw.shard_map(wide, mesh=mesh, in_specs=P("x"), out_specs=P()),
        "summed": lambda x: x.astype(np.float32).sum(0),
        "product": lambda x: mnp.ones(8, np.float32) @ x.astype(np.float32),
    }
    for name, function in functions.items():
        of_rows, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
        part = mw.jit(function, in_shardings=of_rows, out_shardings=whole).lower(rows).partition()
        assert [str(c).count("f32") for c in part.collectives] == [2], name
        np.testing.assert_allclose(np.ravel(part(rows)), rows.astype(np.float64).sum(0), rtol=1e-6)
