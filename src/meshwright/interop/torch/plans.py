"""Plans of tensor parallelism as others write them, as shardings: ``tp_plan`` of transformers, placements of DTensor,
``fully_shard`` of FSDP2.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from meshwright.errors import ArgumentError, ShardingError
from meshwright.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

AnyMesh = Mesh | AbstractMesh

#: for each style of transformers, the dimension of a weight and of a bias that it splits (None: whole)
_STYLES: dict[str, tuple[int | None, int | None]] = {
    "colwise": (0, 0),
    "colwise_rep": (0, 0),
    "colwise_gather_output": (0, 0),
    "rowwise": (1, None),
    "rowwise_rep": (1, None),
    "rowwise_split_input": (1, None),
    "embedding_rowwise": (0, None),
    "local_colwise": (0, 0),
    "local_rowwise": (1, None),
    "packed_colwise": (0, 0),
    "packed_rowwise": (1, None),
    "local_packed_rowwise": (1, None),
    "grouped_gemm": (0, 0),
    "replicate": (None, None),
    "replicated_with_grad_allreduce": (None, None),
    "sequence_parallel": (None, None),
    "gather": (None, None),
    "local": (None, None),
    "moe_tp_experts": (None, None),
    "ep_router": (None, None),
}


def _style(plan: Mapping[str, str], name: str) -> str | None:
    """The style that a plan gives a parameter: that of its own name, or of its module's; numbers are ``*``."""
    module = name.rpartition(".")[0]
    for candidate in (name, module):
        general = re.sub(r"\.\d+(?=\.|$)", ".*", candidate)
        for written in (candidate, general):
            if written in plan:
                return plan[written]
        pattern = next((p for p in plan if fnmatch.fnmatchcase(general, p) or general.endswith("." + p)), None)
        if pattern is not None:
            return plan[pattern]
    return None


def _split(shape: Sequence[int], style: str, name: str) -> int | None:
    if style not in _STYLES:
        raise ArgumentError(f"tp_plan: {name} has the unknown style {style!r}; known are {', '.join(sorted(_STYLES))}")
    of_weight, of_bias = _STYLES[style]
    dim = of_bias if len(shape) == 1 else of_weight
    return dim if dim is None or dim < len(shape) else None


def tp_shardings(
    plan: Mapping[str, str], params: Mapping[str, Any], mesh: AnyMesh, axis: str = "tp"
) -> dict[str, NamedSharding]:
    """The sharding of each parameter under a ``tp_plan`` (``base_model_tp_plan``) as transformers writes it.

    Column-wise styles split the output features of a weight and its bias, row-wise ones the input features. What sends
    the activations follows from that: no style says anything else of a parameter.

    Args:
      plan: style by name, ``{"layers.*.self_attn.q_proj": "colwise", …}``; a prefix of names may be left out.
      params: arrays or types by name, as ``model.params``.
      mesh: the mesh; ``axis`` is the one that splits.

    Raises:
      ArgumentError: an unknown style.
      ShardingError: the mesh has no such axis.

    Example:
      >>> mesh = mw.AbstractMesh((2,), ("tp",))
      >>> w = {"layers.0.up.weight": mnp.ones((8, 4))}
      >>> mw.interop.torch.tp_shardings({"layers.*.up": "colwise"}, w, mesh)["layers.0.up.weight"].spec
      PartitionSpec('tp', None)
    """
    if axis not in mesh.axis_names:
        raise ShardingError(f"tp_plan: {mesh!r} has no axis {axis!r}; pass axis=")
    styles = {name: _style(plan, name) for name in params}
    shardings = {}
    for name, style in styles.items():
        shape = tuple(params[name].shape)
        dim = None if style is None else _split(shape, style, name)
        shardings[name] = NamedSharding(mesh, PartitionSpec(*(axis if d == dim else None for d in range(len(shape)))))
    return shardings


# --- DTensor ------------------------------------------------------------------------------------------------
def from_device_mesh(device_mesh: Any) -> AbstractMesh:
    """The axes of a ``DeviceMesh``, without its devices."""
    names = device_mesh.mesh_dim_names or tuple(f"dim{i}" for i in range(device_mesh.ndim))
    return AbstractMesh(tuple(device_mesh.shape), tuple(names))


def from_placements(placements: Sequence[Placement], mesh: AnyMesh, ndim: int) -> NamedSharding:
    """DTensor's placements (one for each dimension of the mesh) as a sharding.

    Mesh dimensions that split the same dimension of the tensor do so from left to right, unless ``_StridedShard`` says
    that one of them was applied after those to its right.

    Raises:
      ShardingError: a pending sum (``Partial``), which no sharding of an argument says; another number of them; a
        ``_StridedShard`` whose factor is not the number of parts that the axes to its right make.
    """
    if len(placements) != len(mesh.axis_names):
        raise ShardingError(f"{len(placements)} placements for the {len(mesh.axis_names)} axes of {mesh!r}")
    dims: list[list[str]] = [[] for _ in range(ndim)]
    late: list[tuple[int, str, int]] = []
    for axis, placement in zip(mesh.axis_names, placements):
        if isinstance(placement, Partial):
            raise ShardingError(f"a pending sum over {axis!r} ({placement}) is no sharding; redistribute it first")
        if type(placement).__name__ == "_StridedShard":
            late.append((placement.dim % ndim, axis, placement.split_factor))  # type: ignore[attr-defined]
        elif isinstance(placement, Shard):
            dims[placement.dim % ndim].append(axis)
    for dim, axis, factor in late:
        if factor != math.prod(mesh.shape[a] for a in dims[dim]):
            raise ShardingError(
                f"_StridedShard over {axis!r} with split_factor={factor}: {dims[dim]} make another number"
            )
        dims[dim].append(axis)
    return NamedSharding(mesh, PartitionSpec(*(tuple(d) if len(d) > 1 else d[0] if d else None for d in dims)))


def _axes(entry: Any) -> tuple[str, ...]:
    """The axes of an entry of a spec.

    Raises:
      ShardingError: an open entry, which says nothing yet.
    """
    if entry is None or isinstance(entry, str):
        return () if entry is None else (entry,)
    if not isinstance(entry, tuple):
        raise ShardingError(f"{entry} leaves a dimension open; a placement is one that has been chosen")
    return entry


def to_placements(sharding: NamedSharding) -> tuple[Placement, ...]:
    """A sharding as DTensor's placements, one for each axis of its mesh.

    Raises:
      ShardingError: axes that split a dimension in another order than the mesh has them.
    """
    names = list(sharding.mesh.axis_names)
    placements: list[Placement] = [Replicate() for _ in names]
    for dim, entry in enumerate(sharding.spec):
        axes = _axes(entry)
        order = [names.index(a) for a in axes]
        if order != sorted(order):
            raise ShardingError(f"{sharding.spec} splits dimension {dim} by {axes}, an order without placements")
        for position in order:
            placements[position] = Shard(dim)
    return tuple(placements)


def fully_sharded(
    params: Mapping[str, Any], mesh: AnyMesh, axis: str = "fsdp", within: Mapping[str, NamedSharding] | None = None
) -> dict[str, NamedSharding]:
    """The sharding of each parameter as FSDP2's ``fully_shard`` has it: the first dimension, on top of what ``within``
    (tensor parallelism) splits already.

    Raises:
      ShardingError: the mesh has no such axis.
    """
    if axis not in mesh.axis_names:
        raise ShardingError(f"fully_sharded: {mesh!r} has no axis {axis!r}; pass axis=")
    shardings = {}
    for name, value in params.items():
        before = tuple(within[name].spec) if within and name in within else ()
        entries = [*before, *[None] * (len(value.shape) - len(before))]
        if entries:
            already = _axes(entries[0])
            entries[0] = (*already, axis) if already else axis
        shardings[name] = NamedSharding(mesh, PartitionSpec(*entries))
    return shardings
