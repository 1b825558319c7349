"""State of a module that a function of parameters and buffers would lose: tensors in attributes, lists and other
objects, and values that Python reads."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind

from meshwright.core.source import warn
from meshwright.errors import ImportProgramError, MutationWarning
from meshwright.interop.torch.methods import replaced
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


@contextmanager
def buffers_as_before(module: torch.nn.Module, found: list[str]) -> Iterator[None]:
    """Within, what a forward assigns to buffers (``self.count = self.count + 1``) is written to them when it ends, and
    those that it registers are gone then; ``found`` gets their names. Torch's export does so for the outermost module
    alone, counts buffers that are None among the others, so that it writes to other inputs, and leaves tensors without
    values in the module."""
    if isinstance(module, fx.GraphModule):  # Dynamo has written them
        yield
        return
    forward = module.forward

    @wraps(forward)
    def written(*args: Any, **kwargs: Any) -> Any:
        slots: list[tuple[str, Any, Any]] = []
        before = [(path, part._buffers, dict(part._buffers)) for path, part in module.named_modules()]
        out = None
        with _without_torchs_hook():
            try:
                out = forward(*args, **kwargs)
            finally:
                for path, buffers, old in before:
                    slots += [(_path(path, n), old.get(n), b) for n, b in buffers.items()]
                    buffers.clear()
                    buffers.update(old)
        _refuse_untied(slots)
        changed = [(name, old, new) for name, old, new in slots if old is not new]
        found.extend(f"self.{name}" for name, old, new in changed if old is None or new is None)
        return _copied(out, [(n, old, new) for n, old, new in changed if old is not None and new is not None])

    with replaced({(module, "forward"): written}):
        yield


def _refuse_untied(slots: Sequence[tuple[str, Any, Any]]) -> None:
    """Refuse forwards after which buffers of one memory are no longer of one; ``slots`` are names with what buffers
    were and are.

    Raises:
      ImportProgramError: there are such buffers: what is written to one would be in the others as well.
    """
    homes: dict[int, tuple[str, Any, Any]] = {}
    for name, old, new in slots:
        if old is None or not old.numel():
            continue
        first, was, now = homes.setdefault(old.untyped_storage()._cdata, (name, old, new))
        if new is not now and not (old is new and was is now):
            raise ImportProgramError(
                f"from_torch: the buffers {first} and {name} share their memory, and one is assigned to, so that "
                "they share none after the first call: write to it in place (copy_), or make them buffers of their own "
                "(clone)"
            )


def _path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@contextmanager
def _without_torchs_hook() -> Iterator[None]:
    """Within, exports are not told of buffers that are assigned to."""
    hooks = torch.nn.modules.module._global_buffer_registration_hooks
    kept = dict(hooks)
    for number, hook in kept.items():
        if str(getattr(hook, "__module__", "")).startswith("torch._functorch"):
            del hooks[number]
    try:
        yield
    finally:
        hooks.update(kept)


def _copied(out: Any, changed: Sequence[tuple[str, torch.Tensor, torch.Tensor]]) -> Any:
    """What a forward returns, after buffers have become what was assigned to them.

    Raises:
      ImportProgramError: a buffer was assigned a tensor of another type.
    """
    homes = {old.untyped_storage()._cdata for _, old, _ in changed}
    is_theirs = lambda x: isinstance(x, torch.Tensor) and x.untyped_storage()._cdata in homes  # noqa: E731
    out = torch.utils._pytree.tree_map(lambda x: x.clone() if is_theirs(x) else x, out) if homes else out
    new = [n.clone() if is_theirs(n) else n for _, _, n in changed]  # two of them may have been exchanged
    for (name, old, _), value in zip(changed, new):
        if (old.shape, old.dtype) != (value.shape, value.dtype):
            raise ImportProgramError(
                f"from_torch: the buffer {name}, {old.dtype} of shape {tuple(old.shape)}, is assigned a tensor of "
                f"another type, {value.dtype} of shape {tuple(value.shape)}: a program has buffers of one type; pass "
                "and return what changes its type"
            )
        old.copy_(value)
    return out


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
