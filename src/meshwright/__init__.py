"""Meshwright compiles an array program written for one device into the program that every device of a mesh runs."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from meshwright.core import xla_log as _xla_log
from meshwright.core.collector import collector_paused as _collector_paused

del _xla_log  # imported for its side effect, which must come before the first import of jaxlib
with _collector_paused():  # everything imported stays alive
    from meshwright import errors, hardware, lax, memory, numpy, sharding, tree, tree_util
    from meshwright.api.assembling import (
        copy_to_host_async,
        device_put_replicated,
        device_put_sharded,
        live_arrays,
        make_array_from_callback,
        make_array_from_process_local_data,
        make_array_from_single_device_arrays,
    )
    from meshwright.api.batching_rules import fwd_and_bwd
    from meshwright.api.callbacks import io_callback, pure_callback
    from meshwright.api.environment import default_backend, effects_barrier, print_environment_info
    from meshwright.api.jit import jit
    from meshwright.api.measuring import figures as _figures
    from meshwright.api.placement import (
        block_until_ready,
        device_get,
        device_put,
        reshard,
        with_sharding_constraint,
    )
    from meshwright.api.shape_dtype import ShapeDtypeStruct
    from meshwright.api.shard_map import shard_map
    from meshwright.api.tracing import eval_shape, make_jaxpr
    from meshwright.config import config
    from meshwright.core.absent import absent as _absent
    from meshwright.core.caches import clear_caches
    from meshwright.core.dtypes import float0
    from meshwright.core.late import late_attributes as _late_attributes
    from meshwright.core.late import submodules as _submodules
    from meshwright.core.options import (
        check_tracer_leaks,
        checking_leaks,
        debug_infs,
        debug_nans,
        default_device,
        default_matmul_precision,
        default_prng_impl,
        disable_jit,
        dump_ir,
        enable_custom_prng,
        enable_x64,
        log_compiles,
        numpy_dtype_promotion,
        numpy_rank_promotion,
        transfer_guard,
        transfer_guard_device_to_device,
        transfer_guard_device_to_host,
        transfer_guard_host_to_device,
    )
    from meshwright.core.pytree_classes import register_dataclass, register_pytree_node, register_pytree_node_class
    from meshwright.core.source import name_scope as named_scope
    from meshwright.core.version import __version__
    from meshwright.ir.op import Zero as SymbolicZero
    from meshwright.ir.state import ensure_compile_time_eval
    from meshwright.runtime.array import Array, Shard
    from meshwright.runtime.devices import (
        Device,
        device_count,
        devices,
        host_count,
        host_id,
        host_ids,
        local_device_count,
        local_devices,
        make_mesh,
        process_count,
        process_index,
        process_indices,
    )
    from meshwright.sharding import (
        AUTO,
        AbstractMesh,
        Mesh,
        NamedSharding,
        PartitionSpec,
        PositionalSharding,
        SingleDeviceSharding,
        get_mesh,
        set_mesh,
    )
    from meshwright.sharding import PartitionSpec as P
    from meshwright.transforms.autodiff import grad, jvp, linear_transpose, linearize, value_and_grad, vjp
    from meshwright.transforms.closures import custom_gradient
    from meshwright.transforms.custom_jvp import custom_jvp
    from meshwright.transforms.custom_vjp import custom_vjp
    from meshwright.transforms.jacobian import closure_convert, hessian, jacfwd, jacrev, named_call
    from meshwright.transforms.jacobian import jacrev as jacobian
    from meshwright.transforms.remat import checkpoint, checkpoint_name, checkpoint_policies
    from meshwright.transforms.remat import checkpoint as remat
    from meshwright.transforms.vmap import vmap

if _TYPE_CHECKING:
    from meshwright import (
        ad,
        ad_checkpoint,
        checkpoint_io,
        custom_batching,
        custom_derivatives,
        data,
        distributed,
        nn,
        optim,
        random,
        ref,
    )
    from meshwright.api.computation import xla_computation
    from meshwright.api.load import ImportedProgram, load
    from meshwright.api.partitioned import PartitionedProgram
    from meshwright.api.plan import plan
    from meshwright.api.planning import Plan
    from meshwright.api.pmap import pmap
    from meshwright.api.references import Ref, empty_ref, free_ref, freeze, new_ref, typeof
    from meshwright.api.smap import smap
    from meshwright.interop import from_jax, from_torch, to_jax
    from meshwright.numpy import fft, linalg
    from meshwright.numpy.windows import ds
    from meshwright.targets import load_executable, target
    from meshwright.transforms import checkify


__all__ = [
    "AUTO",
    "AbstractMesh",
    "Array",
    "Device",
    "ImportedProgram",
    "Mesh",
    "NamedSharding",
    "P",
    "PartitionSpec",
    "PartitionedProgram",
    "Plan",
    "PositionalSharding",
    "Ref",
    "ShapeDtypeStruct",
    "Shard",
    "SingleDeviceSharding",
    "SymbolicZero",
    "ad",
    "ad_checkpoint",
    "block_until_ready",
    "check_tracer_leaks",
    "checkify",
    "checking_leaks",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "clear_caches",
    "closure_convert",
    "config",
    "copy_to_host_async",
    "custom_batching",
    "custom_derivatives",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "debug",
    "debug_infs",
    "debug_nans",
    "default_backend",
    "default_device",
    "default_matmul_precision",
    "default_prng_impl",
    "device_count",
    "device_get",
    "device_put",
    "device_put_replicated",
    "device_put_sharded",
    "devices",
    "disable_jit",
    "ds",
    "dump_ir",
    "effects_barrier",
    "empty_ref",
    "enable_custom_prng",
    "enable_x64",
    "ensure_compile_time_eval",
    "errors",
    "eval_shape",
    "fft",
    "float0",
    "free_ref",
    "freeze",
    "from_jax",
    "from_torch",
    "fwd_and_bwd",
    "get_mesh",
    "grad",
    "hardware",
    "hessian",
    "host_count",
    "host_id",
    "host_ids",
    "io_callback",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jit",
    "jvp",
    "lax",
    "linalg",
    "linear_transpose",
    "linearize",
    "live_arrays",
    "load",
    "load_executable",
    "local_device_count",
    "local_devices",
    "log_compiles",
    "make_array_from_callback",
    "make_array_from_process_local_data",
    "make_array_from_single_device_arrays",
    "make_jaxpr",
    "make_mesh",
    "memory",
    "named_call",
    "named_scope",
    "new_ref",
    "nn",
    "numpy",
    "numpy_dtype_promotion",
    "numpy_rank_promotion",
    "optim",
    "plan",
    "pmap",
    "print_environment_info",
    "process_count",
    "process_index",
    "process_indices",
    "pure_callback",
    "random",
    "ref",
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "remat",
    "reshard",
    "set_mesh",
    "shard_map",
    "sharding",
    "smap",
    "target",
    "to_jax",
    "transfer_guard",
    "transfer_guard_device_to_device",
    "transfer_guard_device_to_host",
    "transfer_guard_host_to_device",
    "tree",
    "tree_util",
    "typeof",
    "value_and_grad",
    "vjp",
    "vmap",
    "with_sharding_constraint",
    "xla_computation",
]

#: names that few programs need, imported on first use
_LATE_NAMES = {
    **dict.fromkeys(("ImportedProgram", "load"), "meshwright.api.load"),
    "Plan": "meshwright.api.planning",
    "PartitionedProgram": "meshwright.api.partitioned",
    "__version_info__": "meshwright.version",
    "ds": "meshwright.numpy.windows",
    "manual_program": "meshwright.inspect.manual_code",
    "plan": "meshwright.api.plan",
    "pmap": "meshwright.api.pmap",
    "smap": "meshwright.api.smap",
    "xla_computation": "meshwright.api.computation",
    **dict.fromkeys(("Ref", "empty_ref", "free_ref", "freeze", "new_ref", "typeof"), "meshwright.api.references"),
    **dict.fromkeys(("load_executable", "target"), "meshwright.targets"),
    **dict.fromkeys(("from_jax", "from_torch", "to_jax"), "meshwright.interop"),
    **dict.fromkeys(
        (
            "allow_f16_reductions",
            "array_garbage_collection_guard",
            "debug_key_reuse",
            "enable_checks",
            "explain_cache_misses",
            "legacy_prng_key",
            "softmax_custom_jvp",
            "thread_guard",
            "threefry_partitionable",
        ),
        "meshwright.core.options",
    ),
    **dict.fromkeys(
        ("tree_flatten", "tree_leaves", "tree_map", "tree_multimap", "tree_structure", "tree_unflatten"),
        "meshwright.tree_util",
    ),
}
_LATE_MODULES = {
    **_submodules(
        __name__, "ad", "ad_checkpoint", "api", "api_util", "builder", "checkpoint_io", "cli", "core",
        "custom_batching", "custom_derivatives", "data", "debug", "distributed", "dlpack", "dtypes",
        "example_libraries", "experimental", "export", "extend", "ffi", "flatten_util", "image", "inspect",
        "interop", "interpreters", "ir", "lib", "lowering", "monitoring", "nn", "ode", "ops", "optim",
        "profiler", "random", "ref", "runtime", "scipy", "smi", "spmd", "stablehlo", "stages", "targets",
        "test_util", "testing", "transforms", "typing", "verification", "version",
    ),
    "checkify": "meshwright.transforms.checkify",
    "fft": "meshwright.numpy.fft",
    "linalg": "meshwright.numpy.linalg",
}  # fmt: skip
__getattr__, __dir__ = _late_attributes(__name__, _LATE_NAMES, _LATE_MODULES, _absent(""))
