"""``pure_callback`` and ``io_callback``: Python functions of NumPy arrays as parts of traced programs.

Programs that call Python are waited for: when a call returns, all callbacks in it have happened, and what they raised
is raised. On a mesh a callback gets whole arrays and is called once, in the process of the mesh's first device; in a
``shard_map`` each device calls it with its part. Source: ``jax.pure_callback`` for the interface.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.api.shape_dtype import shape_of
from meshwright.core import pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, ArgumentTypeError, CallbackError
from meshwright.ops.control.callback import IoCallback, PureCallback
from meshwright.transforms.wrapped import name_of, require_callable

_VMAP_METHODS = ("sequential", "expand_dims", "broadcast_all")


@dataclass(frozen=True)
class FlatFunction:
    """A function of trees as one of flat arrays; equal ones are equal, so that their programs are found again."""

    fun: Callable[..., Any]
    in_tree: Any
    out_tree: Any

    def __call__(self, *leaves: Any) -> list[Any]:
        args, kwargs = pytree.unflatten(self.in_tree, leaves)
        out = self.fun(*args, **kwargs)
        outs, out_tree = pytree.flatten(out)
        if out_tree != self.out_tree:
            raise CallbackError(
                f"the Python function {name_of(self.fun)} returned structure {pytree.show(out_tree)}, but "
                f"result_shape_dtypes has structure {pytree.show(self.out_tree)}"
            )
        return outs


def _results(tree: Any, where: str) -> tuple[tuple[ShapedArray, ...], Any]:
    leaves, treedef = pytree.flatten(tree)
    for x in leaves:
        if not (hasattr(x, "shape") and hasattr(x, "dtype")):
            raise ArgumentTypeError(
                f"{where}: result_shape_dtypes must hold types of arrays, got {x!r}; use ShapeDtypeStruct(shape, "
                "dtype), or None for no results"
            )
    return tuple(shape_of(x).strong() for x in leaves), treedef


def pure_callback(
    callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, vmap_method: str | None = None, **kwargs: Any
) -> Any:
    """``callback(*args, **kwargs)``, computed in Python on NumPy arrays, inside or outside of traced functions.

    Args:
      callback: a function without effects, of NumPy arrays (in the structure of the arguments).
      result_shape_dtypes: what it returns: a tree of ``ShapeDtypeStruct`` or anything with ``shape`` and ``dtype``.
      vmap_method: how ``vmap`` calls it: ``"sequential"`` for each entry; ``"expand_dims"`` once, with a leading
        dimension on all arguments, of size 1 where one is not mapped; ``"broadcast_all"`` once, all of them repeated.

    Raises:
      CallbackError: it raised, or returned something else.
      DifferentiationError: a derivative through it is wanted; give it one with ``custom_jvp``.
      RuleError: under ``vmap`` without ``vmap_method``.

    Example:
      >>> double = lambda x: mw.pure_callback(lambda a: a * 2, x, x)
      >>> mw.jit(double)(mnp.array([1.0, 2.0]))
      Array([2., 4.], dtype=float32)
    """
    require_callable(callback, "pure_callback")
    if vmap_method is not None and vmap_method not in _VMAP_METHODS:
        raise ArgumentError(
            f"pure_callback: vmap_method must be one of {', '.join(map(repr, _VMAP_METHODS))} or None, got "
            f"{vmap_method!r}"
        )
    results, out_tree = _results(result_shape_dtypes, "pure_callback")
    leaves, in_tree = pytree.flatten((args, kwargs))
    flat = FlatFunction(callback, in_tree, out_tree)
    op = PureCallback(flat, name_of(callback), results, vmap_method=vmap_method)
    return pytree.unflatten(out_tree, op.bind(*leaves))


def io_callback(
    callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, ordered: bool = False, **kwargs: Any
) -> Any:
    """As :func:`pure_callback`, for functions with effects: each call happens, and happens once.

    Args:
      ordered: callbacks with ``ordered=True`` happen in program order, also across loops.

    Raises:
      CallbackError: it raised, or returned something else.
      DifferentiationError: a derivative through it is wanted.
      RuleError: ``ordered`` under ``vmap``.

    Example:
      >>> seen = []
      >>> f = mw.jit(lambda x: mw.io_callback(lambda a: seen.append(float(a)), None, x, ordered=True))
      >>> f(1.0), f(2.0), seen
      (None, None, [1.0, 2.0])
    """
    require_callable(callback, "io_callback")
    results, out_tree = _results(result_shape_dtypes, "io_callback")
    leaves, in_tree = pytree.flatten((args, kwargs))
    flat = FlatFunction(callback, in_tree, out_tree)
    op = IoCallback(flat, name_of(callback), results, bool(ordered))
    return pytree.unflatten(out_tree, op.bind(*leaves))
