"""Functions that torch's export cannot follow, taken before it sees them (``torch.overrides``).

What comes of them depends, to torch, on values: on lengths of sequences. An override looks these values up in what has
been recorded so far (:func:`known`), or does without them, and leaves ops whose results have fixed shapes, some of them
our own (``meshwright::...``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, set_proxy_slot
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

Override = Callable[..., Any]
_TABLE: dict[Any, Override] = {}
#: the modes that are on, the innermost last
_ENTERED: list[Overridden] = []


def overrides(*functions: Any) -> Callable[[Override], Override]:
    """The decorated function stands for torch's ``functions`` while a module is exported."""

    def add(override: Override) -> Override:
        assert _TABLE.keys().isdisjoint(functions), functions  # one override each
        _TABLE.update(dict.fromkeys(functions, override))
        return override

    return add


class Overridden(TorchFunctionMode):
    """While it is on, calls that are being recorded go to the overrides.

    Parameters and buffers are those that the export has put in their places, also where a call is given what was there
    before: a cache, or a list, has a module's tensors in attributes of its own.

    Attributes:
      fixed: the names of the buffers whose values Python has read. The program is the one for these values.
      asked: lines that ask whether a tensor has a gradient, which it has not; the numbers of the inputs that it is
        computed of, each with how many inputs there are.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.fixed: set[str] = set()
        self.asked: dict[str, frozenset[tuple[int, int]]] = {}
        held = [(d, n, t) for m in module.modules() for d in (m._parameters, m._buffers) for n, t in d.items()]
        self._homes = {id(t): (d, n) for d, n, t in held if t is not None}
        self._buffers = [
            (f"{path}.{n}" if path else n, m._buffers, n, t)
            for path, m in module.named_modules()
            for n, t in m._buffers.items()
            if t is not None and not t.is_meta and not isinstance(module, fx.GraphModule)  # of torch.compile
        ]

    def __enter__(self) -> Overridden:
        _ENTERED.append(self)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _ENTERED.remove(self)

    def buffers(self, tracer: Any) -> dict[fx.Node, tuple[str, torch.Tensor]]:
        """The nodes that stand for buffers in what is being recorded: the buffers' names and tensors."""
        slots = (
            (name, t, get_proxy_slot(d[n], tracer, None)) for name, d, n, t in self._buffers if d.get(n) is not None
        )
        return {_before_casts(slot.proxy.node): (name, t) for name, t, slot in slots if slot is not None}

    def _is_held(self, given: Any) -> bool:
        """Whether one of the module's own tensors is among what a call is given."""
        if isinstance(given, (tuple, list)):
            return any(map(self._is_held, given))
        return any(map(self._is_held, given.values())) if isinstance(given, dict) else id(given) in self._homes

    def _in_place(self, x: Any) -> Any:
        """What is where a tensor was when the export began."""
        home, name = self._homes.get(id(x), (None, ""))
        return x if home is None else home.get(name, x)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._is_held(args) or (kwargs and self._is_held(kwargs)):
            args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, self._in_place, (args, kwargs))
        override = _TABLE.get(func)
        chosen = func if override is None or get_proxy_mode() is None else override
        if torch.is_grad_enabled() or torch.compiler.is_dynamo_compiling():
            return chosen(*args, **(kwargs or {}))
        with _as_recorded(get_proxy_mode(), (args, kwargs)):
            return chosen(*args, **(kwargs or {}))


@contextmanager
def _as_recorded(mode: Any, given: Any) -> Iterator[None]:
    """Leave tensors that a call within ``no_grad`` does not write to as they are recorded: what returns the tensor that
    it is given, as ``x.float()`` may, would be recorded as what it comes from, which has no gradient there."""
    tensors = [] if mode is None else torch.utils._pytree.tree_leaves(given)
    before = [
        (x, get_proxy_slot(x, mode.tracer, None), x._version)
        for x in tensors
        if isinstance(x, torch.Tensor) and not x.is_inference()
    ]
    yield
    for x, slot, version in before:
        if slot is not None and x._version == version:
            set_proxy_slot(x, mode.tracer, slot)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Within, torch computes what it is asked for, on tensors that have values."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def constant(values: torch.Tensor) -> torch.Tensor:
    """A constant of the graph that is being recorded, whose values Python may ask for."""
    with unrecorded():
        listed = values.tolist()
    tensor = torch.tensor(listed, dtype=values.dtype).reshape(values.shape)
    if isinstance(tensor, FakeTensor):
        tensor.constant = values
    return tensor


# --- what is known of values --------------------------------------------------------------------------------
def known(tensor: torch.Tensor) -> torch.Tensor | None:
    """The values of a tensor, if these are the same in every call of what is being recorded; None if they may differ.

    Torch computes them again from the constants and buffers that they come from. These buffers become constants of the
    program (:attr:`Overridden.fixed`).
    """
    if isinstance(tensor, FakeTensor) and tensor.constant is not None:
        return tensor.constant
    mode = get_proxy_mode()
    slot = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    if slot is None:
        return None if isinstance(tensor, FakeTensor) else tensor
    nodes = origins(slot.proxy.node)
    if any(is_written(node, nodes) for node in nodes):
        return None
    buffers = _ENTERED[-1].buffers(mode.tracer) if _ENTERED and any(n.op == "placeholder" for n in nodes) else {}
    with unrecorded():
        value = _computed(nodes, mode.tracer.root, {node: buffer for node, (_, buffer) in buffers.items()})
    if value is not None and buffers:
        _ENTERED[-1].fixed.update(name for node, (name, _) in buffers.items() if node in nodes)
    return value


def _before_casts(node: fx.Node) -> fx.Node:
    """What a tensor was recorded as before calls that returned the tensor itself (``x.cpu()``)."""
    while getattr(node.target, "overloadpacket", None) is torch.ops.aten.to:
        node = node.args[0]  # type: ignore[assignment]
    return node


def origins(node: fx.Node) -> list[fx.Node]:
    """The node and all that it is computed from, in the order of the graph."""
    found, todo = {node}, [node]
    while todo:
        todo = [n for n in todo.pop().all_input_nodes if n not in found] + todo
        found.update(todo)
    return [n for n in node.graph.nodes if n in found]


def described(x: fx.Node) -> str:
    """What is the same for values that are computed in the same way."""
    found: dict[fx.Node, str] = {}
    for node in origins(x):
        is_pure = isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded not in node.target.tags
        text = f"{node.target}{fx.map_arg((node.args, node.kwargs), found.__getitem__)}" if is_pure else node.name
        found[node] = sha256(text.encode()).hexdigest()  # which does not grow where values are used twice
    return found[x]


def computed_alike(*tensors: torch.Tensor) -> bool:
    """Whether tensors that are being recorded are computed in the same way from the same, to which nothing is
    written."""
    mode = get_proxy_mode()
    slots = [None if mode is None else get_proxy_slot(t, mode.tracer, None) for t in tensors]
    last = [s.proxy.node for s in slots if s is not None]
    if len(last) < len(tensors):
        return False
    nodes = {n for node in last for n in origins(node)}
    return len(set(map(described, last))) == 1 and not any(is_written(n, nodes) for n in nodes)


def is_written(node: fx.Node, within: Collection[fx.Node] = ()) -> bool:
    """Whether an op, other than those of ``within``, writes to the node's memory, maybe by a view of it."""
    for user in node.users:
        if user not in within and (_writes_to(user, node) or (_is_view(user) and is_written(user, within))):
            return True
    return False


def _writes_to(user: fx.Node, node: fx.Node) -> bool:
    return any(w is node for w in written_by(user))


def written_by(node: fx.Node) -> list[fx.Node]:
    """The operands that an op writes to."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    given = {a.name: value for a, value in zip(schema.arguments, node.args)} | node.kwargs
    written = [given.get(a.name) for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [w for w in written if isinstance(w, fx.Node)]


def views_to(node: fx.Node) -> Iterator[fx.Node]:
    """A node, and what it is a view of."""
    yield node
    if _is_view(node) and node.all_input_nodes:
        yield from views_to(node.all_input_nodes[0])


def note_flag(line: str, inputs: frozenset[tuple[int, int]]) -> None:
    """Note that a line asks whether a tensor that is computed of these inputs has a gradient."""
    asked = _ENTERED[-1].asked if _ENTERED else {}
    asked[line] = asked.get(line, frozenset()) | inputs


def _is_view(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return True
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


def _computed(nodes: Iterable[fx.Node], root: Any, given: Mapping[fx.Node, torch.Tensor]) -> torch.Tensor | None:
    """The value of the last of the nodes; None if one of them has no constant value, and is not ``given``."""
    values: dict[fx.Node, Any] = {}
    value = None
    for node in nodes:
        if node in given:
            value = given[node].detach().clone()
        elif node.op == "get_attr":
            value = _copied(getattr(root, str(node.target), None))
        elif node.op == "call_function" and _is_computable(node.target):
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
            value = node.target(*args, **kwargs)  # type: ignore[operator]
        else:
            return None
        if value is None:
            return None
        values[node] = value
    return value


def _copied(constant: Any) -> torch.Tensor | None:
    is_known = isinstance(constant, torch.Tensor) and not isinstance(constant, (FakeTensor, torch.nn.Parameter))
    return constant.clone() if is_known else None


def _is_computable(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded not in target.tags
    return target is operator.getitem
