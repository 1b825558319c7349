"""A pytest plugin with the option ``--meshwright-update``, which rewrites contracts instead of checking them."""

from __future__ import annotations

import os
from typing import Any

from meshwright.testing.contracts import UPDATE


def pytest_addoption(parser: Any) -> None:
    """Add the option."""
    group = parser.getgroup("meshwright")
    group.addoption("--meshwright-update", action="store_true", help="write the contracts of programs anew")


def pytest_configure(config: Any) -> None:
    """Pass the option to :func:`contract` in the environment, so that worker processes inherit it."""
    if config.getoption("--meshwright-update"):
        os.environ[UPDATE] = "1"
