"""Conditionals with results that alias an operand which the first branch returns unchanged.

By default, every branch copies an operand that it returns. The copy is removed if nothing outside uses the operand
later. If another branch writes the result, that branch must not use the operand later either. The copy is kept if a
branch that returns the operand follows one that writes its own result. Based on XLA's ``CopyInsertion``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from meshwright.spmd.memory.copies import needed_last
from meshwright.spmd.memory.graph import Graph, Node
from meshwright.spmd.memory.kernels import Kernel
from meshwright.spmd.memory.prune import handed, through


def handed_through(choice: Kernel, results: Sequence[Kernel], given: Collection[Kernel]) -> dict[int, Node]:
    """The operand that each result may alias, by the result's number; ``given`` are donated arguments."""
    found: dict[int, Node] = {}
    for place in choice.root.attributes["used"].values():
        operand = _first_of_all(choice.root.regions, place)
        if operand is None or operand in found.values() or through(choice.root, place) is not None:
            continue
        if needed_last(operand_of(choice, operand), choice, results, given):
            found[place] = operand
    return found


def operand_of(choice: Kernel, operand: Node) -> Kernel:
    """The kernel that produces an operand of a conditional."""
    return choice.operands[choice.root.operands.index(operand)]


def aliases(branch: Graph, over: Mapping[int, Node]) -> dict[int, int]:
    """The results of a branch that alias one of its parameters, as result number to parameter number."""
    numbers = {p.attributes["outside"]: i for i, p in enumerate(branch.parameters)}
    return {place: numbers[operand] for place, operand in over.items() if operand in numbers}


def _first_of_all(branches: Sequence[Graph], place: int) -> Node | None:
    """The operand that the first branch returns, unless another branch returns it after one that does not."""
    first, *rest = (handed(branch.results[place]).attributes.get("outside") for branch in branches)
    own = [operand is not first for operand in rest]
    return first if own == sorted(own) else None
