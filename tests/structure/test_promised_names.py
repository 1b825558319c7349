"""The surface that users, examples and comparisons rely on: each name is there, and takes what it is called with."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import types

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, P

#: by name, the parameters in the order in which they are given; after ``*`` those given by name alone
FUNCTIONS = {
    "config.update": "name value",
    "devices": "backend",
    "local_devices": "process_index backend host_id",
    "device_count": "backend",
    "local_device_count": "backend",
    "process_index": "backend",
    "process_count": "backend",
    "make_mesh": "axis_shapes axis_names axis_types * devices",
    "AbstractMesh": "axis_sizes axis_names axis_types",
    "Mesh": "devices axis_names axis_types",
    "set_mesh": "mesh",
    "jit": "fun * in_shardings out_shardings static_argnums static_argnames donate_argnums donate_argnames keep_unused "
    "device backend inline compiler_options",
    "ShapeDtypeStruct": "shape dtype * sharding",
    "grad": "fun argnums has_aux holomorphic allow_int",
    "value_and_grad": "fun argnums has_aux holomorphic allow_int",
    "jvp": "fun primals tangents has_aux",
    "vjp": "fun * has_aux",
    "linearize": "fun * has_aux",
    "jacfwd": "fun argnums has_aux holomorphic",
    "jacrev": "fun argnums has_aux holomorphic allow_int",
    "hessian": "fun argnums has_aux holomorphic",
    "vmap": "fun in_axes out_axes axis_name axis_size spmd_axis_name",
    "checkpoint": "fun * prevent_cse policy static_argnums",
    "custom_jvp": "fun nondiff_argnums",
    "custom_vjp": "fun nondiff_argnums",
    "make_jaxpr": "fun static_argnums axis_env return_shape",
    "eval_shape": "fun",
    "device_put": "x device * src donate may_alias",
    "device_get": "x",
    "block_until_ready": "x",
    "pmap": "fun axis_name * in_axes out_axes static_broadcasted_argnums devices backend axis_size donate_argnums",
    "shard_map": "f * mesh in_specs out_specs axis_names check_vma",
    "xla_computation": "fun static_argnums axis_env in_parts out_parts backend tuple_args instantiate_const_outputs "
    "return_shape donate_argnums",
    "lax.with_sharding_constraint": "x shardings",
    "reshard": "xs out_shardings",
    "debug.visualize_array_sharding": "arr",
    "debug.visualize_sharding": "shape sharding * use_color scale min_width max_width",
    "debug.inspect_array_sharding": "value * callback",
    "manual_program": "program",
    "load": "source",
    "target": "name * nodes",
    "plan": "f * machine memory_limit",
    "from_torch": "module args kwargs",
    "from_jax": "f",
    "distributed.initialize": "coordinator_address num_processes process_id local_device_ids",
    "testing.contract": "partitioned file",
    "builder.Builder": "name",
    "builder.Builder.parameter": "self number type",
    "builder.Builder.op": "self name",
    "builder.Builder.set_sharding": "self",
    "builder.Builder.build": "self",
    "profiler.trace": "log_dir create_perfetto_link create_perfetto_trace",
    "profiler.start_trace": "log_dir create_perfetto_link create_perfetto_trace",
    "profiler.stop_trace": "",
    "profiler.start_server": "port",
    "profiler.annotate_function": "func name",
    "profiler.save_device_memory_profile": "filename backend",
    "smi.initialise_tracking": "",
    "lib.xla_bridge.get_backend": "platform",
    "export.export": "fun_jit * platforms disabled_checks",
    "export.deserialize": "blob",
    "device_put_sharded": "shards devices",
    "device_put_replicated": "x devices",
    "experimental.maps.xmap": "fun in_axes out_axes * axis_sizes axis_resources donate_argnums backend",
    "experimental.pjit.pjit": "fun in_axis_resources out_axis_resources static_argnums * donate_argnums",
    "experimental.shard_map.shard_map": "f mesh in_specs out_specs check_rep auto",
    "experimental.custom_partitioning.custom_partitioning": "fun static_argnums",
    "experimental.custom_partitioning.custom_partitioning.def_partition": (
        "self partition infer_sharding_from_operands propagate_user_sharding decode_shardings sharding_rule"
        " * reduction_factors need_replication_factors permutation_factors"
    ),
    "experimental.mesh_utils.create_device_mesh": "mesh_shape devices * contiguous_submeshes allow_split_physical_axes",
    "experimental.mesh_utils.create_hybrid_device_mesh": "mesh_shape dcn_mesh_shape devices * process_is_granule",
    "interpreters.sharded_jit.sharded_jit": "fun in_parts out_parts num_partitions",
    "PartitionedProgram.as_text": "self dialect",
    "PartitionedProgram.verify": "self",
    "PartitionedProgram.compile": "self target",
    "PartitionedProgram.report": "self path",
    "PartitionedProgram.diff": "self other",
    "ImportedProgram.partition": "self mesh num_devices",
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_what_they_are_promised_to_take(name):
    found = inspect.signature(functools.reduce(getattr, name.split("."), mw)).parameters
    positional, _, named = (part.split() for part in FUNCTIONS[name].partition("*"))
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    in_order = [p for p, v in found.items() if v.kind in kinds]
    missing = set(named) - set(found)
    assert in_order[: len(positional)] == positional
    assert not missing


@pytest.fixture(scope="module")
def stages():
    mesh = mw.make_mesh((4, 2), ("data", "model"))
    placed = NamedSharding(mesh, P("data", "model")), NamedSharding(mesh, P("model"))
    step = mw.jit(lambda x, w: mnp.tanh(x @ w).sum(), in_shardings=placed)
    x, w = np.ones((8, 4), np.float32), np.ones((4, 4), np.float32)
    traced = step.trace(x, w)
    lowered = traced.lower()
    return (x, w), traced, lowered, lowered.partition(), lowered.compile()


def test_stages_have_what_they_are_promised_to_have(stages):
    args, traced, lowered, part, compiled = stages
    assert len(traced.jaxpr.eqns) == 3
    assert [lowered.as_text(d).split()[0] for d in ("stablehlo", "hlo")] == ["module", "HloModule"]
    for dialect in ("stablehlo", "mhlo", "hlo"):
        assert lowered.compiler_ir(dialect) is not None
    assert compiled.as_text().startswith("HloModule") and compiled.cost_analysis()["flops"] > 0
    assert compiled.memory_analysis().argument_size_in_bytes == 4 * (4 + 8)
    assert len(compiled.input_shardings[0]) == 2 and compiled.output_shardings.is_fully_replicated
    assert float(compiled(*args)) == float(part(*args))


def test_partitioned_programs_have_what_they_are_promised_to_have(stages, tmp_path):
    args, _, _, part, _ = stages
    assert part.num_devices == 8 and part.mesh.axis_names == ("data", "model")
    assert len(part.in_shardings) == 2 and len(part.out_shardings) == 1 and part.jaxpr.eqns
    first = part.collectives[0]
    assert part.bytes_sent == sum(c.bytes_sent for c in part.collectives) and part.peak_bytes > 0
    for member in ("kind", "axes", "group_size", "operand", "result", "count", "bytes_sent", "source", "reason"):
        assert getattr(first, member) is not None
    assert [part.as_text(d)[:9] for d in ("stablehlo", "hlo")] == ["module @s", "HloModule"]
    assert "all_reduce" in part.explain() and part.verify(*args)[0].relative < 1e-9
    time = part.time()
    assert 0 < time.communication <= time.seconds and time.compute > 0 and time.memory > 0
    assert part.memory.peak_bytes == part.peak_bytes
    page = part.report(tmp_path / "page.html").read_text()
    for words in (
        "<h2>Communication</h2>",
        "all_reduce over",
        "f32[8,4]",
        "a device holds at most",
        "psum[",
        "Step time",
    ):
        assert words in page, words
    assert page.startswith("<!DOCTYPE html>") and "P(&#x27;data&#x27;, &#x27;model&#x27;)" in page


def test_what_changed_between_two_programs(stages):
    (x, w), _, _, part, _ = stages
    assert not part.diff(part) and str(part.diff(part)) == "nothing changed"
    mesh = part.mesh
    step = mw.jit(lambda x, w: mnp.tanh(x @ w).sum(), in_shardings=(NamedSharding(mesh, P("data")), None))
    other = step.lower(x, w).partition()
    found = part.diff(other)
    kinds = {line[0] for line in found}
    assert kinds == {"+", "-", "~"} and any(line.startswith("~ bytes_sent: ") for line in found)
    assert [line[0] for line in other.diff(part)].count("+") == [line[0] for line in found].count("-")
    assert found._repr_html_().startswith("<pre>")


def test_what_objects_look_like(stages):
    _, traced, lowered, part, compiled = stages
    types = "('<lambda>', (f32[8,4], f32[4,4]) -> (f32[]), 8 devices)"
    assert repr(traced) == "Traced('<lambda>', 3 eqns)"
    assert (repr(lowered), repr(compiled)) == (f"Lowered{types}", f"Compiled{types}")
    mesh = "Mesh('data': 4, 'model': 2, axis_types=(Auto, Auto))"
    assert repr(part).startswith(f"PartitionedProgram('<lambda>', {mesh}, ") and "collectives, " in repr(part)
    assert repr(part.collectives[0]).startswith("Collective(all_reduce over ") and "\n" not in repr(part.collectives[0])
    assert repr(part.memory).startswith("Memory(a device holds at most ") and "\n" not in repr(part.memory)
    assert " a run on " in repr(part.time()) and len(repr(part.time())) < 200
    x = mw.device_put(np.arange(8, dtype=np.int32).reshape(4, 2), NamedSharding(part.mesh, P("data", "model")))
    assert (
        repr(x.addressable_shards[3])
        == "Shard(device=CpuDevice(id=3), index=(slice(1, 2, None), slice(1, 2, None)), replica_id=0, data=[[3]])"
    )
    assert repr(x.sharding) == f"NamedSharding(mesh={mesh}, spec=P('data', 'model'), memory_kind=device)"
    assert repr(mw.pmap(abs)) == "<pmapped function abs>" and repr(mw.jit(abs)) == "<jitted function abs>"
    assert repr(mw.config).startswith("Config(num_devices=8")
    assert repr(mw.debug.picture_of((8,), NamedSharding(part.mesh, P("model")))).startswith("┌──")
    backend = mw.lib.xla_bridge.get_backend()
    made = backend.compile(mw.xla_computation(lambda x: x)(1.0))
    assert repr(made) == "LoadedExecutable('xla_computation_lambda', replicas=1, partitions=1)"
    shown = (traced, lowered, part, compiled, part.mesh, part.time(), part.explain(), part.verify())
    for stage in shown:
        assert stage._repr_html_().startswith("<"), stage


def test_modules_of_jax_are_imported_by_the_path_that_they_have():
    """``from jax.debug import …`` is as common as ``jax.debug.…``."""
    for module in pkgutil.iter_modules(jax.__path__):
        if isinstance(getattr(mw, module.name, None), types.ModuleType):
            importlib.import_module(f"meshwright.{module.name}")


def test_the_cache_is_turned_on_by_its_old_functions(tmp_path):
    from meshwright.experimental.compilation_cache import compilation_cache

    before = mw.config.compilation_cache_dir
    try:
        compilation_cache.set_cache_dir(tmp_path)
        assert compilation_cache.is_initialized() and mw.config.compilation_cache_dir == tmp_path
    finally:
        mw.config.update("compilation_cache_dir", before)
