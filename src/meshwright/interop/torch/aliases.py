"""Results of a compiled graph that are memory of its inputs, or of each other, as they are in PyTorch.

Dynamo runs what it captures on fake tensors, whose storages say which results are views, and of what. A view is no
value of the program: torch makes it of the real tensor, with its own derivative. Only where a region has made it, as an
``autograd.Function`` may, is its derivative the program's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import fx
from torch._C import _functorch

from meshwright.errors import RuleError
from meshwright.interop.torch.sources import described


@dataclasses.dataclass(frozen=True)
class View:
    """A result that has the memory of another tensor.

    Attributes:
      node: the result.
      base: what it is a view of.
      of_input: whether the base is an input; else it is a result of the graph.
      index: which.
      own: which result of the graph it is as well, if a region has made it.
    """

    node: fx.Node
    base: fx.Node
    of_input: bool
    index: int
    own: int | None


class Sharing:
    """Which results of a graph share memory.

    Attributes:
      module: the graph with other results: those that are views of none, and what else there are views of.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        *nodes, output = module.graph.nodes
        self.places = [n for n in nodes if n.op == "placeholder"]
        returned = list(output.args[0])  # type: ignore[arg-type]
        bases = _bases(self.places, returned)
        roots = [b for b in bases.values() if b not in self.places]
        outs = [r for r in returned if r not in bases or bases[r] is r or _is_of_region(r, bases[r])]
        outs += [b for b in dict.fromkeys(roots) if b not in outs]
        self.module = module if outs == returned and not bases else _returning(module, outs)
        self.results: list[int | View] = [
            _viewed(r, bases[r], self.places, outs) if r in bases and bases[r] is not r else outs.index(r)
            for r in returned
        ]
        self.roots = {outs.index(b): b for b in roots}

    def at(self, inputs: Sequence[Any]) -> Views:
        """The views for inputs of these types.

        Raises:
          RuleError: views of a layout that is not known before the call.
        """
        return Views(self, _symbols(self.places, inputs))


def _viewed(node: fx.Node, base: fx.Node, places: Sequence[fx.Node], outs: Sequence[Any]) -> View:
    own = outs.index(node) if node in outs else None
    of_input = base in places
    return View(node, base, of_input, (places if of_input else outs).index(base), own)


def _bases(places: Sequence[fx.Node], returned: Sequence[Any]) -> dict[fx.Node, fx.Node]:
    """Of each result whose memory is an input's, or another result's, what it is a view of; maybe itself."""
    homes = {_storage(p): p for p in reversed(places)}
    sharing: dict[Any, list[fx.Node]] = {}
    for node in dict.fromkeys(returned):
        sharing.setdefault(_storage(node), []).append(node)
    bases = {}
    for node in returned:
        storage = _storage(node)
        if storage is None:
            continue
        root = _root(node)
        if storage in homes:
            bases[node] = root if root in places else homes[storage]
        elif len(sharing[storage]) > 1:
            bases[node] = root if _storage(root) == storage else sharing[storage][0]
    return bases


def _value(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, fx.Node) else None


def _storage(node: Any) -> int | None:
    """What memory a node's tensor is in; None for what is no tensor, or none of strided memory."""
    return next(_storages(_value(node)), None) if isinstance(_value(node), torch.Tensor) else None


def _storages(value: Any) -> Iterator[int]:
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        while _functorch.is_functorch_wrapped_tensor(value):  # within a transformation
            value = _functorch.get_unwrapped(value)
        yield value.untyped_storage()._cdata
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _storages(each)


def _chain(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that a tensor's memory came through, from the tensor to where it was made."""
    storage: Any = _storage(node)
    found: fx.Node | None = node
    while found is not None:
        yield found
        found = next((n for n in found.all_input_nodes if storage in _storages(_value(n))), None)


def _root(node: fx.Node) -> fx.Node:
    *_, root = _chain(node)
    return root


def _is_of_region(node: Any, base: fx.Node) -> bool:
    """Whether a region has made a view, so that its derivative may be another than a view's."""
    if _value(node) is _value(base) or _value(node).is_leaf:
        return False
    return any(isinstance(n.target, torch._ops.HigherOrderOperator) for n in _chain(node) if n is not base)


def _returning(module: fx.GraphModule, outs: Sequence[Any]) -> fx.GraphModule:
    graph = fx.Graph()
    names: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(module.graph, names)  # type: ignore[arg-type]
    graph.output(tuple(names[o] if isinstance(o, fx.Node) else o for o in outs))
    changed = fx.GraphModule(module, graph)
    changed.meta = dict(module.meta)
    return changed


# --- layouts ------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Layout:
    """Where a tensor's elements are: in elements, and ``start`` in bytes from the start of its storage."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    start: int
    itemsize: int

    @property
    def stop(self) -> int:
        """The byte behind the last."""
        if 0 in self.size:
            return self.start
        return self.start + (sum((n - 1) * s for n, s in zip(self.size, self.stride)) + 1) * self.itemsize


def _symbols(places: Sequence[fx.Node], inputs: Sequence[Any]) -> dict[Any, int]:
    """The sizes and strides of these inputs by the symbols that Dynamo has for them."""
    known: dict[Any, int] = {}
    for place, x in zip(places, inputs):
        seen = _value(place)
        if isinstance(x, torch.Tensor) and isinstance(seen, torch.Tensor):
            pairs = list(zip((*seen.shape, *seen.stride()), (*x.shape, *x.stride())))
        else:
            pairs = [(seen, x)]
        known |= {symbol.node.expr: n for symbol, n in pairs if isinstance(symbol, torch.SymInt)}
    return known


def _layout(node: fx.Node, symbols: dict[Any, int]) -> Layout:
    seen = _value(node)
    numbers = [
        n if isinstance(n, int) else n.node.expr.subs(symbols)
        for n in (*seen.shape, *seen.stride(), seen.storage_offset())
    ]
    if not all(isinstance(n, int) or n.is_Integer for n in numbers):
        _refuse(node, "has a size that depends on values")
    *both, offset = map(int, numbers)
    return Layout(tuple(both[: seen.ndim]), tuple(both[seen.ndim :]), offset * seen.itemsize, seen.itemsize)


def _refuse(node: fx.Node, why: str) -> NoReturn:
    raise RuleError(
        f"torch.compile(backend='meshwright'): the result {node.name}, at {described(node)}, shares memory with an "
        f"argument or another result, and {why}; return a copy of it (.clone())"
    )


# --- inputs that share memory -------------------------------------------------------------------------------
def overlapping(inputs: Sequence[Any]) -> set[int]:
    """The tensors that may have an element which another one has too."""
    spans = [(x.data_ptr(), i) for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and x.numel()]
    shared: set[int] = set()
    end, last = 0, -1  # of those so far, how far they reach, and which does
    for start, i in sorted(spans):
        x = inputs[i]
        stop = start + Layout(tuple(x.shape), x.stride(), 0, x.itemsize).stop
        shared |= {i, last} if start < end else set()
        end, last = max((end, last), (stop, i))
    return shared


def refuse_overlapping(inputs: Sequence[Any], written: Collection[int], places: Sequence[fx.Node]) -> None:
    """Raise for an input that a graph writes to, and of which another input would have the new values."""
    shared = overlapping(inputs) if written else set()
    names = [places[i].name for i in written if i in shared]
    if names:
        raise RuleError(
            f"torch.compile(backend='meshwright'): the function writes to {', '.join(names)}, which shares memory with "
            "another of its arguments; pass one of them as a copy (.clone()), or make the view inside of the function"
        )


# --- making views -------------------------------------------------------------------------------------------
class Views:
    """The views that a graph returns, at the types of its inputs."""

    def __init__(self, sharing: Sharing, symbols: dict[Any, int]) -> None:
        self._results = sharing.results
        self._roots = {i: _layout(b, symbols) for i, b in sharing.roots.items()}
        views = [v for v in sharing.results if isinstance(v, View)]
        self._layouts = {v.node: (_layout(v.node, symbols), _layout(v.base, symbols)) for v in views}
        for view in views:
            inner, outer = self._layouts[view.node]
            if not view.of_input and (inner.start < outer.start or inner.stop > outer.stop):
                _refuse(view.node, "is no part of any of them")

    def made_inside(self, inputs: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
        """The results of the graph, within a Function that gives them derivatives: some of them views."""
        outs = self._laid_out(outs)
        for view in self._results:
            if isinstance(view, View) and view.own is not None:
                base = inputs[view.index] if view.of_input else _unrelated(outs[view.index])
                outs[view.own] = self._made(view, base)
        return outs

    def all(self, inputs: Sequence[Any], outs: Sequence[Any]) -> tuple[Any, ...]:
        """All results, of the inputs as they are after the call, and those of the graph."""
        outs = self._laid_out(outs)
        return tuple(outs[r] if isinstance(r, int) else self._of(r, inputs, outs) for r in self._results)

    def _laid_out(self, outs: Sequence[Any]) -> list[Any]:
        """The results, what there are views of with its elements where torch has them."""
        return [_in_memory(o, self._roots[i]) if i in self._roots else o for i, o in enumerate(outs)]

    def _of(self, view: View, inputs: Sequence[Any], outs: Sequence[Any]) -> Any:
        if view.own is not None and outs[view.own].grad_fn is not None:
            return outs[view.own]
        base, seen = (inputs if view.of_input else outs)[view.index], _value(view.node)
        if seen is _value(view.base):
            return base
        return self._made(view, base.detach() if seen.is_leaf or view.own is not None else base)

    def _made(self, view: View, base: torch.Tensor) -> torch.Tensor:
        inner, outer = self._layouts[view.node]
        seen, start = _value(view.node), base.storage_offset() * base.itemsize + inner.start - outer.start
        made = _strided(_plain(base), seen.dtype, inner, start // inner.itemsize)
        made = made.conj() if seen.is_conj() else made
        return torch._neg_view(made) if seen.is_neg() else made


def _in_memory(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    if tensor.stride() == layout.stride:
        return tensor
    return torch.empty_strided(layout.size, layout.stride, dtype=tensor.dtype).copy_(tensor)


def _unrelated(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same memory; to autograd, which lets no Function return views of its results, another one."""
    alone = torch.empty(0, dtype=tensor.dtype)
    return alone.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the numbers that are in memory, neither conjugated nor negated."""
    tensor = tensor.conj() if tensor.is_conj() else tensor
    return torch._neg_view(tensor) if tensor.is_neg() else tensor


def _strided(base: torch.Tensor, dtype: torch.dtype, layout: Layout, at: int) -> torch.Tensor:
    """A view of a tensor's memory from element ``at`` on, of any dtype."""
    if base.dtype == dtype:
        return base.as_strided(layout.size, layout.stride, at)
    if base.is_complex() and dtype == base.dtype.to_real():
        return torch.view_as_real(base).as_strided(layout.size, layout.stride, at)
    if dtype.is_complex and base.dtype == dtype.to_real():
        pairs = base.as_strided((*layout.size, 2), (*(2 * s for s in layout.stride), 1), 2 * at)
        return torch.view_as_complex(pairs)
    unit = max(base.itemsize, layout.itemsize)
    count = base.untyped_storage().nbytes() // unit * unit // base.itemsize
    return base.detach().as_strided((count,), (1,), 0).view(dtype).as_strided(layout.size, layout.stride, at)
