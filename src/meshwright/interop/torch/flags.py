"""Forwards that ask whether a tensor has a gradient (``x.requires_grad``, ``x.is_leaf``, ``x.grad_fn``).

What they are told is what torch says of the example arguments and of the parameters as they are. Where that is no, a
derivative by what the tensor comes from would be that of another forward than torch runs: it is refused, when it is
taken.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import fx
from torch._C import _functorch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import InputKind
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

from meshwright.errors import RuleError
from meshwright.interop.torch.overrides import note_flag, overrides, views_to, written_by
from meshwright.interop.torch.sources import is_library, is_ours
from meshwright.interop.torch.trees import parameter_names, paths
from meshwright.transforms.custom_jvp import custom_jvp


def _flag(read: Callable[[torch.Tensor], Any]) -> None:
    @overrides(read)
    def flag(self: torch.Tensor) -> Any:
        """What torch says; noted where derivatives may be taken by what it is no for."""
        with torch._C.DisableTorchFunctionSubclass():
            moves = self.is_floating_point() or self.is_complex()
            if moves and not self.requires_grad:
                _note(self)
            return read(self)


for _read in torch.Tensor.requires_grad, torch.Tensor.is_leaf, torch.Tensor.grad_fn:  # type: ignore[attr-defined]
    _flag(_read.__get__)  # type: ignore[attr-defined]


def _note(x: torch.Tensor) -> None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name == "__torch_function__":
        frame = frame.f_back
    if frame is None or is_ours(frame.f_code.co_filename) or is_library(frame.f_code.co_filename):
        return  # torch's functions compute the same either way
    while _functorch.is_functorch_wrapped_tensor(x):
        x = _functorch.get_unwrapped(x)
    slot = get_proxy_slot(x, get_proxy_mode().tracer, None)
    if slot is None and not isinstance(x, FakeTensor):
        return
    found = _ANY if slot is None else _inputs(slot.proxy.node)
    if found:
        code = frame.f_code
        note_flag(f"{os.path.basename(code.co_filename)}:{frame.f_lineno} ({code.co_name})", found)


#: where it is not known which inputs a tensor comes from
_ANY = frozenset([(-1, -1)])


def _inputs(node: fx.Node) -> frozenset[tuple[int, int]]:
    """The numbers of the graph's inputs by which a value that is being recorded would have derivatives, had they; and
    how many inputs there are."""
    found: dict[fx.Node, frozenset[int]] = {}
    enabled, number, nothing = True, 0, frozenset[int]()
    for n in node.graph.nodes:
        if n.op == "placeholder":
            found[n] = frozenset([number])
            number += 1
        elif n.target is torch._C._set_grad_enabled:
            enabled = n.args[0]
        elif n.op == "call_function":
            written = written_by(n)
            given = n.all_input_nodes if enabled and _is_connected(n) else written  # which keep what they have
            found[n] = nothing.union(*(found.get(g, nothing) for g in given))
            for view in (v for w in written for v in views_to(w)):
                found[view] = found.get(view, nothing) | found[n]
    return frozenset((n, number) for n in found.get(node, nothing))


def _is_connected(node: fx.Node) -> bool:
    """Whether results of an op have derivatives by what it is given."""
    values = node.meta.get("val")
    tensors = [v for v in torch.utils._pytree.tree_leaves(values) if isinstance(v, torch.Tensor)]
    is_number = not tensors or any(v.is_floating_point() or v.is_complex() for v in tensors)
    return is_number and getattr(node.target, "overloadpacket", None) is not torch.ops.aten.detach


# --- what is refused ----------------------------------------------------------------------------------------
#: the messages of derivatives that are refused, by the names of a program's inputs
Refusals = dict[str, str]


def refusals(
    asked: Mapping[str, frozenset[tuple[int, int]]], program: torch.export.ExportedProgram, module: torch.nn.Module
) -> Refusals:
    """What a derivative by an input of a program says that is refused; ``asked`` are the inputs by the lines that
    asked. An input of another graph than the program's, one within it, may be any of the program's."""
    args, kwargs = program.example_inputs or ((), {})
    names = paths(args, kwargs, parameter_names(module))
    specs = [s for s in program.graph_signature.input_specs if s.kind != InputKind.CONSTANT_TENSOR]
    arguments = iter(names)
    called = [next(arguments, "") if s.kind == InputKind.USER_INPUT else str(s.target) for s in specs]
    found: Refusals = {}
    for line, inputs in asked.items():
        is_known = all(total == len(specs) for _, total in inputs)
        for n in sorted(n for n, _ in inputs) if is_known else range(len(specs)):
            of_user = specs[n].kind == InputKind.USER_INPUT
            what = f"{'argument' if of_user else 'parameter'} {called[n]}"
            remedy = (
                "convert the module with such an example argument (x.requires_grad_())" if of_user
                else f"convert the module with {called[n]}.requires_grad_()"
            )  # fmt: skip
            found.setdefault(
                specs[n].arg.name,
                f"{type(module).__name__} asks, at {line}, whether a tensor that comes from {what} has a gradient, and "
                f"{what} had none when the module was converted: a derivative by it would be that of another forward "
                f"than torch runs. {remedy[0].upper()}{remedy[1:]}, or take no derivative by it "
                "(meshwright.lax.stop_gradient)",
            )
    return found


def without_derivative(x: Any, refusal: str | None) -> Any:
    """``x``; where a derivative by it is refused, one of which it is known.

    Raises:
      RuleError: with this message, when a derivative is taken.
    """
    if refusal is None:
        return x

    def refused(primals: Any, tangents: Any) -> Any:
        raise RuleError(refusal)

    same = custom_jvp(lambda x: x)
    same.defjvp(refused)
    return same(x)
