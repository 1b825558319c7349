"""``torch.compile(module, backend="meshwright")``: the graphs that torch's compiler captures, run by ours.

A graph is converted like a module, for each type of its inputs, and differentiated by our derivatives; to autograd
it is one Function. Tensors become arrays and arrays tensors by DLPack, without a copy: what torch may write to in
between is told from the versions that autograd keeps of saved tensors, and inputs that the graph itself writes to are
copied. Results that are views in torch are views (:mod:`~meshwright.interop.torch.aliases`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind

from meshwright import random
from meshwright.core import pytree
from meshwright.core.options import enable_x64
from meshwright.errors import ArgumentError, RuleError
from meshwright.interop.torch import registry
from meshwright.interop.torch.aliases import Sharing, overlapping, refuse_overlapping
from meshwright.interop.torch.dtypes import array_dtype
from meshwright.interop.torch.exported import EXPORTING, export
from meshwright.interop.torch.floats import Floats, Values
from meshwright.interop.torch.graph import calls
from meshwright.interop.torch.kept import compiled_pair
from meshwright.interop.torch.model import TorchModel
from meshwright.interop.torch.promotion import cast
from meshwright.interop.torch.tensors import as_array, conjugated, to_torch
from meshwright.interop.torch.transformations import written_out
from meshwright.transforms.autodiff import vjp


def backend(module: fx.GraphModule, example_inputs: Sequence[Any], **others: Any) -> Callable[..., Any]:
    """What ``torch.compile(..., backend="meshwright")`` calls with each graph that it captures.

    The module's training step then runs here: its forward, and the derivative of it when ``loss.backward()`` needs it.
    Random numbers (dropout) are ours, from a seed that torch draws. Tensors are in main memory.

    Raises, when the compiled module is called:
      RuleError: an op that is not known here, with its line.
      ArgumentError: tensors of a device other than the CPU; a ``mode`` or ``options``, which are inductor's.

    Example:
      >>> step = torch.compile(module, backend="meshwright")  # doctest: +SKIP
      >>> step(x).sum().backward()  # doctest: +SKIP
    """
    if others:
        given = ", ".join(f"{name}={value!r}" for name, value in others.items())
        raise ArgumentError(
            f"torch.compile(backend='meshwright'): expected no mode and no options, which are inductor's, got {given}; "
            "leave them out (meshwright.config has what there is to choose here)"
        )
    held: list[torch.Tensor] = []
    if any(p.requires_grad for p in module.parameters()):
        module, held = _lifted(module)
    floats = Floats(module)
    # what these raise reaches the user when the module is called
    sharing = cache(lambda values: Sharing(written_out(floats.written(values))))
    compiled: dict[Any, _Compiled] = {}

    @torch.compiler.disable  # where a whole step is compiled, Dynamo would follow what it has compiled
    def run(*inputs: Any) -> tuple[Any, ...]:
        inputs = (*inputs, *held)

        def call(values: Values) -> tuple[Any, ...]:
            key = values, tuple(map(_signature, inputs)), torch.is_grad_enabled(), _casts()
            with EXPORTING:
                if key not in compiled:
                    compiled[key] = _Compiled(sharing(values), inputs)
            return compiled[key](inputs)

        return floats.called(call, inputs)

    return run


def _lifted(module: fx.GraphModule) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """A graph with inputs for the tensors that it holds, and these: an optimizer's step holds the parameters.

    Raises:
      RuleError: parameters within regions.
    """
    graph, held = fx.Graph(), []
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    names = {node: graph.node_copy(node) for node in inputs}
    for node in module.graph.nodes:
        value = getattr(module, node.target, None) if node.op == "get_attr" else None
        if isinstance(value, torch.Tensor):
            names[node] = graph.placeholder(node.name)
            names[node].meta = dict(node.meta)
            held.append(value)
    for node in module.graph.nodes:
        if node not in names:
            names[node] = graph.node_copy(node, names.__getitem__)
    lifted = fx.GraphModule(module, graph)
    lifted.meta = dict(module.meta)
    if any(p.requires_grad for p in lifted.parameters()):
        raise RuleError("torch.compile: a region of this graph holds parameters that are none of its inputs")
    return lifted, held


def _signature(x: Any) -> Any:
    return (x.shape, x.stride(), x.dtype, x.requires_grad, x.is_leaf) if isinstance(x, torch.Tensor) else x


def _casts() -> Any:
    """What torch casts operands to here (``torch.autocast``)."""
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")


def _like(x: torch.Tensor, wanted: bool, shared: bool) -> torch.Tensor:
    """The tensor apart from how it came about and whose memory it shares, but for whether it may be written to."""
    alone = (x.detach().clone() if shared else x.detach()).requires_grad_(wanted and x.requires_grad)
    return alone if x.is_leaf or not wanted else alone.clone()


def _written_with_gradients(module: fx.GraphModule, inputs: Sequence[Any]) -> set[int]:
    """The inputs that a graph writes to where gradients are taken: as Dynamo saw them, they have gradients after it."""
    places = [n for n in module.graph.nodes if n.op == "placeholder"]
    seen = [n.meta.get("example_value") for n in places]
    return {
        i
        for i, (x, after) in enumerate(zip(inputs, seen))
        if isinstance(x, torch.Tensor) and isinstance(after, torch.Tensor) and after.requires_grad and not after.is_leaf
    }


class _Compiled:
    """A graph at the types of its inputs.

    Attributes:
      tensors: which of the inputs are tensors.
      moving: which of them the results have a derivative by, that is wanted.
      differentiable: which of the results have one.
      written: for results that are new values of inputs, which.
    """

    def __init__(self, sharing: Sharing, inputs: Sequence[Any]) -> None:
        module, self.views, self._places = sharing.module, sharing.at(inputs), sharing.places
        wanted = torch.is_grad_enabled()  # what an optimizer writes to has gradients, which are of no matter there
        tensors = [isinstance(x, torch.Tensor) for x in inputs]
        shared = overlapping(inputs)
        alone = [_like(x, wanted, i in shared) if t else x for i, (x, t) in enumerate(zip(inputs, tensors))]
        with torch.enable_grad(), enable_x64(True):
            exported = export(module, tuple(alone), {}, None)
            self._model = TorchModel(module, exported, True)
        program = exported.program
        self.tensors = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
        self._outputs = program.graph_signature.output_specs
        self._refuse()
        names = [s.arg.name for s in program.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
        self.written = {
            i: names.index(s.target) for i, s in enumerate(self._outputs) if s.kind == OutputKind.USER_INPUT_MUTATION
        }
        differentiated = [names[i] for i in self.tensors if inputs[i].requires_grad and torch.is_grad_enabled()]
        by, of = _depending(program, differentiated)
        self.moving = [i for i in self.tensors if names[i] in by]
        moved = _written_with_gradients(module, inputs) if wanted else set()
        self.differentiable = [i for i in of if i not in self.written or self.written[i] in moved]
        self._types = [n.meta["val"] if isinstance(n, fx.Node) else None for n in _returned(program)]
        self._is_random = any(_draws(n.target) for n in calls(program.graph_module))
        #: forward and backward, once the first inputs are there
        self._programs: tuple[Any, Any] | None = None

    def _refuse(self) -> None:
        known = OutputKind.USER_OUTPUT, OutputKind.USER_INPUT_MUTATION
        other = [f"{s.kind.name} ({s.target})" for s in self._outputs if s.kind not in known]
        if other:
            raise RuleError(f"torch.compile(backend='meshwright'): results of a kind that is not known: {other}")

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        refuse_overlapping(inputs, self.written.values(), self._places)
        outs = _Step.apply(self, inputs, *(inputs[i] for i in self.tensors)) if self.moving else self.run(inputs)[0]
        for i, n in self.written.items():
            with torch.set_grad_enabled(i in self.differentiable):
                inputs[n].copy_(outs[i])
        return self.views.all(inputs, self._results(outs))

    def _results(self, outs: Sequence[Any]) -> list[Any]:
        """Without new values of inputs."""
        return [o for i, o in enumerate(outs) if i not in self.written]

    def made_inside(self, inputs: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
        """The results, with new values of inputs, some of them views whose derivative is the graph's."""
        made = iter(self.views.made_inside(inputs, self._results(outs)))
        return [o if i in self.written else next(made) for i, o in enumerate(outs)]

    def run(self, inputs: Sequence[Any]) -> tuple[list[Any], Any]:
        """The results, some of them new values of inputs, and what the backward needs.

        Raises:
          ArgumentError: a tensor that is not in main memory.
        """
        elsewhere = {inputs[i].device for i in self.tensors if inputs[i].device.type != "cpu"}
        if elsewhere:
            raise ArgumentError(
                f"torch.compile(backend='meshwright'): inputs are on {elsewhere}, expected tensors on the CPU"
            )
        written = set(self.written.values())
        numbers = tuple(x for x in inputs if not isinstance(x, torch.Tensor))
        with enable_x64(True):
            arrays = {i: as_array(inputs[i], copy=i in written) for i in self.tensors}
            key = random.key(int(torch.randint(2**31 - 1, ()))) if self._is_random else None
            moving = [arrays.pop(i) for i in self.moving]
            if self._programs is None:
                forward = lambda *three: self._forward(three[0], three[1], three[2], numbers)  # noqa: E731
                self._programs = compiled_pair(forward, _pulled_back, moving, arrays, key)
            outs, kept = self._programs[0](moving, arrays, key)
            tensors = iter(_own([o for o in outs if o is not None], [inputs[i] for i in self.tensors]))
        return [s.arg.value if o is None else next(tensors) for o, s in zip(outs, self._outputs)], kept

    def backward(self, kept: list[Any], cotangents: list[Any]) -> Any:
        """The cotangents of what is ``moving``, of what :meth:`run` kept and the cotangents of its results."""
        assert self._programs is not None, "a backward has a forward before it"
        return self._programs[1](kept, cotangents)

    def _forward(self, moving: Any, fixed: Any, key: Any, numbers: Any) -> Any:
        def run(moving: Any) -> tuple[list[Any], list[Any]]:
            arrays = {**fixed, **dict(zip(self.moving, moving))}
            given = [arrays[i] for i in self.tensors]
            results = self._model.outputs({}, self._model.buffers, given, key, numbers)
            outs = [
                cast(o, array_dtype(t.dtype)) if isinstance(t, torch.Tensor) else None
                for o, t in zip(results, self._types)
            ]
            return [outs[i] for i in self.differentiable], outs

        if not self.moving:
            return run([])[1], None
        _, pulled, outs = vjp(run, moving, has_aux=True)
        return outs, pulled


def _pulled_back(pulled: Any, cotangents: Any) -> Any:
    return conjugated(pulled(conjugated(cotangents)))


class _Step(torch.autograd.Function):
    """A compiled graph to autograd."""

    @staticmethod
    def forward(ctx: Any, compiled: _Compiled, inputs: Sequence[Any], *tensors: torch.Tensor) -> tuple[Any, ...]:
        outs, kept = compiled.run(inputs)
        outs = compiled.made_inside(inputs, outs)
        ctx.compiled, ctx.kept = compiled, kept
        needed = sorted(x.data_ptr() for x in to_torch(pytree.leaves(kept)) if isinstance(x, torch.Tensor))
        # Whatever shares memory with what the backward needs is saved, so that autograd notices writes to it.
        given = [inputs[i] for i in compiled.tensors if i not in compiled.written.values()]
        ctx.save_for_backward(*(t for t in (*given, *outs) if isinstance(t, torch.Tensor) and _holds(t, needed)))
        fixed = [o for i, o in enumerate(outs) if isinstance(o, torch.Tensor) and i not in compiled.differentiable]
        ctx.mark_non_differentiable(*fixed)
        return tuple(outs)

    @staticmethod
    @torch.compiler.disable
    def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise RuleError(
                "torch.compile(backend='meshwright'): a derivative is asked for whose own derivative is wanted "
                "(create_graph=True), which compiled graphs do not have; compile without this function, or convert it "
                "by meshwright.from_torch and take meshwright.grad twice"
            )
        compiled: _Compiled = ctx.compiled
        assert ctx.saved_tensors is not None  # raises where one was written to since
        given = [cotangents[i] for i in compiled.differentiable]
        with enable_x64(True):
            (grads,) = compiled.backward(ctx.kept, [as_array(g, copy=False) for g in given])
            gradients = dict(zip(compiled.moving, _own(grads, given)))
        return None, None, *(gradients.get(i) for i in compiled.tensors)


def _holds(tensor: torch.Tensor, addresses: Sequence[int]) -> bool:
    """Whether one of the addresses, which are sorted, is in the memory that a tensor is in."""
    first = bisect_left(addresses, _address(tensor))
    return first < len(addresses) and addresses[first] < _address(tensor) + tensor.untyped_storage().nbytes()


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _own(arrays: Sequence[Any], others: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors of the arrays, each with memory that is none of the others', so that torch may write to them."""
    taken = {_address(o) for o in others}
    owned = []
    for tensor in to_torch(list(arrays)):
        tensor = tensor.clone() if _address(tensor) in taken else tensor
        taken.add(_address(tensor))
        owned.append(tensor)
    return owned


# --- what depends on what -----------------------------------------------------------------------------------
def _returned(program: torch.export.ExportedProgram) -> Sequence[Any]:
    """The nodes, or constants, that a graph returns."""
    return next(n for n in program.graph.nodes if n.op == "output").args[0]


def _depending(program: torch.export.ExportedProgram, names: Sequence[str]) -> tuple[set[str], list[int]]:
    """Of the inputs of these names those that some output has a derivative by; and which outputs have one."""
    nodes = list(program.graph.nodes)
    after = {n for n in nodes if n.op == "placeholder" and n.name in names}
    for node in nodes:
        if not after.isdisjoint(node.all_input_nodes) and node.op != "output" and _differentiable(node):
            after.add(node)
    outs = [i for i, n in enumerate(_returned(program)) if n in after]
    before = {_returned(program)[i] for i in outs}
    for node in reversed(nodes):
        if node in before:
            before.update(n for n in node.all_input_nodes if n in after)
    return {n.name for n in before}, outs


def _differentiable(node: fx.Node) -> bool:
    if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled and not node.args[0]:
        return False
    value = node.meta.get("val")
    inexact = not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex()
    return inexact and node.target is not torch.ops.aten.detach.default


def _draws(target: Any) -> bool:
    """Whether an op takes random numbers."""
    rule = registry.find(target)
    return rule is not None and rule.random
