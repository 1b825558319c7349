"""Golden texts of traced, differentiated, nested and batched functions."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax


def sigmoid(x: Any) -> Any:
    return 1 / (1 + mnp.exp(-x))


@mw.jit
def layer(x: Any, w: Any) -> Any:
    return mnp.tanh(x @ w)


def network(params: dict[str, Any], x: Any) -> dict[str, Any]:
    return {"y": layer(x, params["w"]) + params["b"], "n": (x.sum(),)}


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


TABLE = np.arange(3, dtype=np.float32)

GOLDEN = {
    "scalar": (
        lambda: mw.make_jaxpr(sigmoid)(1.0),
        """
        { lambda ; a:f32[]. let
            b:f32[] = neg a
            c:f32[] = exp b
            d:f32[] = add 1.0:f32[] c
            e:f32[] = div 1.0:f32[] d
          in (e,) }
        """,
    ),
    "gradient": (
        lambda: mw.make_jaxpr(mw.grad(lambda x: mnp.sin(x) * x))(1.0),
        """
        { lambda ; a:f32[]. let
            b:f32[] = sin a
            c:f32[] = cos a
            _:f32[] = mul b a
            d:f32[] = mul b 1.0:f32[]
            e:f32[] = mul 1.0:f32[] a
            f:f32[] = mul e c
            g:f32[] = add d f
            h:f32[] = convert_element_type[new_dtype=float32 weak_type=True] g
          in (h,) }
        """,
    ),
    "pytrees and a call": (
        lambda: mw.make_jaxpr(network)({"w": ones(3, 4), "b": ones(4)}, ones(2, 3)),
        """
        { lambda ; a:f32[4] b:f32[3,4] c:f32[2,3]. let
            d:f32[2,4] = jit[
              name=layer
              jaxpr={ lambda ; e:f32[2,3] f:f32[3,4]. let
                  g:f32[2,4] = dot_general[dimension_numbers=(((1,), (0,)), ((), ())) preferred_element_type=None] e f
                  h:f32[2,4] = tanh g
                in (h,) }
            ] c b
            i:f32[2,4] = broadcast_in_dim[broadcast_dimensions=(1,) shape=(2, 4)] a
            j:f32[2,4] = add d i
            k:f32[] = reduce_sum[axes=(0, 1)] c
          in (k, j) }
        """,
    ),
    "constant": (
        lambda: mw.make_jaxpr(lambda x: x * TABLE + np.float32(2))(ones(3)),
        """
        { lambda a:f32[3] ; b:f32[3]. let
            c:f32[3] = mul b a
            d:f32[3] = add c 2.0:f32[]
          in (d,) }
        """,
    ),
    "batched": (
        lambda: mw.make_jaxpr(mw.vmap(lambda v: lax.rev(v, (0,))[1:] @ v[1:]))(ones(3, 5)),
        """
        { lambda ; a:f32[3,5]. let
            b:f32[3,5] = rev[dimensions=(1,)] a
            c:f32[3,4] = slice[limit_indices=(3, 5) start_indices=(0, 1) strides=(1, 1)] b
            d:f32[3,4] = slice[limit_indices=(3, 5) start_indices=(0, 1) strides=(1, 1)] a
            e:f32[3] = dot_general[dimension_numbers=(((1,), (1,)), ((0,), (0,))) preferred_element_type=None] c d
          in (e,) }
        """,
    ),
    "collective": (
        lambda: mw.make_jaxpr(lambda x: lax.psum(x, "i") + lax.axis_index("i"), axis_env=[("i", 4)])(np.int32(1)),
        """
        { lambda ; a:i32[]. let
            b:i32[] = psum[axes=('i',)] a
            c:i32[] = axis_index[axes=('i',)]
            d:i32[] = add b c
          in (d,) }
        """,
    ),
    "nothing": (
        lambda: mw.make_jaxpr(lambda x: (x, 1))(ones(2, 0)),
        """
        { lambda ; a:f32[2,0]. let  in (a, 1:i32[]) }
        """,
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_text(name: str) -> None:
    make, text = GOLDEN[name]
    assert str(make()).split("\n") == textwrap.dedent(text).strip("\n").split("\n")


def test_more_than_26_variables() -> None:
    def f(x: Any) -> Any:
        for _ in range(30):
            x = mnp.sin(x)
        return x

    lines = str(mw.make_jaxpr(f)(1.0)).split("\n")
    names = [line.split(":")[0].strip() for line in lines[1:-1]]
    assert len(set(names)) == 30
    assert names[24:27] == ["z", "ba", "bb"]
