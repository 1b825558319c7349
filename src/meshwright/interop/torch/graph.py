"""Runs an exported graph on arrays: each node by the rule of its op, at the user's line."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from meshwright import lax, random
from meshwright.core import source
from meshwright.errors import ArgumentError, MeshwrightError, RuleError
from meshwright.interop.torch import registry
from meshwright.interop.torch.ops import numbers
from meshwright.interop.torch.sources import described, location
from meshwright.interop.torch.tensors import as_array

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


def _size(target: Any, args: Sequence[Any]) -> Any:
    if not isinstance(target, torch._ops.OpOverload):
        return numbers.of_numbers(target, args)
    name = str(target)
    if "sym_size" in name:
        return args[0].shape[args[1]] if len(args) > 1 else list(args[0].shape)
    if "sym_numel" in name:
        return args[0].size
    raise RuleError(f"{name}: strides and offsets are about memory, which arrays do not show")


def _constant(value: Any) -> Any:
    return as_array(value) if isinstance(value, torch.Tensor) else value


class Interpreter:
    """One run of a graph; ``draw`` gives random keys."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        self.draw = draw

    def run(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """The graph's output for its placeholders' values, in order."""
        nodes = list(module.graph.nodes)
        values = dict(zip((n for n in nodes if n.op == "placeholder"), inputs))
        self.evaluate(module, nodes, values)
        return fx.map_arg(nodes[-1].args[0], values.__getitem__)

    def evaluate(self, module: fx.GraphModule, nodes: Iterable[fx.Node], values: dict[fx.Node, Any]) -> None:
        """Add to ``values`` those of the nodes, which are in an order that they can be computed in."""
        read = values.__getitem__
        for node in nodes:
            if node.op == "get_attr":
                values[node] = _constant(operator.attrgetter(node.target)(module))
            elif node.op == "call_function":
                args, kwargs = fx.map_arg(node.args, read), fx.map_arg(node.kwargs, read)
                values[node] = self.at_node(node, args, kwargs)

    def at_node(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """What a node computes; errors say which op of which line it is.

        Raises:
          RuleError: the op, or what is asked of it, is not supported.
        """
        with source.at(_within(location(node))):
            try:
                if is_size(node.target):
                    return _size(node.target, args)
                if isinstance(node.target, torch._ops.HigherOrderOperator):
                    return self.region(node.target, args)
                out = registry.call(node.target, tuple(args), kwargs, self.draw)
                given = any(numbers.is_number(n.meta.get("val")) for n in node.all_input_nodes)
                return numbers.typed(out, node.meta.get("val")) if given else out
            except ArgumentError:
                raise
            except (MeshwrightError, TypeError, ValueError, NotImplementedError) as error:
                what = f"{registry.name_of(node.target)}, at {described(node)}"
                raise RuleError(f"{what}: {error}{numbers.remedy(node, error)}") from error

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
