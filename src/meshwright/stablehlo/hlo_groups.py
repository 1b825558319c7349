"""Rewrites device groups that HLO text gives as axes of a mesh to lists of device numbers.

StableHLO cannot express all of them: its meshes have no device order, and not all operations accept groups over a mesh.
"""

from __future__ import annotations

import re

from meshwright.sharding import AbstractMesh
from meshwright.sharding.device_groups import axis_groups
from meshwright.sharding.hlo_parse import parse_device_order

_ON_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((.*?)\))? \{([^}]*)\}")


def with_listed_groups(text: str) -> str:
    """HLO text with device groups over the axes of a mesh replaced by lists.

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
