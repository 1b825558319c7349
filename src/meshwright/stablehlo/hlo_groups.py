"""Groups of devices in HLO text that are axes of a mesh, as lists of their numbers.

StableHLO says less: its meshes have no order of devices, and not all of its operations take groups over one.
"""

from __future__ import annotations

import re

from meshwright.sharding import AbstractMesh
from meshwright.sharding.device_groups import axis_groups
from meshwright.sharding.hlo_parse import parse_device_order

_ON_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((.*?)\))? \{([^}]*)\}")


def with_listed_groups(text: str) -> str:
    """HLO text with the groups of devices that are axes of a mesh written out.

    >>> with_listed_groups("replica_groups=mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)) {'y'}")
    'replica_groups={{0,2},{1,3}}'
    """
    return _ON_MESH.sub(lambda match: _listed(*match.groups()), text)


def _listed(mesh: str, order: str | None, axes: str) -> str:
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh)}
    names = [name + part for name, part in re.findall(r"'(\w+)'(:\(\d+\)\d+)?", axes)]
    groups = axis_groups(
        AbstractMesh(tuple(sizes.values()), tuple(sizes)), names, parse_device_order(order) if order else ()
    )
    return "replica_groups={" + ",".join("{" + ",".join(map(str, g)) + "}" for g in groups.tolist()) + "}"
