"""What calls are refused with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshwright.errors import MeshwrightError


def message_of(kind: type[BaseException], fun: Callable[..., Any], *args: Any, **options: Any) -> str:
    """The message of the error, of this kind and of our tree, that a call raises."""
    with pytest.raises(MeshwrightError) as caught:
        fun(*args, **options)
    assert isinstance(caught.value, kind), repr(caught.value)
    return str(caught.value)
