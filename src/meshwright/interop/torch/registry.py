"""The table of ops: what each of torch's ops is here. ``register`` adds to it, for our rows and for users' alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch

from meshwright.core.records import dataclass
from meshwright.errors import RuleError

#: arguments of torch's ops that say where or how to store a result, not what it is
STORAGE = frozenset({
    "memory_format", "pin_memory", "device", "layout", "non_blocking", "generator", "cudnn_enabled", "copy",
    "cudnn_enable", "is_coalesced", "implicit", "stride", "physical_layout",
})  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """A function that computes what an op does. Its parameters have the names of the op's schema."""

    function: Callable[..., Any]
    random: bool = False

    @cached_property
    def takes(self) -> frozenset[str] | None:
        """The arguments it takes; None for any."""
        parameters = inspect.signature(self.function).parameters.values()
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return None
        return frozenset(p.name for p in parameters)

    def has(self, name: str) -> bool:
        """Whether it takes an argument of this name."""
        return self.takes is None or name in self.takes or self._takes_more

    @cached_property
    def _takes_more(self) -> bool:
        """Whether it takes any by its name: some that schemas have are words of Python."""
        return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(self.function).parameters.values())


_TABLE: dict[str, Rule] = {}
#: ops whose results' shapes depend on values: these names end an import with an explanation
DATA_DEPENDENT = {
    "aten.nonzero", "aten.nonzero_numpy", "aten.masked_select", "aten._local_scalar_dense", "aten.item", "aten.unique",
    "aten._unique2", "aten.unique_dim", "aten.unique_consecutive", "aten.bincount", "aten.argwhere", "aten.nms",
    "torchvision.nms",
}  # fmt: skip


#: the ops in whose place an op of ours stands
_INSTEAD: dict[Any, Any] = {}


def stands_for(ours: Any, op: Any) -> None:
    """Have an op of ours go by the name of another, and by its rule."""
    _INSTEAD[ours] = op


def name_of(target: Any) -> str:
    """``aten.add.Tensor`` for an overload, ``aten.add`` for a packet; strings are names already."""
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    return str(_INSTEAD.get(target, target))


def register(*ops: Any, random: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Say what torch's ``ops`` are: the decorated function takes arrays for tensors, and returns arrays.

    Args:
      ops: names (``"aten.add"`` for all overloads, ``"aten.add.Tensor"`` for one), or the ops themselves
        (``torch.ops.mylib.myop``).
      random: the function has a parameter ``draw``, to be called for a random key.

    An op that writes to tensors (``mutates_args``) is one that returns what these become, after its results, in the
    order of its arguments.

    The parameters have the names that the op's schema gives its arguments; what of these the function does not take is
    refused if a program gives it a value other than its default. The rule is used by :func:`meshwright.from_torch` and
    differentiated, batched and partitioned like any function.

    Example:
      >>> @mw.interop.torch.register("mylib::scaled")
      ... def scaled(x, factor=1.0):
      ...     return x * factor
    """

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            _TABLE[name_of(op).replace("::", ".")] = Rule(function, random)
        return function

    return add


def rows(table: Mapping[str, Callable[..., Any]]) -> None:
    """:func:`register` for each row."""
    for names, function in table.items():
        register(*(f"aten.{name}" for name in names.split()))(function)


def find(target: Any) -> Rule | None:
    """The rule of an op: of its overload, or of all overloads."""
    name = name_of(target)
    rule = _TABLE.get(name)
    if rule is None and isinstance(target, torch._ops.OpOverload):
        rule = _TABLE.get(name.rpartition(".")[0])
    return rule


def is_data_dependent(target: Any) -> bool:
    name = name_of(target)
    return name in DATA_DEPENDENT or name.rpartition(".")[0] in DATA_DEPENDENT


def bound(rule: Rule, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the names that ``rule`` gives them.

    Raises:
      RuleError: an argument has a value that the rule does not know of.
    """
    given = dict(kwargs)
    schema = target._schema.arguments
    given.update({a.name: value for a, value in zip(schema, args)})
    named: dict[str, Any] = {}
    for argument in schema:
        name = argument.name
        default = argument.default_value if argument.has_default_value() else None
        value = given.get(name, default)
        if rule.has(name):
            named[name] = value
        elif name in given and name not in STORAGE and not (value is None or value == default):
            raise RuleError(f"{name_of(target)}: the argument {name}={value!r} is not supported here")
    return named


def call(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], draw: Callable[[], Any]) -> Any:
    """What an op computes, of arrays."""
    rule = find(target)
    if rule is None:
        raise RuleError(f"{name_of(target)} has no rule")
    extra = {"draw": draw} if rule.random else {}
    if rule.takes is None or not isinstance(target, torch._ops.OpOverload):
        return rule.function(*args, **kwargs, **extra)
    return rule.function(**bound(rule, target, args, kwargs), **extra)
