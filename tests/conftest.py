"""Eight virtual devices for all tests, and what every test of an error asserts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from meshwright.core.config import config
from meshwright.errors import MeshwrightError

config.update("num_devices", 8)


@contextmanager
def _refuses(kind: type[BaseException], *words: str) -> Iterator[None]:
    with pytest.raises(MeshwrightError) as caught:
        yield
    message = str(caught.value)
    assert isinstance(caught.value, kind), f"{type(caught.value).__name__}: {message}"
    missing = [word for word in words if word not in message]
    assert not missing, f"the message does not say {missing}: {message}"


@pytest.fixture
def refuses() -> Callable[..., AbstractContextManager[None]]:
    """``with refuses(kind, *words)``: an error of our tree, also a ``kind``, whose message has all the words."""
    return _refuses
