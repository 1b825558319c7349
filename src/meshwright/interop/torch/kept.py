"""A function that keeps values for another: compiled so that these stay stored as convolutions leave them.

What goes from one compiled program to the next has its dimensions in the order of its type. Were these of PyTorch's
order, each image that a forward pass keeps would be transposed at its end and again where the backward pass begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright import lax
from meshwright.api.jit import jit
from meshwright.api.tracing import make_jaxpr
from meshwright.core import pytree
from meshwright.core.config import config
from meshwright.ir.tracing import eval_jaxpr
from meshwright.lowering.channels_last import channels_last
from meshwright.lowering.orders import inverse


def compiled_pair(first: Callable[..., Any], second: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """``first(*args)``, which returns results and what it keeps, and ``second(kept, *more)``, both compiled.

    Of the pair that is returned, the first gives what it keeps as a list of arrays, which the second takes.
    """
    jaxpr, (results, kept) = make_jaxpr(first, return_shape=True)(*args)
    count, tree = len(pytree.leaves(results)), pytree.structure((results, kept))
    own = pytree.structure(kept)
    free = range(count, len(jaxpr.out_avals)) if config.platform == "cpu" else ()
    after, orders = channels_last(jaxpr, free)

    def forward(*args: Any) -> tuple[Any, list[Any]]:
        outs = eval_jaxpr(after, after.consts, *pytree.leaves(args))
        return pytree.unflatten(tree, outs)[0], outs[count:]

    def backward(kept: list[Any], *more: Any) -> Any:
        values = [lax.transpose(x, inverse(orders[i])) if i in orders else x for i, x in enumerate(kept, count)]
        return second(pytree.unflatten(own, values), *more)

    return jit(forward), jit(backward)
