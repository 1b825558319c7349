"""What ``torch.no_grad`` and ``torch.autocast`` do, written out: exports keep their regions apart, or forget them."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import fx
from torch._export.passes import replace_set_grad_with_hop_pass as passes
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, make_fx, set_proxy_slot

from meshwright.errors import RuleError
from meshwright.interop.torch.in_place import name_results
from meshwright.interop.torch.methods import replaced
from meshwright.interop.torch.overrides import overrides
from meshwright.interop.torch.packed import cast_layers
from meshwright.interop.torch.trees import traced_again
from meshwright.interop.torch.unseen import write_unseen
from meshwright.interop.torch.writing import without_own_writes


# --- no gradients -------------------------------------------------------------------------------------------
@overrides(torch.Tensor.data.__get__)  # type: ignore[attr-defined]
def data(self: torch.Tensor) -> torch.Tensor:
    """What ``x.data`` is: exports make a constant of it."""
    return self.detach()


@overrides(torch.Tensor.data.__set__)  # type: ignore[attr-defined]
def set_data(self: torch.Tensor, value: torch.Tensor) -> None:
    """What ``x.data = value`` does: ``x`` has other values from then on, and tensors that shared its memory do not."""
    tracer = get_proxy_mode().tracer
    if get_proxy_slot(self, tracer, None) is None or (self.shape, self.dtype) != (value.shape, value.dtype):
        raise RuleError(
            f"x.data = y, where x is {self.dtype} of shape {tuple(self.shape)}, expects a tensor y of the same dtype "
            f"and shape, and x to be a parameter, buffer, or computed; got {value.dtype} of shape "
            f"{tuple(value.shape)}. Assign to a variable instead"
        )
    new = torch.ops.meshwright.unseen(self, value.detach())
    set_proxy_slot(self, tracer, get_proxy_slot(new, tracer))
    torch.autograd.graph.increment_version(self)


@contextmanager
def gradients_stopped() -> Iterator[None]:
    """Within, exports detach what goes into regions without gradients, before they make calls of these."""
    made = passes.replace_set_grad_with_hop_pass

    def detached(module: fx.GraphModule, signature: Any) -> Any:
        _stop_gradients(module.graph)
        if signature is not None:
            name_results(module.graph, signature)
        return made(module, signature)

    passes.replace_set_grad_with_hop_pass = detached  # type: ignore[assignment]
    try:
        yield
    finally:
        passes.replace_set_grad_with_hop_pass = made


def _stop_gradients(graph: fx.Graph) -> None:
    write_unseen(graph)
    enabled, inside = True, set()
    for node in list(graph.nodes):
        if node.target is torch._C._set_grad_enabled:
            enabled = node.args[0]
        elif not enabled and node.op == "call_function":
            if node.target is not torch.ops.meshwright.unseen.default:  # which has the gradient of its first operand
                inside.add(node)
            for given in node.all_input_nodes:
                is_kept = node.target is torch.ops.meshwright.unseen.default and given is node.args[0]
                if given not in inside and not is_kept and isinstance(given.meta.get("val"), torch.Tensor):
                    node.replace_input_with(given, _detached(graph, given, node))


def _detached(graph: fx.Graph, node: fx.Node, user: fx.Node) -> fx.Node:
    with graph.inserting_before(user):
        detached = graph.call_function(torch.ops.aten.detach.default, (node,))
    detached.meta = {**user.meta, **node.meta}  # an argument is of no module, which every op is of
    return detached


# --- casts --------------------------------------------------------------------------------------------------
def cast_as_recorded(module: fx.GraphModule) -> None:
    """Have a graph of Dynamo's begin and end its casts as a module does: export would note the calls that Dynamo has
    for that, and not make them, so that values were of other types than Dynamo saw, and what casts them the same
    tensors."""
    for node in module.graph.nodes:
        if node.target is torch.amp.autocast_mode._enter_autocast:
            node.target = _begun
        elif node.target is torch.amp.autocast_mode._exit_autocast:
            node.target = _ended
    module.recompile()


def _begun(*options: Any) -> torch.autocast:
    return torch.autocast(*options).__enter__()


def _ended(mode: torch.autocast) -> None:
    mode.__exit__(None, None, None)


@contextmanager
def casts_begun(module: torch.nn.Module) -> Iterator[None]:
    """Within, a module that is exported where torch casts (``with torch.autocast(...):``) begins the casts itself, and
    nothing else casts: an export would note its ops without the casts around them."""
    if not torch.is_autocast_enabled("cpu"):
        yield
        return
    begun = _begun_in_graph if isinstance(module, fx.GraphModule) else _begun_in_forward
    with begun(module, torch.get_autocast_dtype("cpu")), torch.autocast("cpu", enabled=False):
        yield


@contextmanager
def _begun_in_graph(module: fx.GraphModule, dtype: torch.dtype) -> Iterator[None]:
    graph = module.graph
    first = next(n for n in graph.nodes if n.op != "placeholder")
    with graph.inserting_before(first):
        begun = graph.call_function(_begun, ("cpu", dtype, True))
    with graph.inserting_before(next(n for n in graph.nodes if n.op == "output")):
        ended = graph.call_function(_ended, (begun,))
    try:
        yield
    finally:
        graph.erase_node(ended)
        graph.erase_node(begun)


@contextmanager
def _begun_in_forward(module: torch.nn.Module, dtype: torch.dtype) -> Iterator[None]:
    forward = module.forward

    @wraps(forward)
    def cast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype=dtype):
            return forward(*args, **kwargs)

    with replaced({(module, "forward"): cast}):
        yield


def write_casts(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with the ops of each region, and the casts between them, in its place."""
    module = program.graph_module
    regions = [n for n in module.graph.nodes if _is_region(n)]
    if not regions:
        return program
    without_own_writes(module)
    for part in (m for m in module.modules() if isinstance(m, fx.GraphModule)):
        _drop_checks(part)
    for node in regions:
        _inline(module, node, _traced(module, node))
    module.graph.lint()
    module.recompile()
    return traced_again(program, {})  # with the types that values have after casts


def _is_region(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.name() == "wrap_with_autocast"


def _drop_checks(module: fx.GraphModule) -> None:
    """Without checks of types: an export notes those that values would have without the casts."""
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
    module.recompile()


def _traced(module: fx.GraphModule, node: fx.Node) -> fx.GraphModule:
    device, dtype, enabled, _, region, *operands = node.args
    inner = operator.attrgetter(str(region.target))(module)  # type: ignore[union-attr]

    def run(*given: Any) -> Any:
        # What a cast is kept for, the gradient of a weight used twice, our derivatives do without.
        with torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False):  # type: ignore[arg-type]
            return (_Cast(inner) if device == "cpu" and enabled else fx.Interpreter(inner)).run(*given)

    with fx.traceback.preserve_node_meta():
        return make_fx(run)(*(o.meta["val"] if isinstance(o, fx.Node) else o for o in operands))


class _Cast(fx.Interpreter):
    """A region where torch casts. It would write recurrent layers step by step."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """What torch computes."""
        layers = None if kwargs else cast_layers(target, args, torch.get_autocast_dtype("cpu"))
        return super().call_function(target, args, kwargs) if layers is None else layers


def _inline(module: fx.GraphModule, node: fx.Node, region: fx.GraphModule) -> None:
    graph, operands = module.graph, node.args[5:]
    placeholders = [n for n in region.graph.nodes if n.op == "placeholder"]
    values: dict[fx.Node, Any] = dict(zip(placeholders, operands))
    with graph.inserting_before(node):
        for constant in (n for n in region.graph.nodes if n.op == "get_attr"):
            name = f"{node.name}_{constant.target}"
            setattr(module, name, operator.attrgetter(constant.target)(region))
            values[constant] = graph.get_attr(name)
            values[constant].meta = dict(constant.meta)
        outs: Sequence[Any] = graph.graph_copy(region.graph, values)  # type: ignore[assignment]
    for user in list(node.users):  # which pick from the results
        user.replace_all_uses_with(outs[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)
