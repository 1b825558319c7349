"""Transformed functions outside of jit keep what they say of devices: regions, constraints, shardings of inner jits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax
from meshwright.errors import ConfigError, PlacementWarning

MESH = mw.make_mesh((4, 2), ("x", "y"))
ROWS = mw.NamedSharding(MESH, P("x"))
X = np.arange(1, 65, dtype=np.float32).reshape(8, 8) / 64


def _region(x: Any) -> Any:
    return mw.shard_map(lambda a: mnp.sin(a), mesh=MESH, in_specs=P("x"), out_specs=P("x"))(x)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "shard_map": _region,
    "constraint": lambda x: mnp.sin(lax.with_sharding_constraint(x, ROWS)),
    "device_put": lambda x: mnp.sin(mw.device_put(x, ROWS)),
    "inner jit": lambda x: mw.jit(mnp.sin, in_shardings=ROWS, out_shardings=ROWS)(x),
    "region in jit": lambda x: mw.jit(_region)(x),
    "checkpoint": mw.checkpoint(_region),
}
#: what is made of a function, what it is of the sines, and the dimension that is split
TRANSFORMED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], int]] = {
    "jvp": (lambda f: lambda x: mw.jvp(f, (x,), (x,))[1], lambda x: x * np.cos(x), 0),
    "vjp": (lambda f: lambda x: mw.vjp(f, x)[1](x)[0], lambda x: x * np.cos(x), 0),
    "linearize": (lambda f: lambda x: mw.linearize(f, x)[1](x), lambda x: x * np.cos(x), 0),
    "vmap": (lambda f: lambda x: mw.vmap(f)(mnp.stack([x, x])), lambda x: np.sin(np.stack([x, x])), 1),
}


@pytest.mark.parametrize("transformation", TRANSFORMED)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_lie_where_the_function_says(name: str, transformation: str) -> None:
    transformed, want, split = TRANSFORMED[transformation]
    got = transformed(FUNCTIONS[name])(mnp.asarray(X))
    np.testing.assert_allclose(got, want(X), rtol=1e-5)
    local = list(got.shape)
    local[split] //= 4
    assert got.sharding.shard_shape(got.shape) == tuple(local), got.sharding
    assert got.sharding.device_set == frozenset(MESH.devices.flat) and got.committed


def test_gradients_through_a_pmap_lie_on_its_devices() -> None:
    got = mw.grad(lambda x: mw.pmap(lambda y: lax.psum(y**2, "i"), axis_name="i")(x).sum())(mnp.asarray(X))
    np.testing.assert_allclose(got, 16 * X, rtol=1e-5)
    assert got.sharding.device_set == frozenset(mw.devices()) and got.sharding.shard_shape((8, 8)) == (1, 8)


def test_the_only_device_is_where_values_are_already(monkeypatch: pytest.MonkeyPatch) -> None:
    (device, *_), x = mw.devices(), np.ones(3, np.float32)

    def put(a: Any) -> Any:
        return mw.device_put(a, device) * 2

    with pytest.warns(PlacementWarning, match="not put on cpu:0"):  # one of several
        assert mw.jit(put)(mw.device_put(x, mw.devices()[1])).devices() == {mw.devices()[1]}
    monkeypatch.setattr("meshwright.api.placement.device_count", lambda: 1)
    assert mw.vmap(put)(x).tolist() == mw.jit(put)(x).tolist() == [2, 2, 2]
    assert mw.grad(put)(1.0).item() == 2


def test_a_platform_is_named_for_its_first_device() -> None:
    with mw.default_device("cpu"):
        assert mnp.ones(2).device == mw.devices()[0]
    with pytest.raises(ConfigError, match="the platform's name"), mw.default_device("tpu"):
        pass
