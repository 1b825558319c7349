"""Errors for values that cannot become arrays, each with what to do instead."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.errors import ArgumentError, ArgumentTypeError


def refuse_masked(x: np.ndarray | np.generic) -> None:
    """Raise for NumPy masked arrays, whose mask would be lost.

    Raises:
      ArgumentError: ``x`` has a mask; names the alternatives.
    """
    if type(x) is not np.ndarray and hasattr(x, "mask"):
        raise ArgumentError(
            "masked NumPy arrays cannot become arrays, which have no mask: pass x.filled(value), or x.data and the "
            "mask as two arrays"
        )


def no_array(x: Any) -> ArgumentTypeError:
    """The error for a value of a type that is not taken for an array.

    Arrays of other libraries are named by their types, as their elements may fill pages.
    """
    kind = type(x)
    what = f"{x!r} of type {kind.__name__}"
    remedy = "if it is a container of arrays, apply the function to its leaves (meshwright.tree.map)"
    if any(c.__name__ == "Tracer" and c.__module__.startswith("jax.") for c in kind.__mro__):
        remedy = "JAX is tracing it: to_jax(f) makes of a function f of ours one that JAX traces and differentiates"
    elif hasattr(kind, "__jax_array__"):
        remedy = "meshwright.numpy.asarray makes an array of it"
    elif hasattr(kind, "__dlpack__"):
        library = kind.__module__.partition(".")[0]
        what = f"an array of {library}: {getattr(x, 'dtype', '')} of shape {tuple(getattr(x, 'shape', ()))}"
        remedy = "meshwright.numpy.from_dlpack makes an array of the same memory of it"
        if library in ("jax", "jaxlib"):
            what = what.replace("jaxlib", "jax")
            remedy = (
                "meshwright.interop.jax.from_arrays converts a tree of them, and after "
                "meshwright.interop.jax.register_arrays() they are arguments of our functions"
            )
    return ArgumentTypeError(f"expected an array or a number, got {what}; {remedy}")
