"""Golden texts of two partitioned programs and of what ``explain`` says about them."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P

MESH = mw.AbstractMesh((4, 2), ("data", "model"))


def at(*entries: Any) -> mw.NamedSharding:
    return mw.NamedSharding(MESH, P(*entries))


def spec(*shape: int) -> mw.ShapeDtypeStruct:
    return mw.ShapeDtypeStruct(shape, "float32")


def loss(w: Any, x: Any) -> Any:
    return mnp.sum(mnp.tanh(x @ w) ** 2)


def two_layers(x: Any, w1: Any, w2: Any) -> Any:
    h = mnp.tanh(x @ w1)
    return h @ w2


def lines(text: str) -> list[str]:
    return textwrap.dedent(text).strip("\n").split("\n")


def without_places(text: str) -> list[str]:
    """Without line numbers, which change when this file does."""
    return re.sub(r"(\.py):\d+", r"\1", text).split("\n")


def test_gradient() -> None:
    """Contracting over the batch leaves partial sums over ``data``: one all-reduce of the gradient, at its size."""
    jitted = mw.jit(loss, in_shardings=(at(None, "model"), at("data", None)))
    part = jitted.lower(spec(6, 8), spec(16, 6)).partition()
    expected = """
        { lambda ; a:f32[6,4] b:f32[4,6]. let
            c:f32[4,4] = dot_general[dimension_numbers=(((1,), (0,)), ((), ())) preferred_element_type=None] b a
            d:f32[4,4] = tanh c
            e:f32[4,4] = square d
            f:f32[] = reduce_sum[axes=(0, 1)] e
            g:f32[] = psum[axes=('data', 'model')] f
          in (g,) }
    """
    assert str(part.jaxpr).split("\n") == lines(expected)
    explained = """
        1 collective on mesh data=4 × model=2; each device sends 7 B a run, holds at most 264 B and does 1.00 times its part of the arithmetic, in 10.6 ns on an accelerator of no particular make
           1. all_reduce over data, model (8 devices): f32[] -> f32[] sends 7 B (100 %), 10.3 ns
              because the result of reduce_sum at test_partitioned_text.py (loss) is in partial sums over data, model and output 0 has to be whole
              caused by data in the sharding of input 1 (x)
              caused by model in the sharding of input 0 (w)
              at test_partitioned_text.py (loss)
    """  # noqa: E501
    assert without_places(part.explain()) == lines(explained)


def test_tensor_parallel_layers() -> None:
    """The classic pair: columns, then rows, with one all-reduce behind both."""
    shardings = (at("data", None), at(None, "model"), at("model", None))
    jitted = mw.jit(two_layers, in_shardings=shardings, out_shardings=at("data", None))
    part = jitted.lower(spec(8, 6), spec(6, 10), spec(10, 3)).partition()
    expected = """
        { lambda ; a:f32[2,6] b:f32[6,5] c:f32[5,3]. let
            d:f32[2,5] = dot_general[dimension_numbers=(((1,), (0,)), ((), ())) preferred_element_type=None] a b
            e:f32[2,5] = tanh d
            f:f32[2,3] = dot_general[dimension_numbers=(((1,), (0,)), ((), ())) preferred_element_type=None] e c
            g:f32[2,3] = psum[axes=('model',)] f
          in (g,) }
    """
    assert str(part.jaxpr).split("\n") == lines(expected)
    (collective,) = part.collectives
    assert (collective.kind, collective.axes, collective.group_size) == ("all_reduce", ("model",), 2)
    assert collective.bytes_sent == 2 * 3 * 4
    part.verify()


def test_uneven_dimensions_are_noted() -> None:
    jitted = mw.jit(lambda x: mnp.sum(x, 0), in_shardings=(at("data", None),))
    part = jitted.lower(spec(6, 3)).partition()
    note = "  note: input 0 (x): f32[6,3], dimension 0 of size 6 is split 4 ways by data and padded to 8"
    assert note in part.explain().split("\n")
    part.verify()


def test_reports_name_arguments_and_results() -> None:
    def step(params: dict[str, Any], batch: Any) -> Any:
        return {"loss": (batch @ params["w"]).sum(), "odd": batch[:7]}

    rows, columns = at("data"), at(None, "model")
    shapes = {"w": spec(8, 6)}, spec(9, 8)
    jitted = mw.jit(step, in_shardings=(columns, rows), out_shardings={"loss": at(), "odd": rows})
    part = jitted.lower(*shapes).partition()
    assert [said.partition(":")[0] for said in part.padded] == ["input 1 (batch)", "output 1 (result['odd'])"]
    assert any("output 0 (result['loss']) has to be whole" in c.reason for c in part.collectives)
    assert [d.output for d in part.verify()] == ["output 0 (result['loss'])", "output 1 (result['odd'])"]
    gathered = mw.jit(lambda params: params["w"], in_shardings=rows, out_shardings=at()).lower(shapes[0]).partition()
    (gather,) = gathered.collectives
    assert gather.reason == "input 0 (params['w']) is laid out as [{data}, {}] and output 0 has to be as [{}, {}]"
