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
    assert python("import meshwright as mw; print(mw.devices())") == "[CpuDevice(id=0)]"
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


def test_the_module_that_config_once_was():
    from meshwright.config import config

    assert config is mw.config
    config.parse_flags_with_absl()
    assert config.read("jax_enable_x64") is config.jax_enable_x64 is mw.config.enable_x64


@pytest.mark.filterwarnings("ignore::meshwright.errors.OptionWarning")  # once in a process: see test_options.py
def test_options_of_jax_that_there_is_no_need_to_have():
    mw.config.update("jax_cpu_enable_async_dispatch", False)
    assert mw.config.jax_cpu_enable_async_dispatch is False
    mw.config.update("jax_cpu_enable_async_dispatch", True)
    mw.config.update("jax_threefry_partitionable", True)
    mw.config.update("jax_remove_size_one_mesh_axis_from_type", False)
    mw.config.update("jax_dump_ir_modes", "stablehlo,jaxpr")
    for name, value in ("threefry_partitionable", False), ("legacy_prng_key", "error"), ("default_dtype_bits", "32"):
        with pytest.raises(errors.ConfigError, match=r"as it always is here.*leave the line out"):
            mw.config.update(f"jax_{name}", value)
        assert getattr(mw.config, f"jax_{name}") != value
    with pytest.raises(errors.ConfigError, match="unknown option"):
        mw.config.update("jax_no_such_option", True)


def test_options_of_jax_with_another_name(tmp_path):
    before = mw.config.dump_ir
    mw.config.update("jax_dump_ir_to", str(tmp_path))
    assert mw.config.dump_ir == str(tmp_path)
    mw.config.update("jax_dump_ir_to", "")
    assert mw.config.dump_ir is None
    mw.config.update("dump_ir", before)
    with mw.config.override("jax_enable_checks", True):
        assert mw.config.verify_passes and mw.config.jax_enable_checks


def test_the_offset_of_seeds():
    plain = mw.random.key_data(mw.random.key(10)), mw.jit(mw.random.PRNGKey)(10)
    with mw.config.override("jax_random_seed_offset", 3):
        moved = mw.random.key_data(mw.random.key(7)), mw.jit(mw.random.PRNGKey)(7)
    assert all(map(np.array_equal, plain, moved))
    assert not np.array_equal(mw.random.PRNGKey(7), moved[1])


@pytest.mark.parametrize(
    "option", [{"enable_compilation_cache": False}, {"persistent_cache_min_entry_size_bytes": 1 << 30}]
)
def test_what_is_not_kept_on_disk(tmp_path, option):
    ((name, value),) = option.items()
    with mw.config.override("compilation_cache_dir", str(tmp_path)):
        with mw.config.override("persistent_cache_min_compile_time_secs", 0.0):
            with mw.config.override(name, value):
                mw.jit(lambda x: x * 3 + 1)(mnp.arange(5))
            assert not list(tmp_path.iterdir())
            mw.jit(lambda x: x * 3 + 2)(mnp.arange(5))
            assert list(tmp_path.iterdir())


SETTLED = {
    "allow_f16_reductions": (True, False), "array_garbage_collection_guard": ("allow", "fatal"),
    "legacy_prng_key": ("allow", "error"), "thread_guard": (False, True),
    "threefry_partitionable": (True, False),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTLED)
def test_options_of_jax_for_a_block(name, refuses):
    right, wrong = SETTLED[name]
    with getattr(mw, name)(right):
        assert getattr(mw.config, f"jax_{name}") == right
    with refuses(ValueError, name, repr(wrong)), getattr(mw, name)(wrong):
        raise AssertionError("the block is not entered")


def test_harmless_options_of_jax_for_a_block():
    before = mw.config.jax_explain_cache_misses
    with mw.explain_cache_misses(not before), mw.softmax_custom_jvp(), mw.enable_checks():
        assert mw.config.jax_explain_cache_misses is not before and mw.config.verify_passes
    assert mw.config.jax_explain_cache_misses is before
