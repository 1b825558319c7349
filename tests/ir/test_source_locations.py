"""Every equation knows the user's file, line and function, whatever transformation made it."""

from __future__ import annotations

import inspect
import os
from typing import Any

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import nn
from meshwright.ir.jaxpr import all_eqns


def here(fun: Any, word: str) -> int:
    """The line of ``fun``'s source that contains ``word``."""
    lines, first = inspect.getsourcelines(fun)
    return next(first + i for i, line in enumerate(lines) if word in line)


def loss(w: Any, x: Any) -> Any:
    h = mnp.tanh(x @ w)
    scale = 3.0
    return (h * scale).sum()


def _lines(jaxpr: Any, op: str) -> set[int]:
    return {e.source.line for e in all_eqns(jaxpr.jaxpr) if e.op.name == op}


def test_traced() -> None:
    jaxpr = mw.make_jaxpr(loss)(mnp.ones((3, 4)), mnp.ones((2, 3)))
    for eqn in jaxpr.eqns:
        assert os.path.samefile(eqn.source.file, __file__)
        assert eqn.source.function.endswith("loss")
    assert _lines(jaxpr, "tanh") == _lines(jaxpr, "dot_general") == {here(loss, "mnp.tanh")}
    assert _lines(jaxpr, "mul") == _lines(jaxpr, "reduce_sum") == {here(loss, "h * scale")}


def test_through_transformations() -> None:
    """The line of the forward computation, also in the backward one and under vmap and jit."""
    gradient = mw.make_jaxpr(mw.vmap(mw.grad(mw.jit(loss)), in_axes=(None, 0)))(mnp.ones((3, 4)), mnp.ones((5, 2, 3)))
    products = [e for e in all_eqns(gradient.jaxpr) if e.op.name == "dot_general"]
    assert len(products) == 2
    assert {e.source.line for e in products} == {here(loss, "mnp.tanh")}
    assert all(os.path.samefile(e.source.file, __file__) for e in products)


def test_library_functions_are_not_the_user() -> None:
    def f(x: Any) -> Any:
        return nn.log_softmax(x)  # one line of the user's, many ops

    eqns = list(all_eqns(mw.make_jaxpr(f)(mnp.ones((2, 3))).jaxpr))
    assert len(eqns) > 3
    assert {(e.source.line, e.source.function.split(".")[-1]) for e in eqns} == {(here(f, "nn.log_softmax"), "f")}


def test_partitioned_program_keeps_them() -> None:
    mesh = mw.AbstractMesh((2,), ("x",))
    split = mw.NamedSharding(mesh, mw.PartitionSpec(None, "x"))
    lowered = mw.jit(loss, in_shardings=(None, split)).lower(
        mw.ShapeDtypeStruct((4, 6), "float32"), mw.ShapeDtypeStruct((8, 4), "float32")
    )
    part = lowered.partition()
    assert part.collectives
    assert all(c.source.function.endswith("loss") for c in part.collectives)
    assert here(loss, "mnp.tanh") in {c.source.line for c in part.collectives}


def test_name_scopes() -> None:
    def f(x: Any) -> Any:
        with mw.named_scope("outer"), mw.named_scope("inner"):
            return mnp.sin(x)

    (eqn,) = mw.make_jaxpr(f)(1.0).eqns
    assert eqn.source.name_stack == "outer/inner"
