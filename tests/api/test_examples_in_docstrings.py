"""The examples in the docstrings of what ``meshwright`` itself exports; each of its functions has one."""

import doctest
import importlib
import inspect
import operator

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright import lax

GLOBALS = {"mw": mw, "mnp": mnp, "lax": lax, "P": P, "jnp": mnp}

MODULES = [
    "api.callbacks", "api.control_flow", "api.jit", "api.lax_functions", "api.lax_linalg", "api.load", "api.placement",
    "api.shard_map", "api.tracing", "core.pytree", "core.pytree_classes",
    "core.pytree_keys", "inspect.debug", "inspect.picture", "ops.cholesky", "ops.eig",
    "ops.eigh", "ops.fft", "ops.lu", "ops.qr", "ops.svd", "ops.triangular_solve", "ops.tridiagonal", "runtime.devices",
    "sharding.mesh", "transforms.autodiff", "transforms.checkify", "transforms.custom_jvp", "transforms.jacobian",
    "transforms.remat", "transforms.vmap",
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


def test_the_example_of_named_scope():
    """``testmod`` does not look at functions that a decorator of another module made."""
    (example,) = doctest.DocTestFinder().find(mw.named_scope, "named_scope", module=False, globs=dict(GLOBALS))
    found = doctest.DocTestRunner().run(example)
    assert found.attempted and not found.failed
