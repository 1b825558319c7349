"""Every function of ``meshwright.lax`` says what it does, with an example, and the examples are right, also where
promotion is an error."""

from __future__ import annotations

import doctest
import inspect
from types import ModuleType
from typing import Any, get_origin

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.elementwise.docs import DOCS

GLOBALS = {"mw": mw, "mnp": mnp, "jnp": mnp, "np": np, "lax": lax, "P": mw.PartitionSpec}


def functions(module: ModuleType) -> dict[str, Any]:
    """What a user may call: functions, and ops that are called like functions."""
    public = {n: f for n, f in vars(module).items() if not n.startswith("_") and callable(f)}
    return {n: f for n, f in public.items() if not inspect.isclass(f) and not get_origin(f)}


FUNCTIONS = {**functions(lax), **{f"linalg.{n}": f for n, f in functions(lax.linalg).items()}}
OPS = [n for n, f in FUNCTIONS.items() if isinstance(f, Elementwise) and f.name in DOCS]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_example(name: str) -> None:
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    example = doctest.DocTestParser().get_doctest(text, dict(GLOBALS), name, None, 0)
    with mw.numpy_rank_promotion("raise"), mw.numpy_dtype_promotion("strict"):
        found = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    assert found.attempted and not found.failed


@pytest.mark.parametrize("name", OPS)
def test_ops_look_like_functions(name: str) -> None:
    op = FUNCTIONS[name]
    assert op.__name__ == name
    assert len(inspect.signature(op).parameters) == op.arity
    assert f"lax.{name}(" in op.__doc__


def test_operands_by_name() -> None:
    np.testing.assert_array_equal(lax.sub(x=mnp.array([5, 7]), y=mnp.array([1, 2])), [4, 5])
    np.testing.assert_array_equal(lax.sub(mnp.array([5, 7]), y=mnp.array([1, 2])), [4, 5])
    np.testing.assert_array_equal(lax.exp2(mnp.array([3.0]), accuracy=None), [8.0])
    with pytest.raises(mw.errors.ArgumentTypeError, match=r"sub\(x, y\): got 1 operand and keywords \['z'\]"):
        lax.sub(mnp.ones(2), z=mnp.ones(2))
    with pytest.raises(mw.errors.ArgumentTypeError, match="accuracy"):
        lax.exp(mnp.ones(2), accuracy="highest")
