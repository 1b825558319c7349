"""A module as a graph of ops that have rules: exported, its modes written out, the rest decomposed by torch."""

from __future__ import annotations

import os
import re
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._C import _autograd, _functorch
from torch._dynamo.exc import Unsupported
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from meshwright.errors import ImportProgramError, MeshwrightError, RuleError
from meshwright.interop.torch import registry
from meshwright.interop.torch.decompositions import decomposed, without_rule
from meshwright.interop.torch.derivatives import GRADIENTS, Begun, begins_told
from meshwright.interop.torch.flags import Refusals, refusals
from meshwright.interop.torch.flexible import ATTENTION, derivatives_of_attention
from meshwright.interop.torch.functions import Call, functions_traced
from meshwright.interop.torch.graph import calls
from meshwright.interop.torch.guarded import caught_errors_refused, checks_told
from meshwright.interop.torch.held import (
    assignments,
    buffers_as_before,
    merge_buffers,
    refuse_state,
    refuse_views,
    refuse_written,
    warn_of_assignments,
)
from meshwright.interop.torch.methods import replaced_methods
from meshwright.interop.torch.mixing import refuse_mixed
from meshwright.interop.torch.modes import casts_begun, gradients_stopped, write_casts
from meshwright.interop.torch.norms import cumulative_averages
from meshwright.interop.torch.ops.numbers import is_number
from meshwright.interop.torch.ops.strided import in_memory_order
from meshwright.interop.torch.overrides import Overridden
from meshwright.interop.torch.passes import drop_packed, find_users, sink_views, starts_at_positions
from meshwright.interop.torch.quiet import quiet
from meshwright.interop.torch.selections import keep_all_rows
from meshwright.interop.torch.sources import described, is_library, user_line
from meshwright.interop.torch.transformations import LEVELS, captured, make_ready
from meshwright.interop.torch.trees import look_into_caches
from meshwright.interop.torch.unchecked import matrices_not_looked_at, values_not_asked_for
from meshwright.interop.torch.writing import NAMESPACE

#: held while a module is exported: torch's functions are others then, those of all threads
EXPORTING = threading.RLock()


class Exported(NamedTuple):
    """A module's program in ops of the table, and what belongs to it.

    Attributes:
      functions: its calls of functions with a backward of their own, of which the program has only the numbers.
      fixed: the names of the buffers whose values Python has read. The program is the one for these values.
      refused: what a derivative by an input says that is refused, by the inputs' names.
    """

    program: torch.export.ExportedProgram
    functions: list[Call]
    fixed: set[str]
    refused: Refusals


def export(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Any) -> Exported:
    """The module's program at the types of the arguments.

    Raises:
      ImportProgramError: what cannot be exported: shapes that depend on values, Python that depends on them.
      RuleError: ops that have no rule; says where, and how to register one. An ``autograd.Function`` whose backward
        cannot be traced.
    """
    make_ready(module)
    look_into_caches(module)
    assigned: list[str] = []
    told, looked_at = checks_told(type(module).__name__), matrices_not_looked_at()
    with EXPORTING, told, looked_at, warnings.catch_warnings(), quiet(), _as_before(), casts_begun(module):
        warnings.simplefilter("ignore")
        try:
            exported = _exported(module, args, kwargs, dynamic, assigned)
        except (ImportProgramError, RuleError) as error:
            raise _placed(error, module) from error.__cause__
        except Exception as error:
            raise _explained(error, module) from error
    warn_of_assignments(assigned, module)
    graph = exported.program.graph_module
    starts_at_positions(graph)
    keep_all_rows(graph)
    in_memory_order(graph)
    drop_packed(graph)
    sink_views(graph)
    refuse_unknown(graph, module)
    return exported


def _exported(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Any, assigned: list[str]
) -> Exported:
    """Torch's program of a module; where it takes derivatives, one of arguments that have gradients, as any of ours may
    have, and where it does so by torch.func, or scores attention by functions, of what Dynamo captures of it."""
    with cumulative_averages(module), derivatives_of_attention():
        try:
            return _followed(module, args, kwargs, dynamic, assigned, GRADIENTS, LEVELS, ATTENTION)
        except Begun:
            args, kwargs = torch.utils._pytree.tree_map(_with_gradient, (args, kwargs))
        try:
            return _followed(module, args, kwargs, dynamic, assigned, LEVELS, ATTENTION)
        except Begun:
            return _followed(captured(module, args, kwargs, dynamic), args, kwargs, dynamic, assigned)


def _followed(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Any, assigned: list[str],
    *begins: Any,
) -> Exported:  # fmt: skip
    """Torch's program of a module; ``assigned`` gets the attributes that its forward assigns tensors to.

    Raises:
      Begun: one of ``begins`` was called, which an export does not follow by itself.
    """
    with Overridden(module) as overridden, values_not_asked_for(), gradients_stopped(), functions_traced() as functions:
        caught = caught_errors_refused(type(module).__name__)
        told = begins_told(*begins), assignments(assigned)
        with caught, told[0], told[1], replaced_methods(), buffers_as_before(module, assigned):
            program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic, strict=False)
        refused = refusals(overridden.asked, program, module)
        find_users(program.graph_module)
        merge_buffers(program, module)
        refuse_views(program, module)
        refuse_state(program, assigned, module)
        program = write_casts(program)
        refuse_mixed(program.graph_module, module)
    program = decomposed(program)
    refuse_written(program, overridden.fixed, module)
    return Exported(program, functions, overridden.fixed, refused)


def _with_gradient(x: Any) -> Any:
    """A tensor that autograd follows, and that a module may write to."""
    is_moving = isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex()) and not x.requires_grad
    return x.detach().requires_grad_().clone() if is_moving else x


@contextmanager
def _as_before() -> Iterator[None]:
    """What stops in one of torch's transformations leaves it on their stack, and hooks of saved tensors forbidden."""
    depth, hooks = _functorch.get_dynamic_layer_stack_depth(), _autograd._saved_tensors_hooks_is_enabled()
    level = forward_ad._current_level
    try:
        yield
    finally:
        _functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        if forward_ad._current_level != level:
            forward_ad.exit_dual_level()
        if hooks:
            _autograd._saved_tensors_hooks_enable()


def _placed(error: MeshwrightError, module: torch.nn.Module) -> MeshwrightError:
    """An error of ours with the line of the user's that it comes from, if it has none."""
    line = user_line(error, module)
    is_known = line in str(error) or re.search(r"\.py:\d", str(error)) is not None or line.startswith("an unknown")
    return error if is_known else type(error)(f"{error} (at {line})").with_traceback(error.__traceback__)


def _explained(error: Exception, module: torch.nn.Module) -> ImportProgramError:
    name, text = type(module).__name__, str(error).strip().split("\n\n")[0][:600]
    what = "cannot be exported"
    if any(word in type(error).__name__ + text for word in ("DataDependent", "data-dependent", "unbacked")):
        what = "has shapes or control flow that depend on values"
        text += _remedy_of_values(module) + _remedy_of_test(error)
    return ImportProgramError(
        f"from_torch: {name} {what}, at {user_line(error, module)}: {type(error).__name__}: {text}{_remedy(error)}"
    )


def _remedy_of_values(module: torch.nn.Module) -> str:
    """What to do where the control flow of a module, or the shape of a result, depends on values."""
    text = (
        "\nA program is the same for all values: compute both branches and choose (torch.where), or use a mask. "
        "Numbers that are the same in every call can be a buffer (register_buffer) of this module or one around it"
    )
    if not any(map(_has_experts_one_by_one, module.modules())):
        return text
    return (
        f"{text}. These experts run one by one, each on the tokens that chose it; all of them run at once after "
        'model.set_experts_implementation("batched_mm")'
    )


def _has_experts_one_by_one(part: torch.nn.Module) -> bool:
    """Whether this is a model of transformers whose experts can be told to run at once. Its configuration alone does
    not say so: those of other models have the same entry."""
    can_be_told = getattr(part, "_can_set_experts_implementation", None)
    is_eager = getattr(getattr(part, "config", None), "_experts_implementation", None) == "eager"
    return is_eager and can_be_told is not None and can_be_told()


def _remedy_of_test(error: Exception) -> str:
    """What to do where the control flow depends on whether a mask picks any."""
    lines = [frame.line or "" for frame in traceback.extract_tb(error.__traceback__) if not is_library(frame.filename)]
    if any(re.match(r"\s*if .*\bany\(", line) for line in lines):
        return (
            "\nLeave out the test (if mask.any(): x[mask] = f(x[mask])) where what is under it only writes to what the "
            "mask picks: of none, nothing is written"
        )
    if lines and re.search(r"Eq\(u\d+, 0\)", str(error)):
        return (
            "\nHow many rows or indices a mask picks is another number in each call (for i in mask.nonzero(): "
            "out.index_add_(0, rows, f_i(x[rows]))): go over all, range(n), and add weight * f_i(x), with a weight of "
            "0 where the mask does not pick"
        )
    return ""


#: files of torch's in which its transformations of functions are
_TRANSFORMATIONS = tuple(f"/torch/_functorch/{name}.py" for name in ("vmap", "eager_transforms", "autograd_function"))


def _remedy(error: Exception) -> str:
    """What to do where torch's export stops at a class that it does not know, or in a transformation of torch's."""
    if "BlockMask" in str(error):
        return (
            "\nA BlockMask has a function, which no argument can be: make it in the forward, or have the module keep it"
        )
    if any(words in str(error) for words in ("not a known type", "Unsupported input type")):
        return (
            "\nRegister the class (torch.utils._pytree.register_pytree_node), or let the module take and return "
            "tensors. For caches of transformers: call the model with use_cache=False, or convert "
            "TorchExportableModuleWithStaticCache, whose caches are buffers (transformers.integrations.executorch, "
            "where also register_dynamic_cache_export_support is)"
        )
    trace, files = error.__traceback__, set()
    while trace is not None:
        files.add(trace.tb_frame.f_code.co_filename.replace(os.sep, "/"))
        trace = trace.tb_next
    if "fake tensor in the exported program constant" in str(error):
        return (
            "\nA function that keeps tensors from call to call (functools.lru_cache) was called while a module was "
            "exported, and has kept one without values: forget it (cache_clear()), and call the function once before"
        )
    if isinstance(error, Unsupported):
        return (
            "\nDynamo captures modules whose forward calls flex_attention or a transformation of torch.func, so that "
            "torch.compile(module, fullgraph=True) has to work: keep what it does not follow out of the forward, or "
            "convert what the transformation is of, and use meshwright.vmap, grad and linearize"
        )
    if not any(f.endswith(_TRANSFORMATIONS) for f in files) and "TensorWrapper" not in str(error):
        return ""
    return (
        "\nTorch does not export this transformation (torch.vmap, torch.func.grad, linearize) of this function: "
        "convert what it is of, and use meshwright.vmap, grad and linearize"
    )


# --- what is refused ---------------------------------------------------------------------------------------
def _depends_on_values(node: fx.Node) -> bool:
    """Whether a result's shape, or an integer of Python's, depends on values."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and free_unbacked_symbols(value.shape):
        return True
    return registry.is_data_dependent(node.target) and not is_number(value)


def refuse_unknown(graph: fx.GraphModule, module: torch.nn.Module) -> None:
    """Raise for ops that have no rule, or effects, with their lines."""
    effects = [n for n in calls(graph) if getattr(n.target, "_name", "") == "with_effects"]
    if effects:
        listed = "\n".join(dict.fromkeys(f"  {registry.name_of(n.args[1])}, at {described(n)}" for n in effects))
        raise RuleError(
            f"from_torch: {type(module).__name__} uses ops that do something beside their results:\n{listed}\n"
            "A program only computes: leave them out of the forward"
        )
    unknown = without_rule(graph)
    shapes = [n for n in calls(graph) if _depends_on_values(n)]
    if not unknown and not shapes:
        return
    lines = [f"  {registry.name_of(n.target)}, at {described(n)}" for n in dict.fromkeys(shapes or unknown)]
    listed = "\n".join(list(dict.fromkeys(lines))[:12])
    if shapes:
        raise ImportProgramError(
            f"from_torch: {type(module).__name__} has results whose shapes, or Python values, depend on values:\n"
            f"{listed}\nPrograms have fixed shapes: use torch.where or a mask instead"
            + " (bincount has more bins than minlength where values are larger: count n of them by "
            "torch.zeros(n).index_add(0, x, weights))" * any("bincount" in line for line in lines)
        )
    collective = any("c10d" in registry.name_of(n.target) for n in unknown)
    packed = any(word in registry.name_of(n.target) for n in unknown for word in ("int4pack", "4bit"))
    raise RuleError(
        f"from_torch: {type(module).__name__} uses ops that are not known here:\n{listed}\n"
        + "Weights packed by torch lie in an order that depends on the processor: keep nibbles, two in a byte of "
        "uint8, and take them apart in the module (w & 15, w >> 4).\n"
        * packed
        + "Collectives between torch's processes are no part of a program here: leave them out, and say by shardings "
        "(tp_shardings, fully_sharded) what devices share.\n"
        * collective
        + "What they write to is returned by their rules, after the results.\n"
        * any(getattr(n.target, "namespace", "") == NAMESPACE for n in unknown)
        + "Say what they compute with @meshwright.interop.torch.register"
        f"({registry.name_of(unknown[0].target)!r})"
    )
