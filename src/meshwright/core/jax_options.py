"""Options of JAX, past or present, that are not options here, and the values they accept.

Options that would change results or checks accept only the value that describes the behaviour here. Options that change
neither (effort, logging, storage) accept any value, which can be read back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from meshwright.errors import ConfigError

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
    "use_shardy_partitioner": _BOTH,  # we have our own partitioner, and read both kinds of annotations
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
    "remat3": (False,),
    "scan3": (False,),
    "refs_to_pins": (False,),
    "export_calling_convention_version": (10,),
}
#: options that do not affect results, with their defaults
HARMLESS: dict[str, Any] = {
    "pprint_use_color": False,
    "logging_level": "NOTSET",
    "debug_log_modules": "",
    "log_checkpoint_residuals": False,
    "distributed_debug": False,
    "cpu_enable_async_dispatch": True,
    "disable_most_optimizations": False,
    "optimization_level": "UNKNOWN",
    "exec_time_optimization_effort": 0.0,
    "memory_fitting_effort": 0.0,
    "memory_fitting_level": "O2",
    "compiler_enable_remat_pass": True,
    "compiler_detailed_logging_min_ops": 10,
    "use_direct_linearize": True,
    "use_simplified_jaxpr_constants": False,
    "captured_constants_warn_bytes": 2_000_000_000,
    "captured_constants_report_frames": 0,
    "persistent_cache_enable_xla_caches": "none",
    "compilation_cache_include_metadata_in_key": False,
    "compilation_cache_check_contents": False,
    "share_binary_between_hosts": False,
    "share_binary_between_hosts_timeout_ms": 1_200_000,
    "pgle_profiling_runs": 3,
    "pgle_aggregation_percentile": 90,
    "tracer_error_num_traceback_frames": 5,
    "use_magma": "auto",
    "threefry_gpu_kernel_lowering": False,
    "bcoo_cusparse_lowering": False,
    "softmax_custom_jvp": False,
    "remat_opt_barrier": True,
    "cpp_jit": True,
    "cpp_pmap": True,
    "pmap_shmap_merge": True,
    "pmap_no_rank_reduction": True,
    "experimental_subjaxpr_lowering_cache": True,
    "experimental_xmap_spmd_lowering": True,
    "experimental_xmap_spmd_lowering_manual": True,
    "experimental_xmap_ensure_fixed_sharding": False,
    "experimental_unsafe_xla_runtime_errors": False,
    "include_debug_info_in_dumps": True,
    "embedded_constants_max_bytes": 32,
    "compilation_cache_expect_pgle": False,
    "remove_custom_partitioning_ptr_from_cache_key": False,
    "debug_leaked_clients_on_clear_backends": False,
    "ragged_dot_use_ragged_dot_instruction": True,
    "send_traceback_to_runtime": "off",
    "source_url_schema": None,
    "xla_profile_version": 0,
    "cpu_get_global_topology_timeout_minutes": 5,
    "cpu_get_local_topology_timeout_minutes": 2,
    "dump_ir_modes": "stablehlo",  # dump_ir writes jaxprs in any case
    "enable_preemption_service": True,
    "check_proxy_envs": True,
    "serialization_version": 0,
    "export_ignore_forward_compatibility": False,
    "jax2tf_default_native_serialization": True,
}
_set: dict[str, Any] = {}


def has_value(name: str) -> bool:
    """Whether it is an option of JAX that is not an option here."""
    return name in ALWAYS or name in HARMLESS


def value_of(name: str) -> Any:
    """The value to which such an option was set, or its default."""
    return _set.get(name, ALWAYS[name][0] if name in ALWAYS else HARMLESS.get(name))


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
    _set[short] = value
    return True
