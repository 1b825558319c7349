"""Shardings in HLO's notation over a list of devices.

Source: the ``GSPMDSharding`` of JAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.errors import ShardingError
from meshwright.sharding.base import Sharding
from meshwright.sharding.hlo import HloSharding
from meshwright.sharding.hlo_convert import device_order_of, hlo_to_layout, mesh_of, named_to_hlo
from meshwright.sharding.hlo_parse import parse_hlo_sharding
from meshwright.sharding.kinds import MeshOf
from meshwright.sharding.memory_kind import checked_kind, kind_text
from meshwright.sharding.mesh import device_array
from meshwright.sharding.named import NamedSharding


class GSPMDSharding(Sharding):
    """``GSPMDSharding(devices, "{devices=[4,2]<=[8]}")``: an HLO sharding whose numbers are indices in ``devices``.

    ``op_sharding`` may be text, an :class:`~meshwright.sharding.HloSharding`, anything that prints as one, or a proto
    (``xla_client.OpSharding``). New code should use :class:`NamedSharding`.

    Raises:
      ShardingSyntaxError: the text is not a sharding.
      ShardingError: it is for another number of devices, or does not assign tiles (as ``manual``).
    """

    def __init__(self, devices: Sequence[Any], op_sharding: Any, *, memory_kind: str | None = None) -> None:
        self._devices = tuple(device_array(devices, "GSPMDSharding").flat)
        sharding = op_sharding if isinstance(op_sharding, HloSharding) else parse_hlo_sharding(_text_of(op_sharding))
        if sharding.kind not in ("replicated", "tiled", "maximal") or {"manual", "unreduced"} & set(sharding.subgroups):
            raise ShardingError(
                f"GSPMDSharding: {sharding} does not say which device holds which part of an array; give tiles, as in "
                "{devices=[4,2]<=[8]}, or {replicated}"
            )
        sharding.check(sharding.rank or 0, len(self._devices), "GSPMDSharding")
        self.op_sharding = sharding
        self.host_kind = checked_kind(memory_kind, "GSPMDSharding")
        self._hash = hash((self._devices, sharding, self.host_kind))

    @classmethod
    def get_replicated(cls, device_assignment: Sequence[Any], *, memory_kind: str | None = None) -> GSPMDSharding:
        """The whole array on each of the devices."""
        return cls(device_assignment, HloSharding.replicated(), memory_kind=memory_kind)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GSPMDSharding):
            return NotImplemented
        mine, theirs = ((s._devices, s.op_sharding, s.memory_kind) for s in (self, other))
        return mine == theirs

    def __hash__(self) -> int:
        return self._hash

    @property
    def _arguments(self) -> tuple[Any, ...]:
        return self._devices, self.op_sharding

    def __repr__(self) -> str:
        return f"GSPMDSharding({self.op_sharding}{kind_text(self.host_kind)})"

    @cached_property
    def _named(self) -> NamedSharding:
        n = len(self._devices)
        order = device_order_of([self.op_sharding], n)
        mesh = mesh_of([self.op_sharding], n)
        devices = np.array(self._devices, object)[list(order)].reshape(mesh.axis_sizes)
        layout = hlo_to_layout(self.op_sharding, self.op_sharding.rank or 0, mesh, order)
        over = MeshOf(devices, mesh.axis_names, _back)
        return NamedSharding(over, layout.to_spec(mesh), memory_kind=self.host_kind)

    def to_named(self) -> Sharding:
        if self.op_sharding.kind == "maximal":
            raise ShardingError(f"{self}: one device of several; use SingleDeviceSharding(device)")
        return self._named

    # --- as a sharding --------------------------------------------------------------------------------------
    @property
    def devices(self) -> tuple[Any, ...]:
        return self._named.devices

    @property
    def is_fully_replicated(self) -> bool:
        return self._named.is_fully_replicated

    def tile_counts(self, ndim: int) -> tuple[int, ...]:
        return self._named.tile_counts(ndim)

    def tile_table(self, ndim: int) -> np.ndarray:
        return self._named.tile_table(ndim)

    def check_compatible(self, shape: Sequence[int], what: str = "array") -> None:
        self.op_sharding.check(len(shape), len(self._devices), what)


def _text_of(sharding: Any) -> str:
    """The HLO text of a sharding given as a proto; of other objects, their ``str``."""
    if not hasattr(sharding, "tile_assignment_dimensions"):
        return str(sharding)
    if (kind := sharding.type.name) != "OTHER":
        return f"{{{kind.lower()}}}"
    dims, reshape, perm = (
        ",".join(map(str, numbers))
        for numbers in (sharding.tile_assignment_dimensions, sharding.iota_reshape_dims, sharding.iota_transpose_perm)
    )
    devices = list(sharding.tile_assignment_devices)
    order = f"<=[{reshape}]" + (f"T({perm})" if "," in perm else "")
    if devices:
        plain = devices == list(range(len(devices)))
        order = f"<=[{len(devices)}]" if plain else ",".join(map(str, devices))
    kinds = ", ".join(t.name.lower() for t in sharding.last_tile_dims)
    last = kinds and f" last_tile_dims={{{kinds}}}"
    if sharding.replicate_on_last_tile_dim:
        last = " last_tile_dim_replicate"
    return f"{{devices=[{dims}]{order}{last}}}"


def _back(sharding: NamedSharding, shape: tuple[int, ...]) -> GSPMDSharding:
    return GSPMDSharding(sharding.devices, named_to_hlo(sharding, len(shape)), memory_kind=sharding.host_kind)
