"""Names of ``jax`` that are left out on purpose, and what to use instead: what asking for one says."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

_PRIMITIVES = "ops are dataclasses in meshwright.ops here, and have their rules as methods; call the function instead"

#: by module (of ``jax``): a pattern of names, and what to do
ABSENT: dict[str, dict[str, str]] = {
    "": {
        "array_ref": "use new_ref",
        "ad|api_util|extend|make_user_context|no_execution|no_tracing": "that is inside of JAX; see docs/",
        "ds": "use lax.dynamic_slice_in_dim, or an index",
        "monitoring": "use profiler, part.explain() and log_compiles",
        "auto_pcast|remove_size_one_mesh_axis_from_type": "use lax.pcast",
        "jax2tf_associative_scan_reductions": "there is no such option; meshwright.config lists those there are",
        "version": "use meshwright.__version__",
    },
    "lax": {
        ".*_p": _PRIMITIVES,
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
        "ManualAxisType": "types say over which axes a value varies: typeof(x).vma",
    },
    "debug": {
        "DebugEffect|OrderedDebugEffect": "effects are not typed; see debug.print(ordered=True)",
    },
    "dtypes": {},
    "experimental.sparse": {
        "sparsify|sparse_reduce|todense": "use the methods of BCOO, and todense()",
        "grad|value_and_grad|jacfwd|jacrev|jacobian": "take derivatives by the data of a BCOO, within which it is made",
        "BCSR|COO|CSR|CSC|JAXSparse|bcsr_.*|coo_.*|csr_.*": "there is one format; use BCOO",
        "bcoo_.*|nm|random_bcoo|save_npz|load_npz|(Cu)?Sparse.*|test_util|util|bcoo|bcsr|coo|csr|ad|api|"
        "random|transform|.*_p": "use the methods of BCOO, or its data and indices",
    },
    "export": {
        "symbolic_shape|symbolic_args_specs|SymbolicScope|symbolic_scope|is_symbolic_dim": (
            "dimensions are numbers here, on which layouts and collectives depend; export once for each shape that is "
            "to be called"
        ),
        "register_.*serialization": "export functions of arrays in tuples, lists and dicts",
        "shape_poly|DisabledSafetyCheck": "that is inside of JAX; see docs/",
    },
}


def absent(module: str) -> Callable[[str], NoReturn]:
    """A module's ``__getattr__``: what it has not, it explains.

    Raises (when called):
      AttributeError: saying what to use instead, if the name is one of ``jax``.
    """
    own = f"meshwright.{module}" if module else "meshwright"

    def missing(name: str) -> NoReturn:
        why = reason(module, name)
        raise AttributeError(f"module {own!r} has no attribute {name!r}" + (f": {why}" if why else ""), name=name)

    return missing


def reason(module: str, name: str) -> str | None:
    """Why ``jax.module.name`` is left out; None if it is not known."""
    entries: Any = ABSENT[module].items()
    return next((why for pattern, why in entries if re.fullmatch(pattern, name)), None)
