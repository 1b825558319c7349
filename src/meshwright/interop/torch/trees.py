"""Torch's trees and ours: what a module takes and returns."""

from __future__ import annotations

import dataclasses
import inspect
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.fx import _pytree as fx_pytree
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
        _look_into_pairs_of_caches()


def _look_into_pairs_of_caches() -> None:
    from transformers.cache_utils import EncoderDecoderCache

    if EncoderDecoderCache in _pytree.SUPPORTED_NODES:
        return
    names = ["self_attention_cache", "cross_attention_cache"]
    parts = lambda cache: [getattr(cache, name) for name in names]  # noqa: E731
    _pytree.register_pytree_node(
        EncoderDecoderCache,
        lambda cache: (parts(cache), names),
        lambda caches, _: EncoderDecoderCache(*caches),
        serialized_type_name=f"{EncoderDecoderCache.__module__}.{EncoderDecoderCache.__name__}",
        flatten_with_keys_fn=lambda cache: (list(zip(map(_pytree.GetAttrKey, names), parts(cache))), names),
    )
    fx_pytree.register_pytree_flatten_spec(EncoderDecoderCache, lambda cache, spec: parts(cache))


def traced_again(program: torch.export.ExportedProgram, table: dict[Any, Any]) -> torch.export.ExportedProgram:
    """The program as torch traces it again, with ops written in terms of others as ``table`` says.

    Making an object of another library's class may compute something, as with transformers' caches, and would become a
    part of the program."""
    with _without_making_classes(program):
        return program.run_decompositions(table)


@contextmanager
def _without_making_classes(program: torch.export.ExportedProgram) -> Iterator[None]:
    """Within, objects of other libraries' classes in what a program takes and returns only hold their parts."""
    held: dict[int, tuple[Any, list[Any], Any]] = {}
    kinds = {kind for spec in (program.call_spec.in_spec, program.call_spec.out_spec) for kind in _foreign(spec)}

    def hold(kind: Any, parts: Any, context: Any) -> Any:
        made = kind.__new__(kind)
        held[id(made)] = made, list(parts), context
        return made

    tables = _pytree.SUPPORTED_NODES, fx_pytree.SUPPORTED_NODES
    before = [{kind: table[kind] for kind in kinds if kind in table} for table in tables]
    for kind, node in before[0].items():
        flat, keyed = node.flatten_fn, node.flatten_with_keys_fn
        _pytree.SUPPORTED_NODES[kind] = node._replace(
            flatten_fn=lambda x, flat=flat: held[id(x)][1:] if id(x) in held else flat(x),
            unflatten_fn=partial(hold, kind),
            flatten_with_keys_fn=keyed and partial(_with_keys, held, keyed),
        )
    for kind, parts in before[1].items():
        fx_pytree.SUPPORTED_NODES[kind] = lambda x, spec, parts=parts: (
            held[id(x)][1] if id(x) in held else parts(x, spec)
        )
    try:
        yield
    finally:
        for table, nodes in zip(tables, before):
            table.update(nodes)


def _with_keys(held: dict[int, tuple[Any, list[Any], Any]], keyed: Any, x: Any) -> Any:
    if id(x) not in held:
        return keyed(x)
    _, parts, context = held[id(x)]
    return [(_pytree.SequenceKey(i), part) for i, part in enumerate(parts)], context


def _foreign(spec: Any) -> Iterator[Any]:
    """The classes in a tree that are not Python's own."""
    if not spec.is_leaf():
        if getattr(spec.type, "__module__", "builtins") not in ("builtins", "collections"):
            yield spec.type
        for child in spec.children():
            yield from _foreign(child)


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
