"""Meshwright: one array program, written for one device, becomes what every device of a mesh runs."""

from meshwright import errors, nn, numpy, optim, random, tree, tree_util
from meshwright.api import lax
from meshwright.api.callbacks import io_callback, pure_callback
from meshwright.api.jit import ShapeDtypeStruct, jit
from meshwright.api.load import ImportedProgram, load
from meshwright.api.partitioned import PartitionedProgram
from meshwright.api.placement import (
    block_until_ready,
    device_get,
    device_put,
    reshard,
    with_sharding_constraint,
)
from meshwright.api.shard_map import pmap, shard_map
from meshwright.api.tracing import eval_shape, make_jaxpr, xla_computation
from meshwright.core.config import config
from meshwright.core.pytree_classes import register_dataclass, register_pytree_node, register_pytree_node_class
from meshwright.core.source import name_scope as named_scope
from meshwright.inspect import debug
from meshwright.ir.op import Zero as SymbolicZero
from meshwright.numpy import fft, linalg
from meshwright.runtime.array import Array
from meshwright.runtime.devices import (
    device_count,
    devices,
    local_device_count,
    local_devices,
    make_mesh,
    process_count,
    process_index,
)
from meshwright.sharding import (
    AbstractMesh,
    Mesh,
    NamedSharding,
    PartitionSpec,
    PositionalSharding,
    SingleDeviceSharding,
    get_mesh,
    set_mesh,
)
from meshwright.transforms import checkify
from meshwright.transforms.autodiff import grad, jvp, linear_transpose, linearize, value_and_grad, vjp
from meshwright.transforms.custom_jvp import custom_jvp
from meshwright.transforms.custom_vjp import custom_vjp
from meshwright.transforms.jacobian import closure_convert, hessian, jacfwd, jacrev, named_call
from meshwright.transforms.remat import checkpoint, checkpoint_name, checkpoint_policies
from meshwright.transforms.remat import checkpoint as remat
from meshwright.transforms.vmap import vmap

__version__ = "0.1.0"

__all__ = [
    "AbstractMesh",
    "Array",
    "ImportedProgram",
    "Mesh",
    "NamedSharding",
    "PartitionSpec",
    "PartitionedProgram",
    "PositionalSharding",
    "ShapeDtypeStruct",
    "SingleDeviceSharding",
    "SymbolicZero",
    "block_until_ready",
    "checkify",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "closure_convert",
    "config",
    "custom_jvp",
    "custom_vjp",
    "debug",
    "device_count",
    "device_get",
    "device_put",
    "devices",
    "errors",
    "eval_shape",
    "fft",
    "get_mesh",
    "grad",
    "hessian",
    "io_callback",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "lax",
    "linalg",
    "linear_transpose",
    "linearize",
    "load",
    "local_device_count",
    "local_devices",
    "make_jaxpr",
    "make_mesh",
    "named_call",
    "named_scope",
    "nn",
    "numpy",
    "optim",
    "pmap",
    "process_count",
    "process_index",
    "pure_callback",
    "random",
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "remat",
    "reshard",
    "set_mesh",
    "shard_map",
    "tree",
    "tree_util",
    "value_and_grad",
    "vjp",
    "vmap",
    "with_sharding_constraint",
    "xla_computation",
]
