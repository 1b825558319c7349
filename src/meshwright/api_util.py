"""``jax.api_util``: functions of trees as functions of their leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshwright.core import pytree
from meshwright.core.absent import absent as _absent
from meshwright.core.records import dataclass
from meshwright.core.signature import leaf_names
from meshwright.errors import ArgumentError
from meshwright.ir.tracing import typeof as shaped_abstractify
from meshwright.transforms.linear_util import Store, WrappedFun, transformation2, transformation_with_aux2
from meshwright.transforms.wrapped import name_of

__all__ = [
    "argnums_partial", "debug_info", "donation_vector", "flatten_axes", "flatten_fun", "flatten_fun_nokwargs",
    "safe_map", "shaped_abstractify",
]  # fmt: skip

__getattr__ = _absent("api_util")


@dataclass(frozen=True)
class DebugInfo:
    """What is traced, for what, and the names of its arguments."""

    traced_for: str
    func_name: str
    arg_names: tuple[str, ...]


def debug_info(
    traced_for: str,
    fun: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    static_argnums: Sequence[int] = (),
    static_argnames: Sequence[str] = (),
    **_: Any,
) -> DebugInfo:
    """What messages may say about a function and its arguments.

    Example:
      >>> from meshwright.api_util import debug_info
      >>> debug_info("a test", lambda x, y: x, (1, {"a": 2}), {}).arg_names
      ('x', "y['a']")
    """
    dynamic = [a for i, a in enumerate(args) if i not in static_argnums]
    named = {k: v for k, v in kwargs.items() if k not in static_argnames}
    return DebugInfo(traced_for, name_of(fun), tuple(leaf_names(fun, dynamic, named, static_argnums)))


def donation_vector(
    donate_argnums: Sequence[int], donate_argnames: Sequence[str], in_tree: Any, kws: bool = True
) -> tuple[bool, ...]:
    """Which leaves of a call's arguments are donated: one bool for each leaf of ``in_tree``.

    Args:
      donate_argnums: positions, counted from 0.
      donate_argnames: names of keyword arguments.
      in_tree: the structure of ``(args, kwargs)``, or of ``args`` if ``kws`` is False.

    Example:
      >>> from meshwright.api_util import donation_vector
      >>> donation_vector((1,), ("k",), mw.tree.structure(((1, (2, 3)), {"j": 4, "k": 5})))
      (False, True, True, False, True)
    """
    whole = pytree.unflatten(in_tree, range(in_tree.num_leaves))
    args, kwargs = whole if kws else (whole, {})
    donated = [args[i] for i in donate_argnums if i < len(args)] + [kwargs[k] for k in donate_argnames if k in kwargs]
    leaves = set(pytree.flatten(donated)[0])
    return tuple(i in leaves for i in range(in_tree.num_leaves))


def _flat(f: Callable[..., Any], store: Store, in_tree: Any, *leaves: Any) -> list[Any]:
    args, kwargs = pytree.unflatten(in_tree, leaves)
    out, out_tree = pytree.flatten(f(*args, **kwargs))
    store.store(out_tree)
    return out


def _flat_without_keywords(f: Callable[..., Any], store: Store, in_tree: Any, *leaves: Any) -> list[Any]:
    out, out_tree = pytree.flatten(f(*pytree.unflatten(in_tree, leaves)))
    store.store(out_tree)
    return out


def flatten_fun(fun: WrappedFun, in_tree: Any, **_: Any) -> tuple[WrappedFun, Callable[[], Any]]:
    """A function from leaves to leaves, and one that returns the structure of the output once that was called.

    ``in_tree`` is the structure of the pair of positional and keyword arguments.

    Example:
      >>> from meshwright import api_util
      >>> from meshwright.extend import linear_util
      >>> f = linear_util.wrap_init(lambda x, *, s: {"y": s * x["a"]})
      >>> flat, out_tree = api_util.flatten_fun(f, mw.tree.structure((({"a": 0},), {"s": 0})))
      >>> flat.call_wrapped(3, 5), mw.tree.unflatten(out_tree(), [1])
      ([15], {'y': 1})
    """
    pair: tuple[WrappedFun, Callable[[], Any]] = transformation_with_aux2(_flat, fun, in_tree)
    return pair


def flatten_fun_nokwargs(fun: WrappedFun, in_tree: Any, **_: Any) -> tuple[WrappedFun, Callable[[], Any]]:
    """:func:`flatten_fun` for the structure of the positional arguments alone."""
    pair: tuple[WrappedFun, Callable[[], Any]] = transformation_with_aux2(_flat_without_keywords, fun, in_tree)
    return pair


def flatten_axes(name: str, treedef: Any, axis_tree: Any, **_: Any) -> list[Any]:
    """One axis (or None) for each leaf of ``treedef``, from a tree prefix.

    Raises:
      ArgumentError: ``axis_tree`` is no prefix.
    """
    return pytree.broadcast_prefix(axis_tree, pytree.outline(treedef), name, lambda x: x is None)


def argnums_partial(
    f: WrappedFun, dyn_argnums: int | Sequence[int], args: Sequence[Any], require_static_args_hashable: bool = True
) -> tuple[WrappedFun, tuple[Any, ...]]:
    """A function of the arguments numbered ``dyn_argnums`` alone, and their values in ``args``.

    Raises:
      ArgumentError: another argument is not hashable, and has to be.
    """
    numbers = [dyn_argnums] if isinstance(dyn_argnums, int) else list(dyn_argnums)
    numbers = sorted(n % len(args) for n in numbers)
    if require_static_args_hashable:
        for i in set(range(len(args))) - set(numbers):
            try:
                hash(args[i])
            except TypeError:
                raise ArgumentError(
                    f"argnums_partial: static argument {i} of type {type(args[i]).__name__} is not hashable; pass a "
                    "tuple, a string or a number, or count it among dyn_argnums"
                ) from None
    fixed = tuple(None if i in numbers else a for i, a in enumerate(args))

    def completed(f: Callable[..., Any], *given: Any, **kwargs: Any) -> Any:
        values = dict(zip(numbers, given))
        return f(*(values.get(i, a) for i, a in enumerate(fixed)), **kwargs)

    wrapped: WrappedFun = transformation2(completed, f)
    return wrapped, tuple(args[i] for i in numbers)


def safe_map(f: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
    """``list(map(f, *columns))``.

    Raises:
      ArgumentError: the sequences have different lengths.
    """
    rows = [list(c) for c in columns]
    if len({len(r) for r in rows}) > 1:
        raise ArgumentError(
            f"safe_map: the sequences have lengths {', '.join(str(len(r)) for r in rows)}; they must agree"
        )
    return list(map(f, *rows))
