"""Guards of transfers, against JAX's: which of the two refuses what, at every level."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp

STEP = {}
#: what moves, or does not, as a function of the library, its numpy, and an array of it
PROGRAMS = {
    "jitted function of an array": lambda lib, np_, x: STEP[lib](x),
    "jitted function of a NumPy array": lambda lib, np_, x: STEP[lib](np.ones(3, np.float32)),
    "an array beside another": lambda lib, np_, x: x * x,
    "an array beside a NumPy array": lambda lib, np_, x: x * np.arange(3, dtype=np.float32),
    "asarray": lambda lib, np_, x: np_.asarray(np.ones(3)),
    "array of a list": lambda lib, np_, x: np_.array([1.0, 5.0]),
    "device_put": lambda lib, np_, x: lib.device_put(np.ones(3)),
    "device_put of a number": lambda lib, np_, x: lib.device_put(2.0),
    "device_put to where it is": lambda lib, np_, x: lib.device_put(x, lib.devices()[0]),
    "device_get": lambda lib, np_, x: lib.device_get(x * x),
    "NumPy reads": lambda lib, np_, x: np.asarray(x + x),
}
LEVELS = ("allow", "log", "disallow", "log_explicit", "disallow_explicit")


@pytest.fixture(scope="module")
def arrays():
    found = {}
    for lib in (mw, jax):
        STEP[lib] = lib.jit(lambda x: x * x)
        found[lib] = lib.device_put(np.arange(3, dtype=np.float32), lib.devices()[0])
        STEP[lib](found[lib])
    return found


def refused(lib, np_, name, x):
    try:
        PROGRAMS[name](lib, np_, x)
    except RuntimeError as error:
        assert "transfer" in str(error)
        return True
    return False


@pytest.mark.parametrize("guard", ["transfer_guard", "transfer_guard_host_to_device"])
def test_what_is_refused(arrays, guard):
    for level in LEVELS:
        for name in PROGRAMS:
            answers = []
            for lib, np_ in ((mw, mnp), (jax, jnp)):
                with getattr(lib, guard)(level):
                    answers.append(refused(lib, np_, name, arrays[lib]))
            assert answers[0] == answers[1], f"{name} at {level}: ours refuses {answers[0]}, JAX {answers[1]}"


def test_other_kinds_stay_allowed(arrays):
    with mw.transfer_guard_device_to_host("disallow_explicit"), mw.transfer_guard_device_to_device("disallow"):
        assert not any(refused(mw, mnp, name, arrays[mw]) for name in PROGRAMS)


def test_from_device_to_device(arrays):
    x, other = arrays[mw], mw.devices()[1]
    with mw.transfer_guard_device_to_device("disallow"):
        assert mw.device_put(x, other).device == other
    with mw.transfer_guard_device_to_device("disallow_explicit"):
        with pytest.raises(mw.errors.TransferError, match=r"explicit device-to-device transfer of f32\[3\], which"):
            mw.device_put(x, other)


def test_onto_a_mesh_of_virtual_devices(refuses):
    mesh = mw.make_mesh((4, 2), ("a", "b"))
    rows, columns = (mw.NamedSharding(mesh, mw.PartitionSpec(axis)) for axis in "ab")
    x = mnp.arange(64.0).reshape(8, 8)
    split, far = mw.device_put(x, rows), mw.device_put(x, mw.devices()[3])
    on_mesh = mw.jit(lambda x: x + 1, in_shardings=rows)
    moved = mw.jit(lambda x: mw.lax.with_sharding_constraint(x, columns))
    implicit = {
        "an argument": lambda: on_mesh(x),
        "a result": lambda: mw.jit(lambda x: x + 1, out_shardings=rows)(x),
        "an operand": lambda: x * split,
        "joined": lambda: mnp.concatenate([split, x]),
        "a region": lambda: mw.jit(
            mw.shard_map(lambda x: x * 2, mesh=mesh, in_specs=rows.spec, out_specs=rows.spec)
        )(x),
    }  # fmt: skip
    allowed = [
        lambda: on_mesh(split), lambda: split * 2 + mnp.asarray(3.0), lambda: moved(split), lambda: far * far,
        lambda: split.sum(), lambda: mw.device_put(x, rows), lambda: x * far,
    ]  # fmt: skip
    for call in (*implicit.values(), *allowed):
        call()
    with mw.transfer_guard_device_to_device("disallow"):
        for call in allowed:
            call()
        for name, call in implicit.items():
            with refuses(mw.errors.TransferError, "implicit device-to-device transfer of f32[8,8]", "disallow"):
                call()
                print(name)  # shown where nothing was refused


def test_logs_and_messages(arrays, caplog):
    with mw.transfer_guard("log"):
        mnp.asarray(np.ones(4))
        mw.device_put(np.ones(5))
    assert [r.message for r in caplog.records] == ["implicit host-to-device transfer of f32[4]"]
    with pytest.raises(mw.errors.JaxRuntimeError, match="pass an array that device_put has made, or allow it"):
        with mw.transfer_guard("disallow"):
            arrays[mw] + np.ones(3)


def test_the_innermost_guard_counts(arrays):
    with mw.transfer_guard_host_to_device("disallow"), mw.transfer_guard("allow"):
        mnp.asarray(np.ones(3))
    mw.config.update("jax_transfer_guard", "disallow")
    try:
        assert refused(mw, mnp, "asarray", arrays[mw])
        with mw.transfer_guard_host_to_device("allow"):
            assert not refused(mw, mnp, "asarray", arrays[mw])
    finally:
        mw.config.update("transfer_guard", None)
    assert not refused(mw, mnp, "asarray", arrays[mw])
