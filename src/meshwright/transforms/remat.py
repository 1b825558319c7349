"""``checkpoint`` (``remat``) and its policies, which select the values saved for the backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from meshwright.core import pytree
from meshwright.core.expected import as_numbers, from_front
from meshwright.core.signature import described, leaf_names, positions
from meshwright.errors import ArgumentError, ArgumentTypeError
from meshwright.ir.op import Op
from meshwright.ir.tracing import typeof
from meshwright.ops.control.markers import Named
from meshwright.ops.control.remat import Checkpoint, Offloadable, Policy
from meshwright.sharding.memory_kind import checked_kind
from meshwright.transforms.autodiff import closed_call
from meshwright.transforms.references import REFERENCES
from meshwright.transforms.wrapped import name_of, require_callable, transformed


def checkpoint(
    fun: Callable[..., Any] | None = None,
    *,
    prevent_cse: bool = True,
    policy: Policy | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    concrete: bool = False,
) -> Any:
    """``fun`` with rematerialization: its intermediate values are recomputed in the backward pass instead of saved.

    ``policy`` selects results that are saved anyway. It is one of ``checkpoint_policies``, or a function of an op, the
    avals of its operands and its parameters. ``prevent_cse=False`` allows the compiler to merge the recomputation with
    the original computation; use it inside ``scan``, where the two are in separate loops and cannot be merged. The
    arguments in ``static_argnums`` and ``static_argnames`` are passed as Python values. Without ``fun``, returns a
    decorator.

    Raises:
      ArgumentError: ``concrete=True``, which JAX no longer supports; (when called) a static argument is missing.
      ArgumentTypeError: ``fun`` or ``policy`` is not a function; (when called) an argument is not an array.

    Example:
      >>> f = mw.checkpoint(lambda x: mnp.sin(mnp.sin(x)))
      >>> float(mw.grad(f)(0.0))
      1.0
    """
    if fun is None:
        return functools.partial(
            checkpoint, prevent_cse=prevent_cse, policy=policy, static_argnums=static_argnums,
            static_argnames=static_argnames, concrete=concrete,
        )  # fmt: skip
    require_callable(fun, "checkpoint")
    if policy is not None and not callable(policy):
        raise ArgumentTypeError(f"checkpoint: policy must be a function, got {policy!r}; see checkpoint_policies")
    if concrete:
        raise ArgumentError("checkpoint: concrete=True is not supported, as in JAX; mark arguments in static_argnums")
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    numbers = as_numbers("checkpoint: static_argnums", static_argnums)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        counted = from_front("checkpoint: static_argnums", numbers, len(args), name_of(fun))
        static = {*counted} | {i for i in positions(fun, names) if i < len(args)}
        dynamic = [a for i, a in enumerate(args) if i not in static]
        fixed = {k: v for k, v in kwargs.items() if k in names}
        others = {k: v for k, v in kwargs.items() if k not in names}
        flat, treedef = pytree.flatten((dynamic, others))
        for i, x in enumerate(flat):
            try:
                typeof(x)
            except ArgumentTypeError as error:
                if REFERENCES.value.recognizes(x):
                    continue
                name = leaf_names(fun, dynamic, others, static)[i]
                raise ArgumentTypeError(f"checkpoint of {described(fun)}: argument {name}: {error}") from None

        def call(*leaves: Any) -> Any:
            positional, named = pytree.unflatten(treedef, leaves)
            given = iter(positional)
            return fun(*(a if i in static else next(given) for i, a in enumerate(args)), **named, **fixed)

        def apply(call: Callable[..., Any], arrays: Sequence[Any]) -> Any:
            jaxpr, hoisted, out_tree = closed_call(call, arrays, name_of(fun))
            return pytree.unflatten(out_tree, Checkpoint(jaxpr, policy, prevent_cse).bind(*hoisted, *arrays))

        return REFERENCES.value.traced_once(apply, call, flat)

    options = {"prevent_cse": prevent_cse, "policy": policy, "static_argnums": numbers, "static_argnames": names}
    return transformed(wrapped, fun, "checkpoint", **options)


def checkpoint_name(x: Any, name: str) -> Any:
    """``x`` (a pytree of arrays) tagged with a name, for the policies that select values by name.

    Raises:
      ArgumentTypeError: ``name`` is not a string, or a leaf of ``x`` is not an array.

    Example:
      >>> keep = mw.checkpoint_policies.save_only_these_names("square")
      >>> f = mw.checkpoint(lambda x: mw.checkpoint_name(x**2, "square") ** 3, policy=keep)
      >>> float(mw.grad(f)(2.0))
      192.0
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(
            f"checkpoint_name: name must be a string, got {name!r} of type {type(name).__name__}; the value comes "
            "first: checkpoint_name(x, 'name')"
        )
    return pytree.map(lambda v: Named(name).bind(v), x)


# --- policies -----------------------------------------------------------------------------------------------
def _everything(op: Op, *_: Any, **__: Any) -> bool:
    return True


def _nothing(op: Op, *_: Any, **__: Any) -> bool:
    return False


def _dots(op: Op, *_: Any, **__: Any) -> bool:
    return op.name == "dot_general"


def _dots_without_batch(op: Op, *_: Any, dimension_numbers: Any = None, **__: Any) -> bool:
    return op.name == "dot_general" and not dimension_numbers[1][0]


def _named(names: Sequence[str], inside: bool, unnamed: bool) -> Policy:
    chosen = frozenset(names)

    def policy(op: Op, *_: Any, name: str | None = None, **__: Any) -> bool:
        return (name in chosen) == inside if op.name == "name" else unnamed

    return policy


def _only_these_names(*names: str) -> Policy:
    return _named(names, True, False)


def _any_names_but_these(*names: str) -> Policy:
    return _named(names, False, False)


def _anything_except_these_names(*names: str) -> Policy:
    return _named(names, False, True)


def _from_both(first: Policy, second: Policy) -> Policy:
    return lambda op, *avals, **params: first(op, *avals, **params) or second(op, *avals, **params)


def _offload_names(
    *, names_which_can_be_saved: Sequence[str], names_which_can_be_offloaded: Sequence[str],
    offload_src: str = "device", offload_dst: str = "pinned_host",
) -> Policy:  # fmt: skip
    saved, moved = _only_these_names(*names_which_can_be_saved), _only_these_names(*names_which_can_be_offloaded)
    both = set(names_which_can_be_saved) & set(names_which_can_be_offloaded)
    if both:
        raise ArgumentError(
            f"save_and_offload_only_these_names: {', '.join(sorted(both))} is to be saved and offloaded; name it once"
        )
    where = _offloadable("save_and_offload_only_these_names", offload_src, offload_dst)
    return lambda op, *avals, **params: saved(op, *avals, **params) or (moved(op, *avals, **params) and where)


def _offload_dots(offload_src: str = "device", offload_dst: str = "pinned_host") -> Policy:
    where = _offloadable("offload_dot_with_no_batch_dims", offload_src, offload_dst)
    return lambda op, *avals, **params: _dots_without_batch(op, *avals, **params) and where


def _offloadable(what: str, src: str, dst: str) -> Offloadable:
    checked_kind(src, f"{what}: offload_src")
    checked_kind(dst, f"{what}: offload_dst")
    return Offloadable(src, dst)


#: policies for :func:`checkpoint`, by JAX's names
checkpoint_policies = SimpleNamespace(
    everything_saveable=_everything,
    nothing_saveable=_nothing,
    dots_saveable=_dots,
    checkpoint_dots=_dots,
    dots_with_no_batch_dims_saveable=_dots_without_batch,
    checkpoint_dots_with_no_batch_dims=_dots_without_batch,
    save_only_these_names=_only_these_names,
    save_any_names_but_these=_any_names_but_these,
    save_anything_except_these_names=_anything_except_these_names,
    save_from_both_policies=_from_both,
    save_and_offload_only_these_names=_offload_names,
    offload_dot_with_no_batch_dims=_offload_dots,
)
