"""State of a module that a function of parameters and buffers would lose: tensors in attributes, lists and other
objects, and values that Python reads."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind

from meshwright.core.source import warn
from meshwright.errors import ImportProgramError, MutationWarning
from meshwright.interop.torch.overrides import is_written


def refuse_views(program: torch.export.ExportedProgram, module: torch.nn.Module) -> None:
    """Raise for constants that share memory with parameters or buffers: views that were made before.

    Raises:
      ImportProgramError: there are some; they would not follow what the function is given.
    """
    tensors, specs = {**program.state_dict, **program.constants}, program.graph_signature.input_specs
    state = {
        tensors[s.target].untyped_storage()._cdata: s.target
        for s in specs
        if s.kind in (InputKind.PARAMETER, InputKind.BUFFER)
    }
    for spec in (s for s in specs if s.kind == InputKind.CONSTANT_TENSOR):
        x = tensors[spec.target]
        home = state.get(x.untyped_storage()._cdata) if isinstance(x, torch.Tensor) and x.numel() else None
        if home is not None:
            raise ImportProgramError(
                f"from_torch: {type(module).__name__} reads a view of {home} (a tensor of shape {tuple(x.shape)}) that "
                "was made before the forward, which would not follow what the function is given for it: make the view "
                "in the forward"
            )


def merge_buffers(program: torch.export.ExportedProgram, module: torch.nn.Module) -> None:
    """Have a buffer of several names, as those of a module that is registered twice, be one input under its first.

    Raises:
      ImportProgramError: buffers that share a part of their memory, and a forward that writes to it: as values of their
        own, the others would not follow.
    """
    graph, signature = program.graph_module.graph, program.graph_signature
    tensors = {**program.state_dict, **program.constants}
    homes: dict[int, dict[str, fx.Node]] = {}
    dropped: set[str] = set()
    places = [n for n in graph.nodes if n.op == "placeholder"]
    for spec, node in zip(signature.input_specs, places):
        if spec.kind != InputKind.BUFFER or spec.target is None:
            continue
        buffer = tensors[spec.target]
        seen = homes.setdefault(buffer.untyped_storage()._cdata, {})
        for name, first in seen.items():
            if _part(tensors[name]) == _part(buffer):
                node.replace_all_uses_with(first)
                graph.erase_node(node)
                dropped.add(node.name)
                break
        else:
            seen[spec.target] = node
    for shared in homes.values():
        if len(shared) > 1 and any(is_written(node) for node in shared.values()):
            raise ImportProgramError(
                f"from_torch: {type(module).__name__} writes to memory that its buffers {', '.join(shared)} share, "
                "which arrays do not: make the others in the forward, as views of one"
            )
    if dropped:
        signature.input_specs[:] = [s for s in signature.input_specs if s.arg.name not in dropped]
        program.graph_module.recompile()


def _part(x: torch.Tensor) -> tuple[object, ...]:
    """Which part of its memory a tensor is, and how it sees it."""
    return x.storage_offset(), x.shape, x.stride(), x.dtype


@contextmanager
def assignments(found: list[str]) -> Iterator[None]:
    """Within, ``found`` gets the attributes that a forward assigns tensors to; torch tells them in a warning."""
    found.clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield
    for message in told:
        listed = re.match(r"The tensor attributes? (.*) (was|were) assigned during export", str(message.message))
        # Recurrent layers list their parameters once more, and exchange these with them.
        found += [name for name in listed[1].split(", ") if "._flat_weights[" not in name] if listed else []


_REMEDY = "make what is to stay from call to call a buffer (register_buffer), and assign to that"


def refuse_state(program: torch.export.ExportedProgram, assigned: Sequence[str], module: torch.nn.Module) -> None:
    """Raise for attributes that a forward assigns to, and reads what they were before.

    Raises:
      ImportProgramError: there are some: the next call would read what this one assigned.
    """
    used = {n.name for n in program.graph.nodes if n.op == "placeholder" and n.users}
    specs = program.graph_signature.input_specs
    read = {f"self.{s.target}" for s in specs if s.kind == InputKind.CONSTANT_TENSOR and s.arg.name in used}
    if state := [a for a in assigned if a in read]:
        raise ImportProgramError(
            f"from_torch: {type(module).__name__} reads and assigns {', '.join(state)} in each call; {_REMEDY}"
        )


def warn_of_assignments(assigned: Sequence[str], module: torch.nn.Module) -> None:
    """Warn of attributes that a forward assigns tensors to, if there are some."""
    if assigned:
        warn(
            f"from_torch: {type(module).__name__} assigns tensors to {', '.join(assigned)}; the function made of it "
            f"does not: {_REMEDY}",
            MutationWarning,
        )


def refuse_written(program: torch.export.ExportedProgram, fixed: Iterable[str], module: torch.nn.Module) -> None:
    """Raise for buffers whose values Python reads, and that the forward writes to.

    Raises:
      ImportProgramError: there are some. The next call would need another program.
    """
    specs = program.graph_signature.output_specs
    written = {s.target for s in specs if s.kind == OutputKind.BUFFER_MUTATION}
    if both := sorted(written.intersection(fixed)):
        raise ImportProgramError(
            f"from_torch: {type(module).__name__} reads the values of {', '.join(both)} in Python (if, int, item) and "
            "writes to them, so that its control flow depends on values: compute with the tensors (torch.where)"
        )
