"""Types of what loops carry and stack, weak types too, beside JAX's: also in what transformations make of the loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import meshwright as mw

ONES = np.ones(3, np.float32)
HALF = np.float16(2)

PROGRAMS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "a number that becomes an array": lambda j: lambda x: j.lax.scan(lambda c, y: (c + y * x, c), 0.0, ONES),
    "beside halves in the body": lambda j: lambda x: j.lax.scan(lambda c, y: (c + y * x, c * HALF), 0.0, ONES),
    "an integer that becomes one": lambda j: lambda x: j.lax.scan(lambda c, y: (c + y * x, c), 0, ONES),
    "an array that becomes a number": lambda j: lambda x: j.lax.scan(lambda c, y: (1.0, c), x, ONES),
    "an argument": lambda j: lambda x: j.lax.scan(lambda c, y: (c * 2, (c, 1, y * 1)), x, ONES),
    "counted": lambda j: lambda x: j.lax.fori_loop(0, 3, lambda i, c: (c[0] + i, c[1] * x, i), (0, 1.0, 0)),
    "integers counted to floats": lambda j: lambda x: j.lax.fori_loop(0, 3, lambda i, c: c * 1.5, 1),
    "mapped": lambda j: lambda x: j.lax.map(lambda y: (y * x, 1.0), ONES),
    "branches": lambda j: lambda x: j.lax.cond(x > 0, lambda: (x, 1.0), lambda: (x * 2, np.float32(2))),
    "of a loop": lambda j: (
        lambda x: j.lax.scan(lambda c, y: (j.lax.fori_loop(0, 2, lambda i, d: d + y * x, c), c), 0.0, ONES)
    ),
}
FORWARD: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "while": lambda j: lambda x: j.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, 1.0)),
    "while, an array that becomes a number": lambda j: lambda x: j.lax.while_loop(lambda c: c < 3, lambda c: 4.0, x),
    "while, of floats": lambda j: lambda x: j.lax.while_loop(lambda c: c < 3, lambda c: c + 1.5, 0),
}


def _total(j: Any, f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: sum(y.sum().astype(np.float32) for y in map(j.numpy.asarray, j.tree.leaves(f(x))))


WAYS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "eager": lambda j, f, x: f(x),
    "jit": lambda j, f, x: j.jit(f)(x),
    "vmap": lambda j, f, x: j.vmap(f)(j.lax.full((2,), x)),
    "jvp": lambda j, f, x: j.jvp(f, (x,), (x,)),
    "grad": lambda j, f, x: j.value_and_grad(_total(j, f))(x),
    "checkpoint": lambda j, f, x: j.checkpoint(f)(x),
}


def _typed(j: Any, tree: Any) -> list[Any]:
    return [
        (np.asarray(y, np.float32).tolist(), str(y.dtype), j.typeof(y).weak_type)
        for y in j.tree.leaves(tree)
        if hasattr(y, "aval")
        and y.dtype.kind in "if"  # JAX hands numbers that nothing is done to back as Python's; no tangents of integers
    ]


@pytest.mark.parametrize("x", [2.0, np.float32(2)], ids=["number", "array"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [*PROGRAMS, *FORWARD])
def test_types_are_those_of_jax(name: str, way: str, x: Any) -> None:
    if (name in FORWARD and way == "grad") or (way == "vmap" and name.startswith("while, an array")):
        return  # no derivative; of a loop with a predicate for each element, the carry is selected of strong types here
    program = {**PROGRAMS, **FORWARD}[name]
    want, got = (_typed(j, WAYS[way](j, program(j), x)) for j in (jax, mw))
    assert got == want
