"""Every row of the elementwise table computes what the function of that name in ``jax.lax`` does, and so does its
derivative."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from numpy_eval import evaluate_fun
from samples import SAMPLES, Sample
from samples.elementwise import rows

from meshwright.transforms.autodiff import jvp

#: names that differ
JAX_NAMES = {
    "and": "bitwise_and", "or": "bitwise_or", "not": "bitwise_not", "xor": "bitwise_xor",
}  # fmt: skip
ROWS = {op.name for op in rows()}
#: kinds of operands that ``jax.lax`` refuses
REFUSED = {("add", "b"), ("mul", "b"), ("pow", "i"), ("pow", "u"), *((op, "c") for op in ("lt", "le", "gt", "ge"))}
CASES = [
    s for s in SAMPLES if s.op.name in ROWS and s.args[0].ndim and (s.op.name, s.args[0].dtype.kind) not in REFUSED
]


def theirs(name: str) -> Any:
    match name:
        case "copy":
            return lambda x: x
        case "round_nearest_even" | "round_nearest_afz":
            method = "TO_NEAREST_EVEN" if name.endswith("even") else "AWAY_FROM_ZERO"
            return lambda x: jax.lax.round(x, jax.lax.RoundingMethod[method])
    return getattr(jax.lax, JAX_NAMES.get(name, name))


@pytest.mark.parametrize("sample", CASES, ids=lambda s: s.id)
def test_value_and_tangent(sample: Sample) -> None:
    ours, other = sample.op.bind, theirs(sample.op.name)
    inexact = all(a.dtype.kind in "fc" for a in sample.args) and sample.op.name not in ("nextafter", "zeta")
    inexact &= (sample.op.name, sample.args[0].dtype.kind) != ("sign", "c")  # JAX has zero for it
    rng = np.random.default_rng(3)
    tangents = [np.asarray(rng.normal(size=a.shape), a.dtype) for a in sample.args]
    wanted = [0] if not inexact else [i for i in range(len(sample.args)) if i not in sample.fixed]

    def derivative(f: Any, module_jvp: Any) -> Any:
        def run(*args: Any) -> Any:
            xs, ts = args[: len(sample.args)], args[len(sample.args) :]

            def partial(*vs: Any) -> Any:
                full = list(xs)
                for i, v in zip(wanted, vs):
                    full[i] = v
                return f(*full)

            return module_jvp(partial, tuple(xs[i] for i in wanted), tuple(ts[i] for i in wanted))

        return run

    if inexact:
        got = evaluate_fun(lambda *a: list(derivative(ours, jvp)(*a)), [*sample.args, *tangents])
        want = jax.jit(derivative(other, jax.jvp))(*sample.args, *tangents)
    else:
        got, want = evaluate_fun(lambda *a: [ours(*a)], sample.args), [other(*sample.args)]
    for x, y in zip(got, want, strict=True):
        y = np.asarray(y)
        if y.dtype == jax.dtypes.float0:
            continue
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, rtol=3e-5, atol=3e-6)
