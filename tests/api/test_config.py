"""Options: by environment, by call, and not after first use."""

import os
import subprocess
import sys

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, errors
from meshwright import PartitionSpec as P


def python(code, **environment):
    """What a fresh interpreter prints."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("MESHWRIGHT_")} | environment
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    return (found.stdout + found.stderr.strip().rpartition("\n")[2]).strip()


def test_devices_by_default_by_environment_and_by_call():
    assert python("import meshwright as mw; print(mw.devices())") == "[CPU:0]"
    count = "import meshwright as mw; print(mw.device_count(), mw.local_device_count(), mw.process_count())"
    assert python(count, MESHWRIGHT_NUM_DEVICES="6") == "6 6 1"
    assert python(count.replace("; print", "; mw.config.update('num_devices', 3); print")) == "3 3 1"
    assert "MESHWRIGHT_NUM_DEVICES: expected a positive number, got '0'" in python(count, MESHWRIGHT_NUM_DEVICES="0")
    x64 = "import meshwright.numpy as mnp; print(mnp.zeros(2).dtype)"
    assert python(x64, MESHWRIGHT_ENABLE_X64="1") == "float64" and python(x64, MESHWRIGHT_ENABLE_X64="no") == "float32"
    assert "MESHWRIGHT_ENABLE_X64: expected 0 or 1, got 'maybe'" in python(x64, MESHWRIGHT_ENABLE_X64="maybe")


def test_the_number_of_devices_is_fixed_at_first_use(refuses):
    assert mw.device_count() == 8
    with refuses(ValueError, "'num_devices'", "already in use", "before the first use"):
        mw.config.update("num_devices", 4)
    mw.config.update("num_devices", 8)  # no change, no complaint


def test_options_that_do_not_exist_or_do_not_fit(refuses):
    with refuses(errors.ConfigError, "'devices'", "num_devices", "enable_x64"):
        mw.config.update("devices", 4)
    with refuses(errors.ConfigError, "'enable_x64'", "bool", "1", "int"):
        mw.config.update("enable_x64", 1)
    mw.config.update("jax_enable_x64", False)  # JAX's names do too


def test_a_mesh_of_more_devices_than_there_are(refuses):
    with refuses(ValueError, "(8, 2)", "16 devices", "there are 8", "MESHWRIGHT_NUM_DEVICES=16", "AbstractMesh"):
        mw.make_mesh((8, 2), ("x", "y"))
    with refuses(errors.MeshError, "(-1, 2)", "positive"):
        mw.make_mesh((-1, 2), ("x", "y"))
    with refuses(errors.MeshError, "2 dimensions", "'x'"):
        mw.make_mesh((4, 2), ("x",))
    with refuses(errors.MeshError, "'x'", "more than once"):
        mw.make_mesh((4, 2), ("x", "x"))


# --- debug_nans ---------------------------------------------------------------------------------------------
@pytest.fixture
def debug_nans():
    with mw.config.override("debug_nans", True):
        yield


def ratio(x):
    y = x - 2
    return y / y * 3


LINE = ratio.__code__.co_firstlineno + 2
X = np.arange(8, dtype=np.float32)


@pytest.mark.parametrize(
    "run",
    [
        lambda: ratio(mnp.asarray(X)),
        lambda: mw.jit(ratio)(X),
        lambda: mw.jit(lambda x: mw.jit(ratio)(x) + 1)(X),
        lambda: mw.vmap(ratio)(X),
        lambda: mw.jit(ratio, in_shardings=NamedSharding(mw.make_mesh((8,), ("x",)), P("x")))(X),
        lambda: ratio(mw.device_put(X, NamedSharding(mw.make_mesh((8,), ("x",)), P("x")))),
        lambda: ratio(mnp.asarray(X, "bfloat16")),
    ],
    ids=["eager", "jit", "inner jit", "vmap", "mesh", "eager on mesh", "bfloat16"],
)
def test_debug_nans_names_op_and_line(refuses, debug_nans, run):
    with refuses(FloatingPointError, "div made a NaN", f"test_config.py:{LINE} (ratio)", "debug_nans"):
        run()


def test_debug_nans_of_derivatives_and_compiled_programs(refuses, debug_nans):
    with refuses(FloatingPointError, "NaN", "test_config.py"):
        mw.jit(mw.grad(lambda x: mnp.sqrt(x) * 0))(0.0)
    with refuses(FloatingPointError, "ratio made a NaN", "f32[8]"):
        mw.jit(ratio).lower(X).compile()(X)
    with refuses(FloatingPointError, "the jitted function ratio made a NaN"):
        mw.jit(ratio, donate_argnums=0)(mnp.asarray(X) + 0)


def test_debug_nans_lets_the_rest_pass(debug_nans):
    np.testing.assert_array_equal(mw.jit(lambda x: 1 / x)(X[1:]), 1 / X[1:])
    assert np.isinf(mw.jit(lambda x: 1 / x)(X)[0])  # infinite is not NaN
    assert mw.jit(lambda x: x + 1)(3) == 4


def test_there_is_one_config():
    import copy
    import pickle

    for again in (copy.copy(mw.config), copy.deepcopy(mw.config), pickle.loads(pickle.dumps(mw.config))):
        assert again is mw.config
    assert copy.deepcopy({"config": mw.config, "n": [1]})["config"] is mw.config


DEVICES_AS_JAX_SAYS = """
import meshwright as mw
assert mw.config.jax_num_cpu_devices == mw.config.num_devices == 6
mw.config.update("jax_num_cpu_devices", 5)
mw.config.update("jax_platforms", "")
mw.config.update("jax_platform_name", "cpu")
assert (mw.device_count(), mw.config.jax_platforms) == (5, "cpu")
try:
    mw.config.update("jax_platforms", "no_platform,cpu")
except mw.errors.ConfigError as error:
    assert "no_platform" in str(error)
else:
    raise AssertionError
"""


def test_names_of_jax_for_devices_mean_what_they_say():
    environment = {k: v for k, v in os.environ.items() if k != "MESHWRIGHT_NUM_DEVICES"}
    environment["XLA_FLAGS"] = "--xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=6"
    subprocess.run([sys.executable, "-c", DEVICES_AS_JAX_SAYS], env=environment, check=True, timeout=60)
