"""Tables of the parts of ``jax`` that are left out on purpose, with alternatives."""

from __future__ import annotations

_PRIMITIVES = "ops are dataclasses in meshwright.ops here, and have their rules as methods; call the function instead"
_INSIDE = "that is inside of JAX; see docs/ for what is inside here"
_SCIPY = "use SciPy's through pure_callback"

#: by module (of ``jax``): a pattern of names, and the alternative
NAMES: dict[str, dict[str, str]] = {
    "": {
        "array_ref": "use new_ref",
        "make_user_context|no_execution|no_tracing": _INSIDE,
        "auto_pcast|remove_size_one_mesh_axis_from_type": "use lax.pcast",
        "jax2tf_associative_scan_reductions": "there is no such option; meshwright.config lists those there are",
    },
    "lax": {
        "after_all_p|create_token_p|dce_sink_p|device_put_p|stage_p": _PRIMITIVES,
        "AccuracyMode|Tolerance": "there is one accuracy, that of XLA's CPU code",
        "after_all|create_token": "effects are kept in order by ordered=True of callbacks",
        "psend|precv": "use all_to_all or ppermute",
        "dce_sink|stage": "results that nothing uses go; return them, or use optimization_barrier",
    },
    "lax.linalg": {
        ".*_p": _PRIMITIVES,
        "EigImplementation|EighImplementation|SvdAlgorithm": "there is one implementation, LAPACK's",
    },
    "ffi": {
        "ffi_lowering|build_ffi_lowering_function": "use ffi_call in the function that is lowered",
        "register_ffi_target_as_batch_partitionable": "use shard_map or custom_partitioning around ffi_call",
        "register_ffi_type_id": "use register_ffi_type",
    },
    "nn": {"scaled_dot_general|get_scaled_dot_general_config": "use scaled_matmul"},
    "numpy": {"int1|uint1|float6_e2m3fn|float6_e3m2fn": "XLA's CPU code has no such dtype; the narrowest is int2"},
    "random": {"random_gamma_p": _PRIMITIVES},
    "tree_util": {},
    "sharding": {
        "AbstractDevice": "use AbstractMesh",
    },
    "debug": {
        "DebugEffect|OrderedDebugEffect": "effects are not typed; see debug.print(ordered=True)",
    },
    "dtypes": {},
    "experimental.sparse": {
        "sparse_reduce": "use the sum of a BCOO",
        "bcoo_(conv_general_dilated|gather)": "use todense() of one operand",
        "bcsr_broadcast_in_dim": "use that of to_bcoo()",
        "nm|save_npz|load_npz|test_util|util|bcsr|coo|csr|ad|api|random|"
        "SparseTracer|.*_p": "use the methods of BCOO, or its data and indices",
    },
    "experimental.sparse.linalg": {"spsolve_p": "call spsolve"},
    "export": {
        "symbolic_scope": "use SymbolicScope",
        "shape_poly": _INSIDE,
    },
    "ad": {},
    "ad_checkpoint": {"Offloadable|Recompute|Saveable": "use checkpoint_policies, or a function that gives a bool"},
    "core": {
        "ParamDict|Value": "types are ShapedArray here, and what equations hold Var and Literal",
        "eval_context": "use ensure_compile_time_eval",
        "max_dim|min_dim": "dimensions are numbers here; use max and min",
    },
    "custom_derivatives": {"linear_call_p|remat_opt_p|custom_lin_p": _PRIMITIVES},
    "example_libraries.optimizers": {"safe_map|safe_zip|unzip2|map|zip": _INSIDE},
    "example_libraries.stax": {
        "elu|gelu|leaky_relu|log_softmax|relu|selu|sigmoid|softmax|softplus|standardize": "use that of nn",
        "logsoftmax": "use nn.log_softmax",
        "glorot|randn": "use nn.initializers",
    },
    "experimental": {
        "EArray|cur_qdd|primal_tangent_dtype": _INSIDE,
        "host_callback": "use io_callback, pure_callback or debug.callback",
    },
    "experimental.compute_on": {"compute_on2": "use compute_on"},
    "experimental.custom_partitioning": {".*_p": _PRIMITIVES},
    "experimental.hijax": {
        "HiPspec|TransformedRef": "types are those of arrays here; use PartitionSpec and Ref",
    },
    "experimental.jet": {
        ".*(_prop|_rules|_updaters|_series|_term|_subtrace)|def_?(comp|deriv|linear|zero)|Jet.*|Zero.*|jet2|jet_fun|"
        "fact|traceable|register_pytree_node|safe_zip|tree_.*|treedef_.*|unzip2|weakref_lru_cache": _INSIDE,
    },
    "experimental.mesh_utils": {"device_kind_handler_dict": "use create_device_mesh"},
    "experimental.multihost_utils": {
        "live_devices": (
            "processes do not go on without one that failed; catch errors.DistributedError, whose ranks say which it "
            "was, and start again from a checkpoint"
        ),
        "ProcessFailureError": "catch errors.DistributedError",
        ".*_p|.*_impl|.*_abstract_eval|ltg_batcher|safe_zip|tree_.*": _INSIDE,
        "P": "use meshwright.P",
    },
    "experimental.ode": {
        "abs2|fit_4th_order_polynomial|initial_step_size|interp_fit_dopri|map|mean_error_ratio|optimal_step_size|"
        "promote_dtypes_inexact|ravel_first_arg_?|ravel_pytree|runge_kutta_step|safe_map|safe_zip|tree_.*|zip": _INSIDE,
    },
    "api_util": {"rebase_donate_argnums": "use donate_argnums of jit"},
    "extend.backend": {
        "(register|clear)_.*": "there is one backend for each process; config.update('platform', ...) chooses it",
        "get_compile_options": "use compiler_options of jit",
        "backend_xla_version|ifrt_proxy": _INSIDE,
    },
    "extend.core": {
        "AbstractToken|CallPrimitive|DebugInfo|Token|call_impl|concrete_or_error|gensym|"
        "new_jaxpr_eqn|nonempty_axis_env_DO_NOT_USE|primal_dtype_to_tangent_dtype|reset_current_trace|"
        "unsafe_.*_DO_NOT_USE": _INSIDE,
    },
    "extend.core.primitives": {
        "(add_jaxvals|after_all|create_token|device_put|empty2|get|hessenberg|householder_product|"
        "random_(fold_in|seed|split)|schur|swap|tridiagonal)_p": (
            "that is a function of other ops here; call it instead"
        ),
    },
    "extend.source_info_util": {
        "NameStack|.*name_stack": "use named_scope",
        "new_source_info|user_context": "use current()",
    },
    "interpreters.ad": {
        "jvp|linearize": "use meshwright.jvp and meshwright.linearize",
        ".*_p": _PRIMITIVES,
    },
    "interpreters.batching": {
        "defreducer": "register a rule in primitive_batchers that counts the axes past the batch dimension",
    },
    "interpreters.mlir": {
        "(.*Context|.*Lowering.*|lower_jaxpr_.*|core_call_lowering|jaxpr_subcomp|lowerable_effects|"
        "DEVICE_TO_DEVICE_TYPE|(RECV_FROM|SEND_TO)_HOST_TYPE|ConstantHandler|Mesh|MeshAxisName|Token(Set)?|token_type|"
        "Value|aval_to_ir_types|dense_int_.*|flatten_ir_.*|unflatten_ir_.*|i32_attr|i64_attr|"
        "ir_attribute|ir_constants|ir_tree_registry|ir_type_handlers|make_ir_context|merge_mlir_modules|module_to_.*|"
        "register_constant_handler|shape_tensor)": (
            "that is inside of JAX; rules get ctx, values of jaxlib.mlir and parameters, and may call lower_fun, "
            "aval_to_ir_type and ir_constant"
        ),
    },
    "interpreters.partial_eval": {
        "Val": "use Any",
        ".*_rules?|dce_jaxpr_consts": "rules of primitives are those of interpreters.ad, batching and mlir",
    },
    "interpreters.pxla": {"create_compile_options": "use compiler_options of jit"},
    "interpreters.xla": {"Backend": "use meshwright.devices()"},
    "profiler": {"register_subprocess": "record a profile in each process"},
    "ref": {},
    "scipy.linalg": {"fiedler_companion": "use numpy.roots of the polynomial, or SciPy's outside of the program"},
    "scipy.special": {"bessel_jn|hyp1f1|hyp2f1|sph_harm_y|wofz": _SCIPY},
    "scipy.stats.poisson": {"entropy": "use -sum(exp(logpmf) * logpmf) over the counts that matter"},
}

#: by a pattern of the module's path in ``jax``: the alternative
MODULES: dict[str, str] = {
    "cloud_tpu_init": "devices are found when they are first asked for",
    "collect_profile": "use profiler.trace in the program",
    r"tools(\..*)?": "use the command line, python -m meshwright",
    r"experimental\.array_serialization(\..*)?": "use checkpoint_io",
    r"experimental\.buffer_callback": "use pure_callback or io_callback, or ffi.ffi_call",
    r"experimental\.colocated_python(\..*)?": "use pure_callback or io_callback",
    r"experimental\.control_deps|experimental\.scheduling_groups": "use lax.optimization_barrier",
    r"experimental\.fused": "use jit; XLA fuses what it compiles",
    r"experimental\.jax2tf(\..*)?": "use export, or the StableHLO of jit(f).lower(...).as_text()",
    r"experimental\.key_reuse": "use the option debug_key_reuse",
    r"experimental\.(pallas|mosaic)(\..*)?": "use jit, or ffi.ffi_call for a kernel of your own",
    r"experimental\.profiler": "use profiler.read_profile",
    r"experimental\.rnn": "write the cell as a function, and loop over time with lax.scan",
    r"experimental\.roofline(\..*)?": "use jit(f).lower(...).cost_analysis()",
    r"experimental\.source_mapper(\..*)?": "use jit(f).lower(...).as_text(debug_info=True)",
    r"experimental\.topologies": "use AbstractMesh for devices that are not there, and meshwright.target",
    r"experimental\.transfer": "use device_put",
    r"experimental\.xla_metadata": "use compiler_options of jit",
    r"extend\.(?!(core|backend|linear_util|source_info_util)\b).+": (
        "primitives and jaxprs are in meshwright.extend.core; use random.key(seed, impl=...), devices() and "
        "jit(f).lower(...).compiler_ir() for random, backend and mlir"
    ),
    r"scipy\.spatial(\..*)?": "use products with rotation matrices, or SciPy's outside of the program",
}
