"""Ops without a rule, written in terms of others by torch's own decompositions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table

from meshwright.interop.torch import fused, registry
from meshwright.interop.torch.graph import calls, is_known
from meshwright.interop.torch.in_place import without_unseen_writes, writes
from meshwright.interop.torch.trees import traced_again
from meshwright.interop.torch.writing import without_own_writes

#: how often ops without a rule are decomposed into smaller ones
ROUNDS = 6


def without_rule(module: fx.GraphModule) -> list[fx.Node]:
    """The nodes whose ops are not in the table."""
    return [n for n in calls(module) if not is_known(n.target)]


def decompositions(module: fx.GraphModule) -> dict[Any, Callable[..., Any]]:
    """How torch writes those ops of a graph that have no rule: by its default, or another one that it has."""
    return _known({n.target for n in without_rule(module)})


def _known(targets: Iterable[Any]) -> dict[Any, Callable[..., Any]]:
    default = torch.export.default_decompositions()
    table = {t: default[t] for t in targets if t in default}
    table |= {t: decomposition_table[t] for t in targets if t not in table and t in decomposition_table}
    ours = {t: _of_integers(t) or fused.written(registry.name_of(t)) for t in targets}
    return table | {t: function for t, function in ours.items() if function is not None}


#: of ``quantized_decomposed``, those that torch writes in ops of fixed shapes; the others look at values
_INTEGERS = {
    "quantize_per_tensor", "dequantize_per_tensor", "quantize_per_channel", "dequantize_per_channel",
    "choose_qparams_per_token", "choose_qparams_per_token_asymmetric", "quantize_per_token", "dequantize_per_token",
    "dequantize_per_channel_group", "convert_element_type",
}  # fmt: skip


def _of_integers(target: Any) -> Callable[..., Any] | None:
    """How torch itself computes with weights and activations that are integers with a scale (``torch.ao``)."""
    namespace, name, overload = [*registry.name_of(target).split("."), ""][:3]
    if namespace != "quantized_decomposed" or name not in _INTEGERS or overload == "tensor2":
        return None
    function = getattr(import_module("torch.ao.quantization.fx._decomposed"), name)
    if overload != "tensor":
        return function  # type: ignore[no-any-return]
    return lambda x, scale, zero, *more, **options: function(x, scale.reshape(()), zero.reshape(()), *more, **options)


def _maps(target: Any) -> bool:
    """Whether a node begins, ends or is given to a transformation of torch's (``torch.vmap``)."""
    return str(getattr(target, "__module__", "")).startswith("torch._functorch")


def decomposed(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program without mutation and ``torch.vmap``; ops that have no rule are written in terms of others, as torch
    does.

    Where that changes nothing, it is not asked for: torch traces the whole program again for it.
    """
    module = program.graph_module
    without_own_writes(module)
    without_unseen_writes(program)
    if not without_rule(module) and not any(writes(n) or _maps(n.target) for n in calls(module)):
        return program
    program = traced_again(program, {})
    for _ in range(ROUNDS):
        table = decompositions(program.graph_module)
        if not table:
            break
        program = traced_again(program, table)
    return program
