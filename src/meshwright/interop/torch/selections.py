"""Rows that a mask picks (``x[mask]``), in programs of fixed shapes.

How many rows there are, nobody knows; torch has a symbol for it. Where each op treats rows by themselves, or reduces
over them, or writes them back under the same mask, joins them with others or takes them for positions
(``joined_rows.py``), all rows are kept instead: those that are not picked are copies of the first one that is, so that
nothing is computed of values that the module does not look at (``log(x[x > 0])``), and reductions and writes leave them
out. Programs with anything else of such a symbol are left as they are, and refused.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from meshwright.interop.torch import joined_rows
from meshwright.interop.torch.registry import name_of
from meshwright.interop.torch.rows import Left, Plan, become, named, same, symbols, tags

aten = torch.ops.aten
_LIBRARY = torch.library.Library("meshwright", "FRAGMENT")
_LIBRARY.define("picked(Tensor x, Tensor mask, int lead) -> Tensor")
_LIBRARY.define("put_picked(Tensor x, Tensor mask, int lead, Tensor rows, bool accumulate) -> Tensor")
_LIBRARY.define("filled(Tensor x, Tensor mask, int dim, Scalar value) -> Tensor")
_LIBRARY.define("moved_by_picked(Tensor x, Tensor mask) -> Tensor")
_LIBRARY.define("count_picked(Tensor mask) -> Tensor")
_OURS = torch.ops.meshwright


#: ops of rows by themselves along every dimension but those that their argument ``dim`` tells
_BUT_ALONG_DIM = {
    "aten._log_softmax", "aten._softmax", "aten.all.dim", "aten.amax", "aten.amin", "aten.any.dim",
    "aten.argmax", "aten.argmin", "aten.chunk", "aten.cumsum", "aten.linalg_vector_norm", "aten.log_softmax.int",
    "aten.logsumexp", "aten.max.dim", "aten.mean.dim", "aten.min.dim", "aten.select.int", "aten.slice.Tensor",
    "aten.softmax.int", "aten.sort", "aten.split.Tensor", "aten.squeeze.dim", "aten.std.correction",
    "aten.std.dim", "aten.sum.dim_IntList", "aten.topk", "aten.unbind.int", "aten.var.correction", "aten.var.dim",
}  # fmt: skip
#: ops whose result has the rows where torch's sizes say
_MOVED = {"aten.unsqueeze", "aten.transpose.int", "aten.permute", "aten.t", "aten.numpy_T", "aten.zeros_like",
          "aten.ones_like", "aten.full_like", "aten.broadcast_tensors", "aten.to", "aten._to_copy", "aten.clone",
          "aten.contiguous", "aten.detach", "aten.alias"}  # fmt: skip
#: what stands in for rows that are not picked, in a reduction over them
_NEUTRAL: dict[str, Callable[[torch.dtype], Any]] = {
    **dict.fromkeys(("sum", "linalg_vector_norm"), lambda dtype: 0),
    **dict.fromkeys(("amax", "max"), lambda dtype: -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min),
    **dict.fromkeys(("amin", "min"), lambda dtype: math.inf if dtype.is_floating_point else torch.iinfo(dtype).max),
    "logsumexp": lambda dtype: -math.inf,
    "prod": lambda dtype: 1,
    "any": lambda dtype: False,
    "all": lambda dtype: True,
}
_LOSSES = {
    "mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "soft_margin_loss",
}  # fmt: skip
#: ops of elements by themselves, which torch does not call so
_ELEMENTS = {"copy", "fill"}
_CLASSES = {"cross_entropy_loss", "nll_loss", "nll_loss_nd"}


def keep_all_rows(module: fx.GraphModule) -> None:
    """Rewrite a program with rows that masks pick as one of fixed shapes, if all of it can be."""
    if not any(symbols(n.meta.get("val")) for n in module.graph.nodes):
        return
    plan = _Whole(module.graph)
    try:
        for node in list(module.graph.nodes):
            plan.add(node)
    except Left:
        for node in reversed(plan.made):
            module.graph.erase_node(node)
        return
    plan.apply()
    module.graph.lint()
    module.recompile()


class _Whole(Plan):
    """A plan of a whole program.

    Attributes:
      dropped: torch's checks of symbols, which hold.
    """

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__(graph)
        self.dropped: list[fx.Node] = []

    def apply(self) -> None:
        self.picked = {n for n in self.graph.nodes if self.is_picked(n)}
        sized = [n for n in self.graph.nodes if isinstance(n.meta.get("val"), (torch.Tensor, tuple, list))]
        for node in sized:
            node.meta["val"] = self._of_fixed_sizes(node.meta["val"])
        for edit in self.edits:
            edit()
        for node in reversed(self.dropped):
            if not node.users:
                self.graph.erase_node(node)
        self.graph.eliminate_dead_code()

    def _of_fixed_sizes(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(map(self._of_fixed_sizes, value))
        if not isinstance(value, torch.Tensor) or not symbols(value):
            return value
        shape = [math.prod(self.mask_of(n).meta["val"].shape) if symbols(n) else n for n in value.shape]
        return value.new_empty(shape)

    def _picked(self, node: fx.Node) -> Iterator[torch.Tensor]:
        for given in node.all_input_nodes:
            value = given.meta.get("val")
            values = value if isinstance(value, (tuple, list)) else [value]
            yield from (v for v in values if isinstance(v, torch.Tensor) and symbols(v))

    # --- nodes ----------------------------------------------------------------------------------------------
    def add(self, node: fx.Node) -> None:
        """Plan what becomes of a node.

        Raises:
          Left: it needs to know how many rows there are.
        """
        value = node.meta.get("val")
        picked = list(self._picked(node))
        counts = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.SymInt)]
        counted = any(symbols(n.meta["val"]) for n in counts)
        if not picked and not counted and not symbols(value):
            return
        if node.op != "call_function":
            raise Left
        name = name_of(node.target)
        packet = name.rpartition(".")[0] if name.count(".") > 1 else name
        if "_assert_scalar" in name or "sym_constrain_range" in name or value is None:
            self.dropped.append(node)
        elif isinstance(value, torch.SymBool):
            self._holds(node)
        elif packet == "aten.sym_size":
            self._count(node)
        elif isinstance(value, (torch.SymInt, torch.SymFloat)):
            if isinstance(node.target, torch._ops.OpOverload):
                raise Left
        elif packet in ("aten.index", "aten.masked_select") and not picked:
            self._pick(node)
        elif joined_rows.planned(self, node, packet):
            return
        elif packet in ("aten.index_put", "aten.masked_scatter"):
            self._put(node)
        elif not picked and not symbols(value):
            return  # of numbers alone
        elif not picked:
            raise Left
        else:
            self._of_rows(node, name, packet, picked)

    def _holds(self, node: fx.Node) -> None:
        """Torch's checks of sizes: not negative, at most all rows, the same under one mask. That there are rows, which
        torch asks for largest ones, no program can check: of none, these are infinite."""
        left, right = (getattr(a, "meta", {}).get("val", a) for a in node.args)
        self.dropped.append(node)
        if node.target in (operator.ge, operator.gt) and type(right) is int and right in (0, 1):
            self.mask_of(left)
        elif node.target is operator.le and type(right) is int:
            if math.prod(self.mask_of(left).meta["val"].shape) > right:
                raise Left
        elif node.target is not operator.eq or self.mask_of(left) is not self.mask_of(right):
            raise Left

    def _count(self, node: fx.Node) -> None:
        if isinstance(node.meta["val"], torch.SymInt) and symbols(node.meta["val"]):
            mask = self.mask_of(node.meta["val"])
            self.edits.append(lambda: become(node, _OURS.count_picked.default, (mask,)))

    def _pick(self, node: fx.Node) -> None:
        x, chosen = node.args[:2]
        indices = [chosen] if isinstance(chosen, fx.Node) else list(chosen)  # type: ignore[arg-type]
        mask, lead = indices[-1], len(indices) - 1
        if any(i is not None for i in indices[:-1]) or not isinstance(mask, fx.Node):
            raise Left
        of, given = mask.meta["val"], x.meta["val"]  # type: ignore[union-attr]
        if (
            of.dtype != torch.bool
            or of.ndim == 0
            or symbols([of, given])
            or tuple(given.shape[lead : lead + of.ndim]) != tuple(of.shape)
        ):
            raise Left
        if "masked_select" in name_of(node.target) and of.ndim != given.ndim:
            raise Left
        (along,) = [n for n in node.meta["val"].shape if symbols(n)]
        known = next((m for m in self.masks.values() if same(m, mask)), mask)
        self.know(along, known)
        self.edits.append(lambda: become(node, _OURS.picked.default, (x, known, lead)))

    def _put(self, node: fx.Node) -> None:
        given: dict[str, Any] = named(node)
        x, rows = given["self"], given.get("values", given.get("source"))
        if rows is None or not self.is_picked(rows):
            raise Left
        indices: Any = given.get("indices", [given.get("mask")])
        mask, lead = indices[-1], len(indices) - 1
        if self.is_picked(x) or not isinstance(mask, fx.Node) or any(i is not None for i in indices[:-1]):
            raise Left
        of, dest = mask.meta["val"], x.meta["val"]
        own, dim = self.rows(rows.meta["val"])
        after = rows.meta["val"].ndim - dim - 1
        if of.dtype != torch.bool or not same(own, mask) or after != dest.ndim - lead - of.ndim:
            raise Left
        if tuple(dest.shape[lead : lead + of.ndim]) != tuple(of.shape):
            raise Left
        accumulate = bool(given.get("accumulate", False))
        self.edits.append(lambda: become(node, _OURS.put_picked.default, (x, own, lead, rows, accumulate)))

    def _of_rows(self, node: fx.Node, name: str, packet: str, picked: Sequence[torch.Tensor]) -> None:
        """An op of rows: by themselves, or a reduction over them."""
        found = [self.rows(v) for v in picked]
        mask = found[0][0]
        if any(m is not mask for m, _ in found) or torch.Tag.nondeterministic_seeded in tags(node):
            raise Left
        value = node.meta["val"]
        first, (_, dim) = picked[0], found[0]
        self.edits.append(lambda: self.guard(node, mask))
        if node.target is operator.getitem or name in _MOVED or packet in _MOVED:
            return
        short = packet.rpartition(".")[2]
        if not symbols(value):
            self._reduce(node, short, mask)
        elif torch.Tag.pointwise in tags(node) or short in _LOSSES | _ELEMENTS:
            fits = value.ndim - self.rows(value)[1]
            if any(v.ndim - d != fits for v, (_, d) in zip(picked, found)):
                raise Left
        elif short in _CLASSES:
            self._classes(node, mask)
        elif packet == "aten.cat":  # along another dimension
            if len(picked) != len(named(node)["tensors"]) or len({d for _, d in found}) > 1:
                raise Left
        elif name in _BUT_ALONG_DIM or packet in _BUT_ALONG_DIM:
            dims = named(node)["dim"]
            dims = [dims] if isinstance(dims, int) else dims
            if len(picked) > 1 or not dims or dim in [d % first.ndim for d in dims]:
                raise Left
        elif not self._is_product(node, packet):
            raise Left

    def _is_product(self, node: fx.Node, packet: str) -> bool:
        """Whether an op with weights takes each row by itself."""
        given = named(node)
        others = {"aten.linear": "input", "aten.mm": "self", "aten.matmul": "self", "aten.addmm": "mat1",
                  "aten.layer_norm": "input", "aten.rms_norm": "input", "aten.embedding": "indices"}  # fmt: skip
        which: Any = given.get(others.get(packet, ""))
        if not self.is_picked(which) or any(self.is_picked(x) for x in given.values() if x is not which):
            return False
        value = which.meta["val"]
        back = {"aten.layer_norm": len(given.get("normalized_shape") or ()), "aten.embedding": 0}
        back["aten.rms_norm"] = back["aten.layer_norm"]
        if packet == "aten.matmul" and given["other"].meta["val"].ndim > 2:
            return False
        if packet == "aten.embedding" and given["scale_grad_by_freq"]:
            return False
        return self.rows(value)[1] < value.ndim - back.get(packet, 1)

    # --- reductions -----------------------------------------------------------------------------------------
    def _reduce(self, node: fx.Node, short: str, mask: fx.Node) -> None:
        given = named(node)
        if short in _CLASSES:
            self._classes(node, mask)
            return
        if short in _LOSSES:
            if given["reduction"] not in (1, 2):
                raise Left
            self._loss(node, given, mask)
            return
        x: Any = given.get("self")
        if not self.is_picked(x) or len(node.all_input_nodes) != 1 or (short != "mean" and short not in _NEUTRAL):
            raise Left
        value = x.meta["val"]
        dims = given.get("dim")
        dims = list(range(value.ndim)) if dims in (None, []) else [dims] if isinstance(dims, int) else list(dims)
        dim = self.rows(value)[1]
        if isinstance(node.meta["val"], (tuple, list)) or dim not in [d % value.ndim for d in dims]:
            raise Left
        if short == "linalg_vector_norm" and not 0 < given["ord"] < math.inf:
            raise Left
        if short.startswith(("amax", "amin", "max", "min")) and value.dtype == torch.bool:
            raise Left
        if value.dtype.is_complex and short not in ("sum", "mean", "prod"):
            raise Left
        if short == "mean":
            keep, dtype = bool(given.get("keepdim", False)), given.get("dtype")
            self.edits.append(lambda: self._mean(node, x, mask, dim, dims, keep, dtype))
            return
        neutral = _NEUTRAL[short](value.dtype)

        def edit() -> None:
            with self.graph.inserting_before(node):
                node.replace_input_with(x, self._filled(x, mask, dim, neutral))

        self.edits.append(edit)

    def _filled(self, x: Any, mask: fx.Node, dim: int, value: Any) -> fx.Node:
        out = self.graph.call_function(_OURS.filled.default, (x, mask, dim, value))
        out.meta = dict(x.meta)
        return out

    def _mean(
        self, node: fx.Node, x: Any, mask: fx.Node, dim: int, dims: Sequence[int], keep: bool, dtype: Any
    ) -> None:
        value = x.meta["val"]
        others = math.prod(value.shape[d] for d in {d % value.ndim for d in dims} - {dim})
        with self.graph.inserting_before(node):
            total = self.graph.call_function(
                aten.sum.dim_IntList, (self._filled(x, mask, dim, 0), list(dims), keep), {"dtype": dtype}
            )
            count = self.graph.call_function(
                aten.mul.Tensor, (self.graph.call_function(aten.sum.default, (mask,)), others)
            )
        total.meta, count.meta = dict(node.meta), {k: v for k, v in node.meta.items() if k != "val"}
        become(node, aten.div.Tensor, (total, count))

    def _loss(self, node: fx.Node, given: dict[str, Any], mask: fx.Node) -> None:
        """A loss of rows, and the sum or mean of these."""
        tensors = [x.meta["val"] for x in given.values() if isinstance(x, fx.Node)]
        shape = torch.broadcast_shapes(*(self._of_fixed_sizes(t).shape for t in tensors))
        picked = [t for t in tensors if symbols(t)]
        back = {t.ndim - self.rows(t)[1] for t in picked}
        if len(back) != 1:
            raise Left
        dim, is_mean = len(shape) - back.pop(), given["reduction"] == 1

        def edit() -> None:
            with self.graph.inserting_before(node):
                each = self.graph.call_function(node.target, (), {**named(node), "reduction": 0})
            each.meta = {**node.meta, "val": node.meta["val"].new_empty(shape)}
            dims = list(range(len(shape)))
            if is_mean:
                self._mean(node, each, mask, dim, dims, False, None)
                return
            with self.graph.inserting_before(node):
                kept = self._filled(each, mask, dim, 0)
            become(node, aten.sum.dim_IntList, (kept, dims))

        self.edits.append(edit)

    def _classes(self, node: fx.Node, mask: fx.Node) -> None:
        """Losses of classes, which leave out rows of the class ``ignore_index``."""
        given = named(node)
        target = given["target"]
        if not self.is_picked(target) or target.meta["val"].is_floating_point() or self.is_picked(given["weight"]):
            raise Left
        x, (_, dim) = given["self"].meta["val"], self.rows(target.meta["val"])
        if not symbols(x) or self.rows(x)[1] != 0 or dim != 0:
            raise Left

        if given["reduction"] == 0:
            return

        def edit() -> None:
            with self.graph.inserting_before(node):
                kept = self._filled(target, mask, dim, given["ignore_index"])
            node.replace_input_with(target, kept)

        self.edits.append(edit)
