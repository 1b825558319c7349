"""What the libraries around PyTorch need to be imported here, and to be forgotten after each test."""

import sys
from collections.abc import Iterator

import pytest
from benchmarks.torchvision_kernels import declare_kernels

declare_kernels()


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What torch has compiled in a test is no other test's."""
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
