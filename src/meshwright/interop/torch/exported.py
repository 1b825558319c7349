"""A module as a graph of ops that have rules: exported, its no-grad regions marked, the rest decomposed by torch."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch.autograd import function as autograd_function
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from meshwright.errors import ImportProgramError, RuleError
from meshwright.interop.torch import registry
from meshwright.interop.torch.graph import calls, is_size
from meshwright.interop.torch.passes import sink_views
from meshwright.interop.torch.sources import described, user_line

#: how often ops without a rule are decomposed into smaller ones
_ROUNDS = 6


def export(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Any
) -> torch.export.ExportedProgram:
    """The module's program at the types of the arguments, in ops of the table.

    Raises:
      ImportProgramError: what cannot be exported: shapes that depend on values, Python that depends on them.
      RuleError: ops that have no rule; says where, and how to register one.
    """
    with warnings.catch_warnings(), derivatives_of_functions() as functions:
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic, strict=False)
        except Exception as error:
            raise _explained(error, module) from error
        _refuse_functions(functions, module)
        for part in program.graph_module.modules():
            if isinstance(part, fx.GraphModule):
                detach_no_grad(part)
        program = decomposed(program)
    sink_views(program.graph_module)
    refuse_unknown(program.graph_module, module)
    return program


def _explained(error: Exception, module: torch.nn.Module) -> ImportProgramError:
    name, text = type(module).__name__, str(error).strip().split("\n\n")[0][:600]
    what = "cannot be exported"
    if any(word in type(error).__name__ + text for word in ("DataDependent", "data-dependent", "unbacked")):
        what = "has shapes or control flow that depend on values"
    return ImportProgramError(f"from_torch: {name} {what}, at {user_line(error)}: {type(error).__name__}: {text}")


# --- functions with a backward of their own -----------------------------------------------------------------
@contextmanager
def derivatives_of_functions() -> Iterator[list[Any]]:
    """The classes of ``autograd.Function`` that run in the ``with`` block: an export drops what their backward says."""
    found: list[Any] = []
    original = autograd_function._is_setup_context_defined

    def noting(setup: Callable[..., Any]) -> Any:
        # The caller is Function.apply, however it was reached: its class is the function's.
        cls = sys._getframe(1).f_locals.get("cls")
        if cls is not None and cls not in found:
            found.append(cls)
        return original(setup)

    autograd_function._is_setup_context_defined = noting
    try:
        yield found
    finally:
        autograd_function._is_setup_context_defined = original


def _refuse_functions(functions: Sequence[Any], module: torch.nn.Module) -> None:
    # Checkpointing is a Function whose backward is the derivative; those of custom ops stay ops, with rules.
    known = ("torch.utils.checkpoint", "torch._library.autograd")
    own = [f for f in functions if not f.__module__.startswith(known)]
    if own:
        names = ", ".join(f"{f.__module__}.{f.__qualname__}" for f in own)
        raise RuleError(
            f"from_torch: {type(module).__name__} uses autograd.Function ({names}), whose backward torch's export "
            "drops: the gradient would be wrong. Write its forward as an op (torch.library.custom_op) and register a "
            "rule with a custom_vjp for it (meshwright.interop.torch.register), or use plain operations"
        )


# --- regions without a gradient -----------------------------------------------------------------------------
def detach_no_grad(module: fx.GraphModule) -> None:
    """Detach what comes out of ``torch.no_grad()`` regions, which a decomposition forgets."""
    graph = module.graph
    for node in list(graph.nodes):
        target = node.target
        if isinstance(target, torch._ops.HigherOrderOperator) and target.name() == "wrap_with_set_grad_enabled":
            if node.args[0] is False:
                for user in list(node.users):
                    _detach(graph, user)
    graph.lint()
    module.recompile()


def _detach(graph: fx.Graph, node: fx.Node) -> None:
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return
    with graph.inserting_after(node):
        detached = graph.call_function(torch.ops.aten.detach.default, (node,))
    detached.meta = dict(node.meta)
    node.replace_all_uses_with(detached, delete_user_cb=lambda user: user is not detached)


# --- ops without a rule -------------------------------------------------------------------------------------
def _without_rule(module: fx.GraphModule) -> list[fx.Node]:
    return [
        n
        for n in calls(module)
        if not is_size(n.target)
        and not isinstance(n.target, torch._ops.HigherOrderOperator)
        and registry.find(n.target) is None
    ]


def decomposed(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program without mutation; ops that have no rule are written in terms of others, as torch does."""
    program = program.run_decompositions({})
    for _ in range(_ROUNDS):
        targets = {n.target for n in _without_rule(program.graph_module)}
        if not targets:
            break
        known = torch.export.default_decompositions()
        table = {t: known[t] for t in targets if t in known}
        table |= {t: how for t in targets - table.keys() if (how := _further(t)) is not None}
        if not table:
            break
        program = program.run_decompositions(table)
    return program


def _further(target: Any) -> Callable[..., Any] | None:
    """A decomposition that torch has, but not among the default ones."""
    return decomposition_table.get(target)


def _is_unbacked(value: Any) -> bool:
    """Whether a result's shape depends on values."""
    return isinstance(value, torch.Tensor) and bool(free_unbacked_symbols(value))


def refuse_unknown(graph: fx.GraphModule, module: torch.nn.Module) -> None:
    """Raise for ops that have no rule, with their lines."""
    unknown = _without_rule(graph)
    shapes = [n for n in calls(graph) if registry.is_data_dependent(n.target) or _is_unbacked(n.meta.get("val"))]
    if not unknown and not shapes:
        return
    lines = [f"  {registry.name_of(n.target)}, at {described(n)}" for n in dict.fromkeys(shapes or unknown)]
    listed = "\n".join(list(dict.fromkeys(lines))[:12])
    if shapes:
        raise ImportProgramError(
            f"from_torch: {type(module).__name__} has results whose shapes, or Python values, depend on values:\n"
            f"{listed}\nPrograms have fixed shapes: use torch.where or a mask instead"
        )
    raise RuleError(
        f"from_torch: {type(module).__name__} uses ops that are not known here:\n{listed}\n"
        "Say what they compute with @meshwright.interop.torch.register"
        f"({registry.name_of(unknown[0].target)!r})"
    )
