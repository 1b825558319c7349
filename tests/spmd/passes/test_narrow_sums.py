"""Sums over devices are completed before what they sum up is converted to a wider type."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from local_programs import array, becomes, stays

import meshwright.numpy as mnp
from meshwright import lax

X = [array(4, 6, over="xy", dtype=ml_dtypes.bfloat16)]


def test_a_converted_sum():
    becomes(
        "reduce narrow|dead", lambda x: lax.psum(x.astype(np.float32), "x"), X,
        """
        { lambda ; a:bf16[4,6]. let
            b:bf16[4,6] = psum[axes=('x',)] a
            c:f32[4,6] = convert_element_type[new_dtype=float32 weak_type=False] b
          in (c,) }
        """, tolerance=2e-2,
    )  # fmt: skip


def test_what_is_moved_after_the_conversion():
    """A dimension that is added and taken away again is left out; another order of dimensions is not."""

    def scattered(x: Any) -> Any:
        wide = x.astype(np.float32).T
        return lax.psum_scatter(wide.reshape(2, 3, 4), "x", scatter_dimension=0, tiled=True)

    becomes(
        "reduce narrow|dead", scattered, X,
        """
        { lambda ; a:bf16[4,6]. let
            b:bf16[6,4] = transpose[permutation=(1, 0)] a
            c:bf16[2,3,4] = reshape[new_sizes=(2, 3, 4)] b
            d:bf16[1,3,4] = reduce_scatter[axes=('x',) dimension=0 reduction=sum] c
            e:f32[1,3,4] = convert_element_type[new_dtype=float32 weak_type=False] d
          in (e,) }
        """, tolerance=2e-2,
    )  # fmt: skip
    becomes(
        "reduce narrow|dead", lambda x: lax.psum(x.astype(np.float32)[None].reshape(4, 6), "y"), X,
        """
        { lambda ; a:bf16[4,6]. let
            b:bf16[4,6] = psum[axes=('y',)] a
            c:f32[4,6] = convert_element_type[new_dtype=float32 weak_type=False] b
          in (c,) }
        """, tolerance=2e-2,
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


@pytest.mark.parametrize("function", [used_twice, repeated, computed, narrower, counted], ids=lambda f: f.__name__)
def test_what_stays(function):
    stays("reduce narrow", function, X)
