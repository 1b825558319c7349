"""Shardings are given back as they were written, and arrays made like others are put where those are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax

MESH = mw.make_mesh((4, 1, 2), ("x", "o", "y"))
SPECS = [P("x"), P("x", None), P(), P(None), P("o"), P("o", "x"), P(("x", "y")), P(("x", "o"), None), P(None, "y")]
X = np.arange(64, dtype=np.float32).reshape(8, 8)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_specs_come_back_as_they_were_written(spec: P) -> None:
    sharding = mw.NamedSharding(MESH, spec)
    a = mw.device_put(X, sharding)
    same = {
        "device_put": a, "again": mw.device_put(a, sharding), "copy": mnp.array(a), "jit": mw.jit(lambda x: x)(a),
        "computed": mw.jit(lambda x: x * 2 + 1)(a), "eager": a + 1, "function": mnp.sin(a),
        "out_shardings": mw.jit(lambda x: x * 2, out_shardings=sharding)(X),
        "constraint": mw.jit(lambda x: lax.with_sharding_constraint(x, sharding))(X),
    }  # fmt: skip
    for name, value in same.items():
        assert value.sharding == sharding and value.sharding.spec == spec, (name, value.sharding.spec)


LIKE: dict[str, Any] = {
    "zeros_like": mnp.zeros_like, "ones_like": mnp.ones_like, "empty_like": mnp.empty_like,
    "full_like": lambda a, **k: mnp.full_like(a, 2, **k), "lax.full_like": lambda a, **k: lax.full_like(a, 2, **k),
}  # fmt: skip


@pytest.mark.parametrize("name", LIKE)
def test_arrays_like_others_are_where_those_are(name: str) -> None:
    sharding, device = mw.NamedSharding(MESH, P("x")), mw.devices()[1]
    a, b = mw.device_put(X, sharding), mw.device_put(X, device)
    assert LIKE[name](a).sharding == sharding and LIKE[name](a, dtype=np.int32).sharding == sharding
    assert LIKE[name](b).devices() == {device}
    assert LIKE[name](a, shape=(3,)).sharding != sharding and LIKE[name](mnp.asarray(X)).devices() == {mw.devices()[0]}
    assert mw.jit(LIKE[name])(X).shape == (8, 8)
