"""Parameters of every public function and class that ``jax`` has too: names in order, kinds and defaults.

What is given by position or left out in a program for JAX means the same here. ``test_signatures`` has the names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from test_signatures import MODULES, compared

MORE = [
    "core", "debug", "distributed", "errors", "export", "ffi", "monitoring", "profiler", "ref", "stages", "typing",
    "example_libraries.optimizers", "example_libraries.stax", "extend.core", "interpreters.ad",
    "interpreters.batching", "interpreters.mlir", "interpreters.xla", "experimental", "experimental.checkify",
    "experimental.custom_partitioning", "experimental.jet", "experimental.layout", "experimental.mesh_utils",
    "experimental.multihost_utils", "experimental.ode", "experimental.pjit", "experimental.serialize_executable",
    "experimental.shard_map", "experimental.sparse",
]  # fmt: skip

#: classes whose instances functions make, not users
MADE_HERE = """
jax.Array jax.Ref jax.Shard jax.ref.Ref jax.numpy.ufunc jax.core.Tracer jax.core.ShapedArray jax.export.Exported
jax.stages.ArgInfo jax.stages.Compiled jax.stages.Lowered jax.stages.Traced jax.stages.Wrapped
jax.extend.core.Jaxpr jax.extend.core.JaxprEqn jax.extend.core.Var jax.interpreters.mlir.LoweringRuleContext
jax.experimental.checkify.Error jax.experimental.layout.Layout
""".split()

#: parameters that differ, by the reason
OTHERWISE = {
    "the default that JAX, too, takes for None": {
        "jax.numpy.argmax": {"keepdims"}, "jax.numpy.argmin": {"keepdims"}, "jax.numpy.nanargmax": {"keepdims"},
        "jax.numpy.nanargmin": {"keepdims"}, "jax.numpy.histogram": {"density"}, "jax.numpy.histogram2d": {"density"},
        "jax.numpy.histogramdd": {"density"},
        "jax.numpy.indices": {"dtype"}, "jax.numpy.array": {"order"},
        "jax.numpy.linalg.eigvalsh": {"UPLO"},
    },
    "another way to write the same default": {
        "jax.P": {"unreduced", "reduced"}, "jax.sharding.PartitionSpec": {"unreduced", "reduced"},
        "jax.shard_map": {"axis_names"}, "jax.numpy.vectorize": {"excluded"},
        "jax.experimental.checkify.checkify": {"errors"},
        "jax.experimental.sparse.empty": {"index_dtype"}, "jax.experimental.sparse.eye": {"index_dtype"},
    },
    "a default that is better here": {
        "jax.numpy.searchsorted": {"method"}, "jax.test_util.check_jvp": {"eps"}, "jax.test_util.check_vjp": {"eps"},
        "jax.debug.visualize_sharding": {"min_width"},
    },
    "left out: see test_signatures, or of JAX's own parts": {
        "jax.vmap": {"sum_match"}, "jax.ShapeDtypeStruct": {"manual_axis_type", "is_ref"},
        "jax.sharding.AbstractMesh": {"abstract_device"},
        "jax.export.export": {"_override_lowering_rules"}, "jax.debug.visualize_sharding": {"color_map"},
        "jax.debug.breakpoint": {"token", "kwargs"}, "jax.ref.swap": {"_function_name"},
        "jax.core.eval_jaxpr": {"propagate_source_info"}, "jax.interpreters.batching.bdim_at_front": {"mesh_axis"},
        "jax.interpreters.ad.JVPTrace": {"parent_trace", "tag"},
        "jax.profiler.start_server": {"requires_backend"}, "jax.experimental.sparse.empty": {"kwds"},
        "jax.experimental.sparse.eye": {"kwds"}, "jax.experimental.jet.jet": {"_"},
        "jax.ffi.register_ffi_target": {"kwargs"}, "jax.debug.callback": {"callback"},
    },
    "parameters are said, where JAX passes all on to NumPy or curries": {
        "jax.numpy.array": {"args"}, "jax.numpy.fromfile": {"args", "kwargs"},
        "jax.numpy.fromiter": {"args", "kwargs"}, "jax.numpy.set_printoptions": {"args", "kwargs"},
        "jax.extend.core.jaxpr_as_fun": {"args"},
    },
    "given by name: there are many": {
        "jax.distributed.initialize": {
            "cluster_detection_method", "initialization_timeout", "heartbeat_timeout_seconds",
            "shutdown_timeout_seconds", "coordinator_bind_address", "slice_index", "partition_index",
        },
    },
    "also takes what is no tangent": {"jax.interpreters.ad.instantiate_zeros": {"tangent"}},
}  # fmt: skip
#: context managers of options, whose value JAX lets one leave out only to raise
OPTION = {"new_val"}

Parameter = inspect.Parameter
BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def parameters(function: Callable[..., Any]) -> list[Parameter]:
    return list(inspect.signature(function).parameters.values())


def is_sentinel(value: Any) -> bool:
    """An object that only says that nothing was given, or a function of the library's own."""
    where = type(value).__module__
    return type(value) is object or where.startswith(("jax._src", "meshwright.")) or inspect.isroutine(value)


def alike(own: Any, peer: Any) -> bool:
    if is_sentinel(own) or is_sentinel(peer):
        return True
    return repr(own) == repr(peer) or bool(own == peer)


def differing(own: Callable[..., Any], peer: Callable[..., Any]) -> Iterator[str]:
    """JAX's names of the parameters that cannot be given, or left out, as there."""
    ours, theirs = parameters(own), parameters(peer)
    if isinstance(peer, type) and tuple(p.kind for p in theirs) == VARIADIC:
        return  # a class in C++, of which Python 3.14 says no more
    by_name = {p.name: p for p in ours}
    kinds = {p.kind for p in ours}
    places = [p for p in ours if p.kind in BY_POSITION]
    for i, p in enumerate(p for p in theirs if p.kind in BY_POSITION):
        if i < len(places):
            if p.kind is Parameter.POSITIONAL_OR_KEYWORD and places[i].name != p.name:
                yield p.name
        elif Parameter.VAR_POSITIONAL not in kinds:
            yield p.name
    for p in theirs:
        mine = by_name.get(p.name)
        if p.kind in VARIADIC:
            if p.kind not in kinds:
                yield p.name
        elif mine is None:
            if p.kind is Parameter.KEYWORD_ONLY and Parameter.VAR_KEYWORD not in kinds:
                yield p.name
        elif p.kind is not Parameter.POSITIONAL_ONLY and mine.kind is Parameter.POSITIONAL_ONLY:
            yield p.name
        elif p.default is not p.empty and (mine.default is p.empty or not alike(mine.default, p.default)):
            yield p.name
    known = {p.name for p in theirs}
    variadic = any(p.kind is Parameter.VAR_POSITIONAL for p in theirs)
    for i, mine in enumerate(places):
        if mine.default is mine.empty and mine.name not in known and not variadic and i >= len(theirs):
            yield mine.name


def found_in(module: str) -> dict[str, set[str]]:
    found = {}
    for name, own, peer in compared(module):
        try:
            names = set(differing(own, peer)) if own is not peer and name not in MADE_HERE else set()
        except (ValueError, TypeError):  # of a builtin
            continue
        if names - {"accuracy"} and names != OPTION:
            found[name] = names - {"accuracy"}
    return found


def listed() -> dict[str, set[str]]:
    every: dict[str, set[str]] = {}
    for of_reason in OTHERWISE.values():
        for name, names in of_reason.items():
            every[name] = every.get(name, set()) | names
    return every


@pytest.mark.parametrize("module", [*MODULES, *MORE])
def test_parameters_are_those_of_jax(module):
    every = listed()
    assert {
        n: names - every.get(n, set()) for n, names in found_in(module).items() if names - every.get(n, set())
    } == {}


def test_what_is_listed_differs():
    found = {name: names for module in (*MODULES, *MORE) for name, names in found_in(module).items()}
    assert {n: names - found.get(n, set()) for n, names in listed().items() if names - found.get(n, set())} == {}


def test_differences_are_seen():
    def there(x, y=1, *, z=None): ...

    def renamed(x, w=1, *, z=None): ...

    def other_default(x, y=2, *, z=None): ...

    def one_less(x, y=1): ...

    def by_name(x, *, y=1, z=None): ...

    def more(x, y=1, *rest, z=None, **options): ...

    found = [set(differing(f, there)) for f in (there, renamed, other_default, one_less, by_name, more)]
    assert found == [set(), {"y"}, {"y"}, {"z"}, {"y"}, set()]


def test_many_are_compared():
    assert sum(len(list(compared(m))) for m in (*MODULES, *MORE)) > 1200
