"""Options of JAX, past or present, that are not options here, and the values they accept.

Options that would change results or checks accept only the value that describes the behaviour here. Options that change
neither accept any value, which can be read back. Where a user would see the effect (logs, the compiler's effort,
files), another value than the default is warned of, once.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from meshwright.errors import ConfigError, OptionWarning

#: options of JAX that have another name here
JAX_NAMES = {
    "num_cpu_devices": "num_devices", "platforms": "platform", "platform_name": "platform", "dump_ir_to": "dump_ir",
    "enable_checks": "verify_passes",
}  # fmt: skip
_BOTH = (True, False)
#: the values that describe the behaviour here; the first is the default
ALWAYS: dict[str, tuple[Any, ...]] = {
    "threefry_partitionable": (True,),
    "array": (True,),
    "omnistaging": (True,),
    "experimental_name_stack": (True,),
    "enable_memories": (True,),
    "sharding_in_types": (True,),
    "parallel_functions_output_gda": (False,),
    "dynamic_shapes": (False,),
    "spmd_mode": ("allow_jit", "allow_all"),
    "cpu_collectives_implementation": ("gloo", None),
    "include_full_tracebacks_in_locations": _BOTH,
    "xla_backend": ("", None, "cpu"),
    "jit_pjit_api_merge": (True,),
    "new_checkpoint": (True,),
    "coordination_service": (True,),
    "enable_mlir": (True,),
    "default_dtype_bits": ("64",),
    "legacy_prng_key": ("allow",),
    "high_dynamic_range_gumbel": (False,),
    "allow_f16_reductions": (True,),
    "eager_constant_folding": (False,),
    "check_static_indices": (False,),
    "error_checking_behavior_nan": ("ignore",),
    "error_checking_behavior_divide": ("ignore",),
    "error_checking_behavior_oob": ("ignore",),
    "array_garbage_collection_guard": (None, "allow"),
    "thread_guard": (False,),
    "no_tracing": (False,),
    "no_execution": (False,),
    "disallow_mesh_context_manager": (False,),
    "disable_bwd_checks": (False,),
    "auto_pcast": (True,),
    "mutable_array_checks": (True,),
    "enable_pgle": (False,),
    "raise_persistent_cache_errors": (False,),
    "enable_recoverability": (False,),
    "hlo_source_file_canonicalization_regex": (None, ""),
    "unique_mhlo_module_names": (False,),
    "data_dependent_tracing_fallback": (False,),
    "cuda_visible_devices": ("all",),
    "rocm_visible_devices": ("all",),
    "mock_num_gpu_processes": (0,),
    "remove_size_one_mesh_axis_from_type": (False,),
    "explicit_x64_dtypes": ("warn",),
    "custom_vjp3": (False,),
    "remat3": (False, True),
    "scan3": (False,),
    "refs_to_pins": (False,),
    "export_calling_convention_version": (10,),
}
#: options that do not affect results, with their defaults, and which have nothing to act on here
HARMLESS: dict[str, Any] = {
    # which of several implementations in JAX computes what is computed alike
    "use_direct_linearize": True,
    "use_simplified_jaxpr_constants": False,
    "use_magma": "auto",
    "threefry_gpu_kernel_lowering": False,
    "bcoo_cusparse_lowering": False,
    "softmax_custom_jvp": False,
    "ragged_dot_use_ragged_dot_instruction": True,
    "embedded_constants_max_bytes": 32,
    "cpp_jit": True,
    "cpp_pmap": True,
    "pmap_shmap_merge": True,
    "pmap_no_rank_reduction": True,
    "experimental_subjaxpr_lowering_cache": True,
    "experimental_xmap_spmd_lowering": True,
    "experimental_xmap_spmd_lowering_manual": True,
    "experimental_xmap_ensure_fixed_sharding": False,
    "jax2tf_default_native_serialization": True,
    "serialization_version": 0,
    # of files, traces and messages of JAX that have no counterpart, or another form
    "pprint_use_color": False,
    "export_ignore_forward_compatibility": False,
    "include_debug_info_in_dumps": True,
    "send_traceback_to_runtime": "off",
    "source_url_schema": None,
    "xla_profile_version": 0,
    "experimental_unsafe_xla_runtime_errors": False,
    "debug_leaked_clients_on_clear_backends": False,
    "tracer_error_num_traceback_frames": 5,  # errors name the line
    # details of what is refused (PGLE) or is so (recomputations are kept apart, keys have no pointers)
    "pgle_profiling_runs": 3,
    "pgle_aggregation_percentile": 90,
    "compilation_cache_expect_pgle": False,
    "remat_opt_barrier": True,
    "remove_custom_partitioning_ptr_from_cache_key": False,
    # of services that the launcher replaces
    "cpu_get_global_topology_timeout_minutes": 5,
    "cpu_get_local_topology_timeout_minutes": 2,
    "enable_preemption_service": True,
    "check_proxy_envs": True,
    # the least size of constants that are warned of (``api/stages.py``)
    "captured_constants_warn_bytes": 2_000_000_000,
}
_LOGS = "there is no such log; see log_compiles, explain_cache_misses, and dump_ir"
_XLA = "XLA compiles as always; name its flags in jit(compiler_options=) or XLA_FLAGS"
_CACHE = "the folder compilation_cache_dir has one form, whose files have checksums"
#: options whose effect a user of JAX would see or measure, with their defaults, and why they have none here
WITHOUT_EFFECT: dict[str, tuple[Any, str]] = {
    "logging_level": ("NOTSET", _LOGS),
    "debug_log_modules": ("", _LOGS),
    "log_checkpoint_residuals": (False, "ad_checkpoint.print_saved_residuals shows what is saved"),
    "distributed_debug": (False, _LOGS),
    "compiler_detailed_logging_min_ops": (10, _LOGS),
    "cpu_enable_async_dispatch": (True, "calls always return before results are there; use block_until_ready"),
    "disable_most_optimizations": (False, _XLA),
    "optimization_level": ("UNKNOWN", _XLA),
    "exec_time_optimization_effort": (0.0, _XLA),
    "memory_fitting_effort": (0.0, _XLA),
    "memory_fitting_level": ("O2", _XLA),
    "compiler_enable_remat_pass": (True, _XLA),
    "captured_constants_report_frames": (0, "the warning names the function"),
    "persistent_cache_enable_xla_caches": ("none", _CACHE),
    "compilation_cache_include_metadata_in_key": (False, _CACHE),
    "compilation_cache_check_contents": (False, _CACHE),
    "share_binary_between_hosts": (False, "with compilation_cache_dir, one process compiles and the others read"),
    "share_binary_between_hosts_timeout_ms": (1_200_000, "collective_timeout is the limit"),
    "dump_ir_modes": ("stablehlo", "dump_ir writes jaxprs and StableHLO in any case"),
}
_warned: set[str] = set()
_set: dict[str, Any] = {}


def has_value(name: str) -> bool:
    """Whether it is an option of JAX that is not an option here."""
    return name in ALWAYS or name in HARMLESS or name in WITHOUT_EFFECT


def names() -> tuple[str, ...]:
    """The options of JAX that are not options here."""
    return (*ALWAYS, *HARMLESS, *WITHOUT_EFFECT)


def value_of(name: str) -> Any:
    """The value to which such an option was set, or its default."""
    tables = ALWAYS if name in ALWAYS else WITHOUT_EFFECT
    return _set.get(name, tables[name][0] if name in tables else HARMLESS.get(name))


@contextmanager
def settled(name: str, value: Any) -> Iterator[None]:
    """Set such an option within a ``with`` block.

    Raises:
      ConfigError: the value does not describe the behaviour here.
    """
    before = dict(_set)
    is_as_it_is(name, value)
    try:
        yield
    finally:
        _set.clear()
        _set.update(before)


def is_as_it_is(name: str, value: Any) -> bool:
    """Whether it is an option of JAX that is not an option here; if so, records its value.

    Raises:
      ConfigError: the value does not describe the behaviour here.
    """
    short = name.removeprefix("jax_")
    if not has_value(short):
        return False
    values = ALWAYS.get(short)
    if values is not None and getattr(value, "value", value) not in values:
        raise ConfigError(
            f"config.update({name!r}): expected {' or '.join(map(repr, values))}, as it always is here, got {value!r}; "
            "leave the line out"
        )
    default, why = WITHOUT_EFFECT.get(short, (value, ""))
    if value != default and short not in _warned:
        _warned.add(short)
        warnings.warn(f"config option {short}={value!r} has no effect here: {why}", OptionWarning, stacklevel=3)
    _set[short] = value
    return True
