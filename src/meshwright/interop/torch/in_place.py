"""Writes to memory that no other value has, as ops with new results: torch need not trace the program again."""

from __future__ import annotations

import operator
from collections import Counter
from functools import cache
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec, TensorArgument

aten = torch.ops.aten
#: ops that torch writes in terms of others, never as what they are given
_COMPUTED = {
    aten.linear, aten.matmul, aten.conv1d, aten.conv2d, aten.conv3d, aten.conv_transpose1d, aten.conv_transpose2d,
    aten.conv_transpose3d, aten.batch_norm, aten.layer_norm, aten.group_norm, aten.instance_norm, aten.rms_norm,
    aten.max_pool1d, aten.max_pool2d, aten.max_pool3d, aten.adaptive_avg_pool2d, aten.scaled_dot_product_attention,
}  # fmt: skip
_FUNCTIONAL_NORM = aten._native_batch_norm_legit_functional.default
#: whose results may be what they are given, of which their schemas say nothing
_SAME = ("lift", "_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk")


@cache
def _is_fresh(op: Any) -> bool:
    """Whether the results of an op have memory of their own, whatever it is given."""
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten" or op.overloadpacket.__name__ in _SAME:
        return False
    schema = op._schema
    if schema.is_mutable or any(r.alias_info is not None for r in schema.returns):
        return False
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    return not composite or op.overloadpacket in _COMPUTED


def _is_new(node: fx.Node) -> bool:
    """Whether a node is a result, or one of several results, of such an op."""
    of: Any = node.args[0] if node.target is operator.getitem else node
    return isinstance(of, fx.Node) and _is_fresh(of.target)


@cache
def _without_write(op: Any) -> Any:
    """The op of the same arguments that writes to none of them; None if there is none."""
    name, overload = op.overloadpacket.__name__, op._overloadname
    packet = getattr(aten, name[:-1], None) if op.namespace == "aten" and name.endswith("_") else None
    found = getattr(packet, overload, None) if packet is not None and overload in packet.overloads() else None
    if found is None or found._schema.is_mutable or len(found._schema.returns) != 1:
        return None
    given, others = op._schema.arguments, found._schema.arguments
    return found if [(a.name, str(a.type)) for a in given] == [(a.name, str(a.type)) for a in others] else None


def _type(value: Any) -> tuple[Any, ...]:
    return tuple(value.shape), value.dtype


def _has_its_type(op: Any, node: fx.Node, written: fx.Node) -> bool:
    """Whether what ``op`` makes of the arguments of ``node`` is of the type of what is written to."""
    try:
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
        return _type(op(*args, **kwargs)) == _type(written.meta["val"])
    except Exception:  # whatever torch says to it: it stays a write
        return False


def _given(node: fx.Node) -> dict[str, Any]:
    """The arguments of an op by their names."""
    return {a.name: value for a, value in zip(node.target._schema.arguments, node.args)} | node.kwargs  # type: ignore[union-attr]


def writes(node: fx.Node) -> bool:
    """Whether a node writes to what it is given. Norms in training write to their statistics; their schemas omit it."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.is_mutable:
        return schema is not None
    if node.target == _FUNCTIONAL_NORM:
        return False
    given = _given(node)
    return given.get("running_mean") is not None and bool(given.get("training", given.get("use_input_stats", True)))


def without_unseen_writes(program: torch.export.ExportedProgram) -> None:
    """Replace ops that write to a new value of an op, of which there are no views, by those that return another one.

    Buffers without views are such values, too: what was written to them last becomes a result.
    """
    parts = [part for part in program.graph_module.modules() if isinstance(part, fx.GraphModule)]
    for part in parts[1:]:
        _without_writes(part.graph, {})
    buffers = _buffers(program)
    last = _without_writes(program.graph, buffers)
    output = next(n for n in reversed(program.graph.nodes) if n.op == "output")
    output.args = ((*last.values(), *output.args[0]),)  # type: ignore[misc]
    specs = program.graph_signature.output_specs
    specs[:0] = [
        OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(value.name), buffers[node])
        for node, value in last.items()
    ]
    name_results(program.graph, program.graph_signature)
    for part in parts:
        part.recompile()


def name_results(graph: fx.Graph, signature: Any) -> None:
    """Give a signature the names of the nodes that are the results of a graph now."""
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    for spec, value in zip(signature.output_specs, output.args[0]):
        if isinstance(value, fx.Node):
            spec.arg.name = value.name


def _buffers(program: torch.export.ExportedProgram) -> dict[fx.Node, str]:
    """The names of buffers that share no memory with other state, by the nodes that stand for them."""
    tensors = {**program.state_dict, **program.constants}
    homes = Counter(t.untyped_storage()._cdata for t in tensors.values() if isinstance(t, torch.Tensor))
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    specs = [s for s in program.graph_signature.input_specs if s.kind == InputKind.BUFFER]
    return {
        nodes[s.arg.name]: str(s.target) for s in specs if homes[tensors[str(s.target)].untyped_storage()._cdata] == 1
    }


def _without_writes(graph: fx.Graph, buffers: Any) -> dict[fx.Node, fx.Node]:
    """Replace those that nobody else sees. What is written last to those of ``buffers`` that are."""
    places = {node: i for i, node in enumerate(graph.nodes)}
    first = {node: node for node in buffers}  # of each value that a buffer has had, the buffer

    def is_ours(value: Any, at: fx.Node) -> bool:
        if not isinstance(value, fx.Node) or not (value in first or _is_new(value)):
            return False
        return all(_is_fresh(u.target) for u in value.users if places[u] < places[at])

    def replace(value: fx.Node, new: fx.Node, at: fx.Node) -> None:
        value.replace_all_uses_with(new, delete_user_cb=lambda u: places[u] > places[at])
        if value in first:
            first[new] = first[value]

    for node in list(places):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        written = node.args[0] if node.args else None
        if node.target._schema.is_mutable:
            op = _without_write(node.target)
            if op is not None and is_ours(written, node) and _has_its_type(op, node, written):
                node.target = op
                replace(written, node, node)
        elif node.target == aten.batch_norm.default and writes(node):
            given = _given(node)
            old = [given["running_mean"], given["running_var"]]
            if all(is_ours(v, node) for v in old) and old[0] is not old[1]:
                norm, *parts = _norm(graph, node, given)
                places.update(dict.fromkeys((norm, *parts), places[node]))
                for value, new in zip((node, *old), parts):
                    replace(value, new, node)
                graph.erase_node(node)
    return {node: value for value, node in first.items() if value is not node}


def _norm(graph: fx.Graph, node: fx.Node, given: dict[str, Any]) -> list[fx.Node]:
    """A norm in training that returns statistics, its result, and the statistics after it."""
    args = tuple(given[a.name] for a in _FUNCTIONAL_NORM._schema.arguments)
    outs = _FUNCTIONAL_NORM(*fx.map_arg(args, lambda n: n.meta["val"]))
    with graph.inserting_before(node):
        norm = graph.call_function(_FUNCTIONAL_NORM, args)
        parts = [graph.call_function(operator.getitem, (norm, i)) for i in (0, 3, 4)]
    norm.meta = {**node.meta, "val": outs}
    for part, i in zip(parts, (0, 3, 4)):
        part.meta = {**node.meta, "val": outs[i]}
    return [norm, *parts]
