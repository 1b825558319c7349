"""The examples in the docstrings of control flow, shard_map and the function transformations."""

import doctest
import importlib

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright import lax

MODULES = [
    "api.callbacks", "api.control_flow", "api.lax_functions", "api.lax_linalg", "api.shard_map", "api.tracing",
    "inspect.debug", "ops.cholesky", "ops.eig", "ops.eigh", "ops.fft", "ops.lu", "ops.qr", "ops.svd",
    "ops.triangular_solve", "ops.tridiagonal",
    "transforms.autodiff", "transforms.checkify", "transforms.custom_jvp", "transforms.jacobian", "transforms.remat",
]  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"meshwright.{name}")
    found = doctest.testmod(module, extraglobs={"mw": mw, "mnp": mnp, "lax": lax, "P": P, "jnp": mnp})
    assert found.attempted and not found.failed
