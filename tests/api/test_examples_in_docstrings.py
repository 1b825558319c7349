"""The examples in the docstrings of what ``meshwright`` itself exports; each of its functions has one."""

import doctest
import importlib
import inspect
import operator

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright import lax

GLOBALS = {"mw": mw, "mnp": mnp, "lax": lax, "np": np, "P": P, "jnp": mnp}

MODULES = [
    "api.assembling", "api.batching_rules", "api.callbacks", "api.control_flow", "api.environment", "api.jit",
    "lax.convolution", "lax.functions", "lax.linalg", "lax.polar", "lax.products", "lax.ragged", "lax.random_bits",
    "lax.reductions", "lax.scaled", "lax.shapes", "api.load", "api.placement", "api.plan", "api.export", "api.pmap",
    "api.references", "api.serialized", "api.shard_map", "api.smap", "api.tracing", "api.xmap",
    "experimental.compute_on", "experimental.layout", "experimental.pjit", "interpreters.sharded_jit", "core.caches",
    "core.options", "core.precision", "core.pytree", "core.pytree_classes", "core.pytree_keys", "inspect.debug",
    "inspect.manual_code", "inspect.picture", "ops.special.bessel", "ops.elementwise.chlo",
    "ops.primitive", "ops.linalg.cholesky", "ops.linalg.eig",
    "ops.linalg.eigh", "ops.linalg.fft", "ops.special.incomplete_beta", "ops.special.incomplete_gamma",
    "ops.linalg.lu", "ops.linalg.qr", "ops.linalg.svd", "ops.linalg.triangular_solve", "ops.linalg.tridiagonal",
    "monitoring", "runtime.devices", "runtime.pjrt.dlpack", "sharding.current_mesh",
    "transforms.autodiff", "transforms.checkify", "transforms.closures",
    "transforms.custom_jvp", "transforms.custom_vmap", "transforms.implicit", "transforms.jacobian",
    "transforms.remat", "transforms.residuals", "transforms.vmap",
]  # fmt: skip

NAMES = {"": mw.__all__, "debug.": mw.debug.__all__, "tree.": mw.tree.__all__, "tree_util.": mw.tree_util.__all__}
FUNCTIONS = [
    f"{prefix}{name}"
    for prefix, names in NAMES.items()
    for name in names
    if inspect.isfunction(operator.attrgetter(f"{prefix}{name}")(mw))
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"meshwright.{name}")
    found = doctest.testmod(module, extraglobs=GLOBALS)
    assert found.attempted and not found.failed


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_an_example(name):
    assert ">>> " in inspect.getdoc(operator.attrgetter(name)(mw))


@pytest.mark.parametrize("name", ["named_scope", "typeof", "ensure_compile_time_eval"])
def test_examples_of_single_functions(name):
    """Which ``testmod`` does not look at: made by a decorator of another module, or of a module with other examples."""
    (example,) = doctest.DocTestFinder().find(getattr(mw, name), name, module=False, globs=dict(GLOBALS))
    found = doctest.DocTestRunner().run(example)
    assert found.attempted and not found.failed
