"""``numpy_rank_promotion="raise"`` and ``numpy_dtype_promotion="strict"``: every function of the tables runs under both
wherever JAX's does, so that neither meets operands of our own library."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arguments import OF_32_BITS
from outcomes import Call, given, outcome
from tables import TABLES, function_of

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import ConcretizationTypeError, MeshwrightError

MODES = {"rank": ("numpy_rank_promotion", "raise"), "dtype": ("numpy_dtype_promotion", "strict")}
#: calls whose exponent or base is a Python bool beside a NumPy integer, which JAX reads as int32
LEFT = ("numpy.power(True, int8", "numpy.power(int8[3, -2, 1], True")
#: tables are dealt out to this many tests
SHARES = 8


def traced(f: Callable[..., Any], call: Call) -> Any:
    """The types of what ``f`` gives, or the exception: no program is compiled for them."""
    leaves, tree = mw.tree.flatten(([given(a, mnp.asarray) for a in call.args], given_by_name(call)))
    places = [i for i, x in enumerate(leaves) if isinstance(x, mw.Array)]

    def of_arrays(arrays: list[Any]) -> Any:
        full = list(leaves)
        for i, x in zip(places, arrays):
            full[i] = x
        args, kwargs = mw.tree.unflatten(tree, full)
        out = f(*args, **kwargs)
        return out(*(given(a, mnp.asarray) for a in call.made)) if call.made else out

    try:
        return mw.eval_shape(of_arrays, [leaves[i] for i in places])
    except Exception as error:
        return error


def given_by_name(call: Call) -> dict[str, Any]:
    return {k: given(v, mnp.asarray) for k, v in call.kwargs.items()}


def is_about_promotion(result: Any) -> bool:
    return isinstance(result, MeshwrightError) and "promotion" in str(result)


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("mode", MODES)
def test_our_own_arithmetic_minds_no_promotion(mode: str, share: int) -> None:
    option, value = MODES[mode]
    wrong = []
    for name in list(TABLES)[share::SHARES]:
        call = random.Random(name + mode).choice(list(TABLES[name].calls(OF_32_BITS)))
        with getattr(mw, option)(value):
            got = traced(function_of(mw, name), call)
            if isinstance(got, ConcretizationTypeError):
                got = outcome(function_of(mw, name), call, mnp.asarray)
        if is_about_promotion(got) and not f"{name}({call}".startswith(LEFT):
            with getattr(jax, option)(value):
                want = outcome(function_of(jax, name), call, jnp.asarray)
            if not isinstance(want, Exception):
                wrong.append(f"{name}({call}): {got}")
    assert not wrong, "\n".join(wrong)


def test_optimizers_run_under_both() -> None:
    params = {"w": np.ones((3, 2), "float32"), "b": np.zeros(2, "bfloat16")}
    with mw.numpy_rank_promotion("raise"), mw.numpy_dtype_promotion("strict"):
        for make in (mw.optim.sgd, mw.optim.adam, mw.optim.adamw, mw.optim.lion, mw.optim.rmsprop, mw.optim.adagrad):
            optimizer = make(0.1)
            new, _ = mw.eval_shape(optimizer.update, params, optimizer.init(params), params)
            assert [x.dtype for x in mw.tree.leaves(new)] == [x.dtype for x in mw.tree.leaves(params)]
        schedule = mw.optim.warmup_cosine(0.1, 3, 9)
        assert mw.eval_shape(schedule, mnp.int32(4)).dtype == np.float32
        assert mw.eval_shape(mw.optim.clip_by_global_norm, params, 1.0)["b"].dtype == params["b"].dtype
