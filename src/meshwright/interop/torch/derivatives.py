"""``torch.autograd.grad`` within a module: one op, of which a run of the graph makes the derivative.

Autograd's own ops, which an export would record, are of tensors that autograd has saved: values of their own, without a
derivative. What torch checks, and which inputs nothing depends on, is asked of it on the tensors that are exported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from meshwright.errors import RuleError
from meshwright.interop.torch.methods import replaced
from meshwright.interop.torch.overrides import overrides

_LIBRARY = torch.library.Library("meshwright", "FRAGMENT")
_LIBRARY.define("derivative(Tensor[] outputs, Tensor[] inputs, Tensor[] cotangents) -> Tensor[]")


@torch.library.register_fake("meshwright::derivative", lib=_LIBRARY)
def _types(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], cotangents: Any) -> list[torch.Tensor]:
    return [torch.empty_like(x) for x in inputs]


def connected(op: str, lib: torch.library.Library) -> None:
    """Tell autograd that all results of an op of ours depend on all tensors it is given; what it computes by that,
    while a module is exported, is of no matter."""

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.inputs = inputs

    def backward(ctx: Any, *cotangents: Any) -> Any:
        like = lambda x: torch.zeros_like(x) if isinstance(x, torch.Tensor) and _moves(x) else None  # noqa: E731
        return tuple(list(map(like, x)) if isinstance(x, (list, tuple)) else like(x) for x in ctx.inputs)

    torch.library.register_autograd(op, backward, setup_context=setup_context, lib=lib)


connected("meshwright::derivative", _LIBRARY)


# --- telling ------------------------------------------------------------------------------------------------
class Begun(BaseException):
    """What torch's export does not follow by itself begins in a module. No handler of a user's sees it."""


def begun() -> None:
    """Called where :func:`grad` begins."""


#: what begins a derivative by autograd, as a module and a name in it
GRADIENTS = ((sys.modules[__name__], "begun"),)


@contextmanager
def begins_told(*begins: Sequence[tuple[Any, str]]) -> Iterator[None]:
    """Within, the functions of these names in these modules raise, where this thread calls them.

    Raises:
      Begun: they did, also where somebody caught it.
    """
    taken = False

    def told(*_: Any, **__: Any) -> Any:
        nonlocal taken
        taken = True
        raise Begun

    with replaced({place: told for group in begins for place in group}):
        yield
    if taken:
        raise Begun


# --- torch's functions --------------------------------------------------------------------------------------
def _moves(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


@overrides(torch.autograd.grad)
def grad(
    outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: bool | None = None, create_graph: bool = False,
    allow_unused: bool | None = None, is_grads_batched: bool = False, materialize_grads: bool = False,
    **others: Any,
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """Torch's function."""
    begun()
    if is_grads_batched:
        raise RuleError(
            "torch.autograd.grad within a module: is_grads_batched (vectorize=True of torch.autograd.functional) is "
            "not known here; use torch.func.vmap of torch.func.vjp, or jacrev"
        )
    outs, xs = _listed(outputs), _listed(inputs)
    given = [None] * len(outs) if grad_outputs is None else _listed(grad_outputs)
    with disable_proxy_modes_tracing(), torch._C.DisableTorchFunction():
        found = torch.autograd.grad(
            outs, xs, given, retain_graph=True, allow_unused=allow_unused, materialize_grads=materialize_grads
        )
    at = [i for i, g in enumerate(found) if g is not None]
    cotangents = [torch.ones_like(o) if c is None else c for o, c in zip(outs, given)]
    made = iter(torch.ops.meshwright.derivative(outs, [xs[i] for i in at], cotangents))
    grads = [None if g is None else next(made) for g in found]
    return tuple(g if g is None or create_graph else g.detach() for g in grads)


def _listed(tensors: Any) -> list[Any]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


@overrides(torch.autograd.backward, torch.Tensor.backward)
def refuse_backward(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise: gradients of leaves are written to these, and read from them."""
    raise RuleError(
        "backward() within a module, which writes gradients to its tensors, is not known here; use "
        "torch.autograd.grad(loss, tensors, create_graph=True), or convert what the gradient is of and use "
        "meshwright.grad"
    )


def is_derivative(target: Any) -> bool:
    """Whether a node's target is the op of :func:`grad`."""
    return target == torch.ops.meshwright.derivative.default  # type: ignore[no-any-return]


# --- of a graph ---------------------------------------------------------------------------------------------
def between(inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> list[fx.Node]:
    """The nodes through which outputs depend on inputs, both of these among them, in the order of the graph."""
    nodes = list(inputs[0].graph.nodes)
    after = set(inputs)
    for node in nodes:
        if not after.isdisjoint(node.all_input_nodes):
            after.add(node)
    before = after.intersection(outputs)
    for node in reversed(nodes):
        if node in before:
            before.update(after.intersection(node.all_input_nodes))
    return [n for n in nodes if n in before]
