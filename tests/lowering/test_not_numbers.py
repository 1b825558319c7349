"""Values that the compiler knows to be NaN come out as NaN: of every elementwise function, with all optimization."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.lowering.not_numbers import EXPONENTIALS, keep_not_numbers

#: in a process of its own: the other tests let XLA compile with little optimization
PROGRAM = """
import sys
import meshwright as mw, meshwright.numpy as mnp, numpy as np
from meshwright import lax, nn
NAMES = "exp exp2 expm1 sinh cosh tanh log sqrt".split()
FUNCTIONS = {n: getattr(mnp, n) for n in NAMES} | {n: getattr(nn, n) for n in ("sigmoid", "softplus")}
X = mnp.asarray(np.linspace(0.1, 0.9, 37), sys.argv[1])
NAN = np.asarray(np.nan, X.dtype)
INTO = {
    "where": lambda x, s: mnp.where(s > 0, x, NAN),
    "times": lambda x, s: x * NAN,
    "called": lambda x, s: mw.jit(lambda s: mnp.where(s > 0, 0 * x, NAN))(s) + x,
    "branch": lambda x, s: mw.lax.cond(s > 0, lambda: x, lambda: mnp.full_like(x, NAN)) * 2,
    "scan": lambda x, s: mw.lax.scan(lambda c, _: (mnp.where(s > 0, c, NAN), None), x, None, length=2)[0],
    "constant": lambda x, s: mnp.where(s > 0, x, np.full(37, NAN)),
    "root": lambda x, s: x * mnp.sqrt(-1.0).astype(x.dtype), "log": lambda x, s: x + mnp.log(np.asarray(-1, x.dtype)),
    "difference": lambda x, s: x * (mnp.exp(mnp.asarray(1e3, x.dtype)) - mnp.asarray(np.inf, x.dtype)),
    "of counts": lambda x, s: x * mnp.sqrt(-1 - mnp.arange(37, dtype=x.dtype)),
    "sine": lambda x, s: x * mnp.sin(mnp.asarray(np.inf, x.dtype)),
}
program = mw.jit(lambda x, s: {(n, w): FUNCTIONS[n](INTO[w](x, s)) for n in ("exp", "cosh") for w in INTO})
wrong = [k for k, y in program(X, np.float32(-1)).items() if not np.isnan(np.asarray(y, np.float32)).all()]
each = {n: mw.jit(lambda x, s, f=f: f(INTO["where"](x, s))) for n, f in FUNCTIONS.items()}
wrong += [n for n, f in each.items() if not np.isnan(np.asarray(f(X, np.float32(-1)), np.float32)).all()]
wrong += [n for n, f in each.items() if np.isnan(np.asarray(f(X, np.float32(1)), np.float32)).any()]
print("wrong:", wrong)
"""


@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(t, marks=pytest.mark.slow) for t in ("bfloat16", "float16"))]
)
def test_what_is_known_to_be_nan_is_nan(dtype: str) -> None:
    plain = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, dtype], capture_output=True, text=True, timeout=300, env=plain
    )
    assert done.stdout.strip() == "wrong: []", done.stdout + done.stderr[-2000:]


def test_programs_without_such_constants_stay_as_they_are() -> None:
    scaled = lambda x: mnp.exp(x / mnp.sqrt(64.0) + mnp.log(mnp.full(3, 2.0)) ** -0.5)  # noqa: E731
    for f in (mnp.exp, mw.nn.softmax, lambda x: mnp.where(x > 0, mnp.exp(x), mnp.nan), scaled):
        jaxpr = mw.make_jaxpr(f)(np.ones(3, np.float32))
        assert keep_not_numbers(jaxpr) is jaxpr


@pytest.mark.parametrize("name", sorted(EXPONENTIALS))
def test_the_guard(name: str) -> None:
    f = getattr(mw.lax, name)
    jaxpr = mw.make_jaxpr(lambda ok, x: f(mnp.where(ok, x, mnp.nan)))(True, np.ones(3, np.float32))
    names = [e.op.name for e in keep_not_numbers(jaxpr).jaxpr.eqns]
    assert names == ["select_n", "eq", name, "select_n"]


def test_functions_called_twice_stay_one() -> None:
    @mw.jit
    def inner(x):
        return mnp.exp(x)

    jaxpr = mw.make_jaxpr(lambda x: inner(x * mnp.nan) + inner(x * mnp.nan))(1.0)
    called = [e.op for e in keep_not_numbers(jaxpr).jaxpr.eqns if e.op.holds_jaxprs]
    assert len(called) == 2 and called[0] == called[1]
