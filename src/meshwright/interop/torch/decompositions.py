"""Ops without a rule, written in terms of others by torch's own decompositions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table

from meshwright.interop.torch import registry
from meshwright.interop.torch.graph import calls, is_size

#: how often ops without a rule are decomposed into smaller ones
ROUNDS = 6


def without_rule(module: fx.GraphModule) -> list[fx.Node]:
    """The nodes whose ops are not in the table."""
    return [
        n
        for n in calls(module)
        if not is_size(n.target)
        and not isinstance(n.target, torch._ops.HigherOrderOperator)
        and registry.find(n.target) is None
    ]


def decompositions(module: fx.GraphModule) -> dict[Any, Callable[..., Any]]:
    """How torch writes those ops of a graph that have no rule: by its default, or another one that it has."""
    return _known({n.target for n in without_rule(module)})


def _known(targets: Iterable[Any]) -> dict[Any, Callable[..., Any]]:
    default = torch.export.default_decompositions()
    table = {t: default[t] for t in targets if t in default}
    return table | {t: decomposition_table[t] for t in targets if t not in table and t in decomposition_table}


def writes(target: Any) -> bool:
    """Whether an op may write to what it is given. Norms write to their statistics, which their schemas do not say."""
    schema = getattr(target, "_schema", None)
    return schema is not None and (schema.is_mutable or any(a.name == "running_mean" for a in schema.arguments))


def _maps(target: Any) -> bool:
    """Whether a node begins, ends or is given to a transformation of torch's (``torch.vmap``)."""
    return str(getattr(target, "__module__", "")).startswith("torch._functorch")


def decomposed(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program without mutation and ``torch.vmap``; ops that have no rule are written in terms of others, as torch
    does.

    Where that changes nothing, it is not asked for: torch traces the whole program again for it.
    """
    module = program.graph_module
    if not without_rule(module) and not any(writes(n.target) or _maps(n.target) for n in calls(module)):
        return program
    program = program.run_decompositions({})
    for _ in range(ROUNDS):
        table = decompositions(program.graph_module)
        if not table:
            break
        program = program.run_decompositions(table)
    return program
