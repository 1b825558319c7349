"""What the cost models charge for memory traffic, arithmetic and starting a collective, in bytes on the wire."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from meshwright.sharding import AbstractMesh


class Prices(NamedTuple):
    """Costs of a byte of memory traffic, a loop nest point, and starting a collective, in bytes on the wire."""

    memory: float
    work: float
    latency: float


#: for an accelerator with about 100 GB/s of interconnect, 1 TB/s of memory bandwidth and 100 TFLOP/s
DEFAULT = Prices(0.1, 1e-3, 256.0)


@lru_cache(maxsize=256)
def prices(mesh: AbstractMesh) -> Prices:
    """Prices for the mesh's machine with bfloat16 arithmetic, or ``DEFAULT`` if no machine is given."""
    if not mesh.fabric.is_given:
        return DEFAULT
    machine, wire = mesh.fabric.machine, mesh.fabric.fastest
    # Reshard prices already include the time to start collectives.
    return Prices(wire / machine.memory_bandwidth, 2 * wire / machine.product_rate("bfloat16")[0], 0.0)
