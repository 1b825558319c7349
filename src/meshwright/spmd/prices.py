"""What the cost models charge for memory traffic, arithmetic and starting a collective, in bytes on the wire."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from meshwright.core.avals import ShapedArray
from meshwright.ops.collective.base import Collective
from meshwright.sharding import AbstractMesh
from meshwright.spmd.report import wire_bytes


class Prices(NamedTuple):
    """Costs of a byte of memory traffic, a loop nest point, and starting a collective, in bytes on the wire."""

    memory: float
    work: float
    latency: float


@lru_cache(maxsize=256)
def prices(mesh: AbstractMesh) -> Prices:
    """Prices for the mesh's machine, by default one of round figures, with bfloat16 arithmetic."""
    machine, wire = mesh.fabric.machine, mesh.fabric.fastest
    # If the user named the machine, the prices of reshards already include the time to start collectives.
    latency = 0.0 if mesh.fabric.is_given else wire * machine.chip.link_latency
    return Prices(wire / machine.memory_bandwidth, 2 * wire / machine.product_rate("bfloat16")[0], latency)


def collective_price(collective: Collective, value: ShapedArray, mesh: AbstractMesh) -> float:
    """The price of a collective of ``value``, with that of starting it, in bytes on the fastest links."""
    kind, result = collective.kind, collective.infer(value)
    if mesh.fabric.is_given:
        return mesh.wire_price(kind, collective.axes, value.nbytes, result.nbytes)
    return wire_bytes(kind, collective.group_size, value, result) + prices(mesh).latency
