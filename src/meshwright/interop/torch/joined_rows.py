"""Rows that a mask picks, joined with others, written to, and as positions: the edges of a graph without those of a
kind, and with others added, which say what is read and where it is written.

Positions of rows that are not picked lie behind the end where they are written to, where nothing is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from meshwright.interop.torch.rows import Left, Plan, become, named, same, set_argument, symbols

aten = torch.ops.aten


def planned(plan: Plan, node: fx.Node, packet: str) -> bool:
    """Plan what becomes of a node, if it is one of these.

    Raises:
      Left: it is, and needs to know how many rows there are.
    """
    rule = _RULES.get(packet)
    return rule is not None and rule(plan, node)


# --- joined -------------------------------------------------------------------------------------------------
def _joined(plan: Plan, node: fx.Node) -> bool:
    given = named(node)
    values = [x.meta["val"] for x in given["tensors"]]
    dim = given["dim"] % node.meta["val"].ndim
    size = node.meta["val"].shape[dim]
    if not symbols(size):
        return False
    parts: list[Any] = []
    for value in values:
        if value.ndim != node.meta["val"].ndim:
            raise Left
        if not symbols(value):
            parts.append(value.shape[dim])
            continue
        mask, along = plan.rows(value)
        if along != dim:
            raise Left
        parts += plan.parts.get(mask, [mask])
    mask = _mask_of(plan, parts, node)
    plan.know(size, mask)

    def edit() -> None:
        with plan.graph.inserting_before(node):
            every = plan.graph.call_function(node.target, node.args, node.kwargs)  # type: ignore[arg-type]
        every.meta = dict(node.meta)
        become(node, torch.ops.meshwright.picked.default, (every, mask, dim))

    plan.edits.append(edit)
    return True


def _mask_of(plan: Plan, parts: Sequence[Any], node: fx.Node) -> fx.Node:
    """Which rows there are where these are joined: those of masks, and numbers of others."""
    merged: list[Any] = []
    for part in parts:
        if merged and not isinstance(part, fx.Node) and not isinstance(merged[-1], fx.Node):
            merged[-1] += part
        else:
            merged.append(part)
    for known, of in plan.parts.items():
        if len(of) == len(merged) and all(a is b if isinstance(a, fx.Node) else a == b for a, b in zip(of, merged)):
            return known
    like = next(p for p in merged if isinstance(p, fx.Node)).meta["val"]

    def piece(part: Any) -> fx.Node:
        if isinstance(part, fx.Node):
            return _flat(plan, part, node)
        if type(part) is not int:
            raise Left
        return plan.make(node, aten.ones.default, ([part],), like.new_empty([part]), dtype=torch.bool)

    pieces = [piece(part) for part in merged]
    whole = like.new_empty([sum(p.meta["val"].shape[0] for p in pieces)])
    mask = plan.make(node, aten.cat.default, (pieces,), whole)
    plan.parts[mask] = merged
    return mask


def _flat(plan: Plan, mask: fx.Node, node: fx.Node) -> fx.Node:
    value = mask.meta["val"]
    return plan.make(node, aten.reshape.default, (mask, [-1]), value.new_empty([math.prod(value.shape)]))


# --- sizes --------------------------------------------------------------------------------------------------
def _created(plan: Plan, node: fx.Node) -> bool:
    if not symbols(node.meta["val"]):
        return True
    _, dim = plan.rows(node.meta["val"])
    plan.edits.append(lambda: _resize(node, dim))
    return True


def _resize(node: fx.Node, dim: int) -> None:
    sizes: Any = list(named(node)["size"])
    sizes[dim] = node.meta["val"].shape[dim]
    set_argument(node, "size", sizes)


def _viewed(plan: Plan, node: fx.Node) -> bool:
    """Another shape, if rows stay rows."""
    before, after = named(node)["self"].meta["val"], node.meta["val"]
    if not symbols(before):
        raise Left
    (mask, d), (own, e) = plan.rows(before), plan.rows(after)
    lead = [*before.shape[:d], *after.shape[:e]]
    if own is not mask or any(type(n) is not int for n in lead):
        raise Left
    if math.prod(before.shape[:d]) != math.prod(after.shape[:e]):
        raise Left
    plan.edits.append(lambda: _resize(node, e))
    return True


def _expanded(plan: Plan, node: fx.Node) -> bool:
    given = named(node)
    value, x = node.meta["val"], given["self"].meta["val"]
    mask, dim = plan.rows(value)
    if symbols(x):
        own, d = plan.rows(x)
        if own is not mask or x.ndim - d != value.ndim - dim:
            raise Left
    plan.edits.append(lambda: plan.guard(node, mask))
    if "size" in given:
        plan.edits.append(lambda: _resize(node, dim))
    return True


# --- within rows --------------------------------------------------------------------------------------------
def _within(plan: Plan, dim: int, given: Sequence[fx.Node], dropped: bool = False) -> bool:
    """Tensors of the same rows, along another dimension, which all but the first may have dropped."""
    if not all(map(plan.is_picked, given)):
        raise Left
    values = [x.meta["val"] for x in given]
    dim %= values[0].ndim
    (mask, along), *others = map(plan.rows, values)
    after = along - (dropped and dim < along)
    if dim == along or any(own is not mask or d != after for own, d in others):
        raise Left
    return True


def _written_within(plan: Plan, node: fx.Node) -> bool:
    given = named(node)
    return _within(plan, given["dim"], (given["self"], given["src"]), node.target is aten.select_scatter.default)


def _padded(plan: Plan, node: fx.Node) -> bool:
    given = named(node)
    value = given["self"].meta["val"]
    back = value.ndim - 1 - plan.rows(value)[1]
    if any(type(n) is not int or n != 0 for n in given["pad"][2 * back : 2 * back + 2]):
        raise Left
    return True


# --- positions ----------------------------------------------------------------------------------------------
def _positions(plan: Plan, indices: Sequence[Any]) -> tuple[fx.Node, int]:
    """The mask of the rows of indices, some of which are picked, and how far from their end these are."""
    values = [i.meta["val"] for i in indices]
    if any(v.dtype == torch.bool for v in values):
        raise Left
    found = [(*plan.rows(v), v.ndim) for v in values if symbols(v)]
    backs = {ndim - dim for _, dim, ndim in found}
    if len(backs) != 1 or any(mask is not found[0][0] for mask, *_ in found):
        raise Left
    return found[0][0], backs.pop()


def _read(plan: Plan, node: fx.Node) -> bool:
    given = named(node)
    x: Any = given["self"]
    chosen: Any = given["index"] if "index" in given else [i for i in given["indices"] if i is not None]
    chosen = [chosen] if isinstance(chosen, fx.Node) else chosen
    if len(chosen) == 1 and chosen[0].meta["val"].dtype == torch.bool:
        return _picked_again(plan, node)
    if plan.is_picked(x) and node.target is aten.gather.default:
        return _within(plan, given["dim"], (x, *chosen))
    if plan.is_picked(x) or x.meta["val"].ndim == 0:
        raise Left
    mask, back = _positions(plan, chosen)
    value = chosen[0].meta["val"]
    if node.target is aten.gather.default and value.ndim - back != given["dim"] % value.ndim:
        raise Left
    plan.edits.append(lambda: plan.guard(node, mask))
    return True


def _picked_again(plan: Plan, node: fx.Node) -> bool:
    """Some of the rows that a mask picks: those that both masks do."""
    x, indices = node.args[:2]
    chosen: Any = indices[-1]  # type: ignore[index]
    lead, value = len(indices) - 1, node.meta["val"]  # type: ignore[arg-type]
    if not plan.is_picked(x) or not plan.is_picked(chosen) or chosen.meta["val"].ndim != 1:
        raise Left
    mask, dim = plan.rows(x.meta["val"])  # type: ignore[union-attr]
    if plan.rows(chosen.meta["val"])[0] is not mask or dim != lead:
        raise Left
    both = next((m for m, (a, b) in plan.both.items() if a is mask and same(b, chosen)), None)
    if both is None:
        flat = _flat(plan, mask, node)
        both = plan.make(node, aten.logical_and.default, (flat, chosen), flat.meta["val"])
        plan.both[both] = (mask, chosen)
    plan.know(value.shape[lead], both)
    plan.edits.append(lambda: become(node, torch.ops.meshwright.picked.default, (x, both, lead)))
    return True


def _behind(plan: Plan, node: fx.Node, index: fx.Node, size: int) -> fx.Node:
    """Positions, behind the end for rows that are not picked."""
    mask, dim = plan.rows(index.meta["val"])
    if type(size) is not int:
        raise Left
    return plan.make(node, torch.ops.meshwright.filled.default, (index, mask, dim, size), index.meta["val"])


def _written(plan: Plan, node: fx.Node) -> bool:
    given = named(node)
    x, index = given["self"], given["index"]
    if plan.is_picked(x) or not plan.is_picked(index) or x.meta["val"].ndim == 0:
        raise Left
    mask, dim = plan.rows(index.meta["val"])
    along = given["dim"] % x.meta["val"].ndim
    if "index_" not in str(node.target) and dim != along:
        raise Left
    for name in ("src", "source"):
        source = given.get(name)
        if source is not None and (not plan.is_picked(source) or plan.rows(source.meta["val"]) != (mask, along)):
            raise Left
    behind = _behind(plan, node, index, x.meta["val"].shape[along])
    plan.edits.append(lambda: set_argument(node, "index", behind))
    return True


def _put(plan: Plan, node: fx.Node) -> bool:
    given = named(node)
    x, indices, values = given["self"].meta["val"], list(given["indices"]), given["values"]
    lead = next(k for k, i in enumerate(indices) if i is not None)
    if any(i is None for i in indices[lead:]):
        raise Left
    if not any(map(plan.is_picked, indices)):
        return False  # under a mask of all rows
    if plan.is_picked(given["self"]):
        return _put_among(plan, node, given, lead)
    mask, back = _positions(plan, indices[lead:])
    back += x.ndim - len(indices)
    value = values.meta["val"]
    if plan.is_picked(values):
        own, dim = plan.rows(value)
        if own is not mask or value.ndim - dim != back:
            raise Left
    elif value.ndim >= back and value.shape[value.ndim - back] != 1:
        raise Left
    place = next(k for k, i in enumerate(indices) if plan.is_picked(i))
    indices[place] = _behind(plan, node, indices[place], x.shape[place])
    plan.edits.append(lambda: set_argument(node, "indices", indices))
    return True


def _put_among(plan: Plan, node: fx.Node, given: dict[str, Any], lead: int) -> bool:
    """One value in some of the rows, or rows that were picked there."""
    x, chosen, values = given["self"], given["indices"][lead], given["values"]
    of = chosen.meta["val"]
    if of.dtype != torch.bool or len(given["indices"]) != lead + 1:
        raise Left
    (mask, dim), (own, d) = plan.rows(x.meta["val"]), plan.rows(of)
    if own is not mask or dim != lead + d:
        raise Left
    if not plan.is_picked(values):
        if values.meta["val"].numel() != 1:
            raise Left
        return True
    both, along = plan.rows(values.meta["val"])
    picked, again = plan.both.get(both, (None, None))
    after = values.meta["val"].ndim - along
    if picked is not mask or not same(again, chosen) or of.ndim != 1 or after != x.meta["val"].ndim - lead:
        raise Left
    args, flat = (x, both, lead, values, bool(given["accumulate"])), _flat(plan, mask, node)

    def edit() -> None:  # copies of the first row are to have what is written there
        with plan.graph.inserting_before(node):
            written = plan.graph.call_function(torch.ops.meshwright.put_picked.default, args)
        written.meta = dict(node.meta)
        become(node, torch.ops.meshwright.picked.default, (written, flat, lead))

    plan.edits.append(edit)
    return True


_RULES: dict[str, Callable[[Plan, fx.Node], bool]] = {
    "aten.cat": _joined,
    **dict.fromkeys(("aten.view", "aten.reshape", "aten._unsafe_view"), _viewed),
    **dict.fromkeys(("aten.expand", "aten.expand_as"), _expanded),
    **dict.fromkeys((f"aten.{of}{what}" for of in ("", "new_") for what in ("ones", "zeros", "full")), _created),
    **dict.fromkeys(("aten.index", "aten.index_select", "aten.gather"), _read),
    **dict.fromkeys((f"aten.scatter{how}" for how in ("", "_add", "_reduce")), _written),
    **dict.fromkeys((f"aten.index_{how}" for how in ("add", "copy", "reduce", "fill")), _written),
    "aten.index_put": _put,
    **dict.fromkeys(("aten.select_scatter", "aten.slice_scatter"), _written_within),
    **dict.fromkeys(("aten.pad", "aten.constant_pad_nd"), _padded),
}
