"""The examples in the docstrings of control flow, shard_map and the function transformations."""

import doctest
import importlib

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright import lax

MODULES = ["api.control_flow", "api.shard_map", "api.tracing", "transforms.jacobian", "transforms.remat", "api.callbacks", "inspect.debug"]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"meshwright.{name}")
    found = doctest.testmod(module, extraglobs={"mw": mw, "mnp": mnp, "lax": lax, "P": P})
    assert found.attempted and not found.failed
