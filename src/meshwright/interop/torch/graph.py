"""Runs an exported graph on arrays: each node by the rule of its op, at the user's line."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import fx

from meshwright import lax, random
from meshwright.core import source
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, MeshwrightError, RuleError
from meshwright.interop.torch import registry
from meshwright.interop.torch.derivatives import between, is_derivative
from meshwright.interop.torch.ops import numbers
from meshwright.interop.torch.sources import described, location
from meshwright.interop.torch.tensors import as_array, conjugated
from meshwright.transforms.autodiff import vjp

#: where ops are torch's, and ours
_TORCHS = "aten", "prims", "meshwright", "prim"
#: of Python numbers, not of tensors: sizes of dimensions and what is computed of them
_SIZES = ("aten.sym_size", "aten.sym_stride", "aten.sym_numel", "aten.sym_storage_offset")


class Keys:
    """Random keys, one after another, each derived from the one that the model was called with."""

    def __init__(self, key: Any) -> None:
        self.key = key
        self.count = 0

    def __call__(self) -> Any:
        if self.key is None:
            raise ArgumentError(
                "the module draws random numbers (dropout in train mode, ...): pass a key, as in "
                "model.apply(params, buffers, x, key=mw.random.key(0)), or convert it after module.eval()"
            )
        self.count += 1
        return random.fold_in(self.key, self.count)


def is_size(target: Any) -> bool:
    """Whether a node's target computes sizes, or picks from a tuple."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target).rpartition(".")[0] in _SIZES or registry.name_of(target) in _SIZES
    return not isinstance(target, torch._ops.HigherOrderOperator)


def is_known(target: Any) -> bool:
    """Whether a run does by itself what a node says, or by a rule: sizes, regions and derivatives, or an op."""
    is_region = isinstance(target, torch._ops.HigherOrderOperator)
    return is_size(target) or is_region or is_derivative(target) or registry.find(target) is not None


def _size(target: Any, args: Sequence[Any]) -> Any:
    if not isinstance(target, torch._ops.OpOverload):
        return numbers.of_numbers(target, args)
    name = str(target)
    if "sym_size" in name:
        return args[0].shape[args[1]] if len(args) > 1 else list(args[0].shape)
    if "sym_numel" in name:
        return args[0].size
    raise RuleError(f"{name}: strides and offsets are about memory, which arrays do not show")


def _check_results(out: Any, expected: Any) -> None:
    """Refuse what a rule of a user's returns if it has other shapes than the op's results.

    Raises:
      RuleError: it has.
    """
    if isinstance(expected, (tuple, list)):
        if not isinstance(out, (tuple, list)) or len(out) != len(expected):
            got = len(out) if isinstance(out, (tuple, list)) else "one array"
            raise RuleError(
                f"the rule returns {got}, expected a tuple of {counted(len(expected), 'result')}: those of the op, and "
                "what tensors become that it writes to"
            )
        for each, value in zip(out, expected):
            _check_results(each, value)
    elif isinstance(expected, torch.Tensor):
        shape, wanted = getattr(out, "shape", ()), tuple(expected.shape)
        if len(shape) != len(wanted) or any(type(n) is int and n != m for n, m in zip(wanted, shape)):
            raise RuleError(f"the rule returns an array of shape {tuple(shape)}, expected {wanted}, as of the op")


def _refuse_result(node: fx.Node) -> None:
    """Raise for one of several results of an op that its rule does not give."""
    op, number = cast("tuple[fx.Node, int]", node.args[:2])
    derivatives = ", which torch's derivatives use: take them by meshwright.grad or jvp of the function" * (
        getattr(op.target, "namespace", "") == "aten"
    )
    raise RuleError(f"result {number} of {registry.name_of(op.target)} is not known here{derivatives}")


def _constant(value: Any) -> Any:
    return as_array(value) if isinstance(value, torch.Tensor) else value


class Interpreter:
    """One run of a graph; ``draw`` gives random keys."""

    def __init__(self, draw: Keys) -> None:
        self.draw = draw
        self._drawn: dict[fx.Node, int] = {}  # how many keys there were before a node

    def run(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """The graph's output for its placeholders' values, in order."""
        nodes = list(module.graph.nodes)
        values = dict(zip((n for n in nodes if n.op == "placeholder"), inputs))
        self.evaluate(module, nodes, values)
        return fx.map_arg(nodes[-1].args[0], values.__getitem__)

    def evaluate(self, module: fx.GraphModule, nodes: Iterable[fx.Node], values: dict[fx.Node, Any]) -> None:
        """Add to ``values`` those of the nodes, which are in an order that they can be computed in."""
        for node in nodes:
            self._drawn[node] = self.draw.count
            if node.op == "get_attr":
                values[node] = _constant(operator.attrgetter(node.target)(module))
            elif node.op == "call_function":
                values[node] = self.at_node(node, partial(self._computed, module, node, values))

    def at_node(self, node: fx.Node, compute: Callable[[], Any]) -> Any:
        """What a node computes; errors say which op of which line it is.

        Raises:
          RuleError: the op, or what is asked of it, is not supported.
        """
        with source.at(_within(location(node))):
            try:
                return compute()
            except ArgumentError:
                raise
            except (MeshwrightError, TypeError, ValueError, LookupError, NotImplementedError) as error:
                what = f"{registry.name_of(node.target)}, at {described(node)}"
                raise RuleError(f"{what}: {error}{numbers.remedy(node, error)}") from error

    def _computed(self, module: fx.GraphModule, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        if is_derivative(node.target):
            return self._derivative(module, node, values)
        args, kwargs = (fx.map_arg(given, values.__getitem__) for given in (node.args, node.kwargs))
        if is_size(node.target):
            found = _size(node.target, args)
            if found is None and isinstance(node.meta.get("val"), torch.Tensor) and node.users:
                _refuse_result(node)
            return found
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return self.region(node.target, args)
        out = registry.call(node.target, tuple(args), kwargs, self.draw)
        if getattr(node.target, "namespace", "") not in _TORCHS:
            _check_results(out, node.meta.get("val"))
        given = any(numbers.is_number(n.meta.get("val")) for n in node.all_input_nodes)
        return numbers.typed(out, node.meta.get("val")) if given else out

    # --- derivatives ----------------------------------------------------------------------------------------
    def _derivative(self, module: fx.GraphModule, node: fx.Node, values: dict[fx.Node, Any]) -> list[Any]:
        """That of what the graph has computed, by some of its values: what is between these is computed again."""
        outputs, inputs, cotangents = cast("Sequence[list[fx.Node]]", node.args)
        nodes = between(inputs, outputs)
        if missing := [n for n in inputs if n not in nodes]:
            raise RuleError(f"what the derivative is of does not come from {missing[0]} here, as far as can be told")
        depends = {i: not set(nodes).isdisjoint(i.all_input_nodes) for i in inputs}
        count = self.draw.count

        def again(given: Sequence[Any]) -> list[Any]:
            state, moved = dict(values), dict(zip(inputs, given))
            for n in nodes:
                if depends.get(n, True):
                    self.draw.count = self._drawn[n]
                    self.evaluate(module, [n], state)
                if n in moved:  # one that depends on others moves by itself, and with these
                    state[n] = lax.add(state[n], moved[n]) if depends[n] else moved[n]
            return [state[n] for n in outputs]

        nothing = {i: lax.full_like(values[i], -0.0) for i in inputs if depends[i]}
        outs, pulled = vjp(again, [nothing.get(i, values[i]) for i in inputs])
        self.draw.count = count
        given = [lax.convert_element_type(values[c], o.dtype) for c, o in zip(cotangents, outs)]
        return list(conjugated(pulled(conjugated(given))[0]))

    # --- regions --------------------------------------------------------------------------------------------
    def region(self, target: Any, args: Sequence[Any]) -> Any:
        """Control flow and other ops that hold graphs."""
        match target.name():
            case "cond":
                chosen, true, false, operands = args
                return lax.cond(chosen, self._function(true), self._function(false), *operands)
            case "while_loop":
                return self._while_loop(*args)
            case "scan":
                return self._scan(*args)
            case "map_impl":
                return self._scan(args[0], (), *args[1:])
            case "checkpoint" | "tag_activation_checkpoint":
                return self.run(args[0], args[1:])
            case "wrap_with_set_grad_enabled":  # what comes out is detached where it should be
                return self.run(args[1], args[2:])
        raise RuleError(f"higher_order.{target.name()} has no rule")

    def _function(self, module: fx.GraphModule) -> Callable[..., Any]:
        return lambda *operands: tuple(self.run(module, operands))

    def _while_loop(self, test: Any, body: Any, carried: Sequence[Any], fixed: Sequence[Any]) -> Any:
        def going(state: tuple[Any, ...]) -> Any:
            out = self.run(test, (*state, *fixed))
            return (out[0] if isinstance(out, (tuple, list)) else out).reshape(())

        return lax.while_loop(going, lambda state: tuple(self.run(body, (*state, *fixed))), tuple(carried))

    def _scan(self, body: Any, init: Sequence[Any], rows: Sequence[Any], fixed: Sequence[Any] = ()) -> Any:
        n = len(init)

        def step(carry: Any, row: Any) -> tuple[Any, Any]:
            out = self.run(body, (*carry, *row, *fixed))
            return tuple(out[:n]), tuple(out[n:])

        last, outs = lax.scan(step, tuple(init), tuple(rows))
        return (*last, *outs)


def _within(at: source.SourceLocation) -> source.SourceLocation:
    return at if at.is_known else source.current().within(at.name_stack)


def calls(module: fx.GraphModule) -> Iterator[fx.Node]:
    """Every op of a graph, those of its regions too."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            yield from (n for n in part.graph.nodes if n.op == "call_function")
