"""The two notations in which a module states shardings and manual regions: Shardy's dialect, and GSPMD's custom calls.

Ops state both to the builder's ``annotations``, which write them in the notation of the module.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir

from meshwright.core.avals import ShapedArray
from meshwright.ops.imported.manual_computation import ManualAxes, ManualRegion
from meshwright.ops.imported.sharding_annotation import Annotation
from meshwright.sharding import AbstractMesh, HloSharding, Layout, layout_to_hlo
from meshwright.sharding.hlo_convert import sdy_to_hlo
from meshwright.sharding.sdy import SdyDimension, SdySharding
from meshwright.stablehlo.context import context

#: the symbol of the first mesh, under which JAX looks for it
_MESH = "mesh"


class Notation:
    """Base class."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        #: the axes that are manual where the builder is, if what it writes there depends on them
        self.manual: tuple[str, ...] = ()

    def of_end(self, sharding: Annotation) -> dict[str, ir.Attribute]:
        """The attributes of a parameter or result."""
        raise NotImplementedError

    def constraint(self, x: Any, sharding: Annotation, free: Sequence[int]) -> Any:
        """``x`` with a sharding; dimensions that are ``free``, or open in it, may be split further."""
        raise NotImplementedError

    def region(self, region: ManualRegion, operands: Sequence[Any]) -> list[Any]:
        """The results of a manual region on parts of the operands."""
        raise NotImplementedError

    def group(self, x: Any, number: int, exact: bool) -> Any:
        """``x`` as a member of the group ``number`` of values that have equal shardings, or similar if not exact."""
        raise NotImplementedError

    def barrier(self, x: Any, direction: int) -> Any:
        """``x``, with axes that propagate in one direction only (a number of Shardy's enumeration)."""
        raise NotImplementedError


def _over_mesh(region: ManualRegion) -> SdySharding | None:
    """A sharding that names the mesh of a region."""
    return next((s for s in (*region.ins, *region.outs) if isinstance(s, SdySharding)), None)


# --- Shardy -------------------------------------------------------------------------------------------------
class Shardy(Notation):
    """Operations and attributes of the dialect ``sdy``.

    Source: https://openxla.org/shardy/sdy_dialect
    """

    def __init__(self, builder: Any) -> None:
        super().__init__(builder)
        #: the symbols of the meshes that the module declares, by axes, sizes and devices
        self.meshes: dict[tuple[Any, ...], str] = {}
        builder.names.add(_MESH)

    def of_end(self, sharding: Annotation) -> dict[str, ir.Attribute]:
        return {"sdy.sharding": self._attribute(f"#sdy.sharding{self._text(sharding)}")}

    def constraint(self, x: Any, sharding: Annotation, free: Sequence[int]) -> Any:
        stated = self._attribute(f"#sdy.sharding{self._text(sharding)}")
        return self.builder.op("sdy.sharding_constraint", [x], self.builder.out_avals, sharding=stated)[0]

    def region(self, region: ManualRegion, operands: Sequence[Any]) -> list[Any]:
        b, stated = self.builder, _over_mesh(region)
        assert isinstance(region.manual, tuple), "manual axes without names in a module with Shardy's annotations"
        axes = ", ".join(map(_quoted, region.manual))
        return b.op(  # type: ignore[no-any-return]
            "sdy.manual_computation",
            operands,
            b.out_avals,
            regions=[b.jaxpr_region(region.jaxpr, end="sdy.return")],
            in_shardings=self._per_value(region.ins, b.in_avals, stated),
            out_shardings=self._per_value(region.outs, b.out_avals, stated),
            manual_axes=self._attribute(f"#sdy<manual_axes{{{axes}}}>"),
        )

    def group(self, x: Any, number: int, exact: bool) -> Any:
        if exact:  # there is no weaker form
            self.builder.op("sdy.sharding_group", [x], [], group_id=number)
        return x

    def barrier(self, x: Any, direction: int) -> Any:
        number = ir.IntegerAttr.get(ir.IntegerType.get_signless(32, context()), direction)
        return self.builder.op("sdy.propagation_barrier", [x], self.builder.out_avals, allowed_direction=number)[0]

    def _per_value(
        self, shardings: Sequence[Annotation | None], avals: Sequence[ShapedArray], stated: SdySharding | None
    ) -> ir.Attribute:
        """The shardings of several values. Those without lie as the mesh of ``stated``'s."""
        texts = []
        for sharding, aval in zip(shardings, avals):
            if sharding is None:
                assert stated is not None, "a manual region without a sharding"
                free = SdyDimension(is_closed=False)
                sharding = SdySharding(stated.mesh, (free,) * aval.ndim, device_ids=stated.device_ids)
            texts.append(self._text(sharding))
        return self._attribute(f"#sdy.sharding_per_value<[{', '.join(texts)}]>")

    def _text(self, sharding: Annotation) -> str:
        assert isinstance(sharding, SdySharding), f"GSPMD's {sharding} in a module with Shardy's annotations"
        dims = ", ".join(map(_dimension, sharding.dimensions))
        sums = {"replicated": sharding.replicated, "unreduced": sharding.unreduced}
        more = "".join(f", {name}={{{', '.join(map(_axis, axes))}}}" for name, axes in sums.items() if axes)
        return f"<@{self._symbol(sharding.mesh, sharding.device_ids)}, [{dims}]{more}>"

    def _symbol(self, mesh: AbstractMesh, device_ids: tuple[int, ...]) -> str:
        """The name of a mesh, which is declared at its first use."""
        key = mesh.axis_names, mesh.axis_sizes, device_ids
        if key not in self.meshes:
            symbol = self.meshes[key] = self.builder.unique_name(_MESH) if self.meshes else _MESH
            axes = ", ".join(f"{_quoted(name)}={size}" for name, size in mesh.shape.items())
            order = f", device_ids=[{', '.join(map(str, device_ids))}]" if device_ids else ""
            ir.Operation.create(
                "sdy.mesh",
                attributes={
                    "sym_name": ir.StringAttr.get(symbol, context()),
                    "mesh": self._attribute(f"#sdy.mesh<[{axes}]{order}>"),
                },
                loc=ir.Location.unknown(context()),
                ip=ir.InsertionPoint.at_block_begin(self.builder.module.body),
            )
        return self.meshes[key]

    def _attribute(self, text: str) -> ir.Attribute:
        return ir.Attribute.parse(text, context())


def _dimension(dimension: SdyDimension) -> str:
    entries = [*map(_axis, dimension.axes), *([] if dimension.is_closed else ["?"])]
    return f"{{{', '.join(entries)}}}" + (f"p{dimension.priority}" if dimension.priority else "")


def _axis(axis: str) -> str:
    name, colon, part = axis.partition(":(")
    return _quoted(name) + (f":({part}" if colon else "")


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)  # MLIR does not read the escapes of JSON


# --- GSPMD --------------------------------------------------------------------------------------------------
class Gspmd(Notation):
    """Custom calls with shardings as texts; values cross the borders of a region in calls of their own."""

    def of_end(self, sharding: Annotation) -> dict[str, ir.Attribute]:
        text = str(sharding if isinstance(sharding, HloSharding) else sdy_to_hlo(sharding))
        return {"mhlo.sharding": ir.StringAttr.get(text, context())}

    def constraint(self, x: Any, sharding: Annotation, free: Sequence[int]) -> Any:
        return self._call("Sharding", x, self.builder.out_avals[0], *self._outside(sharding, free))

    def group(self, x: Any, number: int, exact: bool) -> Any:
        text = f"{{unknown {'shard_as' if exact else 'shard_like'} {number}}}"
        return self._call("Sharding", x, self.builder.out_avals[0], text)

    def barrier(self, x: Any, direction: int) -> Any:
        return x  # GSPMD has none

    def region(self, region: ManualRegion, operands: Sequence[Any]) -> list[Any]:
        b, jaxpr, manual = self.builder, region.jaxpr, region.manual
        whole_ins, whole_outs, stated = b.in_avals, b.out_avals, _over_mesh(region)
        around = self.manual
        inside = (*around, *manual) if isinstance(manual, tuple) else around
        within = _Inside(manual, inside, None if stated is None else stated.mesh)
        params = []
        for x, sharding, whole, part in zip(operands, region.ins, whole_ins, jaxpr.in_avals):
            cut = self._call("Sharding", x, whole, *self._outside(sharding, range(whole.ndim)))
            params.append(self._call("SPMDFullToShardShape", cut, part, *within.sharding(part.ndim)))
        self.manual = inside
        try:
            results = b.call(region.name, jaxpr, params)
        finally:
            self.manual = around
        joined = []
        for x, sharding, whole, part in zip(results, region.outs, whole_outs, jaxpr.out_avals):
            ended = self._call("Sharding", x, part, *within.sharding(part.ndim))
            stated_outside = self._outside(sharding, range(whole.ndim))
            joined.append(self._call("SPMDShardToFullShape", ended, whole, *stated_outside))
        return joined

    def _outside(self, sharding: Annotation | None, free: Sequence[int]) -> tuple[str, Sequence[int]]:
        """A sharding outside of the manual region that is being written, and the dimensions that it leaves open."""
        if sharding is None:
            return "{replicated}", free
        if isinstance(sharding, HloSharding):
            return str(sharding), free
        is_open = [d for d, dimension in enumerate(sharding.dimensions) if not dimension.is_closed]
        return str(sdy_to_hlo(sharding, self.manual)), is_open

    def _call(self, target: str, x: Any, aval: ShapedArray, text: str, free: Sequence[int] = ()) -> Any:
        attributes: dict[str, Any] = {"mhlo.sharding": json.dumps(text)}
        if free:
            attributes["backend_config"] = f'"unspecified_dims=[{",".join(map(str, free))}]"'
        return self.builder.op("stablehlo.custom_call", [x], [aval], call_target_name=f'"{target}"', **attributes)[0]


class _Inside:
    """The sharding of values in a region: along axes that are not manual, it is left open."""

    def __init__(self, manual: ManualAxes, names: tuple[str, ...], mesh: AbstractMesh | None) -> None:
        self.manual, self.names, self.mesh = manual, names, mesh

    def sharding(self, ndim: int) -> tuple[str, Sequence[int]]:
        if isinstance(self.manual, HloSharding):
            return self._of_subgroup(self.manual, ndim), range(ndim)
        if self.mesh is None or set(self.names) >= set(self.mesh.axis_names):
            return "{manual}", ()
        text = str(layout_to_hlo(Layout.replicated(ndim), self.mesh, self.mesh.expand(self.names)))
        return text, range(ndim)

    def _of_subgroup(self, manual: HloSharding, ndim: int) -> str:
        tiles = manual.tiles
        if tiles is None or "manual" not in manual.subgroups:
            return str(manual)
        rank = len(tiles.dims) - len(manual.subgroups)
        at = rank + manual.subgroups.index("manual")
        order = (at, *(d for d in range(len(tiles.dims)) if d != at))
        moved = tiles.transposed(order)
        size = moved.dims[0]
        dims = (*(1,) * ndim, size, moved.num_devices // size)
        return str(HloSharding.tiled(moved.reshaped(dims), ("manual", "replicated")))
