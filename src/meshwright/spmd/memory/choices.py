"""Choices that give a result in the memory of an operand, which the first branch hands through as it is.

Every branch would copy what it hands through. The copy goes if nothing outside needs the operand any more, nor any
other branch when it writes the result; after a branch that writes a result of its own, it is too late. Source of the
idea: XLA's ``CopyInsertion``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from meshwright.spmd.memory.copies import needed_last
from meshwright.spmd.memory.graph import Graph, Node
from meshwright.spmd.memory.kernels import Kernel
from meshwright.spmd.memory.prune import handed, through


def handed_through(choice: Kernel, results: Sequence[Kernel], given: Collection[Kernel]) -> dict[int, Node]:
    """The operand that each result may take the place of, by the result's number; ``given`` are donated arguments."""
    found: dict[int, Node] = {}
    for place in choice.root.attributes["used"].values():
        operand = _first_of_all(choice.root.regions, place)
        if operand is None or operand in found.values() or through(choice.root, place) is not None:
            continue
        if needed_last(operand_of(choice, operand), choice, results, given):
            found[place] = operand
    return found


def operand_of(choice: Kernel, operand: Node) -> Kernel:
    """What the choice reads an operand from."""
    return choice.operands[choice.root.operands.index(operand)]


def aliases(branch: Graph, over: Mapping[int, Node]) -> dict[int, int]:
    """Result to parameter of a branch, by number, where the branch is given what its result takes the place of."""
    numbers = {p.attributes["outside"]: i for i, p in enumerate(branch.parameters)}
    return {place: numbers[operand] for place, operand in over.items() if operand in numbers}


def _first_of_all(branches: Sequence[Graph], place: int) -> Node | None:
    """The operand that the first branch hands through, unless one hands it through after another that does not."""
    first, *rest = (handed(branch.results[place]).attributes.get("outside") for branch in branches)
    own = [operand is not first for operand in rest]
    return first if own == sorted(own) else None
