"""Which dimensions of a Pallas kernel's grid can be divided among devices, and the kernel on a part of its grid.

JAX asks users to put kernels into ``shard_map``. But block specifications say which blocks of which operands a step of
the grid reads and writes: along a dimension of the grid that counts blocks of a dimension of everything that the kernel
writes, and does nothing else, devices can each run some of the steps, on the blocks that these use.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import jax

from meshwright.core.avals import ShapedArray
from meshwright.core.late import LateModule
from meshwright.errors import RuleError
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.sharding.rule import REPLICATED, ShardingRule, make_rule

_PALLAS: Any = LateModule("jax._src.pallas.pallas_call")
_CORE: Any = LateModule("jax._src.pallas.core")

#: from a JAX function and the types of its arguments to the program
Lower = Callable[[Callable[..., Any], Sequence[Any]], ClosedJaxpr]


#: for each dimension of a grid that can be divided, the dimension of each operand and result that its steps count
#: blocks of (None: they all use the same part of it)
Dims = dict[int, tuple[int | None, ...]]


class Grid:
    """The grid of a ``pallas_call`` with these parameters and operand types; ``lower`` lowers a part of it."""

    def __init__(self, params: Any, avals: Sequence[Any], dims: Dims, lower: Lower) -> None:
        self.params = params
        self.avals = avals
        self.dims = dims
        self.lower = lower
        #: the kernel for operands and results of given shapes: with fewer steps
        self.on_part = cache(self._lower)

    def __reduce__(self) -> Any:
        """For fingerprints: the op that has it describes the kernel."""
        return str, (str(self.dims),)

    def rule(self, ins: Sequence[ShapedArray], outs: Sequence[ShapedArray]) -> ShardingRule:
        """The sharding rule: blocks are whole, and other dimensions are not split."""
        sizes, kinds = dict[str, int](), dict[str, str]()
        values: list[list[Any]] = []
        for n, aval in enumerate((*ins, *outs)):
            names: list[Any] = [None] * aval.ndim
            for g, places in self.dims.items():
                if (d := places[n]) is not None:
                    steps, step, block = self.params["grid_mapping"].grid[g], f"grid{g}", f"block{n}.{d}"
                    sizes |= {step: steps, block: aval.shape[d] // steps}
                    kinds[block] = REPLICATED
                    names[d] = (step, block) if sizes[block] > 1 else step
            values.append(names)
        return make_rule(values[: len(ins)], values[len(ins) :], sizes, kinds)

    def _lower(self, shapes: tuple[tuple[int, ...], ...]) -> ClosedJaxpr:
        mapping, params = self.params["grid_mapping"], dict(self.params)
        first, count = len(self.avals) - mapping.num_inputs, len(self.avals)
        grid = list(mapping.grid)
        for g, places in self.dims.items():
            n, d = next((n, d) for n, d in enumerate(places) if d is not None)
            whole = (*(a.shape for a in self.avals), *(a.shape for a in params["out_avals"]))[n][d]
            grid[g], rest = divmod(shapes[n][d] * grid[g], whole)
            if rest:
                raise RuleError(f"kernel_call: a part of shape {shapes[n]} does not consist of whole blocks")
        blocks = [
            m.replace(array_aval=m.array_aval.update(shape=shape))
            for m, shape in zip(mapping.block_mappings, shapes[first:], strict=True)
        ]
        # Dimensions whose number of steps only a run knows are not divided.
        share = math.prod(n / whole for n, whole in zip(grid, mapping.grid) if isinstance(n, int))
        params["grid_mapping"] = mapping.replace(grid=tuple(grid), block_mappings=tuple(blocks))
        params["out_avals"] = tuple(a.update(shape=s) for a, s in zip(params["out_avals"], shapes[count:]))
        if params["cost_estimate"] is not None:
            cost = dataclasses.asdict(params["cost_estimate"])
            params["cost_estimate"] = _CORE.CostEstimate(**{k: int(v * share) for k, v in cost.items()})
        types = [jax.ShapeDtypeStruct(s, a.dtype) for s, a in zip(shapes, self.avals)]
        return self.lower(lambda *xs: _PALLAS.pallas_call_p.bind(*xs, interpret=False, **params), types)


def divisible(params: Any, avals: Sequence[Any]) -> Dims:
    """The dimensions of a kernel's grid that can be divided."""
    mapping, kernel = params["grid_mapping"], params["jaxpr"]
    if kernel.effects and any(not _is_of_refs(e) for e in kernel.effects):
        return {}
    own = [g for g in range(len(mapping.grid)) if g not in mapping.vmapped_dims]
    jaxprs = kernel, *(m.index_map_jaxpr for m in mapping.block_mappings)
    primitives = [eqn for jaxpr in jaxprs for eqn in _eqns(jaxpr)]
    if any(eqn.primitive.name.startswith("prng_") for eqn in primitives):
        return {}  # numbers are drawn from a state that goes from step to step
    positions = (eqn.params["axis"] for eqn in primitives if eqn.primitive.name in ("program_id", "num_programs"))
    asked = {own[axis] for axis in positions if axis < len(own)}  # others are those of loops within the kernel
    written = _written(kernel, mapping)
    if written is None:
        return {}
    semantics = getattr(params["compiler_params"], "dimension_semantics", None) or ()
    found = {}
    for g, steps in enumerate(mapping.grid):
        is_mapped = g in mapping.vmapped_dims
        says = str(semantics[own.index(g)]) if not is_mapped and len(semantics) == len(own) else ""
        apart = is_mapped or not mapping.scratch_avals or "parallel" in says.lower()
        if not isinstance(steps, int) or steps < 2 or g in asked or not apart:
            continue
        places = [_place(m, g, steps) for m in mapping.block_mappings]
        if _fits(places, written, params):
            rest = len(avals) - mapping.num_inputs
            found[g] = (*(None,) * rest, *(None if p is None else p for p in places))
    return {g: places for g, places in found.items() if _is_alone(g, places, found)}


#: a place that rules out that a dimension of the grid is divided
_MIXED = -1


def _fits(places: Sequence[int | None], written: set[int], params: Any) -> bool:
    mapping = params["grid_mapping"]
    if _MIXED in places or any(places[n] is None for n in written):
        return False
    # Aliases count what index maps read, but no sizes of the grid.
    pairs = [(i - mapping.num_index_operands, o + mapping.num_inputs) for i, o in params["input_output_aliases"]]
    return all(i >= 0 and places[i] == places[o] for i, o in pairs)


def _written(kernel: Any, mapping: Any) -> set[int] | None:
    """The inputs that the kernel writes, and its results, by their number; None if it writes what index maps read.

    What one step writes, later steps of the same block read, like scratch memory.
    """
    numbers = {v: n - mapping.num_index_operands for n, v in enumerate(kernel.invars)}
    effects = [numbers.get(e.input, -1) for e in kernel.effects if not _only_reads(e)]
    if any(n < 0 for n in effects):
        return None
    count = len(mapping.block_mappings)
    return {*(n for n in effects if n < count), *range(mapping.num_inputs, count)}


def read_after_written(params: Any) -> list[int]:
    """The inputs of which a step may read what an earlier one wrote to the result that shares their memory.

    JAX's interpreter gives it the input as it was. On hardware this is the same if a step writes the block that it
    reads, and no other step comes back to that block later.
    """
    mapping, kernel = params["grid_mapping"], params["jaxpr"]
    first = mapping.num_index_operands
    read = {e.input for e in kernel.effects if _is_of_refs(e) and _only_reads(e)}
    blocks, found = mapping.block_mappings, []
    for i, o in params["input_output_aliases"]:
        if i < first:
            continue  # index maps are given a copy
        mine, written = blocks[i - first], blocks[mapping.num_inputs + o]
        copied = "any" not in str(mine.transformed_block_aval).lower()
        alike = str(mine.index_map_jaxpr) == str(written.index_map_jaxpr) and mine.block_shape == written.block_shape
        if kernel.invars[i] in read and not (copied and alike and _stays_away(mine, mapping.grid)):
            found.append(i - first)
    return found


def _stays_away(mapping: Any, grid: Sequence[Any]) -> bool:
    """Whether all steps that use a block follow one another."""
    jaxpr = mapping.index_map_jaxpr.jaxpr
    counted = [v for v in jaxpr.outvars if not hasattr(v, "val")]
    steps = [g for g, v in enumerate(jaxpr.invars[: len(grid)]) if v in counted]
    others = [g for g, n in enumerate(grid) if g not in steps and n != 1]
    return not jaxpr.eqns and (not others or not steps or max(steps) < min(others))


def _is_alone(g: int, places: Sequence[int | None], found: Any) -> bool:
    """Whether no other dimension of the grid counts blocks of the same dimensions."""
    others = [other for h, other in found.items() if h != g]
    return not any(d is not None and d == other[n] for other in others for n, d in enumerate(places))


def _place(mapping: Any, g: int, steps: int) -> int | None:
    """The dimension of which step ``i`` along ``g`` uses block ``i``; None if it makes no difference."""
    jaxpr = mapping.index_map_jaxpr.jaxpr
    step, depends = jaxpr.invars[g], {jaxpr.invars[g]}
    for eqn in jaxpr.eqns:
        if any(v in depends for v in eqn.invars if not hasattr(v, "val")):
            depends.update(eqn.outvars)
    uses = [d for d, v in enumerate(jaxpr.outvars) if not hasattr(v, "val") and v in depends]
    if not uses:
        return None
    (d, *more), size = uses, mapping.array_aval.shape
    block = mapping.block_shape[d]
    length = 1 if isinstance(block, _CORE.Squeezed) else getattr(block, "block_size", 0)
    is_block = isinstance(block, (_CORE.Squeezed, _CORE.Blocked)) and length * steps == size[d]
    return d if not more and jaxpr.outvars[d] is step and is_block else _MIXED


def _is_of_refs(effect: Any) -> bool:
    return type(effect).__name__ in ("ReadEffect", "WriteEffect", "AccumEffect")


def _only_reads(effect: Any) -> bool:
    return type(effect).__name__ == "ReadEffect"


def _eqns(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr of JAX, also of those that these hold."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield eqn
        for value in eqn.params.values():
            for each in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(each, "eqns") or hasattr(getattr(each, "jaxpr", None), "eqns"):
                    yield from _eqns(each)
