"""Every equation knows the user's file, line and function, whatever transformation made it."""

from __future__ import annotations

import inspect
import os
import pickle
import re
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


def test_the_calls_that_led_there() -> None:
    """From the line to the test, with the columns of what is called; as many as the option says."""

    def inner(x: Any) -> Any:
        return mnp.sin(x) * 2.0

    def outer(x: Any) -> Any:
        return inner(x) + 1.0

    def traced() -> Any:
        return mw.make_jaxpr(mw.jit(outer))(1.0)

    (place,) = {e.source for e in all_eqns(traced().jaxpr) if e.op.name == "sin"}
    names = [frame.function.rpartition(".")[2] for frame in place.stack]
    assert names[:4] == ["inner", "outer", "traced", "test_the_calls_that_led_there"]
    assert len(names) == mw.config.traceback_in_locations_limit == 10
    assert place.range == (here(inner, "sin"), here(inner, "sin"), 15, 25)
    assert place.caller is not None
    assert place.caller.range[2:] == (15, 23)
    copy = pickle.loads(pickle.dumps(place))
    assert [(p.file, p.range, p.function) for p in copy.stack] == [(p.file, p.range, p.function) for p in place.stack]
    with mw.config.override("traceback_in_locations_limit", 1):
        assert all(e.source.caller is None for e in all_eqns(traced().jaxpr))


def test_they_are_in_texts_and_optimized_modules() -> None:
    """Frames of functions, called from each other; also of a program that is read from its text."""

    def layer(w: Any, x: Any) -> Any:
        with mw.named_scope("dense"):
            return mnp.sin(w @ x)

    def step(params: Any, x: Any) -> Any:
        return mw.grad(lambda p: (layer(p["w"], x) * p["b"]).sum())(params)

    params = {"w": mnp.ones((4, 4)), "b": mnp.ones(4)}
    lowered = mw.jit(step).lower(params, mnp.ones(4))
    text = lowered.as_text(debug_info=True)
    optimized = lowered.compile().as_text()
    again = mw.load(text).compile().as_text()
    prefix = "test_they_are_in_texts_and_optimized_modules.<locals>."
    for function in (f"{prefix}layer", f"{prefix}step", f"{prefix}step.<locals>.<lambda>"):
        assert f'loc("{function}"(' in text
        for module in (optimized, again):
            assert f'"{function}"\n' in module.partition("FunctionNames")[2].partition("FileLocations")[0]
    for module in (optimized, again):
        assert 'op_name="jit(step)/jvp(<lambda>)/dense/sin"' in module
        assert 'op_name="jit(step)/transpose(jvp(<lambda>))/dense/mul"' in module
        assert "parameter(0), metadata={op_name=\"params[\\'b\\']\"}" in module
        # XLA prints the number after the parent's.
        parents = re.findall(r"^(\d+) \{file_location_id=\d+ parent_frame_id=(\d+)\}", module, re.M)
        parent = {int(frame): int(after) - 1 for frame, after in parents}
        (frame,) = {int(number) for number in re.findall(r'dense/sin" stack_frame_id=(\d+)', module)}
        depth = 0
        while frame:
            frame, depth = parent[frame], depth + 1
        assert depth == 10
