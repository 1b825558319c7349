"""``torch.func`` within compiled functions: ``grad``, ``vjp``, ``jvp``, ``jacrev``, ``hessian`` and ``vmap`` of them.

Dynamo leaves a transformation as the calls that begin and end a level of torch's interpreters, and what runs between
them. Such a region is a module of its own here, which traces itself through the interpreters when it is exported: what
remains are the ops that they run, derivatives among them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch._C import _functorch
from torch._dynamo.functional_export import dynamo_graph_capture_for_export
from torch._functorch import eager_transforms, predispatch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from meshwright.errors import RuleError
from meshwright.interop.torch.modes import cast_as_recorded
from meshwright.interop.torch.positions import by_index, put_by_index
from meshwright.interop.torch.sources import location

_BEGIN, _END = ("_increment_nesting", "enter_dual_level"), ("_decrement_nesting", "exit_dual_level")
#: what torch checks around a region
_CHECKS = (torch._C._autograd._saved_tensors_hooks_disable, torch._C._autograd._saved_tensors_hooks_enable)
#: levels that export does not follow by itself
_DERIVATIVES = ("_grad_increment_nesting", "_jvp_increment_nesting", "_enter_dual_level")
#: what begins these
LEVELS = (
    (eager_transforms, "grad_increment_nesting"), (eager_transforms, "jvp_increment_nesting"),
    (forward_ad, "enter_dual_level"),
)  # fmt: skip


def written_out(module: fx.GraphModule) -> fx.GraphModule:
    """A graph with its regions of derivatives as modules that write themselves out when they are run.

    Raises:
      RuleError: a region of these has one without gradients, and something outside has gradients.
    """
    regions = {region[0]: region for region in _regions(module.graph) if any(_name(n) in _DERIVATIVES for n in region)}
    if not regions:
        return module
    graph, names = fx.Graph(), dict[fx.Node, fx.Node]()
    held: dict[str, Any] = {}
    inside: set[fx.Node] = set()
    for node in module.graph.nodes:
        if node in regions:
            _refuse(regions[node])
            name = f"region_{node.name}"
            region, given, outs = _taken_out(module, regions[node])
            held[name] = region
            inside |= set(regions[node])
            _call(graph, name, given, outs, names)
        elif node not in inside and node.target not in _CHECKS:
            names[node] = graph.node_copy(node, names.__getitem__)
            if node.op in ("get_attr", "call_module"):
                held[str(node.target)] = attrgetter(str(node.target))(module)
    changed = fx.GraphModule(held, graph)
    changed.meta = dict(module.meta)
    return changed


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", ""))


def _regions(graph: fx.Graph) -> Iterator[list[fx.Node]]:
    """What runs at some level, from the call that begins the first to the last use of what belongs to it: the function
    that ``vjp`` returns is called when its level has ended."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    region: list[fx.Node] = []
    depth, last = 0, -1
    for node, i in order.items():
        depth += _name(node).endswith(_BEGIN)
        if depth or region:
            region.append(node)
            if _is_wrapped(node.meta.get("example_value")):
                last = max([last, *(order[user] for user in node.users)])
        depth -= _name(node).endswith(_END)
        if region and not depth and i >= last:
            yield region
            region = []


def _is_wrapped(value: Any) -> bool:
    """Whether a value is a tensor, or has one, that belongs to a level."""
    if isinstance(value, (tuple, list)):
        return any(map(_is_wrapped, value))
    return isinstance(value, torch.Tensor) and _functorch.is_functorch_wrapped_tensor(value)


def _is_module(module: fx.GraphModule, node: fx.Node) -> bool:
    return node.op == "get_attr" and isinstance(attrgetter(str(node.target))(module), torch.nn.Module)


def _taken_out(module: fx.GraphModule, nodes: Sequence[fx.Node]) -> tuple[Region, list[fx.Node], list[fx.Node]]:
    """A region as a module, what it is given, and those of its nodes that are used behind it."""
    inside = set(nodes)
    before = [g for g in dict.fromkeys(i for n in nodes for i in n.all_input_nodes) if g not in inside]
    bodies = [g for g in before if _is_module(module, g)]
    given = [g for g in before if g not in bodies]
    outs = [n for n in nodes if not inside.issuperset(n.users)]
    graph, names = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in given:
        names[node] = graph.placeholder(node.name)
        names[node].meta = dict(node.meta)
    for node in (*bodies, *nodes):
        names[node] = graph.node_copy(node, names.__getitem__)
    graph.output(tuple(names[n] for n in outs))
    _read_by_index(graph)
    return Region(fx.GraphModule(module, graph)), given, outs


def _writes(node: fx.Node) -> bool:
    """Whether what Dynamo captured as a call may write to a tensor: a method in place, or an operator."""
    if node.op not in ("call_method", "call_function"):
        return False
    name = str(node.target) if node.op == "call_method" else _name(node)
    is_operator = getattr(node.target, "__module__", "") == "_operator"
    return name == "setitem" or (name.endswith("_") and not name.startswith("_")) or (is_operator and name[0] == "i")


def _read_by_index(graph: fx.Graph) -> None:
    """Read and write at tensors of one integer as at any other index: at the levels of torch's interpreters, these are
    no numbers of a run. No view comes of it, so only tensors to which nothing is written are read so."""
    for node in graph.nodes:
        if node.target is operator.setitem:
            node.target = put_by_index
    written = {_memory(node.args[0]) for node in graph.nodes if _writes(node) or node.target is put_by_index}
    for node in graph.nodes if None not in written else ():
        if node.target is operator.getitem and _memory(node.args[0]) not in (None, *written):
            node.target = by_index


def _memory(node: Any) -> int | None:
    """What tells the memory of a tensor that Dynamo captured from that of others; None if it is no tensor."""
    x = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    while isinstance(x, torch.Tensor) and _is_wrapped(x):
        x = _functorch.get_unwrapped(x)
    return x.untyped_storage()._cdata if isinstance(x, torch.Tensor) else None


def _call(
    graph: fx.Graph, name: str, given: Sequence[fx.Node], outs: Sequence[fx.Node], names: dict[fx.Node, fx.Node]
) -> None:
    call = graph.call_module(name, tuple(names[g] for g in given))
    call.meta = {"example_value": tuple(o.meta.get("example_value") for o in outs)}
    for i, out in enumerate(outs):
        names[out] = graph.call_function(_item, (call, i))
        names[out].meta = dict(out.meta)


def _item(values: Sequence[Any], i: int) -> Any:
    return values[i]


class Region(torch.nn.Module):
    """What runs at levels of torch's interpreters; itself it runs the ops that these run."""

    def __init__(self, body: fx.GraphModule) -> None:
        super().__init__()
        self._body = (body,)  # of which nothing is exported as it is

    def forward(self, *given: Any) -> Any:
        """The results, of tensors that torch is exporting."""
        with sdpa_kernel(SDPBackend.MATH):  # whose derivative is of ops that have rules
            return in_ops(fx.Interpreter(self._body[0]).run, *given)


def in_ops(function: Any, *given: Any) -> Any:
    """What a function of tensors that torch is exporting returns, by the ops that torch's interpreters run for it."""
    with disable_proxy_modes_tracing(), torch._C.DisableTorchFunction(), fx.traceback.preserve_node_meta():
        fresh = [torch.empty_like(x).detach() if isinstance(x, torch.Tensor) else x for x in given]
        ops = make_fx(function)(*fresh)
    ops.graph.eliminate_dead_code()
    if not torch.is_autocast_enabled("cpu"):
        return fx.Interpreter(ops).run(*given)
    with torch.autocast("cpu", enabled=False):  # what it casts is cast by now: what it does not, it would cast again
        return fx.Interpreter(ops).run(*given)


class _Unchanged(TorchDispatchMode):
    """Ops as they are: export asks for two modes of each region that is checkpointed."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def make_ready(module: torch.nn.Module) -> None:
    """Have the graphs of Dynamo's in a module be such that an export follows them."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            part.meta.setdefault("_checkpoint_context_fn", lambda: (_Unchanged(), _Unchanged()))
            cast_as_recorded(part)
            _put_batches_in_front(part)


def _put_batches_in_front(module: fx.GraphModule) -> None:
    """Have batches of ``vmap`` become dimensions in front, which are then moved: torch's function moves them by an op
    of its own, of whose result an export sees nothing."""
    for node in list(module.graph.nodes):
        if node.target is predispatch._remove_batch_dim and node.args[3] != 0:
            with module.graph.inserting_after(node):
                moved = module.graph.call_function(torch.movedim, (node, 0, node.args[3]))
            moved.meta = dict(node.meta)
            node.replace_all_uses_with(moved, lambda user, moved=moved: user is not moved)
            node.args = (*node.args[:3], 0)
    module.recompile()


# --- within modules -----------------------------------------------------------------------------------------
def captured(module: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any], dynamic: Any) -> fx.GraphModule:
    """What Dynamo captures of a module at these arguments, with the module's parameters and buffers under their names,
    and its regions of derivatives written out."""
    with torch._dynamo.config.patch(assume_static_by_default=dynamic is None, automatic_dynamic_shapes=False):
        graph: fx.GraphModule = dynamo_graph_capture_for_export(module)(*args, **kwargs)
    for name in ("fake_mode", "tracing_context"):
        graph.meta.pop(name, None)
    make_ready(graph)
    changed = written_out(graph)
    if changed is not graph:
        for name, part in changed.named_children():
            graph.add_module(name, part)
        changed.graph.set_codegen(graph.graph._codegen)
        graph.graph = changed.graph
    return graph


# --- what is refused ----------------------------------------------------------------------------------------
def _refuse(nodes: Sequence[fx.Node]) -> None:
    """Raise for regions without gradients, where something outside has gradients: ops do not tell which they stop."""
    inside = set(nodes)
    given = {i for n in nodes for i in n.all_input_nodes if i not in inside}
    starts = [i for i, n in enumerate(nodes) if n.target is torch._C._set_grad_enabled and n.args[0] is False]
    if not starts or not any(getattr(g.meta.get("example_value"), "requires_grad", False) for g in given):
        return
    line = next((at for n in nodes[starts[0] :] if (at := location(n)).is_known), "an unknown line")
    raise RuleError(
        f"torch.compile(backend='meshwright'): torch.no_grad within a transformation of torch.func, at {line}: which "
        "gradients of what comes from outside it stops is not told; detach() what it is to stop, or convert the module "
        "by meshwright.from_torch and use meshwright.grad, jvp and vmap"
    )
