"""``device`` of every function of ``meshwright.numpy`` that has it: the result is there, or the call is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.api.refusals import message_of

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import errors
from meshwright.sharding import AbstractMesh, PmapSharding, PositionalSharding, ShardingSpec, SingleDeviceSharding

MESH = mw.make_mesh((4,), ("x",))
ROWS = mw.NamedSharding(MESH, mw.P("x"))
HOST = np.arange(4.0, dtype=np.float32)
OURS = mnp.asarray(HOST)
KEYS = mw.random.split(mw.random.key(0), 4)

#: calls by function, and by what else decides the way an array is made; every result has four rows
CALLS: dict[str, list[Callable[[Any], Any]]] = {
    "arange": [lambda d: mnp.arange(4, device=d), lambda d: mnp.arange(0.0, 2.0, 0.5, device=d)],
    "array": [
        lambda d: mnp.array(HOST, device=d), lambda d: mnp.array(OURS, device=d),
        lambda d: mnp.array(OURS, int, device=d),
        lambda d: mnp.array([1, 2, 3, 4], device=d), lambda d: mnp.array([OURS[0], 1, 2, 3], device=d),
        lambda d: mnp.array(range(4), device=d), lambda d: mnp.array(memoryview(HOST), device=d),
        lambda d: mnp.array(KEYS, device=d), lambda d: mnp.array(HOST, ndmin=1, device=d),
    ],
    "asarray": [lambda d: mnp.asarray(HOST, device=d), lambda d: mnp.asarray(OURS, device=d)],
    "astype": [
        lambda d: mnp.astype(OURS, int, device=d), lambda d: mnp.astype(OURS, OURS.dtype, device=d),
        lambda d: mnp.astype(HOST, int, device=d), lambda d: OURS.astype(int, device=d),
    ],
    "empty": [lambda d: mnp.empty(4, device=d)],
    "empty_like": [lambda d: mnp.empty_like(OURS, device=d)],
    "eye": [lambda d: mnp.eye(4, 3, device=d)],
    "fft.fftfreq": [lambda d: mnp.fft.fftfreq(4, device=d)],
    "fft.rfftfreq": [lambda d: mnp.fft.rfftfreq(6, device=d)],
    "from_dlpack": [lambda d: mnp.from_dlpack(HOST, device=d), lambda d: mnp.from_dlpack(OURS, device=d)],
    "full": [
        lambda d: mnp.full(4, 2.0, device=d), lambda d: mnp.full(4, OURS[1], device=d),
        lambda d: mnp.full((4, 4), OURS, device=d),
        lambda d: mnp.full(4, [1, 2, 3, 4], device=d),
    ],
    "full_like": [
        lambda d: mnp.full_like(OURS, 2, device=d), lambda d: mnp.full_like(OURS, OURS, device=d),
    ],
    "linspace": [
        lambda d: mnp.linspace(0, 1, 4, device=d), lambda d: mnp.linspace(0, OURS, 4, device=d),
        lambda d: mnp.linspace(0, 1, 4, retstep=True, device=d)[0],
    ],
    "ones": [lambda d: mnp.ones(4, device=d)],
    "ones_like": [lambda d: mnp.ones_like(OURS, device=d)],
    "zeros": [lambda d: mnp.zeros((4, 0), device=d), lambda d: mnp.zeros(4, bool, device=d)],
    "zeros_like": [lambda d: mnp.zeros_like(HOST, device=d), lambda d: mnp.zeros_like(KEYS, device=d)],
}  # fmt: skip
EACH = [pytest.param(call, id=f"{name} {i}") for name, calls in CALLS.items() for i, call in enumerate(calls)]


def test_every_function_with_a_device_is_here() -> None:
    public = {**{n: getattr(mnp, n) for n in dir(mnp)}, **{f"fft.{n}": getattr(mnp.fft, n) for n in mnp.fft.__all__}}
    functions = {n: f for n, f in public.items() if inspect.isfunction(f) and not n.startswith("_")}
    assert {n for n, f in functions.items() if "device" in inspect.signature(f).parameters} == set(CALLS)


@pytest.mark.parametrize("call", EACH)
def test_results_are_on_the_device(call: Callable[[Any], Any]) -> None:
    plain, device = call(None), mw.devices()[2]
    for place, sharding in ((device, SingleDeviceSharding(device)), (ROWS, ROWS)):
        got = call(place)
        assert got.sharding == sharding and got.committed and got.aval.dtype == plain.dtype
        assert mnp.array_equal(mw.device_put(got, plain.sharding), plain)


@pytest.mark.parametrize("call", EACH)
def test_traced_results_have_the_sharding(call: Callable[[Any], Any]) -> None:
    got = mw.jit(lambda: call(ROWS))()
    assert got.sharding.is_equivalent_to(ROWS, got.ndim)
    assert mnp.array_equal(mw.device_put(got, mw.devices()[0]), call(None))


@pytest.mark.parametrize("call", EACH)
def test_refused(call: Callable[[Any], Any]) -> None:
    """Without a device to be on the result of a call outside of programs can be nowhere."""
    abstract = mw.NamedSharding(AbstractMesh((4,), ("x",)), mw.P("x"))
    assert "has no devices; use a mesh from make_mesh" in message_of(errors.ArgumentTypeError, call, abstract)
    assert "device must be a device or a sharding, got 'gpu'" in message_of(errors.ArgumentTypeError, call, "gpu")
    deep = mw.NamedSharding(MESH, mw.P(None, None, "x"))
    assert "has 3 entries" in message_of(errors.ShardingError, call, deep)


@pytest.mark.parametrize("call", EACH)
def test_programs_that_are_only_partitioned(call: Callable[[Any], Any]) -> None:
    abstract = mw.NamedSharding(AbstractMesh((4,), ("x",)), mw.P("x"))
    part = mw.jit(lambda: call(abstract)).lower().partition()
    (out,) = part.out_shardings if isinstance(part.out_shardings, (list, tuple)) else (part.out_shardings,)
    assert out.spec[0] == "x" and part.mesh == abstract.mesh


def test_dimensions_that_ndmin_adds_are_split() -> None:
    first = mw.NamedSharding(MESH, mw.P(None, "x"))
    assert mnp.array(HOST, ndmin=2, device=first).sharding == first
    assert mnp.array(3.0, ndmin=2, device=first).sharding == first


def test_shardings_are_over_devices() -> None:
    for make in (lambda d: PositionalSharding([d]), lambda d: PmapSharding([d], ShardingSpec([], []))):
        assert "must be an array of devices, found" in message_of(errors.MeshError, make, ROWS)
    assert "must be an array of devices, found" in message_of(
        errors.MeshError, mw.sharding.GSPMDSharding, [0, 1], "{replicated}"
    )


def test_placement_names_the_function() -> None:
    abstract = mw.NamedSharding(AbstractMesh((4,), ("x",)), mw.P("x"))
    for place in (mw.device_put, mw.with_sharding_constraint, mw.reshard):
        assert message_of(errors.ArgumentTypeError, place, OURS, abstract).startswith(f"{place.__name__}: AbstractMesh")
