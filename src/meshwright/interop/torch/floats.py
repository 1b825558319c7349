"""Floats that a graph of ``torch.compile`` is given: what Dynamo makes of those that change from call to call.

A program takes them as numbers that only a run knows (:mod:`~meshwright.interop.torch.ops.numbers`). Where torch's
export, or a rule, has to know the number itself, it is a part of the program, which is then compiled for each value.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import fx

from meshwright.core.source import warn
from meshwright.errors import ImportProgramError, RecompilationWarning, RuleError
from meshwright.interop.torch.sources import described

_T = TypeVar("_T")
#: the values of a graph's floats, where these are a part of its program
Values = tuple[float, ...]


class Floats:
    """The floats of a graph: inputs of which it reads the number, and nothing else."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        places = [n for n in module.graph.nodes if n.op == "placeholder"]
        self._places = [i for i, n in enumerate(places) if n.users and all(map(_reads, n.users))]
        self._names = [places[i].name for i in self._places]
        self._fixed = False

    def called(self, call: Callable[[Values], _T], inputs: Sequence[Any]) -> _T:
        """What ``call`` gives of the values that are a part of the program: none, unless it fails without them."""
        if not self._fixed:
            try:
                return call(())
            except (ImportProgramError, RuleError):
                if not self._places:
                    raise
        result = call(tuple(float(inputs[i]) for i in self._places))
        if not self._fixed:
            self._fixed = True
            self._warn()
        return result

    def written(self, values: Values) -> fx.GraphModule:
        """The graph with these values, if any, in place of its floats."""
        if not values:
            return self._module
        graph = copy.deepcopy(self._module.graph)
        named = dict(zip(self._names, values))
        for place in [n for n in graph.nodes if n.op == "placeholder" and n.name in named]:
            for read in list(place.users):
                read.replace_all_uses_with(named[place.name])  # type: ignore[arg-type]
                graph.erase_node(read)
        module = fx.GraphModule(self._module, graph)
        module.meta = dict(self._module.meta)
        return module

    def _warn(self) -> None:
        reads = [u for n in self._module.graph.nodes if n.name in self._names for u in n.users]
        warn(
            f"torch.compile(backend='meshwright'): the float that is read at {described(reads[0])} has to be known "
            "when this is compiled: it is compiled anew for each value; pass a tensor in its place if it often changes",
            RecompilationWarning,
        )


def _reads(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    return node.op == "call_method" and node.target == "item" and isinstance(value, (torch.SymFloat, float))
