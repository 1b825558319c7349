"""Adds ``out_sharding`` to functions: the sharding of the result, in which it is then computed.

The library itself calls the functions without it; only the public ones have the argument.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from meshwright.api.placement import made_as
from meshwright.numpy import creation, manipulation, repeating, searching


def placed(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with an argument ``out_sharding``: the sharding (or ``PartitionSpec``) of its result.

    >>> placed(lambda n: creation.zeros(n))(3, out_sharding=None).tolist()
    [0.0, 0.0, 0.0]
    """

    @functools.wraps(function)
    def call(*args: Any, out_sharding: Any = None, **kwargs: Any) -> Any:
        return made_as(out_sharding, lambda: function(*args, **kwargs))

    own = inspect.signature(function)
    further = inspect.Parameter("out_sharding", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Any)
    call.__signature__ = own.replace(parameters=[*own.parameters.values(), further])  # type: ignore[attr-defined]
    return call


arange, array, asarray = placed(creation.arange), placed(creation.array), placed(creation.asarray)
zeros, ones = placed(creation.zeros), placed(creation.ones)
empty, full = placed(creation.empty), placed(creation.full)
zeros_like, ones_like, full_like = placed(creation.zeros_like), placed(creation.ones_like), placed(creation.full_like)
broadcast_to, repeat = placed(manipulation.broadcast_to), placed(repeating.repeat)
reshape, ravel = placed(manipulation.reshape), placed(manipulation.ravel)
bincount = placed(searching.bincount)
