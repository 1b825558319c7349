"""Mistakes made on purpose: the fuzz finds each, whoever else it asks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as onp
import pytest
from fuzz_checks import (
    OURS,
    check_first,
    check_jit,
    check_partitioned,
    check_second,
    check_values,
    check_vmap,
    failure,
    modes,
)
from fuzz_programs import Case
from otherwise import reason_for

import meshwright as mw
import meshwright.lax as lax
import meshwright.nn as nn
import meshwright.numpy as np
from meshwright.errors import ArgumentError
from meshwright.ops.reduce.cumulative import CumSum
from meshwright.ops.shape.rearrange import Rev

F = onp.array([[1.5, -2.0, 0.5], [3.0, 0.25, -1.0]], "float32")
SPECIAL = onp.array([0.0, -0.0, onp.nan, onp.inf, 1.0, 1.0, -2.0], "float32")
H, WIDE = onp.array([2.0, 2.0, -3.0], "float16"), onp.array([0.5, 1.5, -2.0])
C = onp.array([1 + 2j, -0.5 + 1j, 3 - 1j], "complex64")
I, U, L = onp.array([-7, 5, 3, 5], "int32"), onp.array([200, 100, 3], "uint8"), onp.array([[3, 4], [5, 7]], "int64")


def _with_rule(f, rule):
    """``f`` with a derivative of its own."""
    g = mw.custom_jvp(f)
    g.defjvp(lambda primals, tangents: (g(*primals), rule(*primals, *tangents)))
    return g


def _ravelled(x, mode):
    if np.ndim(x) > 1:
        raise ArgumentError("sort: expected a vector")
    return np.sort(x)


def _saturated(x, y):
    return np.minimum(x.astype("int32") + y, 255).astype("uint8")


def _weak_lost(f):
    return lambda *args: np.astype(out := f(*args), out.dtype)


#: a name, what wrongly stands there, the line, its inputs, and the check that finds it
PLANTED = {
    "value": ("np.sin", lambda x: np.sin(x) + (x > 1), "np.sin(x0)", F, check_values),
    "compiled value": ("np.sin", lambda x: np.sin(x) + (x > 1), "np.sin(x0)", F, check_jit),
    "sign of a derivative": ("np.sin", _with_rule(np.sin, lambda x, t: -np.cos(x) * t), "np.sin(x0)", F, check_first),
    "derivative that is dropped": (
        "np.sort", _with_rule(np.sort, lambda x, t: t * 0), "np.sort(x0) * x0", F, check_first
    ),
    "tie": ("np.maximum", lambda x, y: np.where(x >= y, x, y), "np.maximum(x0, 1.)", SPECIAL[4:], check_first),
    "second derivative": (
        "np.exp", _with_rule(np.exp, lambda x, t: lax.stop_gradient(np.exp(x)) * t), "np.exp(x0)", F, check_second
    ),
    "derivative of a product at 0": (
        "np.prod", lambda x: np.exp(np.sum(np.log(np.abs(x)))) * np.prod(np.sign(x)), "np.prod(x0)", SPECIAL[:2],
        check_first,
    ),
    "conjugate": ("np.square", lambda x: x * np.conj(x), "np.square(x0)", C, check_values),
    "weak type": ("np.flip", _weak_lost(np.flip), "np.flip(np.ravel(x0))", 1.5, check_values),
    "weak type of a number": ("nn.relu", _weak_lost(nn.relu), "nn.relu(x0)", -2.0, check_values),
    "dtype": ("np.mean", lambda x: np.mean(x, dtype="float32"), "np.mean(x0)", L, check_values),
    "half dtype": ("np.sum", lambda x: np.sum(x, dtype="float32"), "np.sum(x0)", H, check_values),
    "sign of zero": (
        "np.copysign", lambda x, y: np.where(y < 0, -abs(x), abs(x)), "np.copysign(1., x0)", SPECIAL[:2], check_values
    ),
    "reciprocal of minus zero": ("np.negative", lambda x: 0 - x, "1 / np.negative(x0)", SPECIAL[:2], check_values),
    "NaN lost": ("np.max", np.nanmax, "np.max(x0)", SPECIAL, check_values),
    "NaN made": ("np.power", lambda x, y: np.exp(y * np.log(x)), "np.power(x0, 2.)", WIDE, check_values),
    "infinity": ("np.hypot", lambda x, y: np.sqrt(x * x + y * y), "np.hypot(x0, np.nan)", SPECIAL, check_values),
    "first of equals": (
        "np.argmax", lambda x: x.size - 1 - np.argmax(np.flip(x)), "np.argmax(x0)", I, check_values
    ),
    "integer quotient": ("np.floor_divide", lax.div, "np.floor_divide(x0, x1)", (I, onp.int32(2)), check_values),
    "wrapping": ("np.add", _saturated, "np.add(x0, x1)", (U, U), check_values),
    "axis": ("nn.softmax", lambda x, axis: nn.softmax(x, 0), "nn.softmax(x0, axis=1)", F, check_values),
    "branches": (
        "lax.cond", lambda p, f, g, x: lax.cond(p, g, f, x), "lax.cond(np.sum(x0) > 0, np.exp, np.sin, x0)", F,
        check_values,
    ),
    "refusal": ("np.sort", _ravelled, "np.sort(x0, None)", F, check_values),
}  # fmt: skip


def _case(line, inputs):
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    given = {f"x{i}": x for i, x in enumerate(inputs)}
    x64 = any(getattr(x, "dtype", None) in ("float64", "int64") for x in inputs)
    return Case(given, (("v0", line),), ("v0",), x64)


def _finding(case, check):
    """How a program fails, and the reason if it is meant to."""
    why = failure(case, check)
    if why is None:
        return None, None
    with modes(case):
        return why, reason_for(case, why, lambda c: failure(c, check))


@pytest.mark.parametrize("mistake", PLANTED)
def test_planted_mistakes_are_found(mistake, monkeypatch):
    name, wrong, line, inputs, check = PLANTED[mistake]
    module, name = name.split(".")
    case = _case(line, inputs)
    assert _finding(case, check) == (None, None)
    right = OURS[module]
    monkeypatch.setitem(OURS, module, SimpleNamespace(**{**vars(right), name: wrong}))
    why, reason = _finding(case, check)
    assert why is not None and reason is None, reason


#: an op, a wrong rule of it, and a line that the check finds
RULES = {
    "batch": (
        Rev, "batch", lambda self, axis, args, dims: (self.bind(*args), dims[0]), "np.flip(x0, 0)", F, check_vmap
    ),
    "transpose": (Rev, "transpose", lambda self, ct, x: [ct], "np.flip(x0, -1) * x0", F, check_first),
    "tangent": (CumSum, "jvp", lambda self, x, t: (self.bind(*x), t[0]), "np.cumsum(x0, axis=0)", F, check_first),
    "partition": (
        CumSum, "localize", lambda self, ctx, x: self.bind(x), "np.cumsum(x0, axis=0)",
        onp.arange(1, 49.0).reshape(12, 4), check_partitioned,
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", RULES)
def test_wrong_rules_of_ops_are_found(mistake, monkeypatch):
    op, rule, wrong, line, inputs, check = RULES[mistake]
    case = _case(line, inputs)
    assert _finding(case, check) == (None, None)
    monkeypatch.setattr(op, rule, wrong)
    why, reason = _finding(case, check)
    assert why is not None and reason is None, reason
