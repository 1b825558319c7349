"""Hardware-specific corrections to a memory prediction.

On TPUs, arrays are tiled. On GPUs, matrix products need a workspace, which all products of a program share since they
run one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr, all_eqns
from meshwright.spmd.memory.held import Memory
from meshwright.spmd.memory.tiles import tiled_bytes

#: the workspace that XLA gives cuBLAS for a product, as found in compiled programs
_WORKSPACE = 4 * 2**20


def tiled_memory(memory: Memory, ins: Iterable[ShapedArray], outs: Iterable[ShapedArray]) -> Memory:
    """A prediction with the tiled sizes of arguments and results; results in donated buffers grow with them."""
    arguments, results = sum(map(tiled_bytes, ins)), sum(map(tiled_bytes, outs))
    share = memory.alias_bytes / memory.output_bytes if memory.output_bytes else 0.0
    return replace(memory, argument_bytes=arguments, output_bytes=results, alias_bytes=int(share * results))


def with_workspace(memory: Memory, has_products: bool) -> Memory:
    """A prediction with the workspace of a GPU's matrix products added."""
    return replace(memory, temp_bytes=memory.temp_bytes + _WORKSPACE) if has_products else memory


def hardware_memory(memory: Memory, jaxpr: ClosedJaxpr, platform: str) -> Memory:
    """A prediction with the corrections for ``platform``."""
    if platform == "tpu":
        return tiled_memory(memory, jaxpr.in_avals, jaxpr.out_avals)
    return with_workspace(memory, platform == "cuda" and any(e.op.name == "dot_general" for e in all_eqns(jaxpr.jaxpr)))
