"""Torch's trees and ours: what a module takes and returns."""

from __future__ import annotations

import dataclasses
import inspect
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree

from meshwright.core.pytree_classes import register_pytree_node_class


@register_pytree_node_class
class Outputs(OrderedDict):  # type: ignore[type-arg]
    """Named results, as of the models of transformers: ``y.logits`` is ``y["logits"]``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no result {name!r}; there are {', '.join(map(str, self))}") from None

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The values, in order, and their names."""
        return tuple(self.values()), tuple(self)

    @classmethod
    def tree_unflatten(cls, names: tuple[Any, ...], values: Any) -> Outputs:
        """The opposite of :meth:`tree_flatten`."""
        return cls(zip(names, values))


def _is_namedtuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def unflatten(spec: Any, leaves: list[Any]) -> Any:
    """A tree of ``leaves`` (which it uses up) as ``spec`` says; classes of other libraries become :class:`Outputs`."""
    if spec.is_leaf():
        return leaves.pop(0)
    children = [unflatten(child, leaves) for child in spec.children()]
    kind, context = spec.type, spec.context
    if kind in (list, tuple):
        return kind(children)
    if kind is dict:
        return dict(zip(context, children))
    if _is_namedtuple(kind) or _is_namedtuple(context):
        return (kind if _is_namedtuple(kind) else context)(*children)
    names = _names(kind, context, len(children))
    return tuple(children) if names is None else Outputs(zip(names, children))


def _names(kind: Any, context: Any, count: int) -> list[Any] | None:
    """The names of the parts of a class that only torch knows."""
    for part in (context, *(context if isinstance(context, (list, tuple)) else ())):
        if isinstance(part, (list, tuple)) and len(part) == count and all(isinstance(n, str) for n in part):
            return list(part)
    if dataclasses.is_dataclass(kind):
        return [f.name for f in dataclasses.fields(kind)][:count]
    return None


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Leaves and structure, as torch sees them."""
    return _pytree.tree_flatten(tree)


def leaves_as(tree: Any, spec: Any) -> list[Any] | None:
    """The leaves of a tree of this structure, in which :class:`Outputs` may stand for classes that only torch knows;
    None if it is of another."""
    leaves, structure = flatten(tree)
    if structure == spec:
        return leaves
    if spec.is_leaf():
        return None
    children = spec.children()
    if isinstance(tree, Outputs) and list(tree) == _names(spec.type, spec.context, len(children)):
        parts = list(tree.values())
    elif structure.type == spec.type and structure.context == spec.context:
        parts, _ = _pytree.SUPPORTED_NODES[spec.type].flatten_fn(tree)
    else:
        return None
    if len(parts) != len(children):
        return None
    found = [leaves_as(part, child) for part, child in zip(parts, children)]
    return None if None in found else [x for some in found for x in some or ()]


def look_into_caches(module: torch.nn.Module) -> None:
    """Have torch look into the caches that models of transformers return unless they are told not to (``use_cache``).

    Transformers leaves it to the caller to say so, once in a process.
    """
    if any(type(part).__module__.startswith("transformers.models.") for part in module.modules()):
        try:
            from transformers.integrations.executorch import register_dynamic_cache_export_support
        except ImportError:  # an older version
            return
        register_dynamic_cache_export_support()


def parameter_names(module: torch.nn.Module) -> list[str]:
    """The names of the parameters of a module's forward that have positions."""
    parameters = inspect.signature(module.forward).parameters.values()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def paths(args: Any, kwargs: Any, names: Sequence[str]) -> list[str]:
    """What a user calls each leaf of the arguments of a call, where parameters have these ``names``."""

    def name(group: Any, key: Any, *rest: Any) -> str:
        if group.idx == 1:
            first = str(key.key)
        else:
            first = names[key.idx] if key.idx < len(names) else f"args[{key.idx}]"
        return first + _pytree.keystr(rest)

    return [name(*path) for path, _ in _pytree.tree_flatten_with_path((args, kwargs))[0]]
