"""Samples of every registered op: what the checks of this folder go over."""

from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.elementwise.expanded import Expanded
from samples.algebra import algebra_samples
from samples.bodies import body_samples
from samples.elementwise import elementwise_samples
from samples.sample import Sample, floats, ints
from samples.structural import structural_samples
from samples.windowed import windowed_samples

__all__ = ["DISTINCT", "SAMPLES", "WITHOUT_SAMPLE", "Sample", "floats", "ints"]

#: every sample
SAMPLES: list[Sample] = [
    *elementwise_samples(), *structural_samples(), *windowed_samples(), *body_samples(), *algebra_samples(),
]  # fmt: skip


def _shared_code(sample: Sample) -> object:
    """Rows of the elementwise table that inherit all their rules and have operands of the same types run through the
    same lines when they are batched or partitioned."""
    cls = type(sample.op)
    own = {"batch", "sharding_rule", "localize", "localized", "linear_groups"} & vars(cls).keys()
    if cls.__base__ not in (Elementwise, Expanded) or own or sample.op.multiple_results:
        return sample
    shapes = tuple((a.shape, a.dtype.kind == "f") for a in sample.args)
    return shapes, sample.op.linear_in


#: samples no two of which share all code for batching and partitioning
DISTINCT: list[Sample] = list({_shared_code(s): s for s in reversed(SAMPLES)}.values())[::-1]

#: ops without samples, and why
WITHOUT_SAMPLE: dict[str, str] = {
    **dict.fromkeys(
        ("jit", "custom_jvp_call", "custom_vjp_call", "custom_lin", "custom_vmap_call", "linear_call", "linear_solve",
         "checkpoint"),
        "holds jaxprs: tests/transforms and tests/api",
    ),
    **dict.fromkeys(
        ("cond", "while", "scan", "shard_map"), "holds jaxprs: tests/ops/test_control.py, tests/api/test_shard_map.py"
    ),
    "custom_partitioning": "holds a jaxpr, and asks its user: tests/api/test_custom_partitioning.py",
    **dict.fromkeys(("random_wrap", "random_unwrap"), "keys are not numbers: tests/random/test_typed_keys.py"),
    "random_use": "keys are not numbers: tests/random/test_key_reuse.py",
    "select_branch": "holds jaxprs: tests/ops/test_branches_under_vmap.py",
    "kernel_call": "holds a jaxpr, and kernels of JAX: tests/interop/test_jax_kernels.py",
    "imported_call": "holds a jaxpr, and has a meaning once a mesh is chosen: tests/interop/test_jax_shardings.py",
    "opaque": "stands for what a program from elsewhere has and we do not know: tests/stablehlo",
    **dict.fromkeys(("reshard", "mesh_cast"), "changes types of explicit axes: tests/sharding/test_explicit.py"),
    "memory_put": "says where a value is: tests/sharding/test_memory_kinds.py",
    "sharding_annotation": "what a loaded program says about shardings: tests/api/test_load.py",
    **dict.fromkeys(
        ("propagation_barrier", "sharding_group"),
        "what a loaded program says about shardings: tests/executable/test_sharding_syntax.py",
    ),
    **dict.fromkeys(
        ("device_collective", "partition_id", "manual_computation", "full_to_shard", "shard_to_full"),
        "has a meaning once a mesh is chosen: tests/executable/test_device_collectives.py, test_jax_sharded_programs",
    ),
    **dict.fromkeys(
        ("pure_callback", "io_callback", "debug_callback"), "calls a Python function: tests/api/test_callbacks.py"
    ),
    "ffi_call": "a kernel of the user's: tests/api/test_ffi.py",
    "pvary": "a cast of types inside of shard_map, which no program that is run has: tests/regions",
    "check": "has no meaning in a compiled program: tests/transforms/test_checkify.py",
    "inspect_sharding": "has an effect and no result: tests/inspect",
    "optimization_barrier": "any number of results, each an operand: tests/transforms/test_remat.py",
    **dict.fromkeys(
        ("psum", "psum_masked", "pmax", "pmin", "pprod", "pand", "por", "all_gather", "all_gather_invariant",
         "all_slice", "reduce_scatter", "all_to_all", "ppermute", "axis_index"),
        "needs a named axis: tests/registry/test_collectives.py",
    ),
    **dict.fromkeys(
        ("ragged_all_to_all", "ragged_sum"), "needs a named axis: tests/api/test_ragged_exchange.py"
    ),
}  # fmt: skip
