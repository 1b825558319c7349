"""``pure_callback`` and ``io_callback``: Python functions of arrays as parts of traced programs.

A call of a program with callbacks returns only after all of them have run; their exceptions are raised there. On a mesh
a callback gets whole arrays and is called once, in the process of the mesh's first device; in a ``shard_map``, each
device calls it with its part. The interface follows ``jax.pure_callback``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.api.shape_dtype import shape_of
from meshwright.core import dtypes, pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.expected import refused
from meshwright.core.key_types import is_key
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, ArgumentTypeError, CallbackError
from meshwright.ir.tracing import typeof
from meshwright.ops.control.callback import IoCallback, PureCallback
from meshwright.runtime.host_calls import as_given
from meshwright.runtime.pjrt.world import WORLD
from meshwright.sharding import SingleDeviceSharding
from meshwright.transforms.wrapped import name_of, require_callable

_VMAP_METHODS = ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized")


@dataclass(frozen=True)
class FlatFunction:
    """A function of trees as a function of flat arrays; equal ones compare equal, so that their programs are reused."""

    fun: Callable[..., Any]
    in_tree: Any
    out_tree: Any

    def __call__(self, *leaves: Any) -> list[Any]:
        args, kwargs = pytree.unflatten(self.in_tree, map(as_given, leaves))
        out = self.fun(*args, **kwargs)
        outs, out_tree = pytree.flatten(out)
        if out_tree != self.out_tree and not _alike(out_tree, self.out_tree):
            raise CallbackError(
                f"the Python function {name_of(self.fun)} returned structure {pytree.show(out_tree)}, but "
                f"result_shape_dtypes has structure {pytree.show(self.out_tree)}"
            )
        return outs


def _alike(got: pytree.PyTreeDef, want: pytree.PyTreeDef) -> bool:
    """Whether the leaves of two structures correspond: single leaves do, and so do leaves at the same places of
    sequences of any kind."""
    trees = [pytree.unflatten(t, range(t.num_leaves)) for t in (got, want)]
    return got.num_leaves == want.num_leaves == 1 or _as_lists(trees[0]) == _as_lists(trees[1])


def _as_lists(tree: Any) -> Any:
    return [_as_lists(x) for x in tree] if isinstance(tree, (list, tuple)) else tree


def _by_one_process(sharding: Any, where: str) -> None:
    """Refuse a ``sharding`` that names the calling device where that would matter.

    Raises:
      ArgumentTypeError: not a single-device sharding. ArgumentError: there are several processes.
    """
    if sharding is None:
        return
    if not isinstance(sharding, SingleDeviceSharding):
        raise refused(f"{where}: sharding", "a SingleDeviceSharding or None", sharding)
    if WORLD.count > 1:
        raise ArgumentError(
            f"{where}: sharding={sharding} says which device calls the function; of several processes that of the "
            "mesh's first device does; leave it out"
        )


def _as_declared(x: Any, where: str) -> ShapedArray:
    declared = x.dtype
    if not is_key(declared) and dtypes.canonical(dtypes.as_dtype(declared)) != declared:
        raise ArgumentError(
            f"{where}: result_shape_dtypes says {declared}, which needs config.update('enable_x64', True); declare "
            f"{dtypes.canonical(dtypes.as_dtype(declared))}"
        )
    return shape_of(x).strong()


def declared_results(tree: Any, where: str) -> tuple[tuple[ShapedArray, ...], Any]:
    leaves, treedef = pytree.flatten(tree)
    for x in leaves:
        if not (hasattr(x, "shape") and hasattr(x, "dtype")):
            raise ArgumentTypeError(
                f"{where}: result_shape_dtypes must hold types of arrays, got {x!r}; use ShapeDtypeStruct(shape, "
                "dtype), or None for no results"
            )
    return tuple(_as_declared(x, where) for x in leaves), treedef


def flat_arrays(args: Any, kwargs: Any, where: str) -> tuple[list[Any], pytree.PyTreeDef]:
    """The leaves of the arguments and their structure.

    Raises:
      ArgumentTypeError: a leaf is not an array, so a compiled program could not pass it.
    """
    leaves, tree = pytree.flatten((args, kwargs))
    for x in leaves:
        try:
            typeof(x)
        except ArgumentTypeError as error:
            raise ArgumentTypeError(f"{where}: {error}; or have the function close over it") from None
    return leaves, tree


def pure_callback(
    callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, sharding: SingleDeviceSharding | None = None,
    vmap_method: str | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """Call ``callback(*args, **kwargs)`` in Python on arrays, inside or outside traced functions.

    Args:
      callback: a pure function of arrays, in the structure of the arguments; it may return NumPy's. In a program on
        several real devices, which wait for it, it gets NumPy's too.
      result_shape_dtypes: the types of its results: a tree of ``ShapeDtypeStruct`` or anything with ``shape`` and
        ``dtype``. It may return tuples for lists.
      sharding: the device that calls it. The devices of one process are equivalent.
      vmap_method: how ``vmap`` calls it: ``"sequential"`` (or ``"sequential_unrolled"``) once per entry;
        ``"expand_dims"`` once, with a leading dimension on all arguments, of size 1 for those that are not mapped;
        ``"broadcast_all"`` once, with these repeated; ``"legacy_vectorized"`` once, with these unchanged.

    Raises:
      ArgumentError: a 64-bit result without ``enable_x64``, an unknown ``vmap_method``, or ``sharding`` with several
        processes.
      CallbackError: the callback raised, or returned results of other types.
      DifferentiationError: differentiated; define a derivative with ``custom_jvp``.
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
    _by_one_process(sharding, "pure_callback")
    results, out_tree = declared_results(result_shape_dtypes, "pure_callback")
    leaves, in_tree = flat_arrays(args, kwargs, "pure_callback")
    flat = FlatFunction(callback, in_tree, out_tree)
    op = PureCallback(flat, name_of(callback), results, vmap_method=vmap_method)
    return pytree.unflatten(out_tree, op.bind(*leaves))


def io_callback(
    callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, sharding: SingleDeviceSharding | None = None,
    ordered: bool = False, **kwargs: Any,
) -> Any:  # fmt: skip
    """As :func:`pure_callback`, for functions with side effects: each call runs exactly once.

    Args:
      ordered: callbacks with ``ordered=True`` run in program order, also across loops.

    Raises:
      CallbackError: the callback raised, or returned results of other types.
      DifferentiationError: differentiated.
      RuleError: ``ordered`` under ``vmap``.

    Example:
      >>> seen = []
      >>> f = mw.jit(lambda x: mw.io_callback(lambda a: seen.append(float(a)), None, x, ordered=True))
      >>> f(1.0), f(2.0), seen
      (None, None, [1.0, 2.0])
    """
    require_callable(callback, "io_callback")
    _by_one_process(sharding, "io_callback")
    results, out_tree = declared_results(result_shape_dtypes, "io_callback")
    leaves, in_tree = flat_arrays(args, kwargs, "io_callback")
    flat = FlatFunction(callback, in_tree, out_tree)
    op = IoCallback(flat, name_of(callback), results, bool(ordered))
    return pytree.unflatten(out_tree, op.bind(*leaves))
